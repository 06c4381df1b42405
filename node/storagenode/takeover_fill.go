package storagenode

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"sync"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/storage/rangestore"
)

// page is a group of consecutive stubs requested together.
type page []avlstar.Part

func (p page) stubs() []avlstar.Stub {
	stubs := make([]avlstar.Stub, len(p))
	for i, s := range p {
		stubs[i] = s.Stub
	}
	return stubs
}

// parts yields the parts of the range above pieces, in key order, from the one to which a key
// leads.
func (t *takeover) parts(from []byte) iter.Seq[avlstar.Part] {
	return func(yield func(avlstar.Part) bool) {
		for s := range t.partial.Parts(from) {
			least := s.First
			if s.Value != nil {
				least = s.Key
			}
			if t.p.keys.After != nil && bytes.Compare(least, t.p.keys.After) >= 0 || t.p.keys.Contains(least) && !yield(s) {
				return
			}
		}
	}
}

// maxPageStubs limits the stubs of a page: a request names at most dsm.MaxHeld.
const maxPageStubs = 1 << 12

// pages returns the next missing stubs of the range that end above a key, in groups of about
// pageBytes.
func (t *takeover) pages(from []byte) (pages []page) {
	var last page
	size := uint64(0)
	for s := range t.parts(from) {
		if s.Value != nil || t.stored[s.Hash] {
			continue
		}
		if len(last) > 0 && (size+s.Bytes > pageBytes || len(last) == maxPageStubs || t.edge(last[0].First) != t.edge(s.First)) {
			if pages = append(pages, last); len(pages) == pagesAtOnce {
				return pages
			}
			last, size = nil, 0
		}
		last, size = append(last, s), size+s.Bytes
	}
	if len(last) > 0 {
		pages = append(pages, last)
	}
	return pages
}

// wants returns the request that opens a page. A large subtree is split first, by the path to its
// smallest key.
func (t *takeover) wants(p page) []avlstar.Want {
	if len(p) == 1 && p[0].Bytes > multiproofBytes/2 {
		return []avlstar.Want{{Key: p[0].First}}
	}
	return []avlstar.Want{{Key: p[0].First, Range: true, After: t.after(p)}}
}

// after returns the end of the keys of a page, nil if it is open: the next edge at the latest.
func (t *takeover) after(p page) []byte {
	after, limit := p[len(p)-1].After, t.p.keys.After
	if i := t.edge(p[0].First); i < len(t.edges) {
		limit = t.edges[i]
	}
	if limit != nil && (after == nil || bytes.Compare(after, limit) > 0) {
		after = limit
	}
	return after
}

// edge returns the number of edges at or below a key.
func (t *takeover) edge(key []byte) int {
	i, found := slices.BinarySearchFunc(t.edges, key, bytes.Compare)
	if found {
		i++
	}
	return i
}

// cut turns subtrees into stubs: those outside of the range, and those that arrive as a piece or
// are on disk. Subtrees with keys on both sides of an edge stay open.
func (t *takeover) cut() error {
	next, err := t.partial.Prune(func(s avlstar.Subtree) bool {
		keys := avlstar.KeyRange{First: s.First, After: s.After}
		i := t.edge(s.First)
		between := i < len(t.edges) && (s.After == nil || bytes.Compare(t.edges[i], s.After) < 0)
		switch {
		case !t.p.keys.Overlaps(keys):
			return true
		case !t.p.keys.Covers(keys), between:
			return false
		}
		return t.stored[s.Hash] || isPiece(s.Stub) && !t.opened[s.Hash]
	})
	if err != nil {
		return err
	}
	t.replace(next)
	return nil
}

// isPiece reports whether a subtree arrives as a whole.
func isPiece(s avlstar.Stub) bool { return s.Height == 0 || s.Bytes <= rangestore.PieceBytes }

// storeLeaves stores the leaves of the range above pieces, which are next to edges.
func (t *takeover) storeLeaves() error {
	for s := range t.parts(nil) {
		if s.Value == nil || t.stored[s.Hash] {
			continue
		}
		records := record.Append(nil, record.Leaf{Key: s.Key, Value: s.Value})
		if err := t.add(rangestore.Piece{Root: s.Stub, First: s.Key, Boundary: s.Boundary}, records); err != nil {
			return err
		}
	}
	return nil
}

// add writes a piece.
func (t *takeover) add(p rangestore.Piece, records []byte) error {
	if err := t.p.fetched.Add(p, records); err != nil {
		return finalError{err}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stored[p.Root.Hash] = true
	t.progress.stored.Add(p.Root.Bytes)
	return nil
}

// resume finds out which parts of the range earlier attempts have fetched.
func (t *takeover) resume() error {
	if err := t.cut(); err != nil {
		return err
	}
	parts := slices.Collect(t.parts(nil))
	have, err := t.p.fetched.Keep(parts)
	switch {
	case isBad(err):
		return errors.Join(err, t.p.closeFetched()) // the next attempt removes damaged pieces
	case err != nil:
		return finalError{err}
	}
	for i, s := range parts {
		t.progress.total += s.Bytes
		if have[i] {
			t.stored[s.Hash] = true
			t.progress.stored.Add(s.Bytes)
		}
	}
	t.progress.reused.Store(t.progress.stored.Load())
	return t.storeLeaves()
}

// reuse stores subtrees of the range's state at an older height, whose hashes are the same at this
// height. Nothing is fetched.
func (t *takeover) reuse(ctx context.Context) error {
	if t.p.replica == nil { // only the takeover changes it
		return nil
	}
	old, ok := t.p.replica.At(t.p.replica.Claim().Newest)
	if !ok {
		return nil
	}
	defer old.Release()
	for pages := t.pages(t.p.keys.First); len(pages) > 0; {
		last := pages[len(pages)-1]
		for _, p := range pages {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := t.reusePage(old, p); err != nil {
				return err
			}
		}
		after := last[len(last)-1].After
		if after == nil {
			break
		}
		pages = t.pages(after)
	}
	t.progress.reused.Store(t.progress.stored.Load())
	return nil
}

func (t *takeover) reusePage(old *avlstar.Partial, p page) error {
	stubs := p.stubs()
	below := avlstar.Below{Depth: 255, Held: map[avlstar.Hash]avlstar.Span{}, MaxBytes: 2 * multiproofBytes, Partly: true}
	for _, s := range stubs {
		below.Held[s.Hash] = avlstar.Span{}
	}
	b, err := old.Multiproof([]avlstar.Want{{Key: p[0].First, Range: true, After: t.after(p)}}, below)
	if errors.Is(err, avlstar.ErrMultiproofTooLarge) || errors.As(err, new(*avlstar.PageError)) {
		return nil // too much, or damaged: it will be fetched
	} else if err != nil {
		return err
	}
	multiproof, err := avlstar.DecodeMultiproof(b)
	if err != nil {
		return err
	}
	_, err = t.store(p, multiproof.Only(func(root avlstar.Stub) bool { return slices.Contains(stubs, root) }))
	return err
}

// fill fetches all leaves of the range that are not on disk.
func (t *takeover) fill(ctx context.Context) error {
	for from := t.p.keys.First; ; {
		pages := t.pages(from)
		if len(pages) == 0 {
			return nil
		}
		from = bytes.Clone(pages[0][0].First) // memory of the version, like all keys of pages
		rest, failed := t.multiproofs(ctx, pages)
		if len(rest) > 0 {
			next, _, err := t.partial.Graft(rest...)
			if err != nil {
				return err
			}
			t.replace(next)
			if err := cmp.Or(t.cut(), t.storeLeaves()); err != nil {
				return err
			}
		}
		if failed != nil {
			return failed
		}
	}
}

// report logs the progress until ctx ends.
func (t *takeover) report(ctx context.Context) {
	for {
		t.n.log.Info("Taking a range over", append([]any{"range", t.p.String(), "nodes", len(t.givers)}, t.progress.keyvals()...)...)
		if sleep.For(ctx, progressEvery) != nil {
			return
		}
	}
}

// multiproofs fetches and stores pages, several at a time. It returns the multiproofs with subtrees
// that are not complete, also after an error.
func (t *takeover) multiproofs(ctx context.Context, pages []page) ([]*avlstar.Multiproof, error) {
	rest, errs := make([]*avlstar.Multiproof, len(pages)), make([]error, len(pages))
	var all sync.WaitGroup
	places := make(chan struct{}, pageWorkers)
	for i, p := range pages {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			multiproof, err := t.multiproof(ctx, i, p)
			if err == nil {
				rest[i], err = t.store(p, multiproof)
			}
			errs[i] = err
		})
	}
	all.Wait()
	rest = slices.DeleteFunc(rest, func(b *avlstar.Multiproof) bool { return b == nil })
	return rest, cmp.Or(errs...)
}

// multiproof fetches a page, or the path to its first key. A response with only a part of it is
// used if no source sends all: otherwise a source could open one node with each response, and hold
// up the takeover for as long as it likes. For the same reason it is not used if a source that may
// have all failed at this height: the next attempt asks it again.
func (t *takeover) multiproof(ctx context.Context, k int, p page) (multiproof *avlstar.Multiproof, err error) {
	stubs, wants := p.stubs(), t.wants(p)
	var part *avlstar.Multiproof
	take := func(b []byte) error {
		got, err := proofOf(b, stubs)
		if err != nil {
			return err
		}
		t.progress.received.Add(uint64(len(b)))
		if wants[0].Range && got.Complete() || !wants[0].Range && got.Leaves() > 0 {
			multiproof = got
			return nil
		}
		if part == nil || got.Leaves() > part.Leaves() {
			part = got
		}
		return errPart
	}
	err = t.fetch(ctx, k, avlstar.KeyRange{First: p[0].First, After: t.after(p)}, wants, stubs, take)
	if errors.Is(err, errSplit) && part == nil { // the path to one key always fits
		stubs, wants = stubs[:1], []avlstar.Want{{Key: p[0].First}}
		err = t.fetch(ctx, k, onlyKey(p[0].First), wants, stubs, take)
	}
	if err != nil && part != nil && ctx.Err() == nil && !t.anyFailed() {
		return part, nil
	}
	return multiproof, err
}

// store stores the complete pieces of a multiproof whose trees begin at stubs of a page. It returns
// the multiproof of the other trees, which the tree above pieces needs; nil: none.
func (t *takeover) store(p page, multiproof *avlstar.Multiproof) (rest *avlstar.Multiproof, err error) {
	incomplete := map[avlstar.Stub]bool{}
	var last avlstar.Stub
	for root, piece := range multiproof.Pieces(rangestore.PieceBytes) {
		if first := root != last; first {
			last = root
			piece.Boundary = p[slices.IndexFunc(p, func(s avlstar.Part) bool { return s.Stub == root })].Boundary
		}
		if piece.Records == nil {
			incomplete[root] = true
			continue
		}
		if err := t.add(rangestore.Piece{Root: piece.Root, First: piece.First, Boundary: piece.Boundary}, piece.Records); err != nil {
			return nil, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, root := range multiproof.Roots() {
		if !incomplete[root] {
			t.stored[root.Hash] = true
		} else if isPiece(root) {
			t.opened[root.Hash] = true
		}
	}
	if len(incomplete) == 0 {
		return nil, nil
	}
	return multiproof.Only(func(root avlstar.Stub) bool { return incomplete[root] }), nil
}

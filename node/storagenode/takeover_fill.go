package storagenode

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/starling-kv/starling/avlstar"
)

// page is a group of consecutive stubs requested together.
type page []avlstar.Subtree

// pages returns the next stubs of the range that end above a key, in groups of about pageBytes.
func (t *takeover) pages(from []byte) (pages []page) {
	var last page
	size := uint64(0)
	for s := range t.partial.Version().Stubs(from) {
		if t.p.keys.After != nil && bytes.Compare(s.First, t.p.keys.After) >= 0 {
			break
		}
		if !t.p.keys.Contains(s.First) {
			continue
		}
		if len(last) > 0 && (size+s.Bytes > pageBytes || t.edge(last[0].First) != t.edge(s.First)) {
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

// reuse grafts subtrees of earlier attempts, and of the range's state at an older height, whose
// hashes are the same at this height. Nothing is fetched.
func (t *takeover) reuse(ctx context.Context) error {
	var from []*avlstar.Partial
	if t.p.left != nil {
		from = append(from, t.p.left)
	}
	if t.p.replica != nil { // only the takeover changes it
		if old, ok := t.p.replica.At(t.p.replica.Claim().Newest); ok {
			defer old.Release()
			from = append(from, old)
		}
	}
	for _, old := range from {
		if err := t.reuseFrom(ctx, old); err != nil {
			return err
		}
	}
	return nil
}

// reuseFrom grafts subtrees of another height's tree, page by page.
func (t *takeover) reuseFrom(ctx context.Context, old *avlstar.Partial) error {
	for pages := t.pages(t.p.keys.First); len(pages) > 0 && ctx.Err() == nil; {
		last := pages[len(pages)-1]
		after := bytes.Clone(last[len(last)-1].After) // the keys are freed with the version
		var multiproofs []*avlstar.Multiproof
		for _, p := range pages {
			w := t.wants(p)[0]
			b, err := old.Multiproof([]avlstar.Want{{Key: w.Key, Range: w.Range, After: w.After}}, avlstar.Below{MaxBytes: 2 * multiproofBytes, Partly: true})
			if errors.Is(err, avlstar.ErrMultiproofTooLarge) || errors.As(err, new(*avlstar.PageError)) {
				continue // too much, or damaged: it will be fetched
			} else if err != nil {
				return err
			}
			multiproof, err := avlstar.DecodeMultiproof(b)
			if err != nil {
				return err
			}
			multiproofs = append(multiproofs, multiproof)
		}
		next, _, err := t.partial.Graft(multiproofs...)
		if err != nil {
			return err
		}
		t.partial.Release()
		t.partial = next
		if after == nil {
			return nil
		}
		pages = t.pages(after)
	}
	return ctx.Err()
}

// fill fetches all leaves of the range.
func (t *takeover) fill(ctx context.Context) error {
	for {
		pages := t.pages(t.p.keys.First)
		if len(pages) == 0 {
			return nil
		}
		multiproofs, failed := t.multiproofs(ctx, pages)
		// Pages that arrived before an error count, too.
		next, _, err := t.partial.Graft(multiproofs...)
		if err != nil {
			return err
		}
		t.partial.Release()
		t.partial = next
		if failed != nil {
			return failed
		}
		if time.Since(t.logged) >= progressEvery {
			t.logged = time.Now()
			rate := float64(t.bytes) / time.Since(t.began).Seconds()
			t.n.log.Info("Taking a range over", "range", t.p.String(), "height", t.height, "bytes", t.bytes, "rate", humanize.IBytes(uint64(rate))+"/s")
		}
	}
}

// multiproofs fetches pages, several at a time. On an error, it returns those that arrived.
func (t *takeover) multiproofs(ctx context.Context, pages []page) ([]*avlstar.Multiproof, error) {
	multiproofs, errs := make([]*avlstar.Multiproof, len(pages)), make([]error, len(pages))
	var all sync.WaitGroup
	places := make(chan struct{}, pageWorkers)
	for i, p := range pages {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			multiproofs[i], errs[i] = t.multiproof(ctx, i, p)
		})
	}
	all.Wait()
	multiproofs = slices.DeleteFunc(multiproofs, func(b *avlstar.Multiproof) bool { return b == nil })
	return multiproofs, cmp.Or(errs...)
}

func (t *takeover) multiproof(ctx context.Context, k int, p page) (multiproof *avlstar.Multiproof, err error) {
	stubs := make([]avlstar.Stub, len(p))
	for i, s := range p {
		stubs[i] = s.Stub
	}
	take := func(b []byte) (err error) {
		if multiproof, err = proofOf(b, stubs); err == nil {
			t.mu.Lock()
			t.bytes += len(b)
			t.mu.Unlock()
		}
		return err
	}
	err = t.fetch(ctx, k, avlstar.KeyRange{First: p[0].First, After: t.after(p)}, t.wants(p), stubs, take)
	if errors.Is(err, errSplit) { // the path to one key always fits
		stubs = stubs[:1]
		err = t.fetch(ctx, k, onlyKey(p[0].First), []avlstar.Want{{Key: p[0].First}}, stubs, take)
	}
	return multiproof, err
}

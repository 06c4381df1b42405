package storagenode

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
)

const (
	// pageBytes is the approximate size of the leaves in one response, and multiproofBytes the
	// limit of the response.
	pageBytes       = 2 << 20
	multiproofBytes = 8 << 20
	// pagesAtOnce is the number of pages grafted together, and pageWorkers the number fetched
	// concurrently.
	pagesAtOnce = 16
	pageWorkers = 4
	// upperBytes limits the upper tree that a node sends: 65,536 stubs with keys.
	upperBytes = 64 << 20
	// callTimeout limits one request. After slowAfter another source is asked as well, up to
	// sourcesAtOnce.
	callTimeout   = 30 * time.Second
	slowAfter     = 2 * time.Second
	sourcesAtOnce = 8
	// progressEvery is the interval of progress lines in the log.
	progressEvery = 5 * time.Second
)

// takeover fetches a range at one height from nodes that have it. All responses are verified by
// hashes:
//
//	header H+1 ── app hash ──► commitment ──► upper tree ──► boundary proof ──► pages of leaves, several at a time
//
// Leaves go to the disk at once, in pieces of up to rangestore.PieceBytes, or what is in the range
// of a piece that crosses an edge; only the tree above pieces stays in memory.
//
// If the range cannot be completed, the takeover tries the next lower reported height. It reuses
// subtrees with equal hashes, from earlier attempts, also of a process that was killed, and from
// the range's old state.
type takeover struct {
	n        *Process
	p        *place
	height   int64
	partial  *avlstar.Partial // the tree above pieces; subtrees outside of the range are stubs
	boundary []byte           // boundary proof of the range
	edges    [][]byte         // keys inside the range at which sources' ranges begin, ascending
	progress *filling

	mu sync.Mutex
	// mu guards the fields of each giver, except Conn and parts, which do not change.
	givers []*giver
	// asked is the number of requests for pages while some source was much slower than the best
	// one. It is guarded by mu.
	asked int
	// stored are the stubs of partial whose pieces are on disk. It is guarded by mu.
	stored map[avlstar.Hash]bool
	// opened are small subtrees of which no source has sent all at once. It is guarded by mu.
	opened map[avlstar.Hash]bool
}

// maxHeights limits the heights that one attempt tries.
const maxHeights = 8

// byWitnesses is the filler that takes a range over by witnesses.
type byWitnesses struct{ *Process }

// fill implements filler.
func (n byWitnesses) fill(ctx context.Context, p *place, v verifier, newest, above int64, early bool) error {
	givers, closeAll := n.givers(ctx, p)
	defer closeAll()
	if n.snapshot != nil && p.replica == nil && above < n.snapshot.height {
		err := n.fillFromFile(ctx, p, v, givers)
		if err == nil || ctx.Err() != nil || isFinal(err) {
			return err
		}
		n.log.Error("A range cannot be taken over from the snapshot file now: asking other nodes", "range", p.String(), "err", err)
		newest = 0 // the file may have taken long
	}
	if early && !slices.ContainsFunc(givers, func(g *giver) bool { return g.replaces(above, n.genesis.InitialHeight) }) {
		return errEarly
	}
	if newest == 0 {
		var err error
		if newest, err = v.Newest(ctx); err != nil {
			return err
		}
	}
	heights := heightsOf(givers, p.keys, newest-1, max(above, 0))
	if len(heights) == 0 {
		return fmt.Errorf("%w: none reports a height above %d", errNobody, max(above, 0))
	}
	errs := []error{}
	for _, height := range heights {
		err := n.takeOverAt(ctx, p, v, givers, height)
		if err == nil || ctx.Err() != nil || isFinal(err) {
			return err
		}
		errs = append(errs, fmt.Errorf("after block %d: %w", height, err))
	}
	err := errors.Join(errs...)
	if errors.Is(err, errPart) {
		p.partial++
	}
	return err
}

// heightsOf returns the heights to try: first those that replicas report as their newest, in
// descending order, then the last one, which full-state validators have. Heights at which the
// replicas have only a part of the range come later. Reported heights more than keepHeaders behind
// come last: a range could hardly follow from there. Reports are unverified; a false one costs an
// attempt.
func heightsOf(givers []*giver, r avlstar.KeyRange, last, above int64) (heights []int64) {
	for _, g := range givers {
		for _, c := range g.parts {
			if height := min(c.Newest, last); height > above {
				heights = append(heights, height)
			}
		}
	}
	slices.SortFunc(heights, func(a, b int64) int { return cmp.Compare(b, a) })
	heights = slices.Compact(heights)
	var partly []int64
	heights = slices.DeleteFunc(heights, func(h int64) bool {
		if isCovered(givers, r, h) {
			return false
		}
		partly = append(partly, h)
		return true
	})
	heights = append(heights, partly...)
	heights = heights[:min(len(heights), maxHeights-1)]
	if last <= above || slices.Contains(heights, last) {
		return heights
	}
	at := slices.IndexFunc(heights, func(h int64) bool { return h < last-keepHeaders })
	if at < 0 {
		at = len(heights)
	}
	return slices.Insert(heights, at, last)
}

// takeOverAt fetches the range at a height. If it cannot be completed, the fetched part stays on
// disk for the next attempt.
func (n *Process) takeOverAt(ctx context.Context, p *place, v verifier, givers []*giver, height int64) error {
	hash, proved := n.headers.AppHash(height)
	if !proved {
		header, err := v.LightBlock(ctx, height+1)
		if err != nil {
			return err
		}
		copy(hash[:], header.AppHash)
	}
	for _, g := range givers {
		if !g.lied {
			g.why = nil
		}
	}
	t := n.newTakeover(p, givers, height)
	defer t.release()
	if err := t.begin(ctx, hash[:]); err != nil {
		return err
	}
	if err := n.openFetched(ctx, p); err != nil {
		return err
	}
	if err := t.resume(); err != nil {
		return err
	}
	p.filling.Store(t.progress)
	defer p.filling.Store(nil)
	var reporting sync.WaitGroup
	defer reporting.Wait()
	reported, end := context.WithCancel(ctx)
	defer end()
	reporting.Go(func() { t.report(reported) })
	if err := t.reuse(ctx); err != nil {
		return err
	}
	if err := t.fill(ctx); err != nil {
		return err
	}
	p.partial = 0
	if err := n.install(ctx, p, height, t.partial.Commitment(), t.boundary); err != nil {
		return err
	}
	n.log.Info("Took a range over", append([]any{"range", p.String(), "seconds", time.Since(t.progress.began).Seconds()}, t.progress.keyvals()...)...)
	return nil
}

func (n *Process) newTakeover(p *place, givers []*giver, height int64) *takeover {
	return &takeover{
		n: n, p: p, height: height, givers: givers, edges: edgesIn(n.nodes.Load(), p.keys),
		progress: &filling{began: time.Now(), height: height}, stored: map[avlstar.Hash]bool{}, opened: map[avlstar.Hash]bool{},
	}
}

func (t *takeover) release() {
	if t.partial != nil {
		t.partial.Release()
	}
}

// replace makes another version the tree above pieces. It takes over the reference to it.
func (t *takeover) replace(next *avlstar.Partial) {
	t.release()
	t.partial = next
}

// edgesIn returns the keys inside a range at which other ranges of a map begin or end, ascending.
func edgesIn(nodes *config.StorageNodes, r avlstar.KeyRange) [][]byte {
	return slices.DeleteFunc(nodes.Ranges.Edges(nodes.Next), func(edge []byte) bool { return !r.Contains(edge) || bytes.Equal(edge, r.First) })
}

// begin fetches the commitment with the upper tree, and the paths to both edges.
func (t *takeover) begin(ctx context.Context, appHash []byte) error {
	request := func(depth uint8) transport.Call {
		return transport.Call{Method: dsm.MethodUpper, Body: dsm.UpperRequest{Height: t.height, Depth: depth}.Encode(), Max: upperBytes}
	}
	err := t.call(ctx, 0, onlyKey(t.p.keys.First), false, request(0), func(answer []byte) error {
		u, err := dsm.DecodeUpper(answer)
		if err != nil {
			return fmt.Errorf("%w: %w", errLied, err)
		}
		c, err := avlstar.DecodeCommitment(u.Commitment)
		if err != nil {
			return fmt.Errorf("%w: %w", errLied, err)
		}
		if hash := c.AppHash(); !bytes.Equal(hash[:], appHash) {
			return fmt.Errorf("%w: app hash %s, but the header has %X", errLied, hash, appHash)
		}
		root, err := avlstar.NewPartial(c)
		if err == nil {
			t.replace(root)
		}
		return err
	})
	if err != nil {
		return err
	}
	root := t.partial.Commitment().Root
	if depth := min(16, bits.Len64(root.Bytes/rangestore.PieceBytes)+1); depth > 1 {
		err = t.call(ctx, 0, onlyKey(t.p.keys.First), false, request(uint8(depth)), func(answer []byte) error {
			u, err := dsm.DecodeUpper(answer)
			if err != nil {
				return fmt.Errorf("%w: %w", errLied, err)
			}
			return t.graftAll(u.Multiproof, root)
		})
	}
	for err == nil { // a path may lead through several stubs
		var missing *avlstar.MissingNodeError
		if t.boundary, err = t.partial.Boundary(t.p.keys); !errors.As(err, &missing) {
			break
		}
		err = t.path(ctx, missing.Key, missing.Node)
	}
	// A subtree on both sides of an edge between sources cannot be fetched from either of them.
	for i := 0; err == nil && i < len(t.edges); {
		_, held := t.partial.Version().Missing([]avlstar.Want{{Key: t.edges[i]}})
		if len(held) == 0 {
			i++
			continue
		}
		for s := range t.partial.Version().Stubs(t.p.keys.First) {
			if _, on := held[s.Hash]; on {
				err = t.path(ctx, t.edges[i], s.Stub)
				break
			}
		}
	}
	return err
}

// path fetches the path to a key below a stub.
func (t *takeover) path(ctx context.Context, key []byte, below avlstar.Stub) error {
	wants := []avlstar.Want{{Key: key}}
	return t.fetch(ctx, 0, onlyKey(key), wants, []avlstar.Stub{below}, func(multiproof []byte) error { return t.graftAll(multiproof, below) })
}

// graftAll grafts a multiproof whose trees begin at stubs.
func (t *takeover) graftAll(b []byte, stubs ...avlstar.Stub) error {
	multiproof, err := proofOf(b, stubs)
	if err != nil {
		return err
	}
	next, _, err := t.partial.Graft(multiproof)
	if err != nil {
		return fmt.Errorf("%w: %w", errLied, err)
	}
	t.replace(next)
	t.progress.received.Add(uint64(len(b)))
	return nil
}

// proofOf decodes a multiproof, whose trees must be exactly those of stubs. Errors: errMissing if
// one of them is not there; errLied.
func proofOf(b []byte, stubs []avlstar.Stub) (*avlstar.Multiproof, error) {
	multiproof, err := avlstar.DecodeMultiproof(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLied, err)
	}
	roots := multiproof.Roots()
	for _, r := range roots {
		if !slices.Contains(stubs, r) {
			return nil, fmt.Errorf("%w: the subtree with hash %s was not requested", errLied, r.Hash)
		}
	}
	for _, s := range stubs {
		if !slices.Contains(roots, s) {
			return nil, fmt.Errorf("%w: the subtree with hash %s", errMissing, s.Hash)
		}
	}
	return multiproof, nil
}

// fetch requests the wanted keys below stubs.
func (t *takeover) fetch(ctx context.Context, k int, keys avlstar.KeyRange, wants []avlstar.Want, stubs []avlstar.Stub, check func(multiproof []byte) error) error {
	held := make([][32]byte, len(stubs))
	for i, s := range stubs {
		held[i] = s.Hash
	}
	slices.SortFunc(held, func(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) })
	body, err := dsm.Witness{Height: t.height, Depth: 255, MaxBytes: multiproofBytes, Held: slices.Compact(held), Wants: wants}.Encode()
	if err != nil {
		return err
	}
	return t.call(ctx, k, keys, wants[0].Range, transport.Call{Method: dsm.MethodWitness, Body: body, Max: multiproofBytes}, func(answer []byte) error {
		if len(answer) == 0 {
			// The path to one key always fits. A node that denies that would get the same request
			// forever.
			if len(wants) == 1 && !wants[0].Range {
				return fmt.Errorf("%w: no room for the path to one key", errLied)
			}
			return errSplit
		}
		return check(answer)
	})
}

package app

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// Queries read nodes that are missing in the tree of their height from trees of their own, which
// begin with the root's hash. So queries of untrusted clients neither touch nor enlarge the tree on
// which blocks are executed, wait for it, or delay it.
//
// Queries of the newest state share a tree. A node that one of them has fetched serves the others,
// and later states too, while its hash does not change:
//
//	a key is missing in the tree of the blocks
//	   └─► missing in the shared tree of this state?
//	          └─► copy the nodes that the tree of the blocks or an older shared tree has
//	                 └─► still missing: fetch the nodes, once for all queries of these keys
//
// A tree that takes half of the memory is followed by a new one of the same state, which copies
// what is still read. So nodes leave that were not read for the longest time.

const (
	// QueryTreesBytes limits the memory of the trees that queries share, in bytes. The queries that
	// are running may exceed it by what they have fetched.
	QueryTreesBytes = 64 << 20
	// maxQueryTrees limits the number of these trees. A key that no query reads during that many
	// states is fetched again.
	maxQueryTrees = 16
)

// queryTrees are the trees that queries share.
type queryTrees struct {
	most    int64         // limit of all trees in the list, in bytes
	live    atomic.Int64  // memory of all trees in use, in bytes
	copying chan struct{} // an element for each query that copies nodes

	mu   sync.Mutex
	list []*queryTree // guarded by mu; newest first. It is a user of each
}

func newQueryTrees() *queryTrees {
	return &queryTrees{most: QueryTreesBytes, copying: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// queryTree is a tree of one state.
type queryTree struct {
	of    *queryTrees
	state avlstar.Commitment
	users int          // guarded by queryTrees.mu: the list, and queries
	size  atomic.Int64 // memory of version, in bytes

	// Holds a reference. Written under mu, so that each graft begins with the latest version;
	// readers never wait for a graft.
	version atomic.Pointer[avlstar.Version]

	mu sync.Mutex
	// The wants that queries are fetching, by idsOf; closed when the fetch has ended. Guarded by
	// mu.
	fetching map[string]chan struct{}
}

// of returns the tree for queries of a state, which the caller releases. Queries of states that are
// not the newest get a tree that exists, or one of their own.
func (q *queryTrees) of(v *avlstar.Version, newest bool) (*queryTree, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	state := v.Commitment()
	for i, t := range q.list {
		if t.state == state && t.size.Load() < q.most/2 && (!newest || i == 0) {
			t.users++
			return t, nil
		}
	}
	p, err := avlstar.NewPartial(state)
	if err != nil {
		return nil, err
	}
	t := &queryTree{of: q, state: state, users: 1, fetching: make(map[string]chan struct{})}
	t.version.Store(p.Version())
	if newest {
		t.users++
		q.list = slices.Insert(q.list, 0, t)
	}
	return t, nil
}

// release ends a use of t, and drops the oldest trees of the list beyond the limits, but never the
// newest. The last user of a tree releases its version.
func (q *queryTrees) release(t *queryTree) {
	q.mu.Lock()
	defer q.mu.Unlock()
	keep, sum := 0, int64(0)
	for _, t := range q.list {
		if sum += t.size.Load(); keep > 0 && (sum > q.most || keep == maxQueryTrees) {
			break
		}
		keep++
	}
	q.leave(q.list[keep:]...)
	q.list = slices.Delete(q.list, keep, len(q.list))
	q.leave(t)
}

// leave ends a use of each tree. The caller holds mu.
func (q *queryTrees) leave(trees ...*queryTree) {
	for _, t := range trees {
		if t.users--; t.users == 0 {
			t.version.Load().Release()
			q.live.Add(-t.size.Load())
		}
	}
}

// before returns the trees of the list that are older than t, newest first. The caller leaves them.
func (q *queryTrees) before(t *queryTree) []*queryTree {
	q.mu.Lock()
	defer q.mu.Unlock()
	older := slices.Clone(q.list[slices.Index(q.list, t)+1:]) // all, if t is not in the list
	for _, t := range older {
		t.users++
	}
	return older
}

// QueryTreesBytes returns the memory of the trees of queries.
func (a *App) QueryTreesBytes() int64 { return a.trees.live.Load() }

// acquire returns the version, which the caller releases.
func (t *queryTree) acquire() *avlstar.Version {
	for {
		if v := t.version.Load(); v.TryRetain() { // not if replace has just released it
			return v
		}
	}
}

// replace takes over a reference to next. The caller holds mu.
func (t *queryTree) replace(next *avlstar.Version) {
	t.version.Swap(next).Release()
	m := next.Memory()
	size := int64(m.NodeBytes + m.LeafBytes)
	t.of.live.Add(size - t.size.Swap(size))
}

// copyFrom adds the nodes for wants that v has. missing reports whether others are missing still.
func (t *queryTree) copyFrom(v *avlstar.Version, wants []avlstar.Want) (missing bool, err error) {
	now := t.acquire()
	defer now.Release()
	lacking, held := now.Missing(wants)
	if len(held) == 0 {
		return false, nil
	}
	b, err := v.Multiproof(lacking, avlstar.Below{Depth: math.MaxInt, Held: held, Partly: true})
	if err != nil {
		return true, err
	}
	m, err := avlstar.DecodeMultiproof(b)
	if err != nil {
		return true, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	next, _, err := t.version.Load().Graft(m)
	if err != nil {
		return true, err
	}
	t.replace(next)
	_, held = next.Missing(wants)
	return len(held) > 0, nil
}

// copyFromOthers adds the nodes for wants that v or, unless the node is busy, an older tree has.
func (t *queryTree) copyFromOthers(ctx context.Context, v *avlstar.Version, wants []avlstar.Want, busy bool) error {
	select {
	case t.of.copying <- struct{}{}:
		defer func() { <-t.of.copying }()
	case <-ctx.Done():
		return ctx.Err()
	}
	missing, err := t.copyFrom(v, wants)
	if err != nil || !missing || busy {
		return err
	}
	older := t.of.before(t)
	for _, o := range older {
		if err != nil || !missing || ctx.Err() != nil {
			break
		}
		from := o.acquire()
		missing, err = t.copyFrom(from, wants)
		from.Release()
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.leave(older...)
	return err
}

// idsOf returns equal strings for equal wants.
func idsOf(wants []avlstar.Want) string {
	var b strings.Builder
	for _, w := range wants {
		id := idOf(w)
		fmt.Fprintf(&b, "%d:%s", len(id), id)
	}
	return b.String()
}

// bring adds to t the nodes that n wants, after a query of the state at missed them in v, a version
// of t. If another query is bringing them already, it waits for that one. The caller then reads
// again.
func (a byWitness) bring(ctx context.Context, t *queryTree, at committed, v *avlstar.Version, n *needs) error {
	id := idsOf(n.wants)
	t.mu.Lock()
	if done, ok := t.fetching[id]; ok {
		t.mu.Unlock()
		select {
		case <-done: // whatever became of it: this query may have to fetch itself
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done := make(chan struct{})
	t.fetching[id] = done
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.fetching, id)
		close(done)
	}()

	if err := t.copyFromOthers(ctx, at.version, n.wants, a.queries.Taken() >= maxWaitingQueries); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.version.Load(); now != v {
		if _, held := now.Missing(n.wants); len(held) == 0 {
			return nil
		}
	}
	client, _ := ctx.Value(clientKey{}).(string)
	release := a.queries.Take(client, maxWaitingQueries)
	if release == nil {
		return tx.Errorf(tx.CodeBusy, "too many queries wait for missing parts of this node's state: ask again later, or ask another node")
	}
	defer release()
	f := &fetcher{app: a.App, call: forQuery, height: at.height, lock: &t.mu, version: t.version.Load, replace: t.replace}
	return f.bring(ctx, n)
}

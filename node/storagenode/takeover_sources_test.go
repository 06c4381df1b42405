package storagenode

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
)

// source is a connection to a node that has a state.
type source struct {
	answering
	v        *avlstar.Version
	oneLevel bool // it opens only the roots of what is requested
	asked    atomic.Int64
	fails    atomic.Bool // it fails once
}

func (s *source) Call(_ context.Context, c transport.Call) ([]byte, error) {
	if c.Method == dsm.MethodUpper {
		u, err := dsm.DecodeUpperRequest(c.Body)
		if err != nil {
			return nil, err
		}
		return witness.Upper(s.v, int(u.Depth))
	}
	w, err := witness.DecodeWitness(c.Body)
	if err != nil {
		return nil, err
	}
	s.asked.Add(1)
	if s.fails.CompareAndSwap(true, false) {
		return nil, transport.ErrClosed
	}
	if !s.oneLevel {
		return witness.Multiproof(s.v, w, multiproofBytes, false)
	}
	below := avlstar.Below{Depth: 255, Held: map[avlstar.Hash]avlstar.Span{}, Partly: true}
	for _, hash := range w.Held {
		below.Held[hash] = avlstar.Span{}
	}
	var held []avlstar.KeyRange
	p, err := s.v.Prune(func(sub avlstar.Subtree) bool {
		keys := avlstar.KeyRange{First: sub.First, After: sub.After}
		for _, h := range held {
			if h.Covers(keys) {
				return true
			}
		}
		if _, is := below.Held[sub.Hash]; is {
			held = append(held, keys)
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	defer p.Release()
	return p.Multiproof(w.Wants, below)
}

// manyLeaves returns a version whose n leaves take 2 KB each.
func manyLeaves(t *testing.T, n int) *avlstar.Version {
	t.Helper()
	empty, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	require.NoError(t, err)
	defer empty.Release()
	var changes []avlstar.Change
	for i := range n {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key-%05d", i), Value: []byte(strings.Repeat("v", 2000))})
	}
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	t.Cleanup(v.Release)
	return v
}

// takeAll takes all keys of v over into a new store, and verifies the result.
func takeAll(t *testing.T, v *avlstar.Version, keys avlstar.KeyRange, givers ...*giver) error {
	t.Helper()
	return takeAllAfter(t, 0, v, keys, givers...)
}

// takeAllAfter is takeAll after attempts that ended with parts.
func takeAllAfter(t *testing.T, partial int, v *avlstar.Version, keys avlstar.KeyRange, givers ...*giver) error {
	t.Helper()
	store, err := rangestore.Open(rangestore.Options{Dir: "range", FS: vfs.NewMem(), Keys: keys, ChainID: "test-chain", Memory: rangestore.NewMemory(0)})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	fill, err := store.Fill(t.Context())
	require.NoError(t, err)
	n := &Process{log: log.NewNopLogger()}
	n.nodes.Store(placed(t, 1, []dsm.Placement{at(avlstar.KeyRange{}, transport.Address{ID: "a"})}, nil))
	over := n.newTakeover(&place{keys: keys, fetched: &fetched{fill, store}, partial: partial}, givers, 1)
	defer over.release()
	hash := v.AppHash()
	if err := over.begin(t.Context(), hash[:]); err != nil {
		return err
	}
	require.NoError(t, over.resume())
	if err := over.fill(t.Context()); err != nil {
		return err
	}
	require.Equal(t, over.progress.total, over.progress.stored.Load())
	return fill.Commit(t.Context(), 1, v.Commitment(), over.boundary)
}

// slowDials connects to the nodes of dials after a time, and to other nodes never.
type slowDials struct {
	dials
	takes map[transport.ID]time.Duration
}

func (d slowDials) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	takes, is := d.takes[a.ID]
	if !is {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := sleep.For(ctx, takes); err != nil {
		return nil, err
	}
	return d.dials.Dial(ctx, a)
}

// Nodes that do not answer leave other nodes the time to do so. The map gives the order.
func TestSourcesAreAskedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, low, high := wholeAndHalves()
		o := newOffline(t)
		d := slowDials{dials{}, map[transport.ID]time.Duration{}}
		var nodes []transport.Address
		for i := range 2 * holdersAtOnce {
			a := transport.Address{ID: transport.ID(fmt.Sprintf("node-%02d", i))}
			nodes = append(nodes, a)
			if i%4 == 1 {
				continue
			}
			d.takes[a.ID] = time.Second - time.Duration(i)*time.Millisecond
			claims, err := dsm.EncodeClaims([]dsm.Claim{{Range: low, Oldest: 1, Newest: int64(i + 1), Durable: 1, Needs: int64(i + 2)}})
			require.NoError(t, err)
			d.dials[a.ID] = answering{answer: claims}
		}
		o.dialer = d
		o.nodes.Store(placed(t, 1, []dsm.Placement{at(low, nodes...), at(high, o.self())}, nil, nodes...))
		givers, closeAll := o.givers(t.Context(), o.add(low, current, false))
		defer closeAll()
		var newest []int64
		for _, g := range givers {
			newest = append(newest, g.parts[0].Newest)
		}
		require.Equal(t, []int64{1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16}, newest)
	})
}

// A source that opens one level of the tree with each response is proved right each time. It is
// displaced by a source that sends pages.
func TestOneLevelAtATime(t *testing.T) {
	v := manyLeaves(t, 20_000)
	claims := []dsm.Claim{{Oldest: 1, Newest: 1}}
	slow, honest := &source{v: v, oneLevel: true}, &source{v: v}
	givers := []*giver{{Conn: slow, parts: claims}, {Conn: honest, parts: claims}}
	require.NoError(t, takeAll(t, v, avlstar.KeyRange{}, givers...))
	t.Logf("the slow source was asked %d times, the other one %d times", slow.asked.Load(), honest.asked.Load())
	require.GreaterOrEqual(t, honest.asked.Load(), int64(v.Root().Bytes/pageBytes), "all pages come from the other source")
	require.LessOrEqual(t, slow.asked.Load(), honest.asked.Load()/2, "only what began before its first response, and what was late")
	require.True(t, givers[0].rated)
	require.Zero(t, givers[0].rate)
	require.Positive(t, givers[1].rate)
	for k := range 4 {
		usable, prompt, _ := (&takeover{height: 1, givers: givers}).sources(k, avlstar.KeyRange{})
		require.Equal(t, []*giver{givers[1], givers[0]}, usable)
		require.Equal(t, 1, prompt)
	}
}

// A source that failed once is not asked again at this height. If the others have sent only parts
// since then, the attempt ends, and the next one asks it again.
func TestPartsAfterAFailure(t *testing.T) {
	v := manyLeaves(t, 20_000)
	claims := []dsm.Claim{{Oldest: 1, Newest: 1}}
	slow, honest := &source{v: v, oneLevel: true}, &source{v: v}
	givers := []*giver{{Conn: slow, parts: claims}, {Conn: honest, parts: claims}}
	honest.fails.Store(true)
	err := takeAll(t, v, avlstar.KeyRange{}, givers...)
	require.ErrorIs(t, err, transport.ErrClosed)
	require.ErrorIs(t, err, errPart)
	require.Less(t, slow.asked.Load(), int64(100))

	for _, g := range givers { // as takeOverAt does
		g.why = nil
	}
	require.NoError(t, takeAll(t, v, avlstar.KeyRange{}, givers...))

	// A source that fails each time does not end all attempts.
	failing := &source{v: v}
	failing.fails.Store(true)
	require.NoError(t, takeAllAfter(t, maxPartial, v, avlstar.KeyRange{}, givers[0], &giver{Conn: failing, parts: claims}))

	// Without another source that claims the range, parts are all there is.
	require.NoError(t, takeAll(t, v, avlstar.KeyRange{}, givers[0]))
}

// The rates of two equal sources differ by chance: one page of the first came late, and one page of
// the second came at once. The first one regains its place.
func TestSlowSourceIsAskedAgain(t *testing.T) {
	v := manyLeaves(t, 20_000)
	claims := []dsm.Claim{{Oldest: 1, Newest: 1}}
	unlucky, lucky := &source{v: v}, &source{v: v}
	givers := []*giver{{Conn: unlucky, parts: claims}, {Conn: lucky, parts: claims}}
	givers[0].sample(0, slowAfter)
	givers[1].sample(1<<20, 0)
	usable, prompt, _ := (&takeover{height: 1, givers: givers}).sources(0, avlstar.KeyRange{})
	require.Equal(t, []*giver{givers[1], givers[0]}, usable)
	require.Equal(t, 1, prompt)

	require.NoError(t, takeAll(t, v, avlstar.KeyRange{}, givers...))
	t.Logf("pages of the first source: %d, of the second: %d", unlucky.asked.Load(), lucky.asked.Load())
	require.Positive(t, unlucky.asked.Load(), "it was asked again")
	// A page is requested twice only with a probe, or if it is late.
	require.LessOrEqual(t, unlucky.asked.Load()+lucky.asked.Load(), int64(v.Root().Bytes/pageBytes)*3/2)
}

// A source that is fast when it is probed, and then lets pages wait, is probed half as often each
// time: it delays few of many pages.
func TestProbesOfALateSource(t *testing.T) {
	over := &takeover{n: &Process{log: log.NewNopLogger()}}
	honest, other := &giver{Conn: answering{}}, &giver{Conn: answering{}}
	over.givers = []*giver{honest, other}
	honest.sample(1<<20, time.Second)
	over.unheard(other, slowAfter)
	probes := 0
	for range 10_000 {
		usable, prompt, _ := over.sources(0, avlstar.KeyRange{})
		require.Same(t, honest, usable[0])
		if over.probed(usable[prompt:]) == 0 {
			probes++
			other.sample(1<<20, time.Millisecond) // by which the honest one would be slow
			over.unheard(other, slowAfter)
			honest.sample(1<<20, time.Second)
		}
	}
	require.LessOrEqual(t, probes, 10)
	require.GreaterOrEqual(t, probes, 5)
}

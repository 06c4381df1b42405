package storagenode

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

func TestHeightsOf(t *testing.T) {
	for name, c := range map[string]struct {
		claims      []int64
		last, above int64
		want        []int64
	}{
		"nobody claims anything": {nil, 50, 0, []int64{50}},
		"the greatest first":     {[]int64{30, 40, 30, 0}, 50, 0, []int64{40, 30, 50}},
		"beyond the chain":       {[]int64{math.MaxInt64, 30}, 50, 0, []int64{50, 30}},
		"not what is here":       {[]int64{30, 40}, 50, 30, []int64{40, 50}},
		"nothing is newer":       {[]int64{30, 40}, 40, 40, nil},
		"claims long past":       {[]int64{4000, 100, 3000}, 5000, 0, []int64{4000, 5000, 3000, 100}},
		"many liars":             {[]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 50, 0, []int64{10, 9, 8, 7, 6, 5, 4, 50}},
	} {
		t.Run(name, func(t *testing.T) {
			var givers []*giver
			for _, newest := range c.claims {
				givers = append(givers, &giver{parts: []dsm.Claim{{Oldest: 1, Newest: newest}}})
			}
			require.Equal(t, c.want, heightsOf(givers, avlstar.KeyRange{}, c.last, c.above))
		})
	}
}

// Claims of ranges that are not in the map are ignored: a lying node could send very many.
func TestClaimsOutsideTheMap(t *testing.T) {
	whole, low, high := wholeAndHalves()
	node := transport.Address{ID: "a"}
	nodes := placed(t, 1, []dsm.Placement{at(low, node), at(high, node)}, []dsm.Placement{at(whole, node)}, node)
	want := []dsm.Claim{{Range: low, Oldest: 1, Newest: 9}, {Range: whole, Oldest: 1, Newest: 9}}
	claims := slices.Clone(want)
	for i := range 100 {
		claims = append(claims, dsm.Claim{Range: avlstar.KeyRange{First: []byte{byte(i)}}, Oldest: 1, Newest: int64(i + 1)})
	}
	require.Equal(t, want, mapped(claims, nodes))
}

// A range is taken over early only if another replica has all that it gives up.
func TestReplaces(t *testing.T) {
	const initial = 10
	for name, c := range map[string]struct {
		oldest, newest, height int64
		want                   bool
	}{
		"no state here":                    {20, 30, -1, true},
		"no state anywhere":                {0, 0, -1, false},
		"the genesis state here":           {20, 30, 9, true},
		"the genesis state everywhere":     {0, 0, 9, false},
		"this height and newer ones":       {10, 30, 15, true},
		"nothing newer":                    {10, 30, 30, false},
		"only newer heights than this one": {16, 30, 15, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, (&giver{parts: []dsm.Claim{{Oldest: c.oldest, Newest: c.newest}}}).replaces(c.height, initial))
		})
	}
}

// A range without a state, on a young chain, is taken over from a replica that is ahead of the
// genesis state, and begins with the genesis state if that is not possible.
func TestTakesOverWhileTheChainIsYoung(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	first := c.replicaHome()
	a := c.start(first, log.NewNopLogger(), fromGenesis)
	v := c.dial(a)
	c.put(10, 30)
	v.feedAll("the first node's blocks")

	for _, answers := range []int64{0, math.MaxInt64} {
		giver := &replicaOf{n: a}
		giver.answers.Store(answers)
		logs := new(nodetest.LogBuffer)
		b := c.lonely(logs, giver.listen(t))
		for _, p := range b.all() {
			b.take(t.Context(), p, chainHeaders{c}, 0, -1, true)
		}
		b.taking.Wait()
		require.Len(t, b.Claims(), 2)
		require.Equal(t, answers > 0, logs.Has("Took a range over"))
		require.Equal(t, answers == 0, logs.Has("Created a range from the genesis file"))
		require.Equal(t, answers == 0, logs.Has("Cannot fetch a range from its other replicas now"))
	}
}

// answering is a connection to a node that gives the same response to every request.
type answering struct {
	transport.Conn
	answer []byte
}

func (a answering) Call(context.Context, transport.Call) ([]byte, error) { return a.answer, nil }

func (answering) Remote() transport.Address { return transport.Address{} }

func (answering) Close() error { return nil }

// dials connects to nodes by their IDs.
type dials map[transport.ID]transport.Conn

func (d dials) Dial(_ context.Context, a transport.Address) (transport.Conn, error) {
	if conn := d[a.ID]; conn != nil {
		return conn, nil
	}
	return nil, errors.New("the node does not run")
}

// A node that claims that even the path to one key is too long is not asked again, and another one
// is.
func TestNoRoomForOneKey(t *testing.T) {
	liar, other := &giver{Conn: answering{}}, &giver{Conn: answering{answer: []byte("multiproof")}}
	over := &takeover{height: 1, n: &Process{log: log.NewNopLogger()}, p: &place{}, givers: []*giver{liar}}
	var got []byte
	take := func(b []byte) error {
		got = b
		return nil
	}
	page := []avlstar.Want{{Key: []byte("k"), Range: true}}
	require.ErrorIs(t, over.fetch(t.Context(), 0, avlstar.KeyRange{}, page, nil, take), errSplit)
	require.False(t, liar.lied)
	over.givers = []*giver{liar, other}
	require.NoError(t, over.fetch(t.Context(), 0, avlstar.KeyRange{}, page, nil, take), "another source has room for it")
	require.Equal(t, []byte("multiproof"), got)
	got = nil
	liar.rated, other.rated = false, false // the liar is first again
	require.NoError(t, over.fetch(t.Context(), 0, avlstar.KeyRange{}, []avlstar.Want{{Key: []byte("k")}}, nil, take))
	require.Equal(t, []byte("multiproof"), got)
	require.True(t, liar.lied)
}

// late answers after 29 s, as a source that wants to hold up a takeover may.
type late struct{ answering }

func (l late) Call(ctx context.Context, c transport.Call) ([]byte, error) {
	if err := sleep.For(ctx, 29*time.Second); err != nil {
		return nil, err
	}
	return l.answering.Call(ctx, c)
}

// Slow sources delay one request, not each.
func TestSlowSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func() *giver {
			return &giver{Conn: late{answering{answer: []byte("multiproof")}}, parts: []dsm.Claim{{Oldest: 1, Newest: 1}}}
		}
		honest := &giver{Conn: answering{answer: []byte("multiproof")}, parts: []dsm.Claim{{Oldest: 1, Newest: 1}}}
		over := &takeover{height: 1, n: &Process{log: log.NewNopLogger()}, p: &place{}, givers: []*giver{slow(), slow(), slow(), honest}}
		began, checks := time.Now(), 0
		for k := range 100 {
			require.NoError(t, over.fetch(t.Context(), k, avlstar.KeyRange{}, []avlstar.Want{{Key: []byte("k")}}, nil, func([]byte) error {
				checks++
				return nil
			}))
		}
		require.Equal(t, 100, checks)
		require.LessOrEqual(t, time.Since(began), 3*slowAfter)
	})
}

// chainHeaders are the headers of a chain whose node is trusted.
type chainHeaders struct{ c *chain }

func (h chainHeaders) LightBlock(_ context.Context, height int64) (*cmttypes.LightBlock, error) {
	meta := h.c.node.Comet().BlockStore().LoadBlockMeta(height)
	if meta == nil {
		return nil, fmt.Errorf("block %d is not there", height)
	}
	return &cmttypes.LightBlock{SignedHeader: &cmttypes.SignedHeader{Header: &meta.Header}}, nil
}

func (h chainHeaders) Newest(context.Context) (int64, error) {
	return h.c.node.Comet().BlockStore().Height(), nil
}

func (chainHeaders) Ancestors(context.Context, int64, func(*cmttypes.Header) bool) ([]lightblocks.Ancestor, error) {
	return nil, nil
}

// replicaOf serves like another node, within limits set by the test.
type replicaOf struct {
	n *Process // the node that serves
	// claim, if not 0, is the newest height that it reports.
	claim int64
	// answers is the number of witnesses that it serves.
	answers atomic.Int64
	// sent are the bytes of these.
	sent atomic.Int64
	// after, if not nil, is called with sent.
	after func(sent int64)
}

func (r *replicaOf) Serve(ctx context.Context, request transport.Request) ([]byte, error) {
	switch uint8(request.Method) {
	case dsm.MethodRanges:
		if r.claim > 0 {
			claims := r.n.Claims()
			for i := range claims {
				claims[i].Newest = r.claim
			}
			return dsm.EncodeClaims(claims)
		}
	case dsm.MethodWitness:
		if r.answers.Add(-1) < 0 {
			return nil, transport.ErrRefused
		}
	}
	b, err := r.n.handler.Load().Serve(ctx, request)
	if uint8(request.Method) == dsm.MethodWitness {
		if sent := r.sent.Add(int64(len(b))); r.after != nil {
			r.after(sent)
		}
	}
	return b, err
}

// listen serves it.
func (r *replicaOf) listen(t *testing.T) transport.Address {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	s, err := tcp.Listen("127.0.0.1:0", tcp.Options{Key: key, ChainID: "test-chain", Handler: r})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return transport.Address{ID: tcp.IDOf(public), HostPort: s.Addr().String()}
}

// lonely is alone in a new home whose storage nodes file has these replicas of all ranges.
func (c *chain) lonely(logs *nodetest.LogBuffer, replicas ...transport.Address) *Process {
	c.t.Helper()
	return c.alone(c.replicaHome(replicas...), logs)
}

// alone creates a storage node that does not follow the chain.
func (c *chain) alone(dir string, logs *nodetest.LogBuffer) *Process {
	c.t.Helper()
	n, err := New(c.t.Context(), Options{Config: nodetest.Load(c.t, dir), Logger: logs.Logger(c.t)})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { require.NoError(c.t, n.Stop()) })
	peers := peers.New(peers.Options{Logger: log.NewNopLogger(), Dialer: n.dialer, Self: n.ID()})
	c.t.Cleanup(peers.Close)
	n.peers.Store(peers)
	return n
}

// A replica that reports heights which it does not serve does not prevent a takeover at a height
// that another replica has.
func TestTakesOverAtALowerHeight(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	dir := c.replicaHome()
	a := c.start(dir, log.NewNopLogger(), fromGenesis)
	v := c.dial(a)
	c.put(10, 30)
	v.feedAll("the first node's blocks")
	nodetest.Until(t, "more blocks", func() bool { return c.node.Application().Height() > a.Claims()[0].Newest+3 })

	logs := new(nodetest.LogBuffer)
	liar := &replicaOf{n: a, claim: math.MaxInt64}
	near := &replicaOf{n: a, claim: a.Claims()[0].Newest + 1} // its header exists
	b := c.lonely(logs, liar.listen(t), near.listen(t), a.Address())
	for _, p := range b.all() {
		c.fill(b, p, chainHeaders{c}, -1)
	}
	c.requireSame(b)
	for i, claim := range b.Claims() { // lower if a response came too late on a loaded machine
		require.LessOrEqual(t, claim.Newest, a.Claims()[i].Newest)
	}
}

// fill takes a range over, again and again as tend does: on a loaded machine the source may stop
// serving a height meanwhile.
func (c *chain) fill(n *Process, p *place, v verifier, above int64) {
	c.t.Helper()
	nodetest.Until(c.t, "the range is taken over", func() bool {
		err := n.filler.fill(c.t.Context(), p, v, 0, above, false)
		if err != nil {
			c.t.Log(err)
		}
		return err == nil
	})
}

// A range comes back from its only other replica, which does not have the next range: at first, and
// after it was away for too long.
func TestTakesOverFromAReplicaOfOneRange(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	next := []transport.Address{{ID: transport.ID(strings.Repeat("f", 40)), HostPort: "127.0.0.1:2"}}
	first, id := c.storageHome()
	c.assign(first, []transport.Address{{ID: id, HostPort: "127.0.0.1:1"}}, next)
	a := c.start(first, log.NewNopLogger(), fromGenesis)
	v := c.dial(a)
	c.put(10, 30)
	v.feedAll("the first node's blocks")

	logs := new(nodetest.LogBuffer)
	second, id := c.storageHome()
	c.assign(second, []transport.Address{a.Address(), {ID: id, HostPort: "127.0.0.1:1"}}, next)
	b := c.alone(second, logs)
	c.fill(b, b.all()[0], chainHeaders{c}, -1)
	c.requireSame(b)

	old := b.Claims()[0].Newest
	c.put(0, 10)
	v.feedAll("the first node's blocks, once more")
	c.fill(b, b.all()[0], chainHeaders{c}, old)
	require.Greater(t, b.Claims()[0].Newest, old)
	c.requireSame(b)
}

// noted notes whether a takeover was early, and does nothing.
type noted struct{ early []bool }

func (f *noted) fill(_ context.Context, _ *place, _ verifier, _, _ int64, early bool) error {
	f.early = append(f.early, early)
	return errEarly
}

// A range whose next update does not arrive is taken over early only if another replica has what it
// would give up, and later in any case. A next range gives up nothing.
func TestWhenARangeIsTakenOver(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, avlstar.KeyRange{})
	dir, _ := c.wholeHome()
	c.stopped(dir)
	n, f := c.alone(dir, new(nodetest.LogBuffer)), new(noted)
	n.filler = f
	p := n.all()[0]
	height, _ := p.replica.Newest()
	for name, c := range map[string]struct {
		moved  bool // a header proves that there is a next block
		role   role
		waited time.Duration
		want   []bool
	}{
		"just now":       {true, current, 0, nil},
		"early":          {true, current, earlyAfter, []bool{true}},
		"stuck":          {true, current, stuckAfter, []bool{false}},
		"no next block":  {false, current, stuckAfter, nil},
		"a next range":   {true, next, nextAfter, []bool{false}},
		"just now, next": {true, next, 0, nil},
	} {
		f.early = nil
		n.headers.init()
		if c.moved {
			n.headers.add(proved{height: height + 2})
		}
		p.role, p.height, p.since, p.tryFrom = c.role, height, time.Now().Add(-c.waited), time.Time{}
		require.NoError(t, n.tendPlace(t.Context(), p, nil), name)
		n.taking.Wait()
		require.Equal(t, c.want, f.early, name)
	}
}

// A node that does not have a subtree is not blamed, and the error names it: a validator has only
// the parts of the state that its blocks needed. A node that sends another subtree is blamed.
func TestNodeWithoutTheSubtree(t *testing.T) {
	empty, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	require.NoError(t, err)
	defer empty.Release()
	v, err := empty.Apply([]avlstar.Change{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: []byte("2")}})
	require.NoError(t, err)
	defer v.Release()
	wants := []avlstar.Want{{Key: []byte("a")}}
	opened, err := v.Multiproof(wants, avlstar.Below{})
	require.NoError(t, err)
	partial, err := avlstar.NewPartial(v.Commitment())
	require.NoError(t, err)
	defer partial.Release()
	nothing, err := partial.Multiproof(wants, avlstar.Below{Partly: true})
	require.NoError(t, err)

	other := v.Root()
	other.Hash[0] ^= 1
	for name, c := range map[string]struct {
		answer []byte
		stub   avlstar.Stub
		want   error
	}{
		"it has the subtree":       {opened, v.Root(), nil},
		"it does not have it":      {nothing, v.Root(), errMissing},
		"it sends another subtree": {opened, other, errLied},
		"it sends no multiproof":   {[]byte("?"), v.Root(), errLied},
	} {
		t.Run(name, func(t *testing.T) {
			g := &giver{Conn: answering{answer: c.answer}}
			logs := new(nodetest.LogBuffer)
			over := &takeover{height: 1, n: &Process{log: logs.Logger(t)}, p: &place{}, givers: []*giver{g}}
			err := over.fetch(t.Context(), 0, avlstar.KeyRange{}, wants, []avlstar.Stub{c.stub}, func(b []byte) error {
				_, err := proofOf(b, []avlstar.Stub{c.stub})
				return err
			})
			require.Equal(t, errors.Is(c.want, errLied), g.lied)
			require.Equal(t, g.lied, logs.Has("A node sent an invalid response"))
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, errNobody)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, g.Remote().String())
		})
	}
}

// If a range cannot be completed at a height, the fetched part is reused at the next one, and so is
// the range's older state.
func TestTakeoverReuses(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, avlstar.KeyRange{})
	dir := c.replicaHome()
	a := c.start(dir, log.NewNopLogger(), fromGenesis)
	v := c.dial(a)
	client := nodetest.RPC(t, c.home)
	const keys, length = 32, 300_000
	for i := range keys {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), strings.Repeat(fmt.Sprint(i%10), length))
	}
	v.feedAll("the first node's blocks")

	logs := new(nodetest.LogBuffer)
	giver := &replicaOf{n: a}
	b := c.lonely(logs, giver.listen(t))
	p := b.all()[0]
	before := a.Claims()[0].Newest
	headers := chainHeaders{c}
	nodetest.Until(t, "the next header", func() bool { n, _ := headers.Newest(t.Context()); return n > before+1 })
	giver.answers.Store(4) // the paths to the edges, and some pages
	require.ErrorIs(t, b.filler.fill(t.Context(), p, headers, 0, -1, false), errNobody)
	require.Positive(t, p.fetched.Bytes())
	first := giver.sent.Load()

	nodetest.Put(t, client, "key-05", "another")
	height := c.node.Application().Height()
	nodetest.Until(t, "the giver at another height", func() bool { return v.feed(height) })
	giver.answers.Store(math.MaxInt64)
	c.fill(b, p, headers, -1)
	require.Nil(t, p.fetched)
	require.NoDirExists(t, fetchedDir(p.dir))
	c.requireSame(b)
	total := giver.sent.Load()
	t.Logf("%d bytes in the first attempt, %d in the second", first, total-first)
	require.Greater(t, first, int64(length))
	require.Less(t, total, int64(keys*length*5/4), "fetched twice")

	// it has fallen behind
	nodetest.Put(t, client, "key-25", "another")
	height = c.node.Application().Height()
	nodetest.Until(t, "the giver at another height", func() bool { return v.feed(height) })
	old := b.Claims()[0].Newest
	c.fill(b, p, headers, old)
	require.Greater(t, b.Claims()[0].Newest, old)
	c.requireSame(b)
	t.Logf("%d bytes for what differs", giver.sent.Load()-total)
	require.Less(t, giver.sent.Load()-total, int64(keys*length/2))
	require.False(t, logs.Has("A node sent an invalid response"))
}

// A node that was killed while it fetched a range continues where it stopped, at a newer height,
// and only a few responses are in memory at a time.
func TestTakeoverResumesAfterAKill(t *testing.T) {
	if testing.Short() {
		t.Skip("28 MB of blocks; TestTakeoverReuses fills a range, too")
	}
	t.Parallel() // it waits for blocks
	c := newChain(t, avlstar.KeyRange{})
	a := c.start(c.replicaHome(), log.NewNopLogger(), fromGenesis)
	v := c.dial(a)
	client := nodetest.RPC(t, c.home)
	const keys, length = 40, 700_000
	for i := range keys {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), strings.Repeat(fmt.Sprint(i%10), length))
	}
	v.feedAll("the first node's blocks")

	giver := &replicaOf{n: a}
	var filled atomic.Pointer[place]
	var held atomic.Int64 // greatest number of bytes that were sent and are not on disk
	giver.after = func(sent int64) {
		if f := filled.Load().filling.Load(); f != nil {
			for now := sent - int64(f.stored.Load()); now > held.Load(); {
				held.Store(now)
			}
		}
	}
	dir, logs := c.replicaHome(giver.listen(t)), new(nodetest.LogBuffer)
	b := c.alone(dir, logs)
	p := b.all()[0]
	filled.Store(p)
	headers := chainHeaders{c}
	before := a.Claims()[0].Newest
	nodetest.Until(t, "the next header", func() bool { n, _ := headers.Newest(t.Context()); return n > before+1 })
	giver.answers.Store(keys / 4)
	require.ErrorIs(t, b.filler.fill(t.Context(), p, headers, 0, -1, false), errNobody)
	first := giver.sent.Load()
	require.Greater(t, first, int64(keys*length/4))
	require.Greater(t, int64(p.fetched.Bytes()), first/2)

	killed := t.TempDir() // the files as a kill leaves them
	require.NoError(t, os.CopyFS(killed, os.DirFS(dir)))
	nodetest.Put(t, client, "key-05", "another")
	height := c.node.Application().Height()
	nodetest.Until(t, "the giver at another height", func() bool { return v.feed(height) })
	again := c.alone(killed, logs)
	filled.Store(again.all()[0])
	giver.answers.Store(math.MaxInt64)
	c.fill(again, again.all()[0], headers, -1)
	c.requireSame(again)
	require.NoDirExists(t, fetchedDir(again.all()[0].dir))
	second := giver.sent.Load() - first
	t.Logf("%d bytes before the kill, %d after it, at most %d not on disk", first, second, held.Load())
	require.Less(t, first+second, int64(keys*length*11/10), "fetched twice")
	require.Less(t, held.Load(), int64((pageWorkers+1)*(pageBytes+length)))
	require.Less(t, held.Load(), int64(keys*length/2))
}

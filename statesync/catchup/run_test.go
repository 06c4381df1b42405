package catchup

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/transport"
)

// testPeer is a node with blocks; answer determines its reaction to requests.
type testPeer struct {
	id      transport.ID
	blocks  *testBlocks
	claim   Claim
	serve   func(ctx context.Context, p *testPeer, c transport.Call) ([]byte, error)
	mu      sync.Mutex
	asked   int // guarded by mu
	answers int // guarded by mu
}

var _ transport.Conn = (*testPeer)(nil)

func (p *testPeer) Remote() transport.Address { return transport.Address{ID: p.id} }
func (p *testPeer) ChainID() string           { return testChain }
func (p *testPeer) Done() <-chan struct{}     { return nil }
func (p *testPeer) Err() error                { return nil }
func (p *testPeer) Close() error              { return nil }

func (p *testPeer) Call(ctx context.Context, c transport.Call) ([]byte, error) {
	p.mu.Lock()
	p.asked++
	p.mu.Unlock()
	bubble.Sleep(10 * time.Millisecond)
	answer, err := p.serve(ctx, p, c)
	if err != nil {
		return nil, err
	}
	if len(answer) > len(c.Into) {
		return nil, transport.ErrTooLong
	}
	n := copy(c.Into, answer)
	c.Received.Add(int64(n))
	p.mu.Lock()
	p.answers++
	p.mu.Unlock()
	return c.Into[:n], nil
}

func honest(_ context.Context, p *testPeer, c transport.Call) ([]byte, error) {
	r, err := decodeRequest(c.Body)
	if err != nil {
		return nil, err
	}
	return encodeBlocks(context.Background(), p.blocks, r)
}

// hangs never answers.
func hangs(ctx context.Context, _ *testPeer, _ transport.Call) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// drips sends one byte per second forever.
func drips(ctx context.Context, _ *testPeer, c transport.Call) ([]byte, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-bubble.After(time.Second):
			c.Received.Add(1)
		}
	}
}

// testOwn is the chain of the node that catches up.
type testOwn struct {
	of     *testBlocks // the chain that signs the valid blocks
	mu     sync.Mutex
	blocks []Block // guarded by mu
	err    error   // of the next Apply
	took   time.Duration
	short  int64 // number of blocks that are limited to 64 KiB
}

func (c *testOwn) Height() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.blocks))
}

func (c *testOwn) Time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.blocks) == 0 {
		return time.Time{}
	}
	return c.blocks[len(c.blocks)-1].Time
}

func (c *testOwn) MaxBlockBytes() int64 {
	if c.Height() < c.short {
		return 64 << 10
	}
	return 1 << 20
}

func (c *testOwn) Apply(_ context.Context, b Block) error {
	bubble.Sleep(c.took)
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.Height != int64(len(c.blocks))+1 {
		return fmt.Errorf("block %d after %d", b.Height, len(c.blocks))
	}
	if err := c.of.set.VerifyCommit(testChain, b.ID, b.Height, b.Commit); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsigned, err)
	}
	if c.err != nil {
		return c.err
	}
	c.blocks = append(c.blocks, b)
	return nil
}

// world is a node that catches up, with its peers.
type world struct {
	own    *testOwn
	peers  []*testPeer
	mu     sync.Mutex
	banned map[transport.ID]string // guarded by mu
	last   Progress
	view   View
	memory int64
}

func newWorld(chain *testBlocks, peers ...*testPeer) *world {
	w := &world{own: &testOwn{of: chain}, peers: peers, memory: 16 << 20, banned: map[transport.ID]string{}}
	for i, p := range peers {
		p.id = transport.ID(fmt.Sprint("peer", i))
		if p.blocks == nil {
			p.blocks = chain
		}
		if p.serve == nil {
			p.serve = honest
		}
		if p.claim == (Claim{}) {
			p.claim = Claim{First: p.blocks.base, Last: p.blocks.height()}
		}
	}
	return w
}

func (w *world) run(ctx context.Context) error { return Run(ctx, w.options()) }

func (w *world) options() Options {
	return Options{
		ChainID: testChain, Chain: w.own, MemoryBytes: w.memory, View: &w.view,
		Peers: func() (list []Peer, _ <-chan struct{}, _ bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, p := range w.peers {
				if _, banned := w.banned[p.id]; !banned {
					claim := p.claim
					if p.blocks.shown != nil && claim.Last < 1<<60 {
						claim.Last = p.blocks.height()
					}
					list = append(list, Peer{p, claim})
				}
			}
			return list, nil, true
		},
		Ban: func(id transport.ID, reason string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.banned[id] = reason
		},
		Progress: func(p Progress) { w.last = p },
	}
}

// caughtUp checks that the node has all blocks of the chain except the last.
func (w *world) caughtUp(t *testing.T, chain *testBlocks) {
	t.Helper()
	require.Equal(t, chain.height()-1, w.own.Height())
	for i, b := range w.own.blocks {
		require.Equal(t, chain.blocks[i].ID, b.ID)
	}
	require.Equal(t, Normal, w.last.State)
}

func TestCatchUp(t *testing.T) {
	// many blocks per answer, a few, and blocks that do not fit into one
	for _, size := range []int{10, 30_000, 300_000} {
		synctest.Test(t, func(t *testing.T) {
			chain := newBlocks("a", 60, size)
			w := newWorld(chain, new(testPeer), new(testPeer), new(testPeer))
			require.NoError(t, w.run(t.Context()))
			w.caughtUp(t, chain)
			require.Empty(t, w.banned)
			require.Equal(t, int64(59), w.last.Blocks)
			if size > 10 {
				for _, p := range w.peers {
					require.Positive(t, p.answers, "%s was not asked", p.id)
				}
			}
		})
	}
}

// Whatever one peer does, the node gets the blocks from the other, and no honest peer is banned.
func TestCatchUpAmongLiars(t *testing.T) {
	chain, fork := newBlocks("a", 100, 10_000), newBlocks("b", 100, 10_000)
	stranger := newBlocks("a", 0, 0)
	stranger.key = ed25519.GenPrivKeyFromSecret([]byte("stranger"))
	for h := int64(1); h <= 100; h++ {
		stranger.blocks = append(stranger.blocks, stranger.block(h))
	}
	answering := func(err error) *testPeer {
		return &testPeer{serve: func(context.Context, *testPeer, transport.Call) ([]byte, error) { return nil, err }}
	}
	changed := func(change func(request, []byte) []byte) *testPeer {
		return &testPeer{serve: func(ctx context.Context, p *testPeer, c transport.Call) ([]byte, error) {
			answer, err := honest(ctx, p, c)
			if err != nil {
				return nil, err
			}
			r, err := decodeRequest(c.Body)
			if err != nil {
				return nil, err
			}
			return change(r, answer), nil
		}}
	}
	for name, c := range map[string]struct {
		peer   *testPeer
		banned bool
	}{
		"altered":       {changed(func(_ request, a []byte) []byte { a[len(a)/2] ^= 1; return a }), true},
		"another chain": {&testPeer{blocks: stranger}, true},
		"cut off":       {changed(func(_ request, a []byte) []byte { return a[:len(a)-1] }), true},
		"empty":         {changed(func(request, []byte) []byte { return nil }), true},
		"needs nothing": {changed(func(request, []byte) []byte { return needAnswer(3) }), true},
		"needs much":    {changed(func(request, []byte) []byte { return needAnswer(MaxBytes) }), false},
		// Empty transactions: each takes 200 bytes of the 16 MiB while it is decoded.
		"heavy blocks":    {changed(func(request, []byte) []byte { return emptyTxs(90_000, 1) }), false},
		"heavy together":  {changed(func(request, []byte) []byte { return emptyTxs(50_000, 50_000) }), true},
		"too many, heavy": {changed(func(r request, _ []byte) []byte { return emptyTxs(slices.Repeat([]int{13_000}, r.count+1)...) }), true},
		"too long":        {changed(func(r request, _ []byte) []byte { return make([]byte, r.limit+1) }), true},
		"missing heights": {&testPeer{claim: Claim{1, 1 << 60, 0}, serve: answering(transport.ErrGone).serve}, false},
		"refuses":         {answering(transport.ErrRefused), false},
		"busy":            {answering(transport.ErrBusy), false},
		"fails":           {answering(transport.ErrFailed), false},
		"gone away":       {answering(transport.ErrClosed), false},
		"hangs":           {&testPeer{serve: hangs}, false},
		"drips":           {&testPeer{serve: drips}, false},
		"claims, hangs":   {&testPeer{claim: Claim{1, 1 << 60, 0}, serve: hangs}, false},
		"claims, drips":   {&testPeer{claim: Claim{1, 1 << 60, 0}, serve: drips}, false},
		"short": {&testPeer{serve: func(ctx context.Context, p *testPeer, c transport.Call) ([]byte, error) {
			r, err := decodeRequest(c.Body)
			if err != nil {
				return nil, err
			}
			r.count = 1
			return encodeBlocks(ctx, p.blocks, r)
		}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(chain, c.peer, new(testPeer))
				began := time.Now()
				err := w.run(t.Context())
				if !errors.Is(err, ErrStalled) { // it has the blocks of an honest peer
					require.NoError(t, err)
				}
				require.Equal(t, int64(99), w.own.Height())
				require.Less(t, time.Since(began), 5*time.Minute)
				_, banned := w.banned[c.peer.id]
				require.Equal(t, c.banned, banned, "%v", w.banned)
				require.NotContains(t, w.banned, w.peers[1].id)
				require.Positive(t, c.peer.asked)
			})
		})
	}
	// both signed by the same validators: the first one counts
	t.Run("two blocks of one height", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(chain, &testPeer{blocks: fork})
			require.NoError(t, w.run(t.Context()))
			w.caughtUp(t, fork)
		})
	})
}

// emptyTxs returns an answer of malformed blocks with the given numbers of empty transactions.
func emptyTxs(txs ...int) []byte {
	answer := binary.BigEndian.AppendUint16(nil, uint16(len(txs)))
	for _, n := range txs {
		data := bytes.Repeat([]byte{0x0a, 0}, n)
		answer = appendPart(answer, append(binary.AppendUvarint([]byte{0x12}, uint64(len(data))), data...))
	}
	return appendPart(answer, nil)
}

// A peer that reports an impossible length of the next block is given up.
func TestAbsurdNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(newBlocks("a", 100, 10), &testPeer{serve: func(context.Context, *testPeer, transport.Call) ([]byte, error) {
			return needAnswer(MaxBytes), nil
		}})
		began := time.Now()
		require.ErrorIs(t, w.run(t.Context()), ErrStalled)
		require.Less(t, time.Since(began), 30*time.Second)
		require.Equal(t, maxIdles, w.peers[0].asked)
		require.Empty(t, w.banned)
	})
}

// Blocks that do not fit into memory are not requested repeatedly while blocks are executed.
func TestNoRoomNoRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newBlocks("a", 41, 300_000)
		w := newWorld(chain, new(testPeer), new(testPeer))
		w.memory = 2 << 20
		w.own.took = time.Second
		require.NoError(t, w.run(t.Context()))
		w.caughtUp(t, chain)
		requests := w.peers[0].asked + w.peers[1].asked
		require.LessOrEqual(t, requests, 4*40, "each block twice, for its length and for the block, and again if there was no room")
	})
}

// An honest peer is not given up for a block that is longer than blocks may be now: a block before
// it may raise the limit.
func TestLaterBlocksMayBeLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newBlocks("a", 20, 10_000)
		for h := int64(21); h <= 30; h++ {
			chain.blocks = append(chain.blocks, chain.block(h, make(types.Tx, 300_000)))
		}
		w := newWorld(chain, new(testPeer))
		w.own.short, w.own.took = 20, time.Second
		require.NoError(t, w.run(t.Context()))
		w.caughtUp(t, chain)
	})
}

// A slow peer does not delay the others.
func TestSlowPeersAreHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newBlocks("a", 100, 10_000)
		w := newWorld(chain, &testPeer{serve: hangs}, &testPeer{serve: drips}, new(testPeer))
		began := time.Now()
		require.NoError(t, w.run(t.Context()))
		w.caughtUp(t, chain)
		require.Less(t, time.Since(began), 30*time.Second)
	})
}

// Honest peers with slow links, which answer one request after the other, are not given up.
func TestNarrowLinks(t *testing.T) {
	for _, peers := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			chain := newBlocks("a", 400, 10_000)
			var list []*testPeer
			for range peers {
				turn := make(chan struct{}, 1)
				list = append(list, &testPeer{serve: func(ctx context.Context, p *testPeer, c transport.Call) ([]byte, error) {
					select {
					case turn <- struct{}{}:
						defer func() { <-turn }()
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					answer, err := honest(ctx, p, c)
					for sent := 0; sent < len(answer); sent += 4000 {
						select {
						case <-ctx.Done():
							return nil, ctx.Err()
						case <-bubble.After(100 * time.Millisecond):
							c.Received.Add(4000)
						}
					}
					return answer, err
				}})
			}
			w := newWorld(chain, list...)
			require.NoError(t, w.run(t.Context()))
			w.caughtUp(t, chain)
		})
	}
}

// A peer that claims much, sends nothing and is never idle does not keep a node from CometBFT, even
// if the other peers' chain grows often enough that the run never stalls.
func TestClaimsDoNotHoldARun(t *testing.T) {
	for name, err := range map[string]error{"busy": transport.ErrBusy, "fails": transport.ErrFailed, "gone": transport.ErrGone} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const every = 55 * time.Second
				began := time.Now()
				chain := newBlocksAt("a", 200, 10, began.Add(-100*every), every)
				chain.shown = func() int64 { return 99 + int64(time.Since(began)/every) }
				liar := &testPeer{
					claim: Claim{1, 1 << 60, 0},
					serve: func(context.Context, *testPeer, transport.Call) ([]byte, error) { return nil, err },
				}
				w := newWorld(chain, liar, new(testPeer))
				require.NoError(t, w.run(t.Context()))
				require.Less(t, time.Since(began), 5*time.Minute)
				require.GreaterOrEqual(t, w.own.Height(), int64(98))
				require.Equal(t, Normal, w.last.State)
				require.Less(t, w.last.Target, int64(200))
			})
		})
	}
}

// A peer that was given up stays so after it reconnects.
func TestIdlePeersStayUseless(t *testing.T) {
	r := newRoster()
	claim, now := Claim{First: 1, Last: 9}, time.Now()
	r.update([]Peer{{&testPeer{id: "a"}, claim}})
	for range maxIdles {
		for range 3 { // simultaneous requests count once
			r.failed(r.peers["a"], 1, &idleError{began: now}, now.Add(idle))
		}
		now = now.Add(idle + restAfter)
	}
	require.Equal(t, maxIdles, r.peers["a"].idles)
	r.update([]Peer{{&testPeer{id: "a"}, claim}})
	_, peers, _ := r.claims()
	require.Zero(t, peers)
	require.Equal(t, int64(9), r.idle())
}

// However many peers come and go, few are remembered, and ended connections are not. A banned peer
// stays banned on its next connection.
func TestTheRosterIsBounded(t *testing.T) {
	r := newRoster()
	claim := Claim{First: 1, Last: 9}
	for i := range 3 * maxGone {
		r.update([]Peer{{&testPeer{id: transport.ID(fmt.Sprint(i))}, claim}})
		require.Len(t, r.peers, 1)
		require.LessOrEqual(t, r.gone.Len(), maxGone)
	}
	r.update([]Peer{{&testPeer{id: "a"}, claim}})
	first := r.peers["a"]
	r.update(nil)
	require.Empty(t, r.peers)
	require.False(t, r.doubt(first, false), "a late answer")
	r.update([]Peer{{&testPeer{id: "a"}, claim}})
	require.Empty(t, r.candidates(1, time.Now()))
	_, peers, banned := r.claims()
	require.Zero(t, peers)
	require.Equal(t, 1, banned)
}

// lent counts the memory of long answers in flight.
type lent struct {
	mu               sync.Mutex
	bytes, most      int // current and maximum
	answers, atATime int
}

// hold holds a buffer for a while.
func (l *lent) hold(buffer []byte, d time.Duration) {
	l.add(len(buffer), 1)
	bubble.Sleep(d)
	l.add(-len(buffer), -1)
}

func (l *lent) add(bytes, answers int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes, l.answers = l.bytes+bytes, l.answers+answers
	l.most, l.atATime = max(l.most, l.bytes), max(l.atATime, l.answers)
}

// Blocks that exceed the usual answer length are fetched several at a time, as far as memory
// allows.
func TestLongBlocksComeTogether(t *testing.T) {
	for name, c := range map[string]struct {
		memory  int64
		atATime int
		within  time.Duration
	}{
		"enough":  {16 << 20, 4, 15 * time.Second},
		"for two": {2 << 20, 2, 30 * time.Second},
		"for one": {1 << 20, 1, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lent lent
				slowly := func(ctx context.Context, p *testPeer, c transport.Call) ([]byte, error) {
					if r, err := decodeRequest(c.Body); err == nil && r.limit > 300_000 {
						lent.hold(c.Into, 900*time.Millisecond)
					}
					return honest(ctx, p, c)
				}
				chain := newBlocks("a", 41, 300_000)
				w := newWorld(chain, &testPeer{serve: slowly}, &testPeer{serve: slowly}, &testPeer{serve: slowly})
				w.memory = c.memory
				began := time.Now()
				require.NoError(t, w.run(t.Context()))
				w.caughtUp(t, chain)
				require.Empty(t, w.banned)
				require.GreaterOrEqual(t, lent.atATime, c.atATime)
				// The next block always fits.
				require.LessOrEqual(t, int64(lent.most), c.memory/decoded+301_000)
				require.Less(t, time.Since(began), c.within)
			})
		})
	}
}

// Peers that report every block as long get as many requests as memory allows.
func TestLongAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lent lent
		liar := func(ctx context.Context, p *testPeer, c transport.Call) ([]byte, error) {
			r, err := decodeRequest(c.Body)
			if err != nil || r.from < 20 {
				return honest(ctx, p, c)
			}
			if r.limit < 1<<20 {
				return needAnswer(1 << 20), nil
			}
			lent.hold(c.Into, 2*time.Second)
			return honest(ctx, p, c)
		}
		chain := newBlocks("a", 60, 10_000)
		w := newWorld(chain, &testPeer{serve: liar}, &testPeer{serve: liar}, &testPeer{serve: liar}, &testPeer{serve: liar})
		w.memory = 8 << 20
		require.NoError(t, w.run(t.Context()))
		w.caughtUp(t, chain)
		require.LessOrEqual(t, lent.atATime, 2+2, "two that there is room for, and the next block from two peers")
	})
}

// All memory is released: that of executed, late and wrong answers, and of hedged requests.
func TestRoomIsGivenBack(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			var mu sync.Mutex
			flaky := func(ctx context.Context, p *testPeer, c transport.Call) ([]byte, error) {
				mu.Lock()
				fate, wait := random.IntN(10), time.Duration(random.IntN(4000))*time.Millisecond
				mu.Unlock()
				select {
				case <-bubble.After(wait):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				answer, err := honest(ctx, p, c)
				switch {
				case fate == 0:
					return nil, transport.ErrFailed
				case fate == 1 && err == nil && p.id == "peer0":
					answer[len(answer)/2] ^= 1
				}
				return answer, err
			}
			chain := newBlocks("a", 40, 150_000)
			w := newWorld(chain, &testPeer{serve: flaky}, &testPeer{serve: flaky}, &testPeer{serve: flaky}, new(testPeer))
			w.memory = 2 << 20
			ctx, cancel := context.WithCancel(t.Context())
			o := w.options()
			o.Logger, o.Settle, o.Stall = log.NewNopLogger(), time.Second, time.Minute
			var most int64
			o.Progress = func(p Progress) { w.last, most = p, max(most, p.Memory) }
			l := newLoop(ctx, o)
			require.NoError(t, l.run())
			cancel()
			l.wg.Wait()
			w.caughtUp(t, chain)
			require.Zero(t, l.room.mu.used)
			require.Positive(t, most)
			require.Zero(t, w.last.Memory)
		})
	}
}

// Empty transactions take more memory than bytes. Their memory is estimated before they are
// decoded, and fewer such blocks are requested at once.
func TestManyEmptyTransactions(t *testing.T) {
	chain := newBlocks("a", 0, 0)
	for h := int64(1); h <= 40; h++ {
		n := 10
		if h > 10 {
			n = 5000
		}
		chain.blocks = append(chain.blocks, chain.block(h, make(types.Txs, n)...))
	}
	require.Greater(t, beside(chain.blocks[20:21]), int64(24*5000))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(chain, new(testPeer), new(testPeer))
		w.memory = 2 << 20
		w.own.took = 100 * time.Millisecond
		require.NoError(t, w.run(t.Context()))
		w.caughtUp(t, chain)
	})
	// A block that exceeds the whole memory is left to CometBFT, and no peer is at fault.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(chain, new(testPeer), new(testPeer))
		w.memory = 1 << 19
		require.NoError(t, w.run(t.Context()))
		require.Equal(t, int64(10), w.own.Height())
		require.Empty(t, w.banned)
	})
}

// The memory estimated before decoding an answer is not below the actual memory.
func TestBurden(t *testing.T) {
	chain := newBlocks("a", 4, 100_000)
	chain.blocks = append(chain.blocks, chain.block(5, make(types.Txs, 20_000)...))
	chain.blocks = append(chain.blocks, chain.block(6, types.Tx("one"), types.Tx("two")))
	for from := int64(1); from < 6; from++ {
		r := request{from, 6, 1 << 20}
		answer, err := encodeBlocks(t.Context(), chain, r)
		require.NoError(t, err)
		w, err := weighAnswer(r, answer, 1<<40)
		require.NoError(t, err)
		blocks, err := decodeAnswer(testChain, r, answer, MaxBlocks)
		require.NoError(t, err)
		require.Len(t, blocks, w.blocks)
		require.GreaterOrEqual(t, w.bytes, int64(2*len(answer))+beside(blocks)-int64(len(blocks)*1000))
		for cut := range 100 { // arbitrary truncations
			_, err := weighAnswer(r, answer[:cut*len(answer)/100], 1<<40)
			require.ErrorIs(t, err, errMessage)
		}
		// As many blocks as fit, each with the commit after it.
		for most := w.bytes; ; {
			fit, err := weighAnswer(r, answer, most)
			require.NoError(t, err)
			if fit.blocks == 0 {
				break
			}
			require.LessOrEqual(t, fit.bytes, most)
			first, err := decodeAnswer(testChain, r, answer, fit.blocks)
			require.NoError(t, err)
			require.Len(t, first, fit.blocks)
			for i, b := range first {
				require.Equal(t, blocks[i].ID, b.ID)
				require.Equal(t, blocks[i].ID, b.Commit.BlockID)
			}
			most = fit.bytes - 1
		}
	}
}

// Old versions refuse the method: the run ends at once, and CometBFT fetches the blocks.
func TestOnlyOldPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newBlocks("a", 100, 10)
		refuses := func(context.Context, *testPeer, transport.Call) ([]byte, error) { return nil, transport.ErrRefused }
		w := newWorld(chain, &testPeer{serve: refuses}, &testPeer{serve: refuses})
		began := time.Now()
		require.NoError(t, w.run(t.Context()))
		require.Zero(t, w.own.Height())
		require.Less(t, time.Since(began), 5*time.Second)
	})
}

func TestRunEnds(t *testing.T) {
	chain := newBlocks("a", 100, 10)
	t.Run("an error of the application", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(chain, new(testPeer))
			w.own.err = errors.New("the disk is full")
			require.ErrorIs(t, w.run(t.Context()), w.own.err)
			p, _ := w.view.Progress()
			require.Equal(t, Normal, p.State)
			require.Empty(t, w.banned)
			w.own.err = nil // the next run continues
			require.NoError(t, w.run(t.Context()))
			w.caughtUp(t, chain)
		})
	})
	t.Run("the context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(chain, new(testPeer))
			w.own.took = time.Second
			ctx, cancel := context.WithTimeout(t.Context(), 10500*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, w.run(ctx), context.DeadlineExceeded)
			require.Equal(t, int64(11), w.own.Height()) // the block in progress is completed
		})
	})
	t.Run("no peer answers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(chain, &testPeer{serve: hangs})
			began := time.Now()
			require.ErrorIs(t, w.run(t.Context()), ErrStalled)
			require.Less(t, time.Since(began), 2*time.Minute)
		})
	})
}

// Wrong, unproved answers, forged in the network fabric, are requested again with proof. They
// neither ban a peer nor make it useless.
func TestUnprovedAnswers(t *testing.T) {
	chain := newBlocks("a", 100, 10_000)
	for name, forge := range map[string]func([]byte) []byte{
		"altered":           func(a []byte) []byte { a[len(a)/2] ^= 1; return a },
		"a wrong signature": func(a []byte) []byte { a[len(a)-1] ^= 1; return a },
		"a heavy block":     func([]byte) []byte { return emptyTxs(90_000) },
		"heavy blocks":      func([]byte) []byte { return emptyTxs(90_000, 1) },
		"too many blocks":   func([]byte) []byte { return emptyTxs(make([]int, MaxBlocks+1)...) },
		"needs nothing":     func([]byte) []byte { return needAnswer(3) },
		"needs much":        func([]byte) []byte { return needAnswer(MaxBytes) },
		"a malformed need":  func([]byte) []byte { return make([]byte, countBytes+1) },
		"nothing but zeros": func([]byte) []byte { return make([]byte, 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &unprovedPeer{}
				p.serve = func(ctx context.Context, of *testPeer, c transport.Call) ([]byte, error) {
					answer, err := honest(ctx, of, c)
					if err == nil && !c.Proved {
						answer = forge(answer)
					}
					return answer, err
				}
				w := newWorld(chain, &p.testPeer)
				o := w.options()
				o.Peers = func() ([]Peer, <-chan struct{}, bool) { return []Peer{{p, p.claim}}, nil, true }
				began := time.Now()
				require.NoError(t, Run(t.Context(), o))
				require.Equal(t, int64(99), w.own.Height())
				require.Less(t, time.Since(began), time.Minute)
				require.Empty(t, w.banned)
				require.Positive(t, p.doubted)
			})
		})
	}
}

// A peer whose answer was wrong and unproved gets one request at a time and must prove its answers
// until one was right.
func TestDoubtedPeersHaveOneQuestion(t *testing.T) {
	r := newRoster()
	r.update([]Peer{{&testPeer{id: "a"}, Claim{First: 1, Last: 9}}})
	p := r.peers["a"]
	ask := func(wantProved, wantMay bool) {
		t.Helper()
		require.Equal(t, wantMay, len(r.candidates(1, time.Now())) == 1)
		proved, may := r.asking(p)
		require.Equal(t, wantProved, proved)
		require.Equal(t, wantMay, may)
	}
	ask(false, true)
	ask(false, true)
	require.True(t, r.doubt(p, true))
	r.asked(p)
	ask(false, false) // the other request is in flight
	r.asked(p)
	ask(true, true)
	ask(false, false)
	r.right(p, true) // sent before the doubt
	ask(false, false)
	r.right(p, false)
	ask(false, true)

	synctest.Test(t, func(t *testing.T) {
		chain := newBlocks("a", 400, 10_000)
		p := new(unprovedPeer)
		var mu sync.Mutex
		wrong, all, proved, together, most := 0, 0, 0, 0, 0
		p.serve = func(ctx context.Context, of *testPeer, c transport.Call) ([]byte, error) {
			count := func(by int) {
				mu.Lock()
				defer mu.Unlock()
				all += by
				most = max(most, all)
				if c.Proved {
					proved += by
					together = max(together, proved)
				}
			}
			count(1)
			defer count(-1)
			bubble.Sleep(time.Second)
			answer, err := honest(ctx, of, c)
			mu.Lock()
			defer mu.Unlock()
			if r, _ := decodeRequest(c.Body); err == nil && !c.Proved && r.from > 100 && wrong == 0 {
				wrong++
				answer[len(answer)/2] ^= 1
			}
			return answer, err
		}
		w := newWorld(chain, &p.testPeer)
		o := w.options()
		o.Peers = func() ([]Peer, <-chan struct{}, bool) { return []Peer{{p, p.claim}}, nil, true }
		require.NoError(t, Run(t.Context(), o))
		w.caughtUp(t, chain)
		require.Empty(t, w.banned)
		require.Equal(t, 1, wrong)
		require.Equal(t, maxOut, most, "before the doubt, and after it")
		require.Equal(t, 1, together)
	})
}

type unprovedPeer struct {
	testPeer
	doubted int
}

func (p *unprovedPeer) Unproved() bool { return true }
func (p *unprovedPeer) Doubt()         { p.mu.Lock(); p.doubted++; p.mu.Unlock() }

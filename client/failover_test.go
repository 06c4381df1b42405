package client

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/p2p"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/sleep"
)

// trio is a client of three nodes of one chain, each one millisecond farther away than the
// previous.
type trio struct {
	t     *testing.T
	ctx   context.Context
	chain *fakeChain
	nodes []*fakeNode
	*Client
}

func newTrio(t *testing.T, options ...Option) *trio { return newTrioOn(t, newFakeChain(t), options...) }

func newTrioOn(t *testing.T, chain *fakeChain, options ...Option) *trio {
	r := &trio{t: t, ctx: testContext(t), chain: chain}
	var all []RPC
	for i, name := range []string{"a", "b", "c"} {
		n := &fakeNode{chain: chain, name: name, delay: time.Duration(i+1) * time.Millisecond}
		r.nodes, all = append(r.nodes, n), append(all, n)
	}
	var err error
	r.Client, err = New(r.ctx, all, append([]Option{WithKey(testKey)}, options...)...)
	require.NoError(t, err)
	return r
}

// bubble runs a test in virtual time. Then it lets time pass until background work has ended:
// probes, and requests to witnesses.
func bubble(t *testing.T, test func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { _ = sleep.For(context.Background(), time.Hour) })
		test(t)
	})
}

// both runs a test with a client that verifies and with one that does not, in virtual time.
func both(t *testing.T, test func(t *testing.T, r *trio)) {
	t.Run("believing", func(t *testing.T) { bubble(t, func(t *testing.T) { test(t, newTrio(t)) }) })
	t.Run("verifying", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newTrio(t)
			var all []RPC
			for _, n := range r.nodes {
				all = append(all, n)
			}
			var err error
			r.Client, err = New(r.ctx, all, WithKey(testKey), WithVerification(Trust{Genesis: r.chain.genesis()}))
			require.NoError(t, err)
			test(t, r)
		})
	})
}

// get reads a key, and returns how long that took.
func (r *trio) get(key string) (*Value, time.Duration) {
	r.t.Helper()
	began := time.Now()
	v, err := r.Get(r.ctx, []byte(key))
	require.NoError(r.t, err)
	return v, time.Since(began)
}

func (r *trio) put(key, value string) time.Duration {
	r.t.Helper()
	began := time.Now()
	_, err := r.Put(r.ctx, []byte(key), []byte(value))
	require.NoError(r.t, err)
	return time.Since(began)
}

// catchingUp is the answer of a node that does not have all blocks.
var catchingUp = rpcError("endpoint is closed while node is catching up")

// faults are the ways in which a node can fail.
var faults = map[string]func(n *fakeNode){
	"killed":      func(n *fakeNode) { n.down = errDial },
	"reset":       func(n *fakeNode) { n.down = errLost },
	"stopped":     func(n *fakeNode) { n.stopped = make(chan struct{}) },
	"catching up": func(n *fakeNode) { n.down = catchingUp },
	"slow":        func(n *fakeNode) { n.delay = 3 * time.Second },
	"behind":      func(n *fakeNode) { n.lag = 2 },
	"foreign": func(n *fakeNode) {
		n.lie = func(a any) error {
			if s, ok := a.(*ctypes.ResultStatus); ok {
				s.NodeInfo = p2p.DefaultNodeInfo{Network: "another"}
				return nil
			}
			return errLost
		}
	},
}

// TestOneOfThreeFails: whichever node fails, and however, no call is lost, and only one call waits
// for the node.
func TestOneOfThreeFails(t *testing.T) {
	for name, fail := range faults {
		for i := range 3 {
			t.Run(fmt.Sprintf("%s/%d", name, i), func(t *testing.T) {
				both(t, func(t *testing.T, r *trio) {
					r.put("k", "0")
					_, took := r.get("k")
					require.Less(t, took, 50*time.Millisecond)
					bad := r.nodes[i]
					bad.change(func() { fail(bad) })
					var slow time.Duration // in addition to the duration with healthy nodes
					for n := range 60 {
						value := fmt.Sprint(n + 1)
						if n%10 == 0 {
							slow += max(r.put("k", value)-50*time.Millisecond, 0)
						}
						v, took := r.get("k")
						require.Equal(t, fmt.Sprint(n/10*10+1), string(v.Value), "a write is read back")
						require.Less(t, took, time.Second)
						slow += max(took-50*time.Millisecond, 0)
						require.NoError(t, sleep.For(r.ctx, 300*time.Millisecond))
					}
					require.Less(t, slow, sendTimeout+6*hedgeAfter, "one timeout, not one for each call")

					// The node returns and is used again, because it is the nearest.
					bad.change(func() {
						if bad.stopped != nil {
							close(bad.stopped)
						}
						bad.lie, bad.down, bad.stopped, bad.lag, bad.delay = nil, nil, nil, 0, time.Duration(i+1)*time.Millisecond
					})
					for range 40 {
						r.get("k")
						require.NoError(t, sleep.For(r.ctx, time.Second))
					}
					bad.change(func() { bad.calls = 0 })
					for range 5 {
						r.get("k")
					}
					if i == 0 && name != "foreign" {
						require.GreaterOrEqual(t, bad.calls, 5)
					}
				})
			})
		}
	}
}

// TestNearest: reads go to the nearest node, and to another when that becomes slow.
func TestNearest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTrio(t)
		a, c := r.nodes[0], r.nodes[2]
		a.change(func() { a.delay = 80 * time.Millisecond })
		r.nodes[1].change(func() { r.nodes[1].delay = 50 * time.Millisecond })
		read := func(n int) {
			for range n {
				r.get("k")
				require.NoError(t, sleep.For(r.ctx, 100*time.Millisecond))
			}
			for _, n := range r.nodes {
				n.change(func() { n.calls = 0 })
			}
		}
		read(150) // with time for probes of all nodes
		for range 20 {
			r.get("k")
		}
		require.Equal(t, 20, c.calls)
		c.change(func() { c.delay = 150 * time.Millisecond })
		read(150)
		for range 20 {
			r.get("k")
		}
		require.Less(t, c.calls, 3)
	})
}

// TestLiarAboutHeight: a node that reports heights that the chain has not reached delays one read,
// and the answers of other nodes do not count as too old because of it.
func TestLiarAboutHeight(t *testing.T) {
	for _, by := range []int64{2, 1000, 1 << 60} {
		both(t, func(t *testing.T, r *trio) {
			r.put("k", "v")
			liar := r.nodes[0] // the nearest
			liar.lies(func(a any) error {
				switch a := a.(type) {
				case *ctypes.ResultABCIQuery:
					a.Response.Height += by
				case *ctypes.ResultStatus:
					a.SyncInfo.LatestBlockHeight += by
				}
				return nil
			})
			slow := 0
			for range 50 {
				v, took := r.get("k")
				require.Equal(t, "v", string(v.Value))
				if took > 50*time.Millisecond {
					slow++
				}
				require.Less(t, took, 2*secondOpinion)
				if v.Verified {
					require.LessOrEqual(t, v.Height, int64(len(r.chain.blocks)))
				}
			}
			require.LessOrEqual(t, slow, 1)
			verified, _ := r.pool.floors()
			require.LessOrEqual(t, verified, int64(len(r.chain.blocks)))
		})
	}
}

// TestClaimedHeightIsForgotten: after a Byzantine node is gone, the height that it reported is soon
// no longer waited for.
func TestClaimedHeightIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTrio(t)
		r.pool.claimed(1 << 60)
		_, took := r.get("k")
		require.Less(t, took, claimPatience+time.Second)
		_, took = r.get("k")
		require.Less(t, took, hedgeAfter)
	})
}

// TestNeverBack: verified reads never go back in height, whichever node answers: while all
// remaining nodes are behind, reads wait.
func TestNeverBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		chain.grow(5)
		ahead, behind, too := &fakeNode{chain: chain, name: "ahead"}, &fakeNode{chain: chain, name: "behind"}, &fakeNode{chain: chain, name: "behind, too"}
		ctx := testContext(t)
		c, err := New(ctx, []RPC{ahead, behind, too}, WithVerification(Trust{Genesis: chain.genesis()}))
		require.NoError(t, err)
		v, err := c.Get(ctx, []byte("k"))
		require.NoError(t, err)
		chain.mu.Lock()
		behind.lag, too.lag = 3, 2
		ahead.down = errDial
		chain.mu.Unlock()
		go func() {
			_ = sleep.For(ctx, 3*time.Second)
			behind.change(func() { behind.lag, too.lag = 0, 0 })
		}()
		began := time.Now()
		again, err := c.Get(ctx, []byte("k"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, again.Height, v.Height)
		require.GreaterOrEqual(t, time.Since(began), 3*time.Second)

		// An older state can be read by its height, and a wait that is too long ends with an error.
		behind.change(func() { behind.lag, too.lag = 3, 3 })
		old, err := c.Get(ctx, []byte("k"), AtHeight(2))
		require.NoError(t, err)
		require.EqualValues(t, 2, old.Height)
		_, err = c.Get(ctx, []byte("k"))
		require.ErrorIs(t, err, errBehind)
		require.ErrorContains(t, err, "is verified already")
	})
}

// TestErrorNamesEachNode: when all nodes fail, the error contains the error of each node, and does
// not claim that no node answers if one does.
func TestErrorNamesEachNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTrio(t)
		for i, fail := range []string{"killed", "stopped", "catching up"} {
			n := r.nodes[i]
			n.change(func() { faults[fail](n) })
		}
		for what, call := range map[string]func(context.Context) error{
			"read":  func(ctx context.Context) error { _, err := r.Get(ctx, []byte("k")); return err },
			"write": func(ctx context.Context) error { _, err := r.Put(ctx, []byte("k"), []byte("v")); return err },
			"watch": func(ctx context.Context) error { _, err := r.Watch(ctx, nil); return err },
		} {
			began := time.Now()
			err := call(r.ctx)
			for _, said := range []string{"a: ", "refused", "b: ", "c: ", "catching up"} {
				require.ErrorContains(t, err, said, what)
			}
			require.NotErrorIs(t, err, ErrUnreachable, what)
			require.Less(t, time.Since(began), 10*time.Second, "%s: the wait for a silent node is short once another has answered", what)
		}
		r.nodes[2].change(func() { faults["killed"](r.nodes[2]) })
		_, err := r.Get(r.ctx, []byte("k"))
		require.ErrorIs(t, err, ErrUnreachable)
		require.ErrorContains(t, err, "no node answers: query /key at 3 nodes: ")

		short, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		_, err = r.Get(short, []byte("k"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "b: no answer for ")
	})
}

// TestConnectToTheLast: a client connects although most of its nodes fail, in every way.
func TestConnectToTheLast(t *testing.T) {
	for name, fail := range faults {
		if name == "foreign" || name == "behind" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				chain := newFakeChain(t)
				var all []RPC
				for _, name := range []string{"a", "b"} {
					n := &fakeNode{chain: chain, name: name}
					fail(n)
					all = append(all, n)
				}
				began := time.Now()
				c, err := New(testContext(t), append(all, &fakeNode{chain: chain, name: "c"}))
				require.NoError(t, err)
				require.Equal(t, fakeChainID, c.ChainID())
				require.LessOrEqual(t, time.Since(began), 2*hedgeAfter)
			})
		})
	}
}

// TestLateConflict: a contradiction of a witness that is too late for the current read fails all
// later ones.
func TestLateConflict(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		chain.grow(3)
		fork := &fakeNode{chain: chain, name: "fork", lie: func(a any) error {
			if r, ok := a.(*ctypes.ResultCommit); ok {
				r.SignedHeader = *signBlock(t, r.Height, r.Time, r.Header.LastBlockID, make([]byte, 32), noTransactions, chain.validators, chain.validators).SignedHeader
			}
			return nil
		}}
		ctx := testContext(t)
		c, err := New(ctx, []RPC{&fakeNode{chain: chain, name: "a"}, &fakeNode{chain: chain, name: "b"}, fork}, WithVerification(Trust{Genesis: chain.genesis()}))
		require.NoError(t, err)
		fork.change(func() { fork.delay = time.Second })
		_, err = c.Get(ctx, []byte("k"))
		require.NoError(t, err)
		require.NoError(t, sleep.For(ctx, 5*time.Second))
		_, err = c.Get(ctx, []byte("k"))
		require.ErrorIs(t, err, ErrConflict)
	})
}

// TestWitnessesOnly: nodes of WithWitnesses confirm headers and the trusted header, and serve no
// other call.
func TestWitnessesOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		chain.grow(5)
		a, w := &fakeNode{chain: chain, name: "a", delay: 100 * time.Millisecond}, &fakeNode{chain: chain, name: "w"}
		a.lies(func(answer any) error {
			if r, ok := answer.(*ctypes.ResultCommit); ok && r.Height < 4 {
				return rpcError("height is not available, lowest height is 4")
			}
			return nil
		})
		w.lies(func(answer any) error {
			switch answer.(type) {
			case *ctypes.ResultABCIQuery, *ctypes.ResultBroadcastTx, *ctypes.ResultTx:
				t.Errorf("the witness is asked for %T", answer)
			}
			return nil
		})
		ctx := testContext(t)
		witness := func(c *Client) error { c.witnesses = []RPC{w}; return nil }
		trust := WithVerification(Trust{Height: 3, Hash: chain.blocks[2].Hash()})
		c, err := New(ctx, []RPC{a}, trust, witness, WithKey(testKey))
		require.NoError(t, err)
		for range 3 {
			_, err = c.Put(ctx, []byte("k"), []byte("v"))
			require.NoError(t, err)
			_, err = c.Get(ctx, []byte("k"))
			require.NoError(t, err)
			require.NoError(t, sleep.For(ctx, time.Minute))
		}
		require.Positive(t, w.calls)
		w.change(func() { w.down = errDial })
		chain.grow(1)
		_, err = c.Get(ctx, []byte("k"))
		require.ErrorIs(t, err, ErrUntrusted)
		require.ErrorContains(t, err, "add a third address or a witness")
		a.change(func() { a.down = errDial })
		_, err = c.Put(ctx, []byte("k"), []byte("v"))
		require.ErrorIs(t, err, ErrUnreachable)
		_, err = New(ctx, []RPC{a}, witness)
		require.ErrorContains(t, err, "WithVerification")
		_, err = New(ctx, []RPC{a}, trust, WithWitnesses("ftp://x"))
		require.ErrorContains(t, err, "witness")
	})
}

// TestHeadersAreShared: a header is fetched once for all reads that wait for it, even if the read
// that began fetching gives up.
func TestHeadersAreShared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		node := &fakeNode{chain: chain, name: "a", delay: 10 * time.Millisecond}
		ctx := testContext(t)
		c, err := New(ctx, []RPC{node}, WithVerification(Trust{Genesis: chain.genesis()}))
		require.NoError(t, err)
		height := int64(len(chain.blocks)) + 1
		impatient, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		first := make(chan error)
		go func() { _, err := c.verifier.await(impatient, height, nil, nil); first <- err }()
		synctest.Wait()
		rest := make(chan error)
		for range 20 {
			go func() { _, err := c.verifier.await(ctx, height, nil, nil); rest <- err }()
		}
		require.Error(t, <-first)
		require.NoError(t, sleep.For(ctx, time.Second))
		node.change(func() { node.calls = 0 })
		chain.grow(1)
		for range 20 {
			require.NoError(t, <-rest)
		}
		require.LessOrEqual(t, node.calls, 4)
	})
}

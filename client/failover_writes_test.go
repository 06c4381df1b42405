package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	cmtbytes "github.com/cometbft/cometbft/libs/bytes"
	rpcclient "github.com/cometbft/cometbft/rpc/client"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

// wire records the transactions sent to a node, which has a mempool of its own.
type wire struct {
	*fakeNode
	mu   sync.Mutex
	sent [][]byte // all transactions received, in order
	pool [][]byte // transactions waiting for a block
	late int      // number of the account's executed transactions that it does not know yet
}

func (w *wire) BroadcastTxSync(ctx context.Context, raw types.Tx) (*ctypes.ResultBroadcastTx, error) {
	return answer(ctx, w.fakeNode, func() (*ctypes.ResultBroadcastTx, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sent = append(w.sent, raw)
		if slices.ContainsFunc(w.pool, func(b []byte) bool { return slices.Equal(b, raw) }) || w.chain.found[string(raw.Hash())] != nil {
			return nil, rpcError("tx already exists in cache")
		}
		decoded, err := tx.Decode(raw, fakeChainID)
		if err != nil {
			return nil, err
		}
		if next := w.next(decoded.Body.Account); decoded.Body.Nonce != next {
			return &ctypes.ResultBroadcastTx{Code: uint32(tx.CodeBadNonce), Log: "bad nonce"}, nil
		}
		w.pool = append(w.pool, raw)
		return &ctypes.ResultBroadcastTx{Hash: raw.Hash()}, nil
	})
}

func (w *wire) ABCIQueryWithOptions(ctx context.Context, path string, data cmtbytes.HexBytes, opts rpcclient.ABCIQueryOptions) (*ctypes.ResultABCIQuery, error) {
	result, err := w.fakeNode.ABCIQueryWithOptions(ctx, path, data, opts)
	if err == nil && path == "/nonce" {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.chain.mu.Lock()
		defer w.chain.mu.Unlock()
		result.Response.Value = nonceBytes(w.next(data))
	}
	return result, err
}

func (w *wire) next(account []byte) uint64 {
	return w.chain.nonces[string(account)] + uint64(len(w.pool)) - uint64(w.late)
}

// mine puts the node's mempool into blocks.
func (w *wire) mine() {
	w.chain.mu.Lock()
	defer w.chain.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, raw := range w.pool {
		_ = w.chain.execute(raw)
	}
	w.pool = nil
}

// twoWires returns a chain with two nodes, and a client to which a is nearer than b.
func twoWires(t *testing.T) (chain *fakeChain, a, b *wire, c *Client) {
	t.Helper()
	chain = newFakeChain(t)
	a = &wire{fakeNode: &fakeNode{chain: chain, name: "a"}}
	b = &wire{fakeNode: &fakeNode{chain: chain, name: "b", delay: time.Millisecond}}
	c, err := New(testContext(t), []RPC{a, b}, WithKey(testKey))
	require.NoError(t, err)
	return chain, a, b, c
}

// TestSameBytesElsewhere: transactions accepted by a node that was then lost with its mempool are
// sent to another node, with the same bytes and in their order: before the next transaction, and by
// Wait.
func TestSameBytesElsewhere(t *testing.T) {
	for name, next := range map[string]bool{"with a next one": true, "only waiting": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ctx := testContext(t)
				chain, a, b, c := twoWires(t)
				var all []*Sent
				for i := range 5 {
					sent, err := c.Send(ctx, tx.NewPut([]byte("k"), fmt.Appendf(nil, "%d", i)))
					require.NoError(t, err)
					all = append(all, sent)
				}
				require.Len(t, a.sent, 5)
				require.Empty(t, b.sent)
				a.change(func() { a.down = errDial })
				a.sent, a.pool = nil, nil
				if next {
					sent, err := c.Send(ctx, tx.NewPut([]byte("k"), []byte("5")))
					require.NoError(t, err)
					all = append(all, sent)
				}
				results := make(chan error)
				for _, s := range all {
					go func() { _, err := s.Wait(ctx); results <- err }()
				}
				require.NoError(t, sleep.For(ctx, 2*time.Second))
				b.mine()
				for range all {
					require.NoError(t, <-results)
				}
				for _, s := range all {
					require.True(t, slices.ContainsFunc(b.sent, func(raw []byte) bool { return slices.Equal(raw, s.raw) }))
				}
				require.EqualValues(t, len(all), chain.nonces[string(c.Account())], "each was executed once")
				require.Empty(t, c.account(c.Account()).before(1000))
			})
		})
	}
}

// TestNonceOfANodeThatIsBehind: the node that executed the last transaction is killed, and the next
// nearest node does not know that transaction yet. The next transaction gets the right nonce
// nevertheless.
func TestNonceOfANodeThatIsBehind(t *testing.T) {
	for name, until := range map[string]time.Duration{"for a while": time.Second, "for long": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				chain := newFakeChain(t)
				ctx := testContext(t)
				var all []RPC
				var wires []*wire
				for i, name := range []string{"a", "b", "c"} {
					w := &wire{fakeNode: &fakeNode{chain: chain, name: name, delay: time.Duration(i+1) * time.Millisecond}}
					wires, all = append(wires, w), append(all, w)
				}
				c, err := New(ctx, all, WithKey(testKey))
				require.NoError(t, err)
				mining, stop := context.WithCancel(ctx)
				defer stop()
				go func() {
					for sleep.For(mining, 100*time.Millisecond) == nil {
						for _, w := range wires {
							w.mine()
						}
					}
				}()
				_, err = c.Put(ctx, []byte("k"), []byte("0"))
				require.NoError(t, err)
				wires[0].change(func() { wires[0].down, wires[1].late = errDial, 1 })
				go func() {
					if sleep.For(mining, until) == nil {
						wires[1].change(func() { wires[1].late = 0 })
					}
				}()
				began := time.Now()
				for i := range 3 {
					_, err = c.Put(ctx, []byte("k"), fmt.Appendf(nil, "%d", i+1))
					require.NoError(t, err)
				}
				require.Less(t, time.Since(began), 3*time.Second)
				require.EqualValues(t, 4, chain.nonces[string(c.Account())])
				require.Empty(t, wires[1].pool)
			})
		})
	}
}

// TestUsedNonceIsForgotten: a node falsely reported a transaction to be in a block, and is gone.
// Its report is not trusted for long.
func TestUsedNonceIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTrio(t)
		r.put("k", "1")
		a := r.account(r.Account())
		a.known = false
		a.used(&Sent{nonce: 1000})
		require.Less(t, r.put("k", "2"), claimPatience+time.Second)
	})
}

// TestLostAnswerElsewhere: the answer of a node is lost. The same bytes go to another node, and are
// executed once.
func TestLostAnswerElsewhere(t *testing.T) {
	for name, executed := range map[string]bool{"it has the transaction": true, "it has not": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newTrio(t)
				var sent [][]byte
				r.put("k", "1")
				for _, n := range r.nodes {
					n.lies(func(a any) error {
						result, ok := a.(*ctypes.ResultBroadcastTx)
						if !ok {
							return nil
						}
						sent = append(sent, result.Hash)
						if len(sent) == 1 {
							return errLost
						}
						return nil
					})
				}
				r.chain.mu.Lock()
				r.chain.held = !executed
				r.chain.mu.Unlock()
				if !executed {
					go func() { _ = sleep.For(r.ctx, time.Second); r.chain.release() }()
				}
				r.put("k", "2")
				v, _ := r.get("k")
				require.Equal(t, "2", string(v.Value))
				require.EqualValues(t, 2, r.chain.nonces[string(r.Account())])
			})
		})
	}
}

// TestLostAnswerIsNotSignedAgain: the answer of a node is lost, and no other node knows the
// transaction any more, so they refuse its nonce. It was executed, so its operations are not signed
// again.
func TestLostAnswerIsNotSignedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTrio(t)
		r.put("k", "1")
		sends := 0
		for _, n := range r.nodes {
			n.lies(func(a any) error {
				if _, ok := a.(*ctypes.ResultBroadcastTx); !ok {
					return nil
				}
				sends++
				if sends == 1 {
					clear(r.chain.found)
					return errLost
				}
				return nil
			})
		}
		_, err := r.Put(r.ctx, []byte("k"), []byte("2"))
		require.ErrorAs(t, err, new(*UnknownOutcomeError))
		require.Greater(t, sends, 3)
		require.EqualValues(t, 2, r.chain.nonces[string(r.Account())])
	})
}

// TestOnlyWrites: only one write waits for a stopped node, and the search for its block does not.
func TestOnlyWrites(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTrio(t)
		mining, stop := context.WithCancel(r.ctx)
		defer stop()
		go func() {
			for sleep.For(mining, time.Second) == nil {
				r.chain.release()
				r.chain.mu.Lock()
				r.chain.held = true
				r.chain.mu.Unlock()
			}
		}()
		require.NoError(t, sleep.For(r.ctx, 1500*time.Millisecond))
		r.put("k", "1")
		r.nodes[0].change(func() { faults["stopped"](r.nodes[0]) })
		require.Less(t, r.put("k", "2"), sendTimeout+2*time.Second)
		for range 10 {
			require.Less(t, r.put("k", "3"), 2*time.Second)
		}
	})
}

// TestNodeThatStopsAfterAccepting: a node stops just after it has accepted a transaction, before
// sending it to other nodes. As soon as another node answers instead, the same bytes are sent to
// that one and executed once.
func TestNodeThatStopsAfterAccepting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx := testContext(t)
		chain, a, b, c := twoWires(t)
		sent, err := c.Send(ctx, tx.NewPut([]byte("k"), []byte("v")))
		require.NoError(t, err)
		require.Len(t, a.sent, 1)
		stopped := make(chan struct{})
		defer close(stopped)
		a.change(func() { a.stopped = stopped })
		go func() {
			for sleep.For(ctx, 50*time.Millisecond) == nil {
				b.mine()
			}
		}()
		began := time.Now()
		_, err = sent.Wait(ctx)
		require.NoError(t, err)
		require.Less(t, time.Since(began), time.Second)
		require.Equal(t, [][]byte{sent.raw}, b.sent)
		require.EqualValues(t, 1, chain.nonces[string(c.Account())])
	})
}

package client

import (
	"context"
	"testing"
	"time"

	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

// catchUps are the ways in which a node catches up.
var catchUps = map[string]func(*fakeNode){
	"blocks":  func(n *fakeNode) { n.catches = "blocks" },
	"joining": func(n *fakeNode) { n.catches = "joining" },
}

// newNodes returns a client of this many nodes of one chain.
func newNodes(t *testing.T, count int, options ...Option) *trio {
	r := &trio{t: t, ctx: testContext(t), chain: newFakeChain(t)}
	var all []RPC
	for i, name := range []string{"a", "b", "c"}[:count] {
		n := &fakeNode{chain: r.chain, name: name, delay: time.Duration(i+1) * time.Millisecond}
		r.nodes, all = append(r.nodes, n), append(all, n)
	}
	var err error
	r.Client, err = New(r.ctx, all, append([]Option{WithKey(testKey)}, options...)...)
	require.NoError(t, err)
	return r
}

func (r *trio) all(change func(*fakeNode)) {
	for _, n := range r.nodes {
		n.change(func() { change(n) })
	}
}

func recovered(n *fakeNode) { n.down, n.catches = nil, "" }

// TestWriteWaitsWhileNodesCatchUp: a write that begins while all nodes catch up is executed, once,
// when they have.
func TestWriteWaitsWhileNodesCatchUp(t *testing.T) {
	writes := map[string]func(r *trio) error{
		"put":    func(r *trio) error { _, err := r.Put(r.ctx, []byte("k"), []byte("v")); return err },
		"delete": func(r *trio) error { _, err := r.Delete(r.ctx, []byte("k")); return err },
		"text":   func(r *trio) error { _, err := r.PutText(r.ctx, []byte("k"), []byte("v")); return err },
	}
	for answers, catch := range catchUps {
		for name, write := range writes {
			for count := 1; count <= 3; count += 2 {
				for _, options := range [][]Option{nil, {WithGroupCommit()}} {
					t.Run(answers+"/"+name, func(t *testing.T) {
						bubble(t, func(t *testing.T) {
							r := newNodes(t, count, options...)
							r.all(catch)
							began := time.Now()
							go func() {
								// The node that answers first restarts at the end of its join.
								_ = sleep.For(r.ctx, 90*time.Second)
								r.all(func(n *fakeNode) { n.down = errDial })
								_ = sleep.For(r.ctx, 10*time.Second)
								r.all(recovered)
							}()
							require.NoError(t, write(r))
							require.GreaterOrEqual(t, time.Since(began), 100*time.Second)
							require.Less(t, time.Since(began), 105*time.Second)
							if name != "text" {
								require.EqualValues(t, 1, r.chain.nonces[string(r.Account())])
							}
						})
					})
				}
			}
		}
	}
}

// TestWriteWaitsUntilItsContextEnds: the error of a write that waits for nodes names the reason. It
// was not sent.
func TestWriteWaitsUntilItsContextEnds(t *testing.T) {
	for answers, catch := range catchUps {
		t.Run(answers, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newNodes(t, 3)
				r.all(catch)
				ctx, cancel := context.WithTimeout(r.ctx, 20*time.Second)
				defer cancel()
				began := time.Now()
				_, err := r.Put(ctx, []byte("k"), []byte("v"))
				require.Equal(t, 20*time.Second, time.Since(began))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, errCatchingUp)
				require.NotErrorAs(t, err, new(*UnknownOutcomeError))
				require.EqualValues(t, 0, r.chain.nonces[string(r.Account())])
			})
		})
	}
}

// TestOrderAfterARestart: the only node restarts, has lost the transaction that it accepted, and
// catches up. The next transaction keeps its nonce, and the lost one is sent before it.
func TestOrderAfterARestart(t *testing.T) {
	for answers, catch := range catchUps {
		t.Run(answers, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newNodes(t, 1)
				put := func(value string) *Sent {
					sent, err := r.Send(r.ctx, tx.NewPut([]byte("k"), []byte(value)))
					require.NoError(t, err)
					return sent
				}
				r.nodes[0].change(func() { r.chain.held = true })
				first := put("1")
				r.nodes[0].change(func() { r.chain.held, r.chain.mempool = false, nil; catch(r.nodes[0]) })
				go func() {
					_ = sleep.For(r.ctx, 20*time.Second)
					r.nodes[0].change(func() { recovered(r.nodes[0]) })
				}()
				second := put("2")
				for _, sent := range []*Sent{first, second} {
					result, err := sent.Wait(r.ctx)
					require.NoError(t, err)
					require.Equal(t, sent.Hash, result.Hash)
				}
				require.EqualValues(t, 2, r.chain.nonces[string(r.Account())])
				value, _, err := r.Read(r.ctx, []byte("k"))
				require.NoError(t, err)
				require.Equal(t, "2", string(value))
			})
		})
	}
}

// TestWriteWaitsForTheOnlyNodeAlive: one node catches up and the others are lost.
func TestWriteWaitsForTheOnlyNodeAlive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newNodes(t, 3)
		r.all(faults["killed"])
		r.nodes[2].change(func() { recovered(r.nodes[2]); catchUps["blocks"](r.nodes[2]) })
		go func() {
			_ = sleep.For(r.ctx, 30*time.Second)
			r.nodes[2].change(func() { recovered(r.nodes[2]) })
		}()
		require.GreaterOrEqual(t, r.put("k", "v"), 30*time.Second)
	})
}

// TestWriteDoesNotWaitForLostNodes: a write fails at once if no node answers, and after
// restartPatience if the nodes that were catching up are lost.
func TestWriteDoesNotWaitForLostNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newNodes(t, 3)
		r.all(faults["killed"])
		began := time.Now()
		_, err := r.Put(r.ctx, []byte("k"), []byte("v"))
		require.ErrorIs(t, err, ErrUnreachable)
		require.Less(t, time.Since(began), time.Second)

		r.all(recovered)
		r.all(catchUps["blocks"])
		go func() {
			_ = sleep.For(r.ctx, 10*time.Second)
			r.all(faults["killed"])
		}()
		began = time.Now()
		_, err = r.Put(r.ctx, []byte("k"), []byte("v"))
		require.ErrorIs(t, err, ErrUnreachable)
		require.InDelta(t, (10*time.Second + restartPatience).Seconds(), time.Since(began).Seconds(), 2)
	})
}

// TestMissingCallIsNotWaitedFor: a node that has all blocks and refuses the calls of writes, such
// as a proxy that only forwards some, is not waited for.
func TestMissingCallIsNotWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newNodes(t, 1)
		r.nodes[0].lies(func(a any) error {
			if _, ok := a.(*ctypes.ResultStatus); ok {
				return nil
			}
			return callMissingError
		})
		began := time.Now()
		_, err := r.Put(r.ctx, []byte("k"), []byte("v"))
		require.ErrorContains(t, err, "Method not found")
		require.Less(t, time.Since(began), time.Second)
	})
}

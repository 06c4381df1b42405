package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

// A client hears a result as soon as its node has executed the transaction, and polls a node that
// cannot be asked for results.
func TestHearsResults(t *testing.T) {
	for name, c := range map[string]struct {
		change func(n *fakeNode)
		most   time.Duration // until the client knows the result
	}{
		"at once":          {func(*fakeNode) {}, 2 * time.Millisecond},
		"from an old node": {func(n *fakeNode) { n.old = true }, longPoll},
		"from one that does not wait": {func(n *fakeNode) {
			n.lies(func(a any) error {
				if found, is := a.(*ctypes.ResultTx); is && found == nil {
					return errors.New("no waiting here")
				}
				return nil
			})
		}, longPoll},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				chain := newFakeChain(t)
				chain.held = true
				n := &fakeNode{chain: chain, name: "a"}
				c.change(n)
				ctx := testContext(t)
				client, err := New(ctx, []RPC{n}, WithKey(testKey))
				require.NoError(t, err)
				for _, blockAfter := range []time.Duration{3 * time.Millisecond, 400 * time.Millisecond, 12 * time.Second} {
					n.change(func() { chain.held = true })
					released := make(chan time.Time, 1)
					go func() {
						_ = sleep.For(ctx, blockAfter)
						chain.release()
						released <- time.Now()
					}()
					_, err = client.Put(ctx, []byte("k"), fmt.Append(nil, blockAfter))
					require.NoError(t, err)
					require.LessOrEqual(t, time.Since(<-released), c.most, "a block after %v", blockAfter)
				}
			})
		})
	}
}

// noIndex is a node whose [tx_index] is off.
type noIndex struct{ *fakeNode }

func (noIndex) Tx(context.Context, []byte, bool) (*ctypes.ResultTx, error) {
	return nil, rpcError("transaction indexing is disabled")
}

// A client needs no index at a node that says when it has executed a transaction.
func TestHearsWithoutAnIndex(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		chain.held = true
		ctx := testContext(t)
		n := noIndex{&fakeNode{chain: chain, name: "a"}}
		c, err := New(ctx, []RPC{n}, WithKey(testKey))
		require.NoError(t, err)
		go func() {
			_ = sleep.For(ctx, 3*longPoll)
			chain.release()
		}()
		_, err = c.Put(ctx, []byte("k"), []byte("v"))
		require.NoError(t, err)
		n.change(func() { n.old = true })
		c.pool.all[0].update(func(r *record) { r.deaf = true })
		chain.held = true
		_, err = c.Put(ctx, []byte("k"), []byte("w"))
		require.ErrorIs(t, err, errNoIndex)
	})
}

// A client that hears results sends no request per transaction but its own.
func TestListensInsteadOfPolling(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		chain.held = true
		n := &fakeNode{chain: chain, name: "a"}
		lookups := 0
		n.lies(func(a any) error {
			if _, is := a.(*ctypes.ResultTx); !is {
				return nil
			}
			lookups++
			return nil
		})
		ctx := testContext(t)
		c, err := New(ctx, []RPC{n}, WithKey(testKey))
		require.NoError(t, err)
		var all []*Sent
		for i := range maxListening + 10 {
			s, err := c.Send(ctx, tx.NewPut([]byte("k"), fmt.Append(nil, i)))
			require.NoError(t, err)
			all = append(all, s)
		}
		results := make(chan error)
		for _, s := range all {
			go func() { _, err := s.Wait(ctx); results <- err }()
		}
		_ = sleep.For(ctx, 10*time.Millisecond)
		at := c.pool.all[0]
		require.Len(t, at.listening, maxListening, "others poll")
		chain.release()
		for range all {
			require.NoError(t, <-results)
		}
		_ = sleep.For(ctx, 10*time.Millisecond)
		require.Empty(t, at.listening)

		failing, err := c.Send(ctx, tx.NewCompareAndPut([]byte("k"), []byte("other"), []byte("v")))
		require.NoError(t, err)
		_, err = failing.Wait(ctx)
		require.ErrorIs(t, err, &tx.Error{Code: tx.CodeCompareFailed})
	})
}

// The node that accepted a transaction ends while the client listens to it: the client sends the
// transaction to another one at once, and listens there.
func TestListensElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx := testContext(t)
		_, a, b, c := twoWires(t)
		s, err := c.Send(ctx, tx.NewPut([]byte("k"), []byte("v")))
		require.NoError(t, err)
		result := make(chan error, 1)
		go func() { _, err := s.Wait(ctx); result <- err }()
		_ = sleep.For(ctx, 50*time.Millisecond)
		a.change(func() { a.down = errDial })
		_ = sleep.For(ctx, 50*time.Millisecond)
		require.Len(t, b.sent, 1, "sent again")
		require.Len(t, c.pool.all[1].listening, 1)
		b.mine()
		began := time.Now()
		require.NoError(t, <-result)
		require.Less(t, time.Since(began), 3*time.Millisecond)
	})
}

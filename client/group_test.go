package client

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

// grouping returns a client with group commit, of a node that takes a second for each answer.
func grouping(t *testing.T) (context.Context, *fakeChain, *fakeNode, *Client) {
	chain := newFakeChain(t)
	node := &fakeNode{chain: chain, name: "primary"}
	ctx := testContext(t)
	c, err := New(ctx, []RPC{node}, WithKey(testKey), WithGroupCommit())
	require.NoError(t, err)
	node.delay = time.Second
	return ctx, chain, node, c
}

// written is the outcome of a write.
type written struct {
	result *TxResult
	err    error
}

// puts begins n writes at once. Each value is the key's number.
func puts(ctx context.Context, c *Client, from, to int) []chan written {
	var all []chan written
	for i := from; i < to; i++ {
		done := make(chan written, 1)
		go func() {
			result, err := c.Put(ctx, fmt.Appendf(nil, "key %d", i), fmt.Append(nil, i))
			done <- written{result, err}
		}()
		all = append(all, done)
	}
	return all
}

// transactions returns the number of transactions in blocks.
func transactions(chain *fakeChain) int {
	chain.mu.Lock()
	defer chain.mu.Unlock()
	return len(chain.found)
}

// TestGroupCommit: a lone write is sent at once, and those that come meanwhile share the next
// transaction. Each caller gets the result of its own operation.
func TestGroupCommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, chain, _, c := grouping(t)
		first := puts(ctx, c, 0, 1)
		require.NoError(t, sleep.For(ctx, 500*time.Millisecond)) // it is being sent
		rest := puts(ctx, c, 0, 100)
		one := <-first[0]
		require.NoError(t, one.err)
		for i, done := range rest {
			w := <-done
			require.NoError(t, w.err)
			require.Len(t, w.result.Results, 1)
			require.Equal(t, i == 0, w.result.Results[0].Found, "key 0 exists already")
			require.NotEqual(t, one.result.Hash, w.result.Hash)
		}
		require.Equal(t, 2, transactions(chain))
	})
}

// TestGroupCommitLimits: a transaction has at most maxGroupWrites writes and maxGroupBytes bytes,
// or one larger write.
func TestGroupCommitLimits(t *testing.T) {
	g := &groups{}
	wait := func(sizes ...int) {
		for _, size := range sizes {
			g.waiting = append(g.waiting, &member{bytes: size})
		}
	}
	next := func() int {
		ctx, n := g.next()
		if n == nil {
			return 0
		}
		n.cancel()
		require.Error(t, ctx.Err())
		return len(n.members)
	}
	wait(make([]int, maxGroupWrites+1)...)
	require.Equal(t, maxGroupWrites, next())
	require.Equal(t, 1, next())
	wait(maxGroupBytes/2, maxGroupBytes/2, 1, maxGroupBytes+1, 1)
	require.Equal(t, []int{2, 1, 1, 1, 0}, []int{next(), next(), next(), next(), next()})
}

// TestGroupCommitRefused: one write that cannot succeed does not affect the others of its group.
func TestGroupCommitRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, chain, _, c := grouping(t)
		first := puts(ctx, c, 0, 1)
		require.NoError(t, sleep.For(ctx, 500*time.Millisecond))
		bad := make(chan written, 1)
		go func() {
			result, err := c.Put(ctx, []byte("k"), nil)
			bad <- written{result, err}
		}()
		for _, done := range append(first, puts(ctx, c, 1, 4)...) {
			require.NoError(t, (<-done).err)
		}
		w := <-bad
		require.ErrorIs(t, w.err, &tx.Error{Code: tx.CodeMalformed})
		require.Nil(t, w.result)
		require.Equal(t, 4, transactions(chain), "each in a transaction of its own")
	})
}

// TestGroupCommitCancelled: a caller whose context ends leaves its group. Its write is not sent if
// it still waits; otherwise its outcome is unknown, and the others of the group are not affected.
func TestGroupCommitCancelled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, chain, node, c := grouping(t)
		node.change(func() { chain.held = true })
		limited, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		first := puts(ctx, c, 0, 1)
		require.NoError(t, sleep.For(ctx, 100*time.Millisecond))
		early := puts(limited, c, 1, 2)
		w := <-early[0]
		require.ErrorIs(t, w.err, context.DeadlineExceeded)
		require.NotErrorAs(t, w.err, new(*UnknownOutcomeError))

		late, cancelLate := context.WithTimeout(ctx, 10*time.Second)
		defer cancelLate()
		two := append(puts(late, c, 2, 3), puts(ctx, c, 3, 4)...)
		w = <-two[0]
		var unknown *UnknownOutcomeError
		require.ErrorAs(t, w.err, &unknown)
		require.NotEmpty(t, unknown.Hash)
		chain.release()
		require.NoError(t, (<-first[0]).err)
		require.NoError(t, (<-two[1]).err)
		require.Equal(t, 2, transactions(chain))
		_, err := c.WaitTx(ctx, unknown.Hash)
		require.NoError(t, err)

		// If all callers leave, nothing goes on.
		node.change(func() { chain.held = true })
		gone, cancelGone := context.WithTimeout(ctx, 10*time.Second)
		defer cancelGone()
		for _, done := range puts(gone, c, 4, 8) {
			require.ErrorAs(t, (<-done).err, new(*UnknownOutcomeError))
		}
		c.groups.mu.Lock()
		defer c.groups.mu.Unlock()
		require.False(t, c.groups.sending)
	})
}

// TestGroupCommitLeftBeforeSigning: a write whose caller leaves before the group is signed is never
// sent, and the others of the group are.
func TestGroupCommitLeftBeforeSigning(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, chain, _, c := grouping(t)
		a := c.account(c.key.PubKey().Bytes())
		require.NoError(t, a.lock(ctx)) // another transaction has the account's turn
		limited, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		c.groups.mu.Lock()
		c.groups.sending = true
		c.groups.mu.Unlock()
		stay, leave := puts(ctx, c, 0, 2), puts(limited, c, 2, 4)
		synctest.Wait()
		go c.groups.send() // one group of all four
		for _, done := range leave {
			w := <-done
			require.ErrorIs(t, w.err, context.DeadlineExceeded)
			require.NotErrorAs(t, w.err, new(*UnknownOutcomeError))
		}
		a.unlock()
		for _, done := range stay {
			require.NoError(t, (<-done).err)
		}
		for i, want := range []bool{true, true, false, false} {
			got, err := c.Get(ctx, fmt.Appendf(nil, "key %d", i))
			require.NoError(t, err)
			require.Equal(t, want, got.Found)
		}
		require.Equal(t, 1, transactions(chain))
	})
}

// TestGroupCommitRandom: many callers write random keys, some leave early. A write that was
// acknowledged is there unless a later one has replaced it.
func TestGroupCommitRandom(t *testing.T) {
	rnd := seeds.Rand(t)
	bubble(t, func(t *testing.T) {
		ctx, chain, node, c := grouping(t)
		node.change(func() { node.delay = 10 * time.Millisecond })
		const callers, writes = 16, 20
		waits := make([]time.Duration, callers)
		for i := range waits {
			waits[i] = time.Duration(rnd.IntN(200)) * time.Millisecond
		}
		var all sync.WaitGroup
		acknowledged := make([]string, callers) // by caller; each has a key of its own
		for i := range callers {
			all.Go(func() {
				key := fmt.Appendf(nil, "key %d", i)
				for w := range writes {
					limited, cancel := context.WithTimeout(ctx, 20*time.Millisecond+waits[(i+w)%callers])
					value := fmt.Append(nil, w)
					_, err := c.Put(limited, key, value)
					cancel()
					acknowledged[i] = ""
					if err == nil {
						acknowledged[i] = string(value)
					}
				}
			})
		}
		all.Wait()
		for i, want := range acknowledged {
			v, err := c.Get(ctx, fmt.Appendf(nil, "key %d", i))
			require.NoError(t, err)
			if want != "" {
				require.Equal(t, want, string(v.Value))
			}
		}
		require.Less(t, transactions(chain), callers*writes)
	})
}

package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/sleep"
)

// A network without traffic makes no blocks for a while. A read of the newest state does not wait
// for one: the header of an empty block proves it. The header of a block with transactions does
// not.
func TestReadsOfAnIdleNetwork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		n := &fakeNode{chain: chain, name: "a", eager: true}
		ctx := testContext(t)
		c, err := New(ctx, []RPC{n}, WithKey(testKey), WithVerification(Trust{Genesis: chain.genesis()}))
		require.NoError(t, err)
		written, err := c.Put(ctx, []byte("k"), []byte("v")) // its block, and an empty one
		require.NoError(t, err)
		began := time.Now()
		v, err := c.Get(ctx, []byte("k"))
		require.NoError(t, err)
		require.Zero(t, time.Since(began))
		require.Equal(t, "v", string(v.Value))
		require.True(t, v.Verified)
		require.Equal(t, written.Height, v.Height)
		require.Equal(t, chain.versions[v.Height].AppHash(), v.AppHash)
		page, err := c.Range(ctx, nil, nil)
		require.NoError(t, err)
		require.Equal(t, written.Height, page.Height)
		require.Zero(t, time.Since(began))

		n.change(func() {
			chain.sign(chain.validators, make([]byte, 32)) // a block with transactions
			chain.versions = append(chain.versions, chain.versions[len(chain.versions)-1])
		})
		go func() {
			_ = sleep.For(ctx, 5*time.Second)
			chain.grow(1)
		}()
		v, err = c.Get(ctx, []byte("k"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(began), 5*time.Second)
		require.Equal(t, written.Height+2, v.Height)
	})
}

// A node sends an old state as the newest. The header of an empty block does not prove it if a
// later state is known.
func TestIdleIsNoExcuse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		n := &fakeNode{chain: chain, name: "a", eager: true}
		ctx := testContext(t)
		c, err := New(ctx, []RPC{n}, WithVerification(Trust{Genesis: chain.genesis()}))
		require.NoError(t, err)
		head := int64(len(chain.blocks))
		c.pool.verified(head)
		go func() {
			_ = sleep.For(ctx, time.Second)
			chain.grow(1)
		}()
		v, err := c.Get(ctx, []byte("k"))
		require.NoError(t, err)
		require.Equal(t, head, v.Height)
	})
}

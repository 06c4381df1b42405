package client_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// TestRealNode uses a real CometBFT node with the real application.
func TestRealNode(t *testing.T) { endpoints(t, testRealNode) }

func testRealNode(t *testing.T, scheme, address string, genesis *types.GenesisDoc) {
	// The limit is for a node that hangs. A minute was too short under the race detector with other
	// packages running.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	address = scheme + address
	verified := client.WithVerification(client.Trust{Genesis: genesis})
	c, err := client.Dial(ctx, []string{address}, client.WithKey(admin), verified)
	require.NoError(t, err)

	// The largest value can be written and read with its proof, and so can the largest transaction.
	large := bytes.Repeat([]byte{0, 1, 2, 0xff}, tx.MaxValueBytes/4)
	_, err = c.Delete(ctx, []byte("test/large"))
	require.NoError(t, err)
	result, err := c.Put(ctx, []byte("test/large"), large)
	require.NoError(t, err)
	v, err := c.Get(ctx, []byte("test/large"))
	require.NoError(t, err)
	require.True(t, v.Verified && bytes.Equal(large, v.Value))
	other := bytes.Repeat([]byte("x"), tx.MaxValueBytes)
	_, err = c.CompareAndPut(ctx, []byte("test/large"), large, other)
	require.NoError(t, err)
	v, err = c.Get(ctx, []byte("test/large"), client.AtHeight(result.Height))
	require.NoError(t, err)
	require.True(t, bytes.Equal(large, v.Value), "the state before")
	page, err := c.Range(ctx, []byte("test/large"), client.PrefixEnd([]byte("test/large")))
	require.NoError(t, err)
	require.True(t, page.Verified && len(page.Entries) == 1)

	// Trust in the hash of a header instead of genesis, backwards and forwards.
	status, err := c.Status(ctx)
	require.NoError(t, err)
	fromHash, err := client.Dial(ctx, []string{address}, client.WithVerification(client.Trust{
		Height: status.SyncInfo.LatestBlockHeight, Hash: status.SyncInfo.LatestBlockHash,
	}))
	require.NoError(t, err)
	for _, options := range [][]client.ReadOption{nil, {client.AtHeight(result.Height)}} {
		v, err = fromHash.Get(ctx, []byte("test/nothing"), options...)
		require.NoError(t, err)
		require.True(t, v.Verified && !v.Found)
	}

	// A write without a grant is refused until an admin issues one. The watch receives its record.
	guest := ed25519.GenPrivKey() // a new one each time: the node keeps the grants of earlier runs
	room := fmt.Appendf(nil, "guests/%x/", guest.PubKey().Address())
	key := append(bytes.Clone(room), '1')
	asGuest, err := client.Dial(ctx, []string{address}, client.WithKey(guest))
	require.NoError(t, err)
	_, err = asGuest.Put(ctx, key, []byte("v"))
	require.ErrorIs(t, err, &tx.Error{Code: tx.CodeUnauthorized})
	watcher, err := c.Watch(ctx, []byte{tx.Reserved, 'g'}, client.WatchVerified())
	require.NoError(t, err)
	_, err = c.Submit(ctx, tx.NewGrant(asGuest.Account(), room, 100))
	require.NoError(t, err)
	e, err := watcher.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, "grant", e.Kind)
	require.True(t, e.Proved)
	_, err = asGuest.Put(ctx, key, []byte("v"))
	require.NoError(t, err)
	_, err = asGuest.Put(ctx, key, make([]byte, 100))
	require.ErrorIs(t, err, &tx.Error{Code: tx.CodeQuota})
	_, err = asGuest.Submit(ctx, tx.NewGrant(asGuest.Account(), room, 0))
	require.ErrorIs(t, err, &tx.Error{Code: tx.CodeNotAdmin})

	// Two programs share one key.
	twin, err := client.Dial(ctx, []string{address}, client.WithKey(admin))
	require.NoError(t, err)
	errs := make(chan error)
	for i := range 20 {
		who := []*client.Client{c, twin}[i%2]
		go func() {
			_, err := who.Put(ctx, fmt.Appendf(nil, "test/twin/%02d", i), []byte("v"))
			errs <- err
		}()
	}
	for range 20 {
		require.NoError(t, <-errs)
	}
	count := 0
	for _, err := range c.Scan(ctx, []byte("test/twin/"), client.PrefixEnd([]byte("test/twin/")), client.Limit(7)) {
		require.NoError(t, err)
		count++
	}
	require.Equal(t, 20, count)

	_, err = c.PutText(ctx, []byte("anybody"), fmt.Appendf(nil, "may %x", guest.PubKey().Address()))
	require.NoError(t, err)
	_, err = c.PutText(ctx, []byte("anybody"), fmt.Appendf(nil, "may %x", guest.PubKey().Address()))
	require.ErrorIs(t, err, client.ErrRepeatedText)
	_, err = c.WaitTx(ctx, result.Hash)
	require.NoError(t, err)
	_, err = c.Query(ctx, "/nope", nil, 0, false)
	require.ErrorIs(t, err, &tx.Error{Code: tx.CodeUnknownPath})
}

package node

import (
	"testing"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/p2p"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// A full-state node serves witnesses and upper trees at the heights that can be queried: it serves
// sharded validators.
func TestLocalNodeServesWitnesses(t *testing.T) {
	t.Parallel() // it waits for blocks
	_, n, _ := fastNetwork(t, 10)
	nodetest.Until(t, "a block", func() bool { return n.Application().Height() > 2 })
	key, err := config.TransportKey(&p2p.NodeKey{PrivKey: ed25519.GenPrivKey()})
	require.NoError(t, err)
	c, err := tcp.NewDialer(tcp.Options{Key: key, ChainID: "test-chain"}).Dial(t.Context(), transport.Address{ID: transport.ID(n.ID()), HostPort: n.server.Load().Addr().String()})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	call := func(method uint8, body []byte) ([]byte, error) {
		return c.Call(t.Context(), transport.Call{Method: transport.Method(method), Body: body, Max: 1 << 20})
	}

	height, v := n.Application().Latest()
	defer v.Release()
	answer, err := call(dsm.MethodUpper, dsm.UpperRequest{Height: height, Depth: 2}.Encode())
	require.NoError(t, err)
	upper, err := dsm.DecodeUpper(answer)
	require.NoError(t, err)
	require.Equal(t, v.Commitment().Encode(), upper.Commitment)
	p, err := avlstar.NewPartial(v.Commitment())
	require.NoError(t, err)
	defer func() { p.Release() }()
	graft := func(b []byte) {
		multiproof, err := avlstar.DecodeMultiproof(b)
		require.NoError(t, err)
		next, _, err := p.Graft(multiproof)
		require.NoError(t, err)
		p.Release()
		p = next
	}
	graft(upper.Multiproof)
	body, err := dsm.Witness{Height: height, Depth: 2, MaxBytes: 1 << 20, Wants: []avlstar.Want{{Key: []byte("key-03")}}}.Encode()
	require.NoError(t, err)
	answer, err = call(dsm.MethodWitness, body)
	require.NoError(t, err)
	graft(answer)
	got, ok, err := p.Get([]byte("key-03"))
	require.NoError(t, err)
	require.True(t, ok)
	want, _, err := v.Get([]byte("key-03"))
	require.NoError(t, err)
	require.Equal(t, want, got)

	_, err = call(dsm.MethodUpper, dsm.UpperRequest{Height: height + 1000, Depth: 2}.Encode())
	require.ErrorIs(t, err, transport.ErrGone)
}

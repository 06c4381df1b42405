package programsbench

import (
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/appstore"
)

var small = Options{Accounts: 900, Keys: 2000, Shares: []int{0, 15, 100}, BlockTxs: 10_000, Seed: 5}

// A block is as large as the gas of a block allows, and no transaction of it fails.
func TestBlocksAreFull(t *testing.T) {
	b, err := newBank(t.Context(), small)
	require.NoError(t, err)
	s, err := newSolo(t.Context(), b, &appstore.Memory{}, func(int) {})
	require.NoError(t, err)
	defer s.app.Stop()
	require.Greater(t, b.named, b.gas)
	n, transfers := b.sizes(15)
	require.InDelta(t, 0.15, float64(transfers)/float64(n), 0.001)
	took, err := s.blocks(t.Context(), 1, 100, false)
	require.NoError(t, err)
	require.Equal(t, b.limit(), took.transfers)

	txs, _, err := b.block(100)
	require.NoError(t, err)
	more, err := b.accounts[1].sign(b.nextTransfer(b.accounts[1]))
	require.NoError(t, err)
	propose := func(txs ...[]byte) bool {
		res, err := s.app.ProcessProposal(t.Context(), &abci.RequestProcessProposal{Height: s.at + 1, Txs: txs})
		require.NoError(t, err)
		return res.IsAccepted()
	}
	require.True(t, propose(txs...))
	require.False(t, propose(append(txs, more)...), "a block may name more gas than blockGas")
}

package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/tx"
)

// BenchmarkPathological measures the cost of the transactions that touch the most keys for their
// size: 10,000 deletes of absent keys each, on a state eight times as large as memory_bytes.
//
//	go test ./node -run '^$' -bench Pathological -benchtime 1x
//
// check_s is CheckTx of one of them; prepare_s is PrepareProposal of a mempool of 26; blocks is the
// number of blocks that contain them all, finalize_s the longest of their FinalizeBlock.
func BenchmarkPathological(b *testing.B) {
	for _, paged := range []bool{false, true} {
		b.Run(fmt.Sprint("paged ", paged), func(b *testing.B) {
			for range b.N {
				pathological(b, paged)
			}
		})
	}
}

func pathological(b *testing.B, paged bool) {
	ctx, dir, alice := context.Background(), b.TempDir(), ed25519.GenPrivKeyFromSecret([]byte("alice"))
	genesis := &cmttypes.GenesisDoc{
		ChainID: "pathological", InitialHeight: 1, ConsensusParams: cmttypes.DefaultConsensusParams(),
		AppState: fmt.Appendf(nil, `{"grants": [{"grantee": "%x", "prefix": ""}]}`, alice.PubKey().Bytes()),
	}
	settings := config.DefaultApp()
	settings.Disk.CacheBytes, settings.State.KeepRecent = 16<<20, 1
	open := func() *Application {
		a, err := NewApplication(ApplicationOptions{
			DataDir: filepath.Join(dir, "data"), Config: settings, Logger: log.NewNopLogger(), Genesis: genesis, Failed: func(err error) { b.Error(err) },
		})
		require.NoError(b, err)
		return a
	}
	a := open()
	params := genesis.ConsensusParams.ToProto()
	_, err := a.InitChain(ctx, &abci.RequestInitChain{
		ChainId: genesis.ChainID, AppStateBytes: genesis.AppState, InitialHeight: 1, ConsensusParams: &params,
		Validators: []abci.ValidatorUpdate{abci.Ed25519ValidatorUpdate(alice.PubKey().Bytes(), 10)},
	})
	require.NoError(b, err)
	rng, nonce := rand.New(rand.NewPCG(1, 2)), uint64(0)
	key := func() []byte { return binary.BigEndian.AppendUint64(nil, rng.Uint64()|1<<63) }
	transaction := func(operation func() tx.Operation) []byte {
		operations := make([]tx.Operation, tx.MaxOperations)
		for i := range operations {
			operations[i] = operation()
		}
		raw, err := tx.Sign(alice, genesis.ChainID, &tx.Body{Nonce: nonce, Operations: operations})
		require.NoError(b, err)
		nonce++
		return raw
	}
	block := func(txs ...[]byte) {
		res, err := a.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: a.Height() + 1, Txs: txs})
		require.NoError(b, err)
		for _, r := range res.TxResults {
			require.Zero(b, r.Code, r.Log)
		}
		_, err = a.Commit(ctx, &abci.RequestCommit{})
		require.NoError(b, err)
	}
	value := make([]byte, 100)
	for range 110 {
		block(transaction(func() tx.Operation { return tx.NewPut(key(), value) }))
	}
	require.NoError(b, a.Close())
	settings.Disk.StateInMemory = !paged
	a = open()
	defer a.Close()

	var mempool [][]byte
	for range 26 {
		mempool = append(mempool, transaction(func() tx.Operation { return tx.NewDelete(key()) }))
	}
	report := func(name string, do func()) {
		start := time.Now()
		do()
		b.ReportMetric(time.Since(start).Seconds(), name)
		b.Log(name, time.Since(start))
	}
	report("check_s", func() {
		res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: mempool[0]})
		require.NoError(b, err)
		require.Zero(b, res.Code, res.Log)
	})
	blocks, longest := 0, time.Duration(0)
	for ; len(mempool) > 0; blocks++ {
		var proposal [][]byte
		report("prepare_s", func() {
			res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: mempool, MaxTxBytes: 4 << 20})
			require.NoError(b, err)
			proposal = res.Txs
		})
		start := time.Now()
		block(proposal...)
		longest = max(longest, time.Since(start))
		mempool = mempool[len(proposal):]
	}
	b.ReportMetric(longest.Seconds(), "finalize_s")
	b.ReportMetric(float64(blocks), "blocks")
	b.Log("finalize", longest, "blocks", blocks)
}

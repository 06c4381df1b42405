package programsbench

import (
	"os"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/appstore"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/tx"
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

// The figures of a network are sums over rounds; a round without transfers has no misprediction.
func TestFiguresOfANetwork(t *testing.T) {
	samples := []netSample{
		{tps: 100, done: 10, transfers: 4, codes: map[uint32]int{0: 10}, blocks: 8, waited: 1, rounds: 2, leftOut: 1},
		{tps: 300, done: 30, transfers: 16, codes: map[uint32]int{0: 30, 33: 1}, blocks: 8, waited: 1, cpu: usage{validators: 4e-3, clients: 8e-3}},
	}
	sharded := newNetRow(ModeSharded, 15, samples)
	require.Equal(t, map[uint32]int{0: 40, 33: 1}, sharded.Codes)
	require.Equal(t, 40, sharded.Txs)
	require.InDelta(t, 100, sharded.ValidatorsMicros, 1e-6)
	require.InDelta(t, 0.025, sharded.LeftOut, 1e-6)
	local := newNetRow(ModeLocal, 15, samples[1:])
	require.Zero(t, local.RoundsPerBlock)

	r := &Result{Retain: 12, Network: []NetRow{sharded, newNetRow(ModeSharded, 100, samples), local, newNetRow(ModeLocal, 100, samples)}}
	r.summarizeNetwork()
	require.InDelta(t, 4.0/32, *r.RoundsPerBlock, 1e-6)
	require.InDelta(t, 1-4.0/32, *r.FreeBlocks, 1e-6)
	require.InDelta(t, 200.0/300, r.TPSOverLocal, 1e-6)
	require.Zero(t, r.WANRatio)

	r = &Result{Retain: 8, Network: []NetRow{local}}
	r.summarizeNetwork()
	require.Nil(t, r.FreeBlocks)
	require.Zero(t, r.TPSOverLocal)
}

// Wrong predictions are counted by executed moves of calls that name their records, and judged.
func TestFiguresOfReads(t *testing.T) {
	of := func(codes ...tx.Code) netSample {
		counts := &tally{codes: map[uint32]int{}}
		try := 0
		for _, code := range codes { // one move after the other, and a transfer
			if counts.count(code, true, try) {
				try++
			} else {
				try = 0
			}
		}
		require.False(t, counts.count(tx.CodeOK, false, 0))
		return netSample{done: counts.done, transfers: counts.transfers, codes: counts.codes, retried: counts.retried, recovered: counts.recovered}
	}
	const ok, missed = tx.CodeOK, tx.CodeTooManyRecords
	named := newReadsRow(ModeSharded, readsLoad{15, 64, true}, []netSample{of(ok, missed, missed, ok), of(ok, missed, ok, ok, ok, tx.CodeOutOfGas)})
	require.Equal(t, 10, named.Moves)
	require.Equal(t, 2, named.Retried)
	require.Equal(t, 2, named.Recovered)
	require.Equal(t, map[uint32]int{0: 8, 32: 1, 33: 3}, named.Codes)
	require.InDelta(t, 0.3, named.Mispredicted, 1e-6)

	r := &Result{Reads: []ReadsRow{
		named, newReadsRow(ModeSharded, readsLoad{15, 8, true}, []netSample{of(ok)}), newReadsRow(ModeSharded, readsLoad{15, 8, false}, []netSample{of(missed, ok)}),
	}}
	r.summarizeReads()
	require.InDelta(t, 0.3, *r.Mispredicted, 1e-6, "of all workers; calls without a list predict nothing")
	targets := r.targets()
	require.Len(t, targets, 1)
	require.False(t, targets[0].Met)
	require.Empty(t, targets[0].Undecided)

	r = &Result{}
	r.summarizeReads()
	require.Nil(t, r.Mispredicted)
}

// The records of a move depend on the state: a simulation before another move of the same owner
// names the wrong ones, and one after it the right ones.
func TestMovesFollowState(t *testing.T) {
	b, err := newBank(t.Context(), small)
	require.NoError(t, err)
	s, err := newSolo(t.Context(), b, &appstore.Memory{}, func(int) {})
	require.NoError(t, err)
	defer s.app.Stop()
	x, code, err := newIndex(t.Context())
	require.NoError(t, err)
	deploy := tx.NewDeploy(code, nil, deployGas, deployKeys)
	deployed, err := s.simulate(t.Context(), b.accounts[0].public, deploy)
	require.NoError(t, err)
	require.Nil(t, deployed.Refused)
	x.address = deployed.Results[0].Value
	require.NoError(t, s.submit(t.Context(), deploy))

	predict := func(item, to int) tx.Operation { // as client.Fit
		operation := x.move(item, b.accounts[to])
		call := operation.GetCall()
		wide := tx.NewCall(call.To, call.Input, mintGas, 20, 20)
		simulated, err := s.simulate(t.Context(), b.accounts[0].public, wide)
		require.NoError(t, err)
		require.Nil(t, simulated.Refused)
		run := simulated.Programs[0]
		return tx.NewCall(call.To, call.Input, mintGas, run.Records, 0, run.Keys...)
	}
	for item := range 3 {
		require.NoError(t, s.submit(t.Context(), predict(item, 1)))
	}
	early := predict(0, 2)
	require.NoError(t, s.submit(t.Context(), predict(1, 3)))
	require.ErrorContains(t, s.submit(t.Context(), early), "more records")
	require.NoError(t, s.submit(t.Context(), withoutList(early)))
	require.NoError(t, s.submit(t.Context(), predict(0, 1)))
}

// A paged application reaches the state of the one in memory.
func TestPaged(t *testing.T) {
	o := small
	o.Rounds, o.Blocks, o.PagedAccounts = 1, 1, 300
	r := &run{o: o, progress: harness.NewProgress(os.Stderr), result: &Result{}}
	require.NoError(t, r.runPaged(t.Context(), t.TempDir()))
	require.Positive(t, r.result.Paged.Ratio.Median)
	require.EqualValues(t, leastPaged, r.result.Paged.CacheBytes)
}

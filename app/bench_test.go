package app

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// transfers makes blocks of signed transfers, two compare-and-puts each, by accounts with grants of
// their own, like RainBlock's generator (section 7: most are among a tenth of the accounts).
type transfers struct {
	b       *testing.B
	rnd     *rand.Rand
	names   []string
	nonces  []uint64
	balance []uint64
}

func transferKey(i int) string { return fmt.Sprintf("acct/%05d/balance", i) }

func transferValue(n uint64) string {
	return string(binary.BigEndian.AppendUint64(make([]byte, 0, 100), n)) + string(make([]byte, 92))
}

// newTransfers starts a chain with n accounts. With a source, nodes may be missing in its tree.
func newTransfers(b *testing.B, n int, source Source) (*transfers, *App) {
	b.Helper()
	f := &transfers{b: b, rnd: rand.New(rand.NewPCG(1, 2)), nonces: make([]uint64, n), balance: make([]uint64, n)}
	a, err := New(Options{Store: &discardStore{}, Source: source, Retention: avlstar.Retention{Depth: 12, Window: 32}, KeepRecent: 4, ChainID: testChain})
	require.NoError(b, err)
	_, err = a.InitChain(ctx, initRequest(`{"admins": ["@root"]}`))
	require.NoError(b, err)
	var grants []tx.Operation
	for i := range n {
		f.names = append(f.names, fmt.Sprint("account ", i))
		grants = append(grants, grantOp(account(f.names[i]), "acct/", 0))
	}
	runBlock(b, a, sign(b, "root", 0, grants...))
	var puts [][]byte
	for i := range n {
		puts = append(puts, sign(b, f.names[i], 0, put(transferKey(i), transferValue(0))))
		f.nonces[i]++
	}
	runBlock(b, a, puts...)
	return f, a
}

// discardStore keeps nothing.
type discardStore struct{ height int64 }

func (s *discardStore) Load() (int64, *avlstar.Version, error) { return 0, nil, nil }
func (s *discardStore) Durable() int64                         { return s.height }
func (s *discardStore) Commit(height int64, _, _ *avlstar.Version, _ []avlstar.Change) error {
	s.height = height
	return nil
}

func (f *transfers) pick() int {
	if f.rnd.IntN(10) > 0 {
		return f.rnd.IntN(len(f.names) / 10)
	}
	return f.rnd.IntN(len(f.names))
}

// block returns n transfers.
func (f *transfers) block(n int) (txs [][]byte) {
	for range n {
		from, to := f.pick(), f.pick()
		if from == to {
			to = (to + 1) % len(f.names)
		}
		move := func(i int, by uint64) tx.Operation {
			before := f.balance[i]
			f.balance[i] += by
			return cas(transferKey(i), transferValue(before), transferValue(f.balance[i]))
		}
		txs = append(txs, sign(f.b, f.names[from], f.nonces[from], move(from, ^uint64(0)), move(to, 1)))
		f.nonces[from]++
	}
	return txs
}

// BenchmarkFinalizeBlock executes blocks of 1,000 transfers that were checked before: in full-state
// mode, and on a partial tree in which no node is missing.
func BenchmarkFinalizeBlock(b *testing.B) {
	b.Run("local", func(b *testing.B) { finalizeBlocks(b, nil) })
	b.Run("witnesses in place", func(b *testing.B) { finalizeBlocks(b, noSource{}) })
}

// noSource is for trees in which no node is missing.
type noSource struct{}

func (noSource) Fetch(context.Context, int64, []avlstar.Want, avlstar.Below) ([]*avlstar.Multiproof, error) {
	return nil, errSource
}

func finalizeBlocks(b *testing.B, source Source) {
	f, a := newTransfers(b, 5_000, source)
	const size = 1_000
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		txs := f.block(size)
		a.decoder.decodeAll(txs, form{testChain, 1})
		height := a.Height() + 1
		b.StartTimer()
		res, err := a.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: height, Txs: txs})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		for _, r := range res.TxResults {
			require.Zero(b, r.Code, r.Log)
		}
		_, err = a.Commit(ctx, &abci.RequestCommit{})
		require.NoError(b, err)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*size), "µs/tx")
}

// BenchmarkStanding determines the standing of an account.
func BenchmarkStanding(b *testing.B) {
	f, a := newTransfers(b, 5_000, nil)
	_, v := a.Latest()
	defer v.Release()
	accounts := make([][]byte, len(f.names))
	for i, name := range f.names {
		accounts[i] = account(name)
	}
	o := newOverlay(v)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := o.standingOf(accounts[i%len(accounts)]); err != nil {
			b.Fatal(err)
		}
	}
}

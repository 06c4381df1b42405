package app

import (
	"fmt"
	"sync"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// Queries, checks and proposals, each of which fetches nodes or has them fetched, run during blocks
// that do the same. The state is that of full-state mode, and every response is correct for its
// height.
func TestReadersOnWitnesses(t *testing.T) {
	source, local, a := startBeside(t, avlstar.Retention{})
	defer a.Stop()
	a.options.WitnessTimeout = time.Hour // even if the machine is slow
	const blocks = 30
	key := func(i int) string { return fmt.Sprintf("a%s%d", []string{"", "b", "bc", "1"}[i%4], 7*(i%50)) }
	var txs [][]byte
	for i := range blocks {
		txs = append(txs, sign(t, "alice", uint64(4+i), put("a0", fmt.Sprint(2+i)), put(key(3*i+1), "x"), del(key(3*i+2)), read(key(3*i+3))))
	}
	// The readers' work is bounded by the blocks: each reader makes one pass for each block.
	var (
		readers sync.WaitGroup
		rounds  []chan int
	)
	reader := func(read func(i int) error) {
		round := make(chan int, blocks)
		rounds = append(rounds, round)
		readers.Go(func() {
			for i := range round {
				if err := read(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for prove := range 2 {
		reader(func(int) error {
			res, err := a.Query(ctx, &abci.RequestQuery{Path: PathKey, Data: []byte("a0"), Prove: prove == 1})
			if err == nil && res.Code != 0 {
				err = fmt.Errorf("query: %s", res.Log)
			}
			if err == nil && res.Height > 1 && string(res.Value) != fmt.Sprint(res.Height) {
				err = fmt.Errorf("height %d: %q", res.Height, res.Value)
			}
			return err
		})
	}
	reader(func(i int) error {
		res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: txs[i]})
		if err == nil && res.Code != 0 && tx.Code(res.Code) != tx.CodeBadNonce {
			err = fmt.Errorf("check: %s", res.Log)
		}
		return err
	})
	reader(func(i int) error {
		_, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: txs[i:], MaxTxBytes: 1 << 20})
		return err
	})
	for i, raw := range txs {
		for _, round := range rounds {
			round <- i
		}
		require.True(t, processed(t, a, abci.CommitInfo{}, raw))
		want := finalize(t, local, raw)
		require.Equal(t, want, finalize(t, a, raw), "block %d", i)
		_, err := local.Commit(ctx, &abci.RequestCommit{})
		require.NoError(t, err)
		source.has(local) // before it can be requested
		_, err = a.Commit(ctx, &abci.RequestCommit{})
		require.NoError(t, err)
	}
	for _, round := range rounds {
		close(round)
	}
	readers.Wait()
}

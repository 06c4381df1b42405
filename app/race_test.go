package app

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// Queries with proofs, CheckTx and snapshot calls go on while blocks are made; the race detector looks on, and every answer is right
// for the height that it names.
func TestConcurrentReaders(t *testing.T) {
	for _, keep := range []int{1, 4} { // with 1, what a reader has found is often released before the reader gets to it
		t.Run(fmt.Sprintf("keep_recent %d", keep), func(t *testing.T) { concurrentReaders(t, keep) })
	}
}

func concurrentReaders(t *testing.T, keep int) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	a.options.KeepRecent = keep
	a.SetSnapshots(&fakeSnapshots{})
	const blocks = 60
	runBlock(t, a, sign(t, "alice", 0, put("a", "1")))
	var waiting [][]byte
	for i := range uint64(blocks) {
		waiting = append(waiting, sign(t, "alice", i+1, put("a", fmt.Sprint(i+2))))
	}
	everything, err := (&RangeRequest{}).Marshal()
	require.NoError(t, err)

	var (
		readers sync.WaitGroup
		stop    atomic.Bool
		rounds  atomic.Int64
	)
	reader := func(read func(i int) error) {
		readers.Go(func() {
			for i := 0; !stop.Load(); i++ {
				if err := read(i); err != nil {
					t.Error(err)
					return
				}
				rounds.Add(1)
			}
		})
	}
	reader(func(int) error {
		res, err := a.Query(ctx, &abci.RequestQuery{Path: PathKey, Data: []byte("a")})
		if err == nil && string(res.Value) != fmt.Sprint(res.Height) {
			err = fmt.Errorf("height %d: value %s", res.Height, res.Value)
		}
		return err
	})
	reader(func(i int) error {
		value, answered, err := provedKey(a, []byte("a"), a.Height()-int64(i%3))
		if errors.Is(err, &tx.Error{Code: tx.CodeUnknownHeight}) {
			return nil // went by in the meantime, or is before the first
		}
		if err == nil && string(value) != fmt.Sprint(answered) {
			err = fmt.Errorf("height %d: value %s", answered, value)
		}
		return err
	})
	reader(func(i int) error {
		// The proof is checked against the state that published named, which may have moved on: only its form counts here. But all that
		// the answer holds is of one state.
		res, err := a.Query(ctx, &abci.RequestQuery{Path: PathRange, Data: everything, Prove: i%2 == 0})
		if err == nil && res.Code != 0 {
			err = fmt.Errorf("range: %s", res.Log)
		}
		var answer RangeResponse
		if err == nil {
			err = answer.Unmarshal(res.Value)
		}
		for _, e := range answer.Entries {
			if string(e.Key) == "a" && string(e.Value) != fmt.Sprint(res.Height) ||
				string(e.Key) == string(NonceKey(account("alice"))) && decodeUint64(e.Value) != uint64(res.Height) {
				return fmt.Errorf("height %d: %q = %q", res.Height, e.Key, e.Value)
			}
		}
		return err
	})
	reader(func(i int) error {
		res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: waiting[i%len(waiting)]})
		if err == nil && res.Code != 0 && tx.Code(res.Code) != tx.CodeBadNonce {
			err = fmt.Errorf("check: %s", res.Log)
		}
		return err
	})
	reader(func(int) error {
		if _, err := a.Query(ctx, &abci.RequestQuery{Path: PathNonce, Data: account("alice")}); err != nil {
			return err
		}
		if _, err := a.ListSnapshots(ctx, &abci.RequestListSnapshots{}); err != nil {
			return err
		}
		_, err := a.Info(ctx, &abci.RequestInfo{})
		return err
	})
	reader(func(i int) error {
		_, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Txs: waiting[i%len(waiting):], MaxTxBytes: 1 << 20})
		return err
	})
	for _, raw := range waiting {
		res := runBlock(t, a, raw)
		require.Zero(t, res.TxResults[0].Code)
	}
	require.Eventually(t, func() bool { return rounds.Load() > 500 }, waitLimit, waitTick)
	stop.Store(true)
	readers.Wait()
}

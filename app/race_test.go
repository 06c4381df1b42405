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

// Queries with proofs, CheckTx and snapshot calls run while blocks are executed, under the race
// detector, and every response is correct for the height that it names.
func TestConcurrentReaders(t *testing.T) {
	// With 1, a version is often released between the moment when a reader finds it and its
	// TryRetain.
	for _, keep := range []int{1, 4} {
		t.Run(fmt.Sprintf("pruning_keep_recent %d", keep), func(t *testing.T) { concurrentReaders(t, keep) })
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
		rounds  []chan struct{} // for each reader: it has read once since the test last checked
	)
	reader := func(read func(i int) error) {
		round := make(chan struct{}, 1)
		rounds = append(rounds, round)
		readers.Go(func() {
			defer close(round) // the test must not wait for a reader that failed
			for i := 0; !stop.Load(); i++ {
				if err := read(i); err != nil {
					t.Error(err)
					return
				}
				select {
				case round <- struct{}{}:
				default:
				}
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
			return nil // no longer kept, or before the first block
		}
		if err == nil && string(value) != fmt.Sprint(answered) {
			err = fmt.Errorf("height %d: value %s", answered, value)
		}
		return err
	})
	reader(func(i int) error {
		// The proof would have to be checked against the state that published named, which may have
		// been replaced, so only its form is checked. But everything in the response is of one
		// state.
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
	for i, raw := range waiting {
		res := runBlock(t, a, raw)
		require.Zero(t, res.TxResults[0].Code)
		if i%4 == 0 { // all of them read while the blocks are made, even if they are slow
			for _, round := range rounds {
				<-round
			}
		}
	}
	stop.Store(true)
	readers.Wait()
}

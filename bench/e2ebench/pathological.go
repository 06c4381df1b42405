package e2ebench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/tx"
)

// PathologicalOptions configure a run with the transactions that touch the most keys per byte.
type PathologicalOptions struct {
	Validators   int
	Transactions int // each has tx.MaxOperations deletes of absent keys
	Keys         int // in the state, with values of 100 bytes
	Seed         uint64
	Patience     time.Duration // for the whole run
}

// leastMemory is the minimum of disk.cache_bytes.
const leastMemory = 16 << 20

// PathologicalResult is the outcome of a run.
type PathologicalResult struct {
	Blocks   int     // from the block with the first transaction to that with the last
	Round    int32   // highest round in which one of these blocks was decided
	Seconds  float64 // from sending the first transaction until all are in blocks
	LongestS float64 // longest time between two of these blocks
}

// RunPathological sends the transactions, all at once, to a network of paged validators with the
// minimum of memory, and reports the blocks and rounds in which they are decided.
func RunPathological(ctx context.Context, o PathologicalOptions, progress *harness.Progress) (*PathologicalResult, error) {
	var result *PathologicalResult
	err := harness.InFolder(ctx, progress, func(dir string) error {
		ctx, cancel := context.WithTimeout(ctx, o.Patience)
		defer cancel()
		starlingd, err := network.Starlingd(ctx, "", progress)
		if err != nil {
			return err
		}
		result, err = o.run(ctx, starlingd, dir, progress)
		return err
	})
	return result, err
}

func (o PathologicalOptions) run(ctx context.Context, starlingd, dir string, progress *harness.Progress) (_ *PathologicalResult, err error) {
	key := ed25519.GenPrivKeyFromSecret(binary.BigEndian.AppendUint64(nil, o.Seed))
	genesis := map[string]any{"grants": []any{map[string]string{"grantee": fmt.Sprintf("%x", key.PubKey().Bytes()), "prefix": ""}}}
	shared := Network{Validators: o.Validators, TimeoutCommit: time.Second, Indexer: "null"}
	n, err := shared.starling(starlingd, genesis).start(ctx, filepath.Join(dir, "network"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Stop()) }()
	client, err := rpchttp.New(n.Validators[0].RPC(), "/websocket")
	if err != nil {
		return nil, err
	}
	w := &writer{key: key, rng: rand.New(rand.NewPCG(o.Seed, 0)), client: client} //nolint:gosec // reproducible by its seed
	if err := o.fill(n.Context(), w, progress); err != nil {
		return nil, err
	}
	err = n.Restart(ctx, "STARLINGD_DISK_STATE_IN_MEMORY=false", fmt.Sprintf("STARLINGD_DISK_CACHE_BYTES=%d", leastMemory), "STARLINGD_STATE_PRUNING_KEEP_RECENT=1")
	if err != nil {
		return nil, err
	}
	progress.Begin("deletes of absent keys", "transactions", o.Transactions)
	progress.Working("all validators")
	return w.delete(n.Context(), o.Transactions, progress)
}

// fill writes the state.
func (o PathologicalOptions) fill(ctx context.Context, w *writer, progress *harness.Progress) error {
	progress.Begin("write", "keys", o.Keys)
	progress.Working("all validators")
	value := make([]byte, 100)
	for n := 0; n < o.Keys; n += tx.MaxOperations {
		if err := w.send(ctx, func(key []byte) tx.Operation { return tx.NewPut(key, value) }); err != nil {
			return err
		}
		if err := w.wait(ctx, maxUnconfirmed); err != nil {
			return err
		}
		progress.Add(min(tx.MaxOperations, o.Keys-n))
	}
	return w.wait(ctx, 0)
}

// delete sends n transactions of deletes of absent keys.
func (w *writer) delete(ctx context.Context, n int, progress *harness.Progress) (*PathologicalResult, error) {
	if err := w.look(ctx); err != nil {
		return nil, err
	}
	first, began := w.seen+1, time.Now()
	for range n {
		if err := w.send(ctx, tx.NewDelete); err != nil {
			return nil, err
		}
	}
	if err := w.wait(ctx, 0); err != nil {
		return nil, err
	}
	progress.Add(n)
	result := &PathologicalResult{Seconds: time.Since(began).Seconds()}
	return result, w.judge(ctx, first, result)
}

// maxUnconfirmed is the number of transactions that may wait for a block while the state is
// written.
const maxUnconfirmed = 12

// writer sends the transactions of one account, in order, and follows the blocks.
type writer struct {
	key    ed25519.PrivKey
	rng    *rand.Rand
	client *rpchttp.HTTP
	sent   int
	seen   int64 // last height examined
	within int   // transactions in blocks up to seen
	last   int64 // last height with a transaction
}

// send sends a transaction with the maximum number of operations, all on new keys.
func (w *writer) send(ctx context.Context, operation func(key []byte) tx.Operation) error {
	operations := make([]tx.Operation, tx.MaxOperations)
	for i := range operations {
		operations[i] = operation(binary.BigEndian.AppendUint64(nil, w.rng.Uint64()|1<<63))
	}
	raw, err := tx.Sign(w.key, network.ChainID, &tx.Body{Nonce: uint64(w.sent), Operations: operations}) //nolint:gosec // not negative
	if err != nil {
		return err
	}
	answer, err := w.client.BroadcastTxSync(ctx, raw)
	if err != nil {
		return err
	}
	if answer.Code != 0 {
		return fmt.Errorf("transaction %d was rejected: code %d, %s", w.sent, answer.Code, answer.Log)
	}
	w.sent++
	return nil
}

// wait returns once at most n transactions are not in a block.
func (w *writer) wait(ctx context.Context, n int) error {
	var failed error
	err := runner.Poll(ctx, "transactions in blocks", func() bool {
		failed = w.look(ctx)
		return failed != nil || w.sent-w.within <= n
	})
	return errors.Join(err, failed)
}

// look counts the transactions of new blocks.
func (w *writer) look(ctx context.Context) error {
	status, err := w.client.Status(ctx)
	if err != nil {
		return err
	}
	for w.seen < status.SyncInfo.LatestBlockHeight {
		height := w.seen + 1
		info, err := w.client.BlockchainInfo(ctx, height, height)
		if err != nil {
			return err
		}
		n := info.BlockMetas[0].NumTxs
		w.seen, w.within = height, w.within+n
		if n > 0 {
			w.last = height
		}
	}
	return nil
}

// judge examines the blocks from the first one with a transaction, not below from, to the last.
func (w *writer) judge(ctx context.Context, from int64, r *PathologicalResult) error {
	var before *cmttypes.BlockMeta
	for height := from; height <= w.last; height++ {
		info, err := w.client.BlockchainInfo(ctx, height, height)
		if err != nil {
			return err
		}
		meta := info.BlockMetas[0]
		if meta.NumTxs == 0 && r.Blocks == 0 {
			continue
		}
		commit, err := w.client.Commit(ctx, &height)
		if err != nil {
			return err
		}
		r.Blocks++
		r.Round = max(r.Round, commit.Commit.Round)
		if before != nil {
			r.LongestS = max(r.LongestS, meta.Header.Time.Sub(before.Header.Time).Seconds())
		}
		before = meta
	}
	return nil
}

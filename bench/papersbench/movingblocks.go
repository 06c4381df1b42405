package papersbench

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/joinbench"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/statesync/catchup"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/tx"
)

// follower has the way of join/moving by blocks. The application has records of its own, so this
// way does not begin with the old state of the others: a chain puts the same keys, and a node
// follows it from row to row.
//
//	chain: makes blocks ──► catchup.Server ──TCP──► catchup.Run ──► node: verifies, executes
type follower struct {
	home    string // of the node
	chain   *joinbench.Chain
	account ed25519.PrivKey // signs all transactions
	nonce   uint64          // of its next transaction
	rng     *rand.Rand
}

const changesPerBlock = 1000

// joinByBlocks makes the joins of all rows by blocks. sets has the keys that change in each.
func joinByBlocks(ctx context.Context, dir string, seed uint64, keys []string, sets [][]string, rows []movingRow, progress *harness.Progress) (err error) {
	progress.Working("the old state, by blocks")
	f, err := newFollower(ctx, dir, rand.New(rand.NewPCG(seed, 1))) //nolint:gosec // reproducible by its seed
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.chain.Close()) }()
	// One transaction per block: this join is not measured.
	if _, err := f.join(ctx, keys, changesPerBlock); err != nil {
		return fmt.Errorf("the old state, by blocks: %w", err)
	}
	progress.Working("a node with the old state, by blocks")
	for i, set := range sets {
		if rows[i].Blocks, err = f.join(ctx, set, 1); err != nil {
			return fmt.Errorf("%g %% changed, by blocks: %w", rows[i].Percent, err)
		}
		progress.Add(1)
	}
	return nil
}

// newFollower makes the homes of a chain and of a node that has no blocks yet.
func newFollower(ctx context.Context, dir string, rng *rand.Rand) (*follower, error) {
	f := &follower{home: filepath.Join(dir, "node"), account: ed25519.GenPrivKey(), rng: rng}
	chain := filepath.Join(dir, "chain")
	everything := app.GenesisGrant{Grantee: hex.EncodeToString(f.account.PubKey().Bytes())}
	if _, err := home.Init(home.InitOptions{Home: chain, ChainID: movingChain, App: app.Genesis{Grants: []app.GenesisGrant{everything}}}); err != nil {
		return nil, err
	}
	file := filepath.Join(chain, "config", "genesis.json")
	doc, err := types.GenesisDocFromFile(file)
	if err != nil {
		return nil, err
	}
	// Blocks are a second apart, and none may be in the future.
	doc.GenesisTime = doc.GenesisTime.AddDate(-1, 0, 0)
	if err := doc.SaveAs(file); err != nil {
		return nil, err
	}
	if _, err := home.Init(home.InitOptions{Home: f.home, GenesisFile: file}); err != nil {
		return nil, err
	}
	f.chain, err = joinbench.OpenChain(ctx, chain)
	return f, err
}

// join makes blocks that give keys new values, with perTx of them in a transaction, and measures
// how the node catches up.
func (f *follower) join(ctx context.Context, keys []string, perTx int) (j joined, err error) {
	values := make([][]byte, len(keys))
	for from := 0; from < len(keys); from += changesPerBlock {
		var txs types.Txs
		to := min(from+changesPerBlock, len(keys))
		for at := range slices.Chunk(keys[from:to], perTx) {
			operations := make([]tx.Operation, len(at))
			for i, key := range at {
				value := newValue(f.rng)
				values[from+len(txs)*perTx+i] = value
				operations[i] = tx.NewPut([]byte(key), value)
			}
			raw, err := tx.Sign(f.account, movingChain, &tx.Body{Nonce: f.nonce, Operations: operations})
			if err != nil {
				return j, err
			}
			f.nonce++
			txs = append(txs, raw)
		}
		if err := f.chain.Add(ctx, txs); err != nil {
			return j, err
		}
	}
	if err := f.chain.Add(ctx, nil); err != nil { // nodes do not serve their last block
		return j, err
	}
	_, v := f.chain.Application.Latest()
	defer v.Release()
	for i, key := range keys { // a block may have transactions that fail
		if value, _, err := v.View([]byte(key)); err != nil || !bytes.Equal(value, values[i]) {
			return j, errors.Join(err, fmt.Errorf("key %x does not have its new value after the blocks", key))
		}
	}
	return f.catchUp(ctx, v.AppHash())
}

// catchUp starts the node and measures the time until its state has the hash and is durable.
func (f *follower) catchUp(ctx context.Context, want [32]byte) (j joined, err error) {
	ctx, cancel := context.WithTimeout(ctx, movingLimit)
	defer cancel()
	stored, err := f.chain.Databases.Blocks()
	if err != nil {
		return j, err
	}
	server, mux, sent := catchup.NewServer(nil), new(transport.Mux), atomic.Int64{}
	server.SetBlocks(stored)
	server.Register(mux)
	listener, address, err := listen(transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
		answer, err := mux.Serve(ctx, r)
		sent.Add(int64(len(answer)))
		return answer, err
	}))
	if err != nil {
		return j, err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	node, err := joinbench.OpenChain(ctx, f.home)
	if err != nil {
		return j, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	dialer, err := movingDialer()
	if err != nil {
		return j, err
	}
	harness.SyncDisk()
	from := time.Now()
	conn, err := dialer.Dial(ctx, address)
	if err != nil {
		return j, err
	}
	defer conn.Close()
	peers := []catchup.Peer{{Conn: conn, Claim: catchup.Claim{First: 1, Last: stored.Height()}}}
	err = catchup.Run(ctx, catchup.Options{
		ChainID: movingChain, Chain: node.Executor, Stall: movingLimit,
		Peers: func() ([]catchup.Peer, <-chan struct{}, bool) { return peers, nil, true },
	})
	if err != nil {
		return j, err
	}
	_, v := node.Application.Latest()
	got := v.AppHash()
	v.Release()
	if err := node.Close(); err != nil { // makes the state durable at once
		return j, err
	}
	j = joined{Bytes: sent.Load(), Seconds: time.Since(from).Seconds()}
	if got != want {
		return j, fmt.Errorf("the node ended with the app hash %x, the chain has %x", got, want)
	}
	return j, nil
}

package history

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/internal/sleep"
)

// Block is a block from a node.
type Block struct {
	Height       int64      `json:"height"`
	Time         time.Time  `json:"time"`
	Transactions []Executed `json:"transactions,omitempty"`
}

// Executed is a transaction in a block, with its result there.
type Executed struct {
	Raw  []byte `json:"raw"`
	Code uint32 `json:"code,omitempty"`
	Data []byte `json:"data,omitempty"`
}

func (e *Executed) hash() []byte { return cmttypes.Tx(e.Raw).Hash() }

func headOf(ctx context.Context, node string) (int64, error) {
	rpc, err := client.NewHTTP(node)
	if err != nil {
		return 0, err
	}
	status, err := rpc.Status(ctx)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", node, err)
	}
	return status.SyncInfo.LatestBlockHeight, nil
}

// FetchBlocks reads the blocks [from, to] of a node with their results. The node must have all of
// them.
func FetchBlocks(ctx context.Context, node string, from, to int64) ([]Block, error) {
	rpc, err := client.NewHTTP(node)
	if err != nil {
		return nil, err
	}
	var blocks []Block
	for height := from; height <= to; height++ {
		block, err := fetchBlock(ctx, rpc, height)
		if err != nil {
			return nil, fmt.Errorf("block %d of %s: %w", height, node, err)
		}
		blocks = append(blocks, block)
	}
	return blocks, nil
}

func fetchBlock(ctx context.Context, rpc *rpchttp.HTTP, height int64) (Block, error) {
	block, err := rpc.Block(ctx, &height)
	if err != nil {
		return Block{}, err
	}
	if block.Block == nil || block.Block.Height != height {
		return Block{}, errors.New("the node sent no block, or another one")
	}
	b := Block{Height: height, Time: block.Block.Time}
	if len(block.Block.Txs) == 0 {
		return b, nil
	}
	results, err := rpc.BlockResults(ctx, &height)
	if err != nil {
		return Block{}, fmt.Errorf("results: %w", err)
	}
	if len(results.TxsResults) != len(block.Block.Txs) {
		return Block{}, fmt.Errorf("%d results of %d transactions", len(results.TxsResults), len(block.Block.Txs))
	}
	for i, raw := range block.Block.Txs {
		result := results.TxsResults[i]
		if result == nil {
			return Block{}, fmt.Errorf("no result of transaction %d", i)
		}
		b.Transactions = append(b.Transactions, Executed{Raw: raw, Code: result.Code, Data: result.Data})
	}
	return b, nil
}

// Top is the highest block that the history refers to.
func (h *History) Top() int64 {
	top := h.From
	for _, t := range h.Transactions {
		top = max(top, t.Height)
	}
	for _, r := range h.Reads {
		top = max(top, r.Height)
	}
	return top
}

// Kept is the number of acknowledged transactions that a node has.
type Kept struct {
	Held    int
	Earlier int // in blocks before the node's first block, since it joined later or has pruned them
}

// await waits until a node has a block, and returns its first one.
func await(ctx context.Context, node string, height int64) (first int64, err error) {
	rpc, err := client.NewHTTP(node)
	if err != nil {
		return 0, err
	}
	const pollEvery = 100 * time.Millisecond
	last := errors.New("it was not queried")
	for ; ; _ = sleep.For(ctx, pollEvery) {
		status, err := rpc.Status(ctx)
		switch {
		case err == nil && status.SyncInfo.LatestBlockHeight >= height:
			return max(1, status.SyncInfo.EarliestBlockHeight), nil
		case err == nil:
			last = fmt.Errorf("it is at height %d", status.SyncInfo.LatestBlockHeight)
		case ctx.Err() == nil:
			last = err
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%s does not reach height %d: %w", node, height, last)
		}
	}
}

// CheckAcknowledged checks that a node has every acknowledged transaction, in the block and with
// the outcome that the client was told. It waits until the node has the last of these blocks, or
// until ctx ends.
func (h *History) CheckAcknowledged(ctx context.Context, node string) (Kept, error) {
	acknowledged := h.Acknowledged()
	top := h.From
	for _, t := range acknowledged {
		top = max(top, t.Height)
	}
	for earlier := int64(0); ; {
		first, err := await(ctx, node, top)
		if err != nil {
			return Kept{}, err
		}
		first = max(first, h.From+1)
		blocks, err := FetchBlocks(ctx, node, first, top)
		if err == nil {
			return kept(acknowledged, node, first, blocks)
		}
		// the node may have pruned that block since it reported its first one
		if first == earlier {
			return Kept{}, err
		}
		earlier = first
	}
}

func kept(acknowledged []Transaction, node string, first int64, blocks []Block) (Kept, error) {
	type place struct {
		height int64
		code   uint32
	}
	held := map[string][]place{}
	for _, b := range blocks {
		for _, e := range b.Transactions {
			hash := hex.EncodeToString(e.hash())
			held[hash] = append(held[hash], place{b.Height, e.Code})
		}
	}
	var (
		kept Kept
		errs []error
	)
	for _, t := range acknowledged {
		if t.Height < first {
			kept.Earlier++
			continue
		}
		found := false
		for _, p := range held[hex.EncodeToString(t.Hash)] {
			found = found || p.height == t.Height && (p.code == 0) == (t.Outcome == OK)
		}
		if !found {
			errs = append(errs, fmt.Errorf("%s has lost transaction %v, which was acknowledged: %v", node, t.Hash, &t))
			continue
		}
		kept.Held++
	}
	return kept, firstErrors(errs)
}

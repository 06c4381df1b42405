package main

import (
	"bytes"
	"context"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/testnet"
)

// Chunks are small, so that even a few keys make some hundreds of chunks. The joiner requests one
// chunk from each peer that is connected when fetching begins. With --in-band, CometBFT picks a
// random peer for each chunk; with 4 honest peers and one Byzantine peer, the probability that none
// of 100 chunks is requested from the Byzantine peer is below 10⁻⁹.
const (
	wantedChunks  = 400
	minChunkBytes = 64
	maxChunkBytes = 16 << 10
)

// chunkBytes returns the chunk size limit that divides a number of keys into about wantedChunks.
func chunkBytes(keys int) uint64 {
	const filled = 2.0 / 3 // how full a chunk is with random keys
	data := testnet.Dataset{Keys: keys, ValueBytes: valueBytes}
	key, value := data.At(0) // all have the same length
	total := float64(keys) * float64(avlstar.RecordBytes(len(key), len(value)))
	return uint64(min(max(total/wantedChunks/filled, minChunkBytes), maxChunkBytes))
}

// valueBytes is the length of each value.
const valueBytes = 100

// provedRead reads a key from the joiner and checks the proof against a light client's header, with
// a validator as the witness.
func (n *network) provedRead(ctx context.Context, det *details) error {
	validator := n.validators()[0].Home
	// the oldest block that the joiner has
	trusted, err := validator.Header(ctx, det.SnapshotHeight+1)
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, []string{n.joiner.Home.RPC()}, client.WithWitnesses(validator.RPC()), client.WithChainID(chainID),
		client.WithVerification(client.Trust{Height: trusted.Height, Hash: trusted.Hash}))
	if err != nil {
		return err
	}
	key, want := n.Data.At(n.Data.Keys / 2)
	got, err := c.Get(ctx, key)
	switch {
	case err != nil:
		return fmt.Errorf("proved read from the joiner: %w", err)
	case !got.Verified || !bytes.Equal(got.Value, want):
		return fmt.Errorf("the joiner's value at %s differs from the one written", key)
	}
	absent := n.Data.Absent(0)
	if got, err = c.Get(ctx, absent); err != nil {
		return fmt.Errorf("proof of absence from the joiner: %w", err)
	} else if got.Found {
		return fmt.Errorf("the joiner has a value at %s, which was never written", absent)
	}
	det.VerifiedKey = string(key)
	return nil
}

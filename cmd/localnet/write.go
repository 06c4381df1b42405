package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

const (
	// batch is how many keys one transaction writes; writers, how many accounts write at the same
	// time, each one transaction after another. Together they fill few blocks, none of them above
	// CometBFT's 4 MB.
	batch   = 1000
	writers = 8
)

// write writes all keys through the validators and returns the height of the last block with one.
func (n *network) write(ctx context.Context, data dataset) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex // of the three below
		next    int        // first key that nobody has taken
		written int
		height  int64
	)
	meter := n.screen.meter("keys written", int64(data.n))
	defer meter.end()
	take := func() (from, to int) {
		mu.Lock()
		defer mu.Unlock()
		from, to = next, min(next+batch, data.n)
		next = to
		return from, to
	}
	for w := range writers {
		wg.Go(func() {
			to := n.validators[w%len(n.validators)]
			c, err := client.Dial(ctx, []string{to.RPC()}, client.WithChainID(chainID), client.WithKey(data.writerKey(w)))
			if err != nil {
				cancel(fmt.Errorf("writing to %s: %w", to.Name, err))
				return
			}
			for from, end := take(); from < end; from, end = take() {
				operations := make([]tx.Operation, 0, end-from)
				for i := from; i < end; i++ {
					key, value := data.at(i)
					operations = append(operations, tx.NewPut([]byte(key), value))
				}
				result, err := c.Submit(ctx, operations...)
				if err != nil {
					cancel(fmt.Errorf("writing to %s: %w", to.Name, err))
					return
				}
				mu.Lock()
				written += end - from
				height = max(height, result.Height)
				meter.set(int64(written), int64(data.n), "in signed transactions of "+group(batch))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	return height, nil
}

// provedRead reads a key from the joiner and checks it against the header of a light client, whose
// witness is a validator.
func (n *network) provedRead(ctx context.Context, data dataset, det *details) error {
	// the oldest block that the joiner has
	trusted, err := n.validators[0].Header(ctx, det.SnapshotHeight+1)
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, []string{n.joiner.RPC()}, client.WithWitnesses(n.validators[0].RPC()), client.WithChainID(chainID),
		client.WithVerification(client.Trust{Height: trusted.Height, Hash: trusted.Hash}))
	if err != nil {
		return err
	}
	key, want := data.at(data.n / 2)
	got, err := c.Get(ctx, []byte(key))
	switch {
	case err != nil:
		return fmt.Errorf("a proved read from the joiner: %w", err)
	case !got.Verified || !bytes.Equal(got.Value, want):
		return fmt.Errorf("the joiner has another value at %s than was written", key)
	}
	absent := prefix + "nobody-wrote-this"
	if got, err = c.Get(ctx, []byte(absent)); err != nil {
		return fmt.Errorf("a proof of absence from the joiner: %w", err)
	} else if got.Found {
		return fmt.Errorf("the joiner has a value at %s, which nobody wrote", absent)
	}
	det.VerifiedKey = key
	return nil
}

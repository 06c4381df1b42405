package testnet

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// Dataset generates the keys and values that Load writes from a seed.
type Dataset struct {
	Seed             uint64
	Keys, ValueBytes int
}

// At returns pair i, with i below Keys. Keys are not written in order, like those of real users.
func (d Dataset) At(i int) (key, value []byte) {
	random := rand.New(rand.NewPCG(d.Seed, uint64(i)))
	key = d.key("initial", random, i)
	value = make([]byte, d.ValueBytes)
	for j := range value {
		value[j] = byte(random.Uint32())
	}
	return key, value
}

// Absent returns key i of an endless sequence of keys that are never written. They lie among the
// written keys.
func (d Dataset) Absent(i int) (key []byte) {
	return append(d.key("initial", rand.New(rand.NewPCG(^d.Seed, uint64(i))), i), "-absent"...)
}

func (d Dataset) key(folder string, random *rand.Rand, i int) []byte {
	var id [8]byte
	// the low half makes keys unique
	binary.BigEndian.PutUint64(id[:], random.Uint64()<<32|uint64(i))
	return fmt.Appendf(nil, "%s%s/%s", Prefix, folder, hex.EncodeToString(id[:]))
}

// writer returns the account of writer w.
func (d Dataset) writer(w int) ed25519.PrivKey {
	secret := binary.BigEndian.AppendUint64([]byte("starling e2e initial load"), d.Seed)
	return ed25519.GenPrivKeyFromSecret(binary.BigEndian.AppendUint64(secret, uint64(w)))
}

const (
	// writers is the number of accounts that write concurrently, each one transaction after
	// another, of at most batchKeys keys and about batchBytes bytes.
	writers    = 8
	batchKeys  = 1000
	batchBytes = 256 << 10
)

// Load writes the manifest's initial keys through all honest validators, and records them in Data.
func (n *Network) Load(ctx context.Context) error {
	m := n.Manifest
	n.Data = Dataset{Seed: m.Seed, Keys: m.Load.InitialKeys, ValueBytes: m.Load.ValueBytes}
	ctx, stop := n.under(ctx)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	batch := max(1, min(batchKeys, batchBytes/m.Load.ValueBytes))
	nodes := n.Running()
	if len(nodes) == 0 {
		return errors.New("no honest node runs")
	}
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		next    int // first key that is not assigned to a writer
		written int
	)
	take := func() (from, to int) {
		mu.Lock()
		defer mu.Unlock()
		from, to = next, min(next+batch, n.Data.Keys)
		next = to
		return from, to
	}
	done := func(keys int, height int64) {
		mu.Lock()
		defer mu.Unlock()
		written += keys
		n.Loaded = max(n.Loaded, height)
		n.options.Loading(written)
	}
	for w := range writers {
		wg.Go(func() {
			to := nodes[w%len(nodes)]
			if err := n.write(ctx, to, n.Data.writer(w), take, done); err != nil {
				cancel(fmt.Errorf("writing to %s: %w", to.Name, err))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	n.log("wrote %d keys in %.1f s", n.Data.Keys, time.Since(began).Seconds())
	return nil
}

// write writes the keys that take returns to a node, until take returns none, and reports each
// batch to done.
func (n *Network) write(ctx context.Context, to *Node, key ed25519.PrivKey, take func() (from, to int), done func(keys int, height int64)) error {
	c, err := client.Dial(ctx, []string{to.Home.RPC()}, client.WithChainID(n.ChainID()), client.WithKey(key))
	if err != nil {
		return err
	}
	for from, end := take(); from < end; from, end = take() {
		operations := make([]tx.Operation, 0, end-from)
		for i := from; i < end; i++ {
			operations = append(operations, tx.NewPut(n.Data.At(i)))
		}
		result, err := c.Submit(ctx, operations...)
		if err != nil {
			return err
		}
		done(end-from, result.Height)
	}
	return nil
}

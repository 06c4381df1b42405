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

// Dataset is the keys and values that Load writes: what a seed stands for.
type Dataset struct {
	Seed             uint64
	Keys, ValueBytes int
}

// At returns pair i, of Keys. Keys are in no order, as those of real users.
func (d Dataset) At(i int) (key, value []byte) {
	random := rand.New(rand.NewPCG(d.Seed, uint64(i)))
	key = d.key("initial", random, i)
	value = make([]byte, d.ValueBytes)
	for j := range value {
		value[j] = byte(random.Uint32())
	}
	return key, value
}

// Absent returns key i of an endless sequence of keys that nobody writes. They lie among the
// others.
func (d Dataset) Absent(i int) (key []byte) {
	return append(d.key("initial", rand.New(rand.NewPCG(^d.Seed, uint64(i))), i), "-absent"...)
}

func (d Dataset) key(folder string, random *rand.Rand, i int) []byte {
	var id [8]byte
	// the low half keeps keys apart
	binary.BigEndian.PutUint64(id[:], random.Uint64()<<32|uint64(i))
	return fmt.Appendf(nil, "%s%s/%s", Prefix, folder, hex.EncodeToString(id[:]))
}

// writer is the account of writer w.
func (d Dataset) writer(w int) ed25519.PrivKey {
	secret := binary.BigEndian.AppendUint64([]byte("starling e2e initial load"), d.Seed)
	return ed25519.GenPrivKeyFromSecret(binary.BigEndian.AppendUint64(secret, uint64(w)))
}

const (
	// writers is how many accounts write at the same time, each one transaction after another, of
	// at most batchKeys keys and about batchBytes bytes.
	writers    = 4
	batchKeys  = 500
	batchBytes = 256 << 10
)

// Load writes the manifest's initial keys through all honest validators, and leaves them in Data.
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
		return errors.New("no honest node runs that could be written to")
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		next int // first key that nobody has taken
	)
	take := func() (from, to int) {
		mu.Lock()
		defer mu.Unlock()
		from, to = next, min(next+batch, n.Data.Keys)
		next = to
		return from, to
	}
	for w := range writers {
		wg.Go(func() {
			to := nodes[w%len(nodes)]
			if err := n.write(ctx, to, n.Data.writer(w), take); err != nil {
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

// write writes to a node what take returns, until it returns nothing.
func (n *Network) write(ctx context.Context, to *Node, key ed25519.PrivKey, take func() (from, to int)) error {
	c, err := client.Dial(ctx, []string{to.Home.RPC()}, client.WithChainID(n.ChainID()), client.WithKey(key))
	if err != nil {
		return err
	}
	for from, end := take(); from < end; from, end = take() {
		operations := make([]tx.Operation, 0, end-from)
		for i := from; i < end; i++ {
			operations = append(operations, tx.NewPut(n.Data.At(i)))
		}
		if _, err := c.Submit(ctx, operations...); err != nil {
			return err
		}
	}
	return nil
}

package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/tx"
)

// ledger is the clients' knowledge about the keys that they write: each operation with its block,
// or without one while the client does not know whether a block contains it.
type ledger struct {
	mu        sync.Mutex
	keys      map[string][]write
	last      int64 // highest block with an operation
	committed int   // transactions that were seen in a block
}

type write struct {
	value  []byte // nil: deleted
	height int64  // 0: not known
}

// plan records operations that are about to be sent. Each key has one writer, which sends one
// transaction after another.
func (l *ledger) plan(operations map[string][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, value := range operations {
		l.keys[key] = append(l.keys[key], write{value: value})
	}
}

// done records the block of planned operations.
func (l *ledger) done(operations map[string][]byte, height int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range operations {
		l.keys[key][len(l.keys[key])-1].height = height
	}
	l.last = max(l.last, height)
	l.committed++
}

// undo removes operations that were planned and not sent.
func (l *ledger) undo(operations map[string][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range operations {
		if l.keys[key] = l.keys[key][:len(l.keys[key])-1]; len(l.keys[key]) == 0 {
			delete(l.keys, key)
		}
	}
}

// reached returns the highest block with an operation, and the number of committed transactions.
func (l *ledger) reached() (height int64, transactions int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, l.committed
}

// check compares a whole state, the one after the block at height, with the ledger.
func (l *ledger) check(height int64, state map[string][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for key := range state {
		if l.keys[key] == nil {
			errs = append(errs, fmt.Errorf("key %q exists, but no client wrote it", key))
		}
	}
	for key, writes := range l.keys {
		// value after the last block up to height; the operations on one key are in order
		var want []byte
		good := false
		for _, w := range writes {
			if w.height > 0 && w.height <= height {
				want, good = w.value, false
			}
			if w.height == 0 && bytes.Equal(w.value, state[key]) {
				good = true // it may have been executed
			}
		}
		if !good && !bytes.Equal(want, state[key]) {
			errs = append(errs, fmt.Errorf("at height %d key %q has %s, the last operation on it wrote %s (%s)", height, key,
				short(state[key]), short(want), historyOf(writes)))
		}
	}
	if len(errs) > 5 {
		errs = append(errs[:5:5], fmt.Errorf("and %d more", len(errs)-5))
	}
	return errors.Join(errs...)
}

// The ledger must detect lost and unexpected values.
func TestLedger(t *testing.T) {
	key := func(value string) map[string][]byte { return map[string][]byte{"key": []byte(value)} }
	gone := map[string][]byte{"key": nil}
	l := &ledger{keys: map[string][]write{}}
	require.Error(t, l.check(1, key("old")), "no client wrote it")
	l.plan(key("old"))
	require.NoError(t, l.check(1, nil))
	require.NoError(t, l.check(1, key("old")), "it is in flight")
	l.done(key("old"), 5)
	require.NoError(t, l.check(5, key("old")))
	require.Error(t, l.check(5, nil), "it is missing")
	require.NoError(t, l.check(4, nil))
	l.plan(key("new"))
	require.NoError(t, l.check(6, key("old")))
	require.NoError(t, l.check(6, key("new")))
	require.Error(t, l.check(6, key("other")))
	l.done(key("new"), 7)
	require.Error(t, l.check(7, key("old")), "a block is missing")
	require.NoError(t, l.check(6, key("old")))
	l.plan(gone)
	l.undo(gone)
	require.Error(t, l.check(8, nil), "it was not sent")
	l.plan(gone)
	l.done(gone, 9)
	require.NoError(t, l.check(9, nil))
	require.Error(t, l.check(9, key("new")))
	height, transactions := l.reached()
	require.EqualValues(t, 9, height)
	require.Equal(t, 3, transactions)
}

func short(value []byte) string {
	if value == nil {
		return "nothing"
	}
	return fmt.Sprintf("%.12q… (%d bytes)", value, len(value))
}

func historyOf(writes []write) string {
	text := "history:"
	for _, w := range writes {
		text += fmt.Sprintf(" %s in block %d;", short(w.value), w.height)
	}
	return text
}

// load writes continuously until its context ends: each writer writes to one node, with a separate
// account and separate keys.
type load struct {
	ledger
	valueBytes    int // on average
	sent, unknown atomic.Int64
	wg            sync.WaitGroup
}

func newLoad(valueBytes int) *load {
	l := &load{valueBytes: valueBytes}
	l.keys = map[string][]write{}
	return l
}

const (
	torturePrefix = "torture/"
	opsPerTx      = 20
	// ownKeys is the maximum number of keys of a writer; after that it overwrites and deletes.
	ownKeys = 1500
	// submitPatience is the time that a writer waits for its transaction, if the node was killed.
	submitPatience = 8 * time.Second
)

// start adds a writer for a node, which may be down at times.
func (l *load) start(ctx context.Context, chainID string, id int, to *runner.Home, seed uint64) {
	l.wg.Go(func() {
		w := writer{id: id, random: rand.New(rand.NewPCG(seed, uint64(id))), key: ed25519.GenPrivKeyFromSecret(fmt.Appendf(nil, "writer %d", id))}
		var c *client.Client
		for ctx.Err() == nil {
			if c == nil {
				var err error
				c, err = client.Dial(ctx, []string{to.RPC()}, client.WithChainID(chainID), client.WithKey(w.key))
				if err != nil {
					pause(ctx, 100*time.Millisecond)
					continue
				}
			}
			if !l.write(ctx, c, &w) {
				c = nil
				pause(ctx, 100*time.Millisecond)
			}
		}
	})
}

// pause waits for d: kills come at random instants.
func pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

type writer struct {
	id     int
	random *rand.Rand
	key    ed25519.PrivKey
	keys   []string // the outcome of every operation on them is known
}

// write sends one transaction. It returns false if its outcome is unknown, or the node does not
// answer.
func (l *load) write(ctx context.Context, c *client.Client, w *writer) bool {
	operations := map[string][]byte{}
	for len(operations) < opsPerTx {
		fresh := len(w.keys) < ownKeys && (len(w.keys) < opsPerTx || w.random.IntN(2) == 0)
		key := fmt.Sprintf("%s%d/%08x", torturePrefix, w.id, w.random.Uint32())
		if !fresh {
			key = w.keys[w.random.IntN(len(w.keys))]
		}
		if fresh || w.random.IntN(4) > 0 {
			operations[key] = bytes.Repeat(fmt.Appendf(nil, "%08x", w.random.Uint32()), 1+w.random.IntN(l.valueBytes/4))
		} else {
			operations[key] = nil
		}
	}
	var list []tx.Operation
	for key, value := range operations {
		if value == nil {
			list = append(list, tx.NewDelete([]byte(key)))
		} else {
			list = append(list, tx.NewPut([]byte(key), value))
		}
	}
	l.plan(operations)
	l.sent.Add(1)
	// A transaction in flight when the context ends is still waited for, so that few outcomes
	// remain unknown.
	submit, cancel := context.WithTimeout(context.WithoutCancel(ctx), submitPatience)
	defer cancel()
	result, err := c.Submit(submit, list...)
	var (
		unknown *client.UnknownOutcomeError
		refused *client.TxError
	)
	switch {
	case err == nil:
		l.done(operations, result.Height)
		w.learn(operations)
	case errors.As(err, &unknown) || errors.As(err, &refused):
		// from now on these keys are not used
		l.unknown.Add(1)
		w.forget(operations)
	default:
		l.undo(operations)
	}
	return err == nil
}

func (w *writer) forget(operations map[string][]byte) {
	kept := w.keys[:0]
	for _, key := range w.keys {
		if _, touched := operations[key]; !touched {
			kept = append(kept, key)
		}
	}
	w.keys = kept
}

func (w *writer) learn(operations map[string][]byte) {
	w.forget(operations)
	// a map's order is not the seed's
	w.keys = append(w.keys, slices.Sorted(maps.Keys(operations))...)
}

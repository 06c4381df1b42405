package dsmbench

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

const (
	chainID = "starling-bench"
	// accountPrefix is the first byte of all account keys. Every signer has a grant for it.
	accountPrefix = 'a'
	keyBytes      = 20
	valueBytes    = 100
	// closing is the share of transactions in the second workload that delete an account. The same
	// share creates one.
	closing = 0.05
)

// spec determines a workload: the same spec always gives the same blocks.
type spec struct {
	Keys      int    `json:"keys"` // accounts
	Signers   int    `json:"signers"`
	Transfers int    `json:"transfers"` // per block
	Seed      uint64 `json:"seed"`
}

// transfer is one transaction, which changes two accounts.
type transfer struct {
	signer int
	keys   [2][]byte
	values [2][]byte // nil: the transfer deletes the account
	before [2][]byte // nil: the account is new
}

// block is a block of transfers.
type block struct {
	transfers []transfer
	changes   []avlstar.Change // changes to the state, sorted by key
}

// generator makes the blocks of RainBlock's evaluation (section 7): signed transfers. Nine tenths
// of the accounts drawn for them come from a tenth of all accounts.
type generator struct {
	spec
	rnd     *rand.Rand
	balance []uint64
	epoch   []uint16 // how often the account was recreated; each time, its key changes
	closed  []bool
	free    []int // closed accounts
	nonces  []uint64
	keys    []ed25519.PrivKey
}

func newGenerator(s spec) *generator {
	g := &generator{
		spec: s, rnd: rand.New(rand.NewPCG(s.Seed, 1)), balance: make([]uint64, s.Keys),
		epoch: make([]uint16, s.Keys), closed: make([]bool, s.Keys), nonces: make([]uint64, s.Signers),
	}
	for i := range s.Signers {
		g.keys = append(g.keys, ed25519.GenPrivKeyFromSecret(fmt.Appendf(nil, "signer %d of %d", i, s.Seed)))
		g.nonces[i] = 1 // each has sent one transaction already
	}
	return g
}

// key returns an account's key. Keys are hashes, so hot accounts are not neighbours in the tree.
func (g *generator) key(i int) []byte {
	var b [24]byte
	binary.BigEndian.PutUint64(b[:], g.Seed)
	binary.BigEndian.PutUint64(b[8:], uint64(i))
	binary.BigEndian.PutUint64(b[16:], uint64(g.epoch[i]))
	sum := sha256.Sum256(b[:])
	return append([]byte{accountPrefix}, sum[:keyBytes-1]...)
}

func (g *generator) value(i int) []byte {
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, valueBytes), g.balance[i]), make([]byte, valueBytes-8)...)
}

// pick draws an account: nine times out of ten from the first tenth of the accounts.
func (g *generator) pick() int {
	for {
		var i int
		if g.rnd.IntN(10) > 0 {
			i = g.rnd.IntN(g.Keys / 10)
		} else {
			i = g.rnd.IntN(g.Keys)
		}
		if !g.closed[i] {
			return i
		}
	}
}

// next makes the next block. deletions selects the second workload.
func (g *generator) next(deletions bool) block {
	var b block
	after := map[string][]byte{}
	for range g.Transfers {
		t := g.transfer(deletions)
		for side := range 2 {
			after[string(t.keys[side])] = t.values[side]
		}
		g.nonces[t.signer]++
		after[string(app.NonceKey(g.account(t.signer)))] = uint64Value(g.nonces[t.signer])
		b.transfers = append(b.transfers, t)
	}
	for key, value := range after {
		b.changes = append(b.changes, avlstar.Change{Key: []byte(key), Value: value})
	}
	slices.SortFunc(b.changes, func(x, y avlstar.Change) int { return bytes.Compare(x.Key, y.Key) })
	return b
}

// pair draws two different accounts.
func (g *generator) pair() (from, to int) {
	from, to = g.pick(), g.pick()
	for to == from {
		to = g.pick()
	}
	return from, to
}

func (g *generator) transfer(deletions bool) transfer {
	t := transfer{signer: g.rnd.IntN(g.Signers)}
	what := 1.0
	if deletions {
		what = g.rnd.Float64()
	}
	from, to := g.pair()
	if what >= closing && what < 2*closing && len(g.free) > 0 { // reopen a closed account
		n := g.rnd.IntN(len(g.free))
		to = g.free[n]
		g.free = slices.Delete(g.free, n, n+1)
		g.closed[to], g.balance[to] = false, 0
		g.epoch[to]++
		t.before[0] = g.value(from)
	} else {
		t.before = [2][]byte{g.value(from), g.value(to)}
	}
	t.keys = [2][]byte{g.key(from), g.key(to)}
	by := uint64(1)
	if what < closing { // close the sender's account
		by = g.balance[from]
		g.closed[from] = true
		g.free = append(g.free, from)
	}
	g.balance[from] -= by
	g.balance[to] += by
	if what >= closing {
		t.values[0] = g.value(from)
	}
	t.values[1] = g.value(to)
	return t
}

// account returns the account of a signer.
func (g *generator) account(signer int) []byte { return g.keys[signer].PubKey().Bytes() }

// sign returns the signed transactions of b, which must be the last block that next returned.
func (g *generator) sign(b block) ([][]byte, error) {
	// g.nonces are already those after the block.
	later := map[int]uint64{}
	txs := make([][]byte, len(b.transfers))
	for i := len(b.transfers) - 1; i >= 0; i-- {
		t := &b.transfers[i]
		later[t.signer]++
		raw, err := tx.Sign(g.keys[t.signer], chainID, &tx.Body{Nonce: g.nonces[t.signer] - later[t.signer], Operations: t.operations()})
		if err != nil {
			return nil, err
		}
		txs[i] = raw
	}
	return txs, nil
}

func (t *transfer) operations() []tx.Operation {
	operations := make([]tx.Operation, 2)
	for side := range operations {
		switch {
		case t.values[side] == nil:
			operations[side] = tx.NewDelete(t.keys[side])
		case t.before[side] == nil:
			operations[side] = tx.NewPut(t.keys[side], t.values[side])
		default:
			operations[side] = tx.NewCompareAndPut(t.keys[side], t.before[side], t.values[side])
		}
	}
	return operations
}

// wants returns what the block's transfers need of the accounts: each key once, sorted by key. If
// all is set, this includes accounts that the block creates.
func (b *block) wants(all bool) []avlstar.Want {
	seen, made := map[string]*avlstar.Want{}, map[string]bool{}
	for i := range b.transfers {
		t := &b.transfers[i]
		for side, key := range t.keys {
			w := seen[string(key)]
			if w == nil {
				w = &avlstar.Want{Key: key}
				seen[string(key)], made[string(key)] = w, t.before[side] == nil
			}
			w.Deleted = w.Deleted || t.values[side] == nil
		}
	}
	wants := make([]avlstar.Want, 0, len(seen))
	for key, w := range seen {
		if all || !made[key] {
			wants = append(wants, *w)
		}
	}
	slices.SortFunc(wants, func(x, y avlstar.Want) int { return bytes.Compare(x.Key, y.Key) })
	return wants
}

// ways returns wants with only the paths to the keys, without their values, which transfers do not
// read, and without the nodes that deletions need in addition.
func ways(wants []avlstar.Want) []avlstar.Want {
	plain := make([]avlstar.Want, len(wants))
	for i, w := range wants {
		plain[i] = avlstar.Want{Key: w.Key, Written: true}
	}
	return plain
}

func uint64Value(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

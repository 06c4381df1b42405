package storagebench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/starling-kv/starling/bench/workload"
)

// Sizes of the parts of the chain. Signatures, hashes and values are random, so that they are as
// incompressible as in a real chain.
const (
	keyBytes   = 20
	valueBytes = 100

	// txBytes is the length of a signed transaction: a key, a value, and 110 bytes of account,
	// nonce and signature.
	txBytes       = 240
	txFrame       = 3 // tag and length before each transaction in a block
	blockHead     = 1024
	partBytes     = 65_536 // CometBFT's BlockPartSizeBytes
	partFrame     = 8      // tags and lengths in front of a part's bytes
	proofStep     = 34     // a hash of a part's Merkle proof
	metaBytes     = 620
	commitBytes   = 510 // commit of four validators
	stateBytes    = 1500
	resultBytes   = 8 // one transaction's result in the block's results
	txResultBytes = 20
)

// Spec determines the chain.
type Spec struct {
	Seed      uint64 `json:"seed"`
	Keys      int    `json:"keys"`       // number of keys after the load
	LoadSteps int    `json:"load_steps"` // steps of the load
	Blocks    int    `json:"blocks"`
	Txs       int    `json:"txs_per_block"` // each transaction changes one key
	Window    int    `json:"window"`        // number of versions that the node layout keeps
	// NodeShare is the share of the node layout's caches that holds decoded nodes.
	NodeShare float64 `json:"node_share"`
	// Geth asks for the requests of geth's schemes, too.
	Geth bool `json:"geth,omitempty"`
}

func (s Spec) updates() int { return s.Txs * 80 / 100 }
func (s Spec) deletes() int { return s.Txs * 5 / 100 }
func (s Spec) inserts() int { return s.Txs - s.updates() - s.deletes() }

// change writes the value of an account at a step, or deletes the account.
type change struct {
	id     uint32
	delete bool
}

// chain makes the changes of each step, which depend only on the seed, and tracks the state after
// them:
//
//	step 1 … LoadSteps              puts of new accounts, until there are Keys
//	step LoadSteps+1 … + Blocks     a block of Txs changes each: 80 % update, 15 % insert, 5 % delete
//
//	key = f(seed, id)    value = f(seed, id, step)
type chain struct {
	Spec
	step    uint32
	present []uint32 // ids of the accounts in the state, unordered
	last    []uint32 // by id: step that wrote the value
}

func newChain(s Spec) *chain {
	room := s.Keys + s.Blocks*s.inserts()
	return &chain{Spec: s, present: make([]uint32, 0, room), last: make([]uint32, 0, room)}
}

// next makes the changes of the next step, in key order.
func (c *chain) next() []change {
	c.step++
	var changes []change
	if int(c.step) <= c.LoadSteps {
		for range c.Keys*int(c.step)/c.LoadSteps - len(c.last) {
			changes = append(changes, c.insert())
		}
	} else {
		changes = c.block()
	}
	slices.SortFunc(changes, func(a, b change) int {
		if c.prefix(a.id) < c.prefix(b.id) {
			return -1
		}
		return 1
	})
	return changes
}

// skipTo makes steps until the state is that of a height.
func (c *chain) skipTo(height int64) {
	for int64(c.step) < height {
		c.next()
	}
}

func (c *chain) block() []change {
	rng := random(c.Seed, uint64(c.step))
	changes := make([]change, 0, c.Txs)
	changed := c.updates() + c.deletes()
	// Accounts are drawn without repetition: each drawn account is moved to the front.
	for i := range changed {
		j := i + rng.IntN(len(c.present)-i)
		c.present[i], c.present[j] = c.present[j], c.present[i]
	}
	for _, id := range c.present[:c.updates()] {
		c.last[id] = c.step
		changes = append(changes, change{id: id})
	}
	for i := changed - 1; i >= c.updates(); i-- {
		changes = append(changes, change{id: c.present[i], delete: true})
		end := len(c.present) - 1
		c.present[i] = c.present[end]
		c.present = c.present[:end]
	}
	for range c.inserts() {
		changes = append(changes, c.insert())
	}
	return changes
}

func (c *chain) insert() change {
	id := uint32(len(c.last))
	c.last = append(c.last, c.step)
	c.present = append(c.present, id)
	return change{id: id}
}

// prefix returns the first eight bytes of a key as a number. They differ for all accounts, because
// workload.Mix is a bijection, so they determine the order of the keys.
func (s Spec) prefix(id uint32) uint64 { return workload.Mix(workload.Mix(s.Seed) + uint64(id)) }

func (s Spec) appendKey(b []byte, id uint32) []byte {
	p := s.prefix(id)
	b = binary.BigEndian.AppendUint64(b, p)
	b = binary.BigEndian.AppendUint64(b, workload.Mix(p))
	return binary.BigEndian.AppendUint32(b, uint32(workload.Mix(^p)))
}

func (s Spec) key(id uint32) []byte { return s.appendKey(make([]byte, 0, keyBytes), id) }

func (s Spec) appendValue(b []byte, id, step uint32) []byte {
	return workload.AppendRandom(b, valueBytes, s.Seed^0x76616c7565, uint64(id)<<32|uint64(step))
}

// txHash returns the hash of transaction tx of a block. The transaction in the block begins with
// the first eight bytes of its hash.
func (s Spec) txHash(height, tx int) []byte {
	return workload.AppendRandom(make([]byte, 0, 32), 32, s.Seed^0x7478, uint64(height)<<32|uint64(tx))
}

// txPlace returns where transaction tx begins: the part of its block, and the offset in that part.
// The transaction may end in the next part.
func txPlace(tx int) (part, offset int) {
	at := blockHead + tx*(txFrame+txBytes) + txFrame
	return at / partBytes, at%partBytes + partFrame
}

// CometBFT's databases. If databases share an engine, each key begins with the letter of its
// database. (The block store has separate databases.)
const (
	dbBlocks = 'b' // "blockstore"
	dbState  = 'x' // "state"
	dbIndex  = 'i' // "tx_index"
	dbApp    = 'a' // the application's database
)

// blockData returns what CometBFT writes for a block, with the same keys and batches, each synced:
// the block store (store/store.go, saveBlockToBatch), its own state (state/store.go), and the index
// by hash and by height (state/txindex/kv/kv.go).
func (s Spec) blockData(height int) []batch {
	body := workload.AppendRandom(nil, blockHead, s.Seed^0x626c6f636b, uint64(height))
	index, results := batch{db: dbIndex, sync: true}, batch{db: dbState, sync: true}
	for tx := range s.Txs {
		hash := s.txHash(height, tx)
		body = append(body, 0x0a, 0xf0, 0x01)
		at := len(body)
		body = append(body, hash[:8]...)
		body = workload.AppendRandom(body, txBytes-8, s.Seed^0x626f6479, uint64(height)<<32|uint64(tx))
		result := append(txResultHead(height, tx), body[at:]...)
		index.set(hash, workload.AppendRandom(result, txResultBytes-12, s.Seed, uint64(tx)))
		index.set(fmt.Appendf(nil, "tx.height/%d/%d/%d$es$0", height, height, tx), hash)
	}
	random := func(n int, what uint64) []byte {
		return workload.AppendRandom(make([]byte, 0, n), n, s.Seed^what<<56, uint64(height))
	}
	blocks := batch{db: dbBlocks, sync: true}
	parts := (len(body) + partBytes - 1) / partBytes
	for p := range parts {
		part := make([]byte, partFrame, partFrame+partBytes+8*proofStep)
		part = append(part, body[p*partBytes:min(len(body), (p+1)*partBytes)]...)
		for n := 1; n < parts; n *= 2 {
			part = append(part, random(proofStep, 1)...)
		}
		blocks.set(fmt.Appendf(nil, "P:%d:%d", height, p), part)
	}
	blocks.set(fmt.Appendf(nil, "H:%d", height), random(metaBytes, 2))
	blocks.set(fmt.Appendf(nil, "BH:%x", random(32, 3)), fmt.Append(nil, height))
	blocks.set(fmt.Appendf(nil, "C:%d", height-1), random(commitBytes, 4))
	blocks.set(fmt.Appendf(nil, "SC:%d", height), random(commitBytes, 5))
	results.set(fmt.Appendf(nil, "abciResponsesKey:%d", height), random(64+s.Txs*resultBytes, 6))
	results.set(fmt.Appendf(nil, "validatorsKey:%d", height+2), random(20, 7))
	results.set(fmt.Appendf(nil, "consensusParamsKey:%d", height+1), random(20, 8))
	results.set([]byte("stateKey"), random(stateBytes, 9))
	return []batch{blocks, results, index}
}

// txResultHead returns the beginning of the index record of a transaction: its position.
func txResultHead(height, tx int) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, txResultBytes+txBytes), uint64(height))
	return binary.BigEndian.AppendUint32(b, uint32(tx))
}

func random(seed, stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, stream)) //nolint:gosec // reproducible by its seed
}

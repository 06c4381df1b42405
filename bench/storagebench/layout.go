package storagebench

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/storage/sgc"
)

// layout is the way in which a contestant stores blocks and state.
type layout interface {
	// replay executes the requests of a block, or of a step of the load, which has no blocks.
	replay(height int64, blocks []batch, state batch) error
	// drain returns when everything replayed is durable.
	drain() error
	busy() bool
	counts() counts
	// tx looks up a transaction in the index, and reads the block part in which it begins.
	tx(height, tx int, use func(record, part []byte) error) error
	// account reads the value of an account, from the root of the state or through its page.
	account(key []byte, use func(value []byte) error) error
	// hits returns the hits of the layout's own cache, for the state and for blocks.
	hits() cacheHits
	plan() memoryPlan
	close() error
}

// memoryPlan is how a contestant divides the budget. The sum is the same for all contestants.
type memoryPlan struct {
	Memtables  int64 `json:"memtables"` // including those waiting for a flush
	BlockCache int64 `json:"block_cache"`
	Nodes      int64 `json:"decoded_nodes"`
	Upper      int64 `json:"upper_tree"`
	Cache      int64 `json:"pages_and_records"`
}

func (p memoryPlan) sum() int64 { return p.Memtables + p.BlockCache + p.Nodes + p.Upper + p.Cache }

// cacheHits counts lookups in a cache.
type cacheHits struct{ StateHits, StateMisses, BlockHits, BlockMisses uint64 }

func (c cacheHits) minus(d cacheHits) cacheHits {
	return cacheHits{c.StateHits - d.StateHits, c.StateMisses - d.StateMisses, c.BlockHits - d.BlockHits, c.BlockMisses - d.BlockMisses}
}

// rate returns the share of hits, or 0 without lookups.
func (c cacheHits) rate() float64 {
	all := c.StateHits + c.StateMisses + c.BlockHits + c.BlockMisses
	if all == 0 {
		return 0
	}
	return float64(c.StateHits+c.BlockHits) / float64(all)
}

// Names of the contestants. Except for goleveldb, each is one step from the first to the last.
const (
	nameMixed    = "mixed"     // one Pebble, IAVL's nodes
	nameLevel    = "goleveldb" // one goleveldb, IAVL's nodes
	nameZones    = "zones"     // one Pebble for blocks and one for IAVL's nodes
	nameLeaves   = "leaves"    // leaves in key order, read by pages; a cache with fixed halves
	nameStarling = "starling"  // a node's own packages; the state store has no log

	// One database with the nodes of geth's trie: by hash in Pebble and in goleveldb, by hash with
	// ChainKV's prefixes of rows and columns, or by path.
	nameGethHash   = "geth-hash"
	nameGethLevel  = nameGethHash + "-goleveldb"
	nameGethRow    = "geth-row"
	nameGethColumn = "geth-column"
	nameGethPath   = "geth-path"

	// With tunedBudget: large memtables avoid the compactions of a small budget.
	nameMixedTuned    = nameMixed + tuned
	nameStarlingTuned = nameStarling + tuned

	tuned = ", tuned"
)

// tunedBudget gives a contestant two memtables of 64 MiB each (see memtableShare), whatever the
// size of the state.
const tunedBudget = 512 << 20

// cacheMode is how the cache is divided between pages and records.
type cacheMode struct {
	Gaming bool    `json:"gaming"`
	Split  float64 `json:"split"` // share for the state; 0 with Gaming
	Plain  bool    `json:"plain"` // layouts of nodes: only the database's block cache
	Flat   bool    `json:"flat"`  // geth-path: accounts are read from the flat state
	// Limited limits the memory of all caches to Bytes, which may be 0.
	Limited bool  `json:"limited"`
	Bytes   int64 `json:"bytes"`
}

// caches returns the memory of a contestant's caches: what memtables leave of the budget, or the
// limit. r is nil when the files are opened for writing.
func (r *reading) caches(budget int64) int64 {
	if r != nil && r.mode.Limited {
		return r.mode.Bytes
	}
	return budget - budget*memtableShare/16
}

var halves = cacheMode{Split: 0.5}

// open creates the cache of a plan. The memory of the state's tree counts towards the state's
// share.
func (m cacheMode) open(p memoryPlan) *sgc.Cache {
	var c *sgc.Cache
	if m.Gaming {
		c = sgc.New(p.Cache + p.Upper)
	} else {
		c = sgc.New(p.Cache+p.Upper, sgc.WithFixedSplit(m.Split))
	}
	c.SetOther(sgc.State, p.Upper)
	return c
}

// reading configures a contestant that is opened for reading.
type reading struct {
	model *model
	mode  cacheMode
	pages pages // kept between openings
}

// openLayout opens a contestant's files. r is nil when they are opened for writing.
func openLayout(name, dir string, spec Spec, budget int64, r *reading) (layout, error) {
	switch name = strings.TrimSuffix(name, tuned); name {
	case nameMixed, nameLevel, nameZones:
		return openNodes(name, dir, spec, budget, r)
	case nameLeaves:
		return openLeaves(dir, spec, budget, r)
	case nameGethHash, nameGethLevel, nameGethRow, nameGethColumn, nameGethPath:
		return openGeth(name, dir, spec, budget, r)
	case nameStarling:
		return openStarling(dir, spec, budget, r)
	}
	return nil, fmt.Errorf("unknown contestant %q", name)
}

// memtableShare is the share of the budget, in sixteenths, for memtables, including those waiting
// for a flush. The defaults of Pebble and goleveldb amount to a half: two memtables of 4 MiB and a
// block cache of 8 MiB.
const memtableShare = 4

// nodesLayout stores the state as IAVL's nodes, in the same database as blocks or in a separate
// one. A share of the memory that is not for memtables caches decoded nodes, as in IAVL; the rest
// is the database's block cache.
type nodesLayout struct {
	Spec
	blocks, state engine // the same engine in mixed
	prefixed      bool   // the state's keys start with their database's letter
	nodes         *lru[nodeID, *node]
	root          nodeID
	memory        memoryPlan
}

func openNodes(name, dir string, spec Spec, budget int64, r *reading) (l *nodesLayout, err error) {
	l = &nodesLayout{Spec: spec, prefixed: name != nameZones}
	l.memory = planNodes(budget, spec, r)
	if r != nil {
		l.root = nodeID{r.model.Root.Version, r.model.Root.Nonce}
	}
	l.nodes = newLRU[nodeID, *node](l.memory.Nodes)
	cache := pebble.NewCache(l.memory.BlockCache)
	defer cache.Unref()
	switch name {
	case nameLevel:
		l.blocks, err = openLevelDB(filepath.Join(dir, "all"), l.memory.Memtables, l.memory.BlockCache)
		l.state = l.blocks
	case nameMixed:
		l.blocks, err = openPebble(filepath.Join(dir, "all"), l.memory.Memtables, cache)
		l.state = l.blocks
	case nameZones:
		l.blocks, l.state, err = openZones(dir, l.memory.Memtables, cache)
	}
	return l, err
}

// planNodes divides the budget of a contestant with nodes.
func planNodes(budget int64, spec Spec, r *reading) memoryPlan {
	p := memoryPlan{Memtables: budget * memtableShare / 16, BlockCache: r.caches(budget)}
	if r == nil || !r.mode.Plain {
		p.Nodes = int64(float64(p.BlockCache) * spec.NodeShare)
		p.BlockCache -= p.Nodes
	}
	return p
}

// openZones opens one database for blocks and one for the state. Each has half of the memtables;
// they share one block cache.
func openZones(dir string, memtables int64, cache *pebble.Cache) (blocks, state *pebbleEngine, err error) {
	if blocks, err = openPebble(filepath.Join(dir, "blocks"), memtables/2, cache); err != nil {
		return nil, nil, err
	}
	if state, err = openPebble(filepath.Join(dir, "state"), memtables/2, cache); err != nil {
		return nil, nil, errors.Join(err, blocks.close())
	}
	return blocks, state, nil
}

func (l *nodesLayout) replay(_ int64, blocks []batch, state batch) error {
	for _, b := range blocks {
		if err := l.blocks.write(b, []byte{b.db}); err != nil {
			return err
		}
	}
	return l.state.write(state, l.prefix())
}

func (l *nodesLayout) prefix() []byte {
	if l.prefixed {
		return []byte{dbApp}
	}
	return nil
}

func (l *nodesLayout) drain() error { return nil } // nothing to do: the log is durable

func (l *nodesLayout) busy() bool { return l.blocks.busy() || l.state.busy() }

func (l *nodesLayout) counts() counts {
	c := l.blocks.counts()
	if l.state != l.blocks {
		c = c.plus(l.state.counts())
	}
	return c
}

func (l *nodesLayout) hits() cacheHits {
	return cacheHits{StateHits: l.nodes.hits, StateMisses: l.nodes.misses}
}

func (l *nodesLayout) plan() memoryPlan { return l.memory }

func (l *nodesLayout) close() error {
	if l.state == l.blocks {
		return l.blocks.close()
	}
	return errors.Join(l.blocks.close(), l.state.close())
}

func (l *nodesLayout) tx(height, tx int, use func(record, part []byte) error) error {
	return readTx(l.Spec, height, tx, func(db byte, key []byte, use func([]byte) error) error {
		return l.blocks.get(append([]byte{db}, key...), func(value []byte) error {
			// cometbft-db copies values, because its callers may keep them.
			return use(slices.Clone(value))
		})
	}, use)
}

// readTx reads a transaction with get, whose keys start with the letter of a database.
func readTx(s Spec, height, tx int, get func(db byte, key []byte, use func([]byte) error) error, use func(record, part []byte) error) error {
	part, _ := txPlace(tx)
	return get(dbIndex, s.txHash(height, tx), func(record []byte) error {
		return get(dbBlocks, fmt.Appendf(nil, "P:%d:%d", height, part), func(part []byte) error { return use(record, part) })
	})
}

var errNode = errors.New("a node of the state is missing or damaged")

// account walks from the root to the leaf.
func (l *nodesLayout) account(key []byte, use func([]byte) error) error {
	for id := l.root; ; {
		n, ok := l.nodes.get(id)
		if !ok {
			err := l.state.get(append(slices.Clone(l.prefix()), id.diskKey()...), func(encoded []byte) error {
				decoded, ok := decodeNode(slices.Clone(encoded))
				if !ok {
					return fmt.Errorf("%w: %v", errNode, id)
				}
				n = &decoded
				return nil
			})
			if err != nil {
				return err
			}
			l.nodes.put(id, n, nodeOverhead+80+int64(len(n.value)))
		}
		switch {
		case n.leaf && string(n.key) == string(key):
			return use(n.value)
		case n.leaf:
			return use(nil)
		case string(key) < string(n.key):
			id = n.left
		default:
			id = n.right
		}
	}
}

// nodeOverhead is the memory of a cached node without its encoding: the decoded fields and the map
// entry.
const nodeOverhead = 56 + 112 + 32

// lru is an LRU cache, limited by bytes.
type lru[K comparable, V any] struct {
	budget, used int64
	entries      map[K]*lruEntry[K, V]
	newest       lruEntry[K, V] // head of a ring
	hits, misses uint64
}

type lruEntry[K comparable, V any] struct {
	next, prev *lruEntry[K, V]
	key        K
	value      V
	charge     int64
}

func newLRU[K comparable, V any](budget int64) *lru[K, V] {
	c := &lru[K, V]{budget: budget, entries: map[K]*lruEntry[K, V]{}}
	c.newest.next, c.newest.prev = &c.newest, &c.newest
	return c
}

func (c *lru[K, V]) get(key K) (value V, ok bool) {
	e := c.entries[key]
	if e == nil {
		c.misses++
		return value, false
	}
	c.hits++
	e.unlink()
	c.front(e)
	return e.value, true
}

// put adds a value that get did not find. charge is the memory of the entry.
func (c *lru[K, V]) put(key K, value V, charge int64) {
	if charge > c.budget {
		return
	}
	e := &lruEntry[K, V]{key: key, value: value, charge: charge}
	c.entries[key] = e
	c.front(e)
	for c.used += charge; c.used > c.budget; {
		last := c.newest.prev
		last.unlink()
		delete(c.entries, last.key)
		c.used -= last.charge
	}
}

func (c *lru[K, V]) front(e *lruEntry[K, V]) {
	e.prev, e.next = &c.newest, c.newest.next
	e.prev.next, e.next.prev = e, e
}

func (e *lruEntry[K, V]) unlink() { e.prev.next, e.next.prev = e.next, e.prev }

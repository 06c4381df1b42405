package storagebench

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	dbm "github.com/cometbft/cometbft-db"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/treestore"
)

// starlingLayout is a node's own layout: the block store behind CometBFT's database interface, and
// the state store without a log.
type starlingLayout struct {
	Spec
	blocks  *blocks.Zone
	dbs     map[byte]dbm.DB
	state   *storage.Zone
	cache   *sgc.Cache
	pages   *pages // nil unless open for reading
	height  int64
	pending atomic.Int64 // blocks that are not durable yet
	memory  memoryPlan
}

// dbNames are CometBFT's names of its databases.
var dbNames = map[byte]string{dbBlocks: "blockstore", dbState: "state", dbIndex: "tx_index"}

// blockMemtables is the number of memtables of the block store: one being written and one being
// flushed. (Pebble keeps more if flushes are slow.)
const blockMemtables = 2

func openStarling(dir string, spec Spec, budget int64, r *reading) (l *starlingLayout, err error) {
	upper := int64(0)
	if r != nil && r.pages.tree != nil {
		upper = r.pages.upper()
	}
	l = &starlingLayout{Spec: spec, memory: planPages(budget, upper, r), dbs: map[byte]dbm.DB{}}
	// Memory for waiting blocks, for blocks being flushed, and for the batch made of them.
	flush := l.memory.Memtables / 2 / 3
	// As in the other layouts, memtables take their memory from Pebble's block cache.
	so := storage.Options{
		Logger: errorsOnly{}, CacheBytes: max(1, l.memory.BlockCache/2-2*flush), FlushBytes: flush, MaxLagBytes: 2 * flush,
		MemTableBytes: uint64(flush),
	}
	if l.state, err = storage.Open(filepath.Join(dir, "state"), so); err != nil {
		return nil, err
	}
	if m, ok := l.state.Meta(); ok {
		l.height = m.Height
	}
	if r != nil {
		l.pages = &r.pages
		l.pages.Zone = l.state
		if err := l.pages.load(r.model, l.state.Scan()); err != nil {
			return nil, errors.Join(err, l.state.Close())
		}
		l.memory = planPages(budget, l.pages.upper(), r)
		l.cache = r.mode.open(l.memory)
		l.pages.Cache = l.cache
		// l.state.Close releases it.
		l.pages.byKey = treestore.RecordsOf(&l.pages.Pages, l.state.Kept(l.height))
	}
	bo := blocks.Options{Logger: errorsOnly{}, Cache: l.cache, CacheBytes: max(1, (l.memory.BlockCache-l.memory.Memtables)/2)}
	bo.MemTableBytes = uint64(l.memory.Memtables / 2 / blockMemtables)
	if l.blocks, err = blocks.Open(filepath.Join(dir, "blocks"), bo); err != nil {
		return nil, errors.Join(err, l.state.Close())
	}
	for letter, id := range dbNames {
		l.dbs[letter] = l.blocks.DB(id)
	}
	return l, nil
}

// errorsOnly is a logger that drops everything except errors.
type errorsOnly struct{}

func (errorsOnly) Info(string, ...any) {}
func (errorsOnly) Error(msg string, keyvals ...any) {
	harness.Quiet{}.Errorf("%s %v", msg, keyvals)
}

func (l *starlingLayout) replay(_ int64, data []batch, state batch) error {
	for _, b := range data {
		if err := writeTo(l.dbs[b.db], b); err != nil {
			return err
		}
	}
	l.height++
	b := storage.Block{
		Meta: storage.Meta{Height: l.height, AppHash: make([]byte, 32), ChunkBytes: avlstar.DefaultChunkBytes, ChainID: "bench"},
	}
	owner := &blockOwner{pending: &l.pending}
	for _, o := range state.ops {
		switch o.kind {
		case opSet:
			b.Puts = append(b.Puts, record.Leaf{Key: o.key, Value: o.value})
		case opDelete:
			b.Deletes = append(b.Deletes, o.key)
		case opHeight:
			owner.heights = append(owner.heights, o)
		}
	}
	b.Owner = owner
	l.pending.Add(1)
	return l.state.Write(b)
}

// blockOwner is the storage.Owner of a block.
type blockOwner struct {
	heights []op
	pending *atomic.Int64
}

func (o *blockOwner) Take(add func(key []byte, height uint8), _ func(key, record []byte)) {
	for _, h := range o.heights {
		add(h.key, h.value[0])
	}
}

func (*blockOwner) PinData() []byte { return nil }
func (o *blockOwner) Done(bool)     { o.pending.Add(-1) }

func writeTo(db dbm.DB, b batch) error {
	out := db.NewBatch()
	var err error
	for _, o := range b.ops {
		err = errors.Join(err, out.Set(o.key, o.value))
	}
	switch {
	case err != nil:
	case b.sync:
		err = out.WriteSync()
	default:
		err = out.Write()
	}
	return errors.Join(err, out.Close())
}

func (l *starlingLayout) drain() error { return l.state.Flush() }

func (l *starlingLayout) busy() bool { return l.pending.Load() > 0 }

func (l *starlingLayout) counts() counts {
	z := l.zones()
	return z.Blocks.plus(z.State).plus(counts{Flushed: z.Segments})
}

func (l *starlingLayout) zones() zoneCounts {
	b, s := l.blocks.Metrics(), l.state.Metrics()
	return zoneCounts{
		Blocks:   counts{int64(b.LogBytes), int64(b.FlushedBytes), int64(b.CompactedBytes)},
		State:    counts{Flushed: int64(s.WrittenBytes - s.CompactionBytes), Compacted: int64(s.CompactionBytes)},
		Segments: int64(b.SegmentBytes),
	}
}

func (l *starlingLayout) hits() cacheHits { return hitsOf(l.cache) }

func (l *starlingLayout) plan() memoryPlan { return l.memory }

func (l *starlingLayout) close() error { return errors.Join(l.state.Close(), l.blocks.Close()) }

func (l *starlingLayout) tx(height, tx int, use func(record, part []byte) error) error {
	return readTx(l.Spec, height, tx, func(db byte, key []byte, use func([]byte) error) error {
		value, err := l.dbs[db].Get(key)
		if err != nil {
			return fmt.Errorf("block store: %w", err)
		}
		return use(value)
	}, use)
}

func (l *starlingLayout) account(key []byte, use func([]byte) error) error {
	return l.pages.account(key, use)
}

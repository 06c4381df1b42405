package storagebench

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/bench/gethtrie"
)

// gethMaker makes the requests of geth's two schemes for the same changes:
//
//	leaves ──▶ gethtrie.Commit ──▶ hash: new nodes by hash; nothing is ever deleted    (geth's hashdb)
//	                           ├─▶ row, column: the same with ChainKV's prefixes of the keys
//	                           └─▶ path: nodes by path, replaced and deleted in place; the flat state
type gethMaker struct {
	root                    gethtrie.Hash
	nodes                   map[string][]byte // newest nodes, by path
	hash, row, column, path *traceWriter
}

// nodeKeys returns the key of a node, by contestant.
var nodeKeys = map[string]func(path []byte, hash gethtrie.Hash) []byte{
	nameGethHash: byHash, nameGethLevel: byHash, nameGethRow: gethtrie.RowKey, nameGethColumn: gethtrie.ColumnKey,
	nameGethPath: func(path []byte, _ gethtrie.Hash) []byte { return gethtrie.PathKey(path) },
}

func byHash(_ []byte, hash gethtrie.Hash) []byte { return gethtrie.HashKey(hash) }

func newGethMaker(dir string) (m *gethMaker, err error) {
	m = &gethMaker{root: gethtrie.Empty, nodes: map[string][]byte{}}
	for _, t := range []struct {
		into **traceWriter
		file string
	}{{&m.hash, fileHash}, {&m.row, fileRow}, {&m.column, fileColumn}, {&m.path, filePath}} {
		if *t.into, err = createTrace(filepath.Join(dir, t.file)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *gethMaker) read(path []byte, _ gethtrie.Hash) ([]byte, error) {
	return m.nodes[string(path)], nil
}

// step makes the requests for the changes of a step, which are those of the leaves. It counts those
// of blocks.
func (m *gethMaker) step(leaves batch, d *model, block bool) error {
	hash, path := batch{db: dbApp, sync: true}, batch{db: dbApp, sync: true}
	row, column := hash, hash
	var changes []gethtrie.Change
	for _, o := range leaves.ops {
		switch o.kind {
		case opSet:
			changes = append(changes, gethtrie.Change{Key: o.key, Value: o.value})
			path.set(gethtrie.FlatKey(o.key), o.value)
		case opDelete:
			changes = append(changes, gethtrie.Change{Key: o.key})
			path.ops = append(path.ops, op{kind: opDelete, key: gethtrie.FlatKey(o.key)})
		}
	}
	next, nodes, err := gethtrie.Commit(m.root, m.read, changes)
	if err != nil {
		return fmt.Errorf("ethereum's trie: %w", err)
	}
	for _, n := range nodes {
		key := gethtrie.PathKey([]byte(n.Path))
		if n.Blob == nil {
			delete(m.nodes, n.Path)
			path.ops = append(path.ops, op{kind: opDelete, key: key})
			continue
		}
		m.nodes[n.Path] = n.Blob
		hash.set(gethtrie.HashKey(n.Hash), n.Blob)
		row.set(gethtrie.RowKey([]byte(n.Path), n.Hash), n.Blob)
		column.set(gethtrie.ColumnKey([]byte(n.Path), n.Hash), n.Blob)
		path.set(key, n.Blob)
	}
	m.root = next
	if block {
		d.HashOps, d.HashBytes = d.HashOps+int64(len(hash.ops)), d.HashBytes+int64(hash.bytes())
		d.ColumnBytes += int64(column.bytes())
		d.PathOps, d.PathBytes = d.PathOps+int64(len(path.ops)), d.PathBytes+int64(path.bytes())
	}
	return errors.Join(m.hash.write([]batch{hash}), m.row.write([]batch{row}), m.column.write([]batch{column}), m.path.write([]batch{path}))
}

func (m *gethMaker) finish(d *model) error {
	d.GethRoot = m.root.Bytes()
	return errors.Join(m.hash.close(), m.row.close(), m.column.close(), m.path.close())
}

// gethLayout stores blocks and the nodes of geth's trie in one database. In the hash scheme, the
// state of a block is durable when replay returns. In the path scheme, changes wait in a buffer,
// which merges them, as in geth: after a crash, a node would replay the blocks whose changes were
// in the buffer. The buffer has half of the memtables' memory.
//
// Encoded nodes have a cache, as in geth, which gets the same share as the decoded nodes of
// nodesLayout.
type gethLayout struct {
	Spec
	db     engine
	path   bool // path scheme; otherwise hash scheme, with or without a prefix
	key    func(path []byte, hash gethtrie.Hash) []byte
	flat   bool                         // accounts are read from the flat state
	nodes  *lru[gethtrie.Hash, []byte]  // nil unless open for reading
	values *lru[[keyBytes]byte, []byte] // of the flat state
	root   gethtrie.Hash                // zero unless open for reading
	memory memoryPlan
	buffer map[string]op // path scheme: changes that are not in the database
	used   int64         // by buffer
}

// bufferOverhead is the memory of an entry of the buffer without its key and value.
const bufferOverhead = 100

func openGeth(name, dir string, spec Spec, budget int64, r *reading) (l *gethLayout, err error) {
	l = &gethLayout{Spec: spec, path: name == nameGethPath, key: nodeKeys[name], memory: planNodes(budget, spec, r), buffer: map[string]op{}}
	memtables := l.memory.Memtables
	if l.path {
		memtables /= 2
	}
	cache := pebble.NewCache(l.memory.BlockCache)
	defer cache.Unref()
	if name == nameGethLevel {
		l.db, err = openLevelDB(filepath.Join(dir, "all"), memtables, l.memory.BlockCache)
	} else {
		l.db, err = openPebble(filepath.Join(dir, "all"), memtables, cache)
	}
	if err != nil || r == nil {
		return l, err
	}
	l.root, l.flat = gethtrie.Hash(r.model.GethRoot), r.mode.Flat
	l.nodes, l.values = newLRU[gethtrie.Hash, []byte](l.memory.Nodes), newLRU[[keyBytes]byte, []byte](l.memory.Nodes)
	if err := l.checkRoot(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// checkRoot reads the root node from the files, and checks its hash.
func (l *gethLayout) checkRoot() error {
	blob, err := l.stored(nil, l.root)
	if err == nil && gethtrie.HashOf(blob) != l.root {
		err = fmt.Errorf("%w: the trie on disk does not have the root %s of the chain", errNode, l.root)
	}
	return err
}

func (l *gethLayout) replay(_ int64, blocks []batch, state batch) error {
	for _, b := range blocks {
		if err := l.db.write(b, []byte{b.db}); err != nil {
			return err
		}
	}
	if !l.path {
		return l.db.write(state, []byte{dbApp})
	}
	for _, o := range state.ops {
		if old, there := l.buffer[string(o.key)]; there {
			l.used -= int64(len(old.key)+len(old.value)) + bufferOverhead
		}
		l.buffer[string(o.key)] = o
		l.used += int64(len(o.key)+len(o.value)) + bufferOverhead
	}
	if l.used < l.memory.Memtables/2 {
		return nil
	}
	return l.drain()
}

// drain writes the buffer to the database.
func (l *gethLayout) drain() error {
	if len(l.buffer) == 0 {
		return nil
	}
	b := batch{db: dbApp, sync: true}
	for _, o := range l.buffer {
		b.ops = append(b.ops, o)
	}
	slices.SortFunc(b.ops, func(x, y op) int { return bytes.Compare(x.key, y.key) })
	clear(l.buffer)
	l.used = 0
	return l.db.write(b, []byte{dbApp})
}

func (l *gethLayout) busy() bool { return l.db.busy() }

func (l *gethLayout) counts() counts { return l.db.counts() }

func (l *gethLayout) hits() cacheHits {
	if l.nodes == nil {
		return cacheHits{}
	}
	return cacheHits{StateHits: l.nodes.hits + l.values.hits, StateMisses: l.nodes.misses + l.values.misses}
}

func (l *gethLayout) plan() memoryPlan { return l.memory }

func (l *gethLayout) close() error { return l.db.close() }

func (l *gethLayout) tx(height, tx int, use func(record, part []byte) error) error {
	return readTx(l.Spec, height, tx, func(db byte, key []byte, use func([]byte) error) error {
		return l.db.get(append([]byte{db}, key...), func(value []byte) error { return use(slices.Clone(value)) })
	}, use)
}

// stored returns the blob of a node in the database, or nil.
func (l *gethLayout) stored(path []byte, hash gethtrie.Hash) ([]byte, error) {
	return l.lookUp(l.key(path, hash))
}

// lookUp returns a copy of a value, as geth's databases do.
func (l *gethLayout) lookUp(key []byte) (value []byte, err error) {
	err = l.db.get(append([]byte{dbApp}, key...), func(stored []byte) error {
		value = bytes.Clone(stored)
		return nil
	})
	return value, err
}

// node is the gethtrie.Read of the database. As in geth, a node of the path scheme must have the
// hash that its parent has.
func (l *gethLayout) node(path []byte, hash gethtrie.Hash) ([]byte, error) {
	if blob, ok := l.nodes.get(hash); ok {
		return blob, nil
	}
	blob, err := l.stored(path, hash)
	switch {
	case err != nil:
		return nil, err
	case l.path && gethtrie.HashOf(blob) != hash:
		return nil, fmt.Errorf("%w: path %x", errNode, path)
	}
	l.nodes.put(hash, blob, blobOverhead+int64(len(blob)))
	return blob, nil
}

// blobOverhead is the memory of a cached blob without its bytes: the entry, and its place in the
// map.
const blobOverhead = 160

// account walks from the root to the leaf, or reads the flat state, which nothing verifies.
func (l *gethLayout) account(key []byte, use func([]byte) error) error {
	if !l.flat {
		value, err := gethtrie.Get(l.root, l.node, key)
		if err != nil {
			return err
		}
		return use(value)
	}
	name := [keyBytes]byte(key)
	value, ok := l.values.get(name)
	if !ok {
		var err error
		if value, err = l.lookUp(gethtrie.FlatKey(key)); err != nil {
			return err
		}
		l.values.put(name, value, blobOverhead+int64(len(value)))
	}
	return use(value)
}

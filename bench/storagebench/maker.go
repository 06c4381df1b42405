package storagebench

import (
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"

	"github.com/starling-kv/starling/avlstar"
)

// Files of requests, and of the state after them.
const (
	fileBlocks = "blocks" // CometBFT's writes, for blocks only
	fileNodes  = "nodes"  // the state as IAVL's nodes, for load and blocks
	fileLeaves = "leaves" // the state as leaves and heights, for load and blocks
	fileHash   = "hash"   // the state as the nodes of geth's hash scheme, for load and blocks
	fileRow    = "row"    // the same with the row prefix
	fileColumn = "column" // and with the column prefix
	filePath   = "path"   // the same for geth's path scheme, and its flat state
	fileModel  = "model"
)

// model is the state after the last block, for the processes that read.
type model struct {
	Present, Last []uint32
	Root          nodeIDFields
	AppHash       []byte
	// Bytes of the chain's own data in the blocks, which every layout has to store.
	BlockBytes, StateBytes int64
	// Bytes of all keys and values in the state after the last block.
	TotalState int64
	// Requests of both layouts for the same changes, over all blocks.
	NodeOps, NodeBytes, LeafOps, LeafBytes int64
	// Zero without Spec.Geth. Row and column prefixes have HashOps, too.
	HashOps, HashBytes, ColumnBytes, PathOps, PathBytes int64
	GethRoot                                            []byte // root of geth's trie
	Height                                              int    // height of the tree
}

// nodeIDFields is a nodeID for encoding/gob.
type nodeIDFields struct {
	Version uint64
	Nonce   uint32
}

// maker makes the requests of one chain, which all contestants replay.
type maker struct {
	dir                   string
	chain                 *chain
	tree                  *avl
	blocks, nodes, leaves *traceWriter
	waiting               [][]nodeID // orphans by version, oldest first
	geth                  *gethMaker // nil without Spec.Geth
	model                 model
}

func newMaker(dir string, s Spec) (m *maker, err error) {
	m = &maker{dir: dir, chain: newChain(s), tree: newAVL(s)}
	if m.blocks, err = createTrace(filepath.Join(dir, fileBlocks)); err != nil {
		return nil, err
	}
	if m.nodes, err = createTrace(filepath.Join(dir, fileNodes)); err != nil {
		return nil, err
	}
	if m.leaves, err = createTrace(filepath.Join(dir, fileLeaves)); err == nil && s.Geth {
		m.geth, err = newGethMaker(dir)
	}
	return m, err
}

// step makes the next step of the load, or the next block.
func (m *maker) step() error {
	changes := m.chain.next()
	step := m.chain.step
	height := int(step) - m.chain.LoadSteps // height of the block, from 1
	nodes, leaves := batch{db: dbApp, sync: true}, batch{db: dbApp, sync: true}
	for _, c := range changes {
		key := m.chain.key(c.id)
		if c.delete {
			leaves.ops = append(leaves.ops, op{kind: opDelete, key: key})
		} else {
			leaves.set(key, m.chain.appendValue(make([]byte, 0, valueBytes+8), c.id, step))
		}
	}
	if height > 0 {
		m.model.StateBytes += int64(leaves.bytes())
	}
	m.tree.apply(changes, step)
	m.tree.save(func(id nodeID, encoded []byte) {
		nodes.set(id.diskKey(), encoded)
	}, func(key uint32, height uint8) {
		leaves.ops = append(leaves.ops, op{opHeight, m.chain.key(key), []byte{height}})
	})
	m.prune(&nodes, height)
	if m.geth != nil {
		if err := m.geth.step(leaves, &m.model, height > 0); err != nil {
			return err
		}
	}
	if height > 0 {
		m.model.NodeOps, m.model.NodeBytes = m.model.NodeOps+int64(len(nodes.ops)), m.model.NodeBytes+int64(nodes.bytes())
		m.model.LeafOps, m.model.LeafBytes = m.model.LeafOps+int64(len(leaves.ops)), m.model.LeafBytes+int64(leaves.bytes())
		data := m.chain.blockData(height)
		for _, b := range data {
			m.model.BlockBytes += int64(b.bytes())
		}
		if err := m.blocks.write(data); err != nil {
			return err
		}
	}
	return errors.Join(m.nodes.write([]batch{nodes}), m.leaves.write([]batch{leaves}))
}

// prune deletes the orphans of versions that leave the window. During the load the window is empty,
// so that the blocks do not pay for the load's orphans.
func (m *maker) prune(nodes *batch, height int) {
	window := m.chain.Window
	if height <= 0 {
		window = 0
	}
	m.waiting = append(m.waiting, append([]nodeID{}, m.tree.orphans...))
	for len(m.waiting) > window {
		for _, id := range m.waiting[0] {
			nodes.ops = append(nodes.ops, op{kind: opDelete, key: id.diskKey()})
		}
		m.waiting = m.waiting[1:]
	}
}

// finish builds the state after the last block with package avlstar, which checks that it is a
// valid tree.
func (m *maker) finish() error {
	if err := errors.Join(m.blocks.close(), m.nodes.close(), m.leaves.close()); err != nil {
		return fmt.Errorf("writing the requests to disk (choose another folder with --dir): %w", err)
	}
	if m.geth != nil {
		if err := m.geth.finish(&m.model); err != nil {
			return err
		}
	}
	v, err := avlstar.FromLeaves(avlstar.DefaultChunkBytes, m.allLeaves())
	if err != nil {
		return fmt.Errorf("building the simulated tree: %w", err)
	}
	defer v.Release()
	d := &m.model
	d.Present, d.Last = m.chain.present, m.chain.last
	d.Root = nodeIDFields{m.tree.nodes[m.tree.root].id.version, m.tree.nodes[m.tree.root].id.nonce}
	d.TotalState = int64(len(d.Present)) * (keyBytes + valueBytes)
	d.Height = int(v.Root().Height)
	hash := v.AppHash()
	d.AppHash = hash[:]
	return writeModel(m.dir, d)
}

func (m *maker) allLeaves() iter.Seq2[avlstar.Leaf, error] {
	return func(yield func(avlstar.Leaf, error) bool) {
		var key, value []byte
		m.tree.leaves(func(id, step uint32, height uint8) bool {
			key, value = m.chain.appendKey(key[:0], id), m.chain.appendValue(value[:0], id, step)
			return yield(avlstar.Leaf{Key: key, Value: value, Height: height}, nil)
		})
	}
}

func writeModel(dir string, d *model) error {
	f, err := os.Create(filepath.Join(dir, fileModel))
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(f).Encode(d), f.Close())
}

func readModel(dir string) (*model, error) {
	f, err := os.Open(filepath.Join(dir, fileModel))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d := new(model)
	return d, gob.NewDecoder(f).Decode(d)
}

// isTx reports whether an index record, and the beginning of a transaction in a block part, belong
// to transaction tx.
func isTx(s Spec, height, tx int, record, inPart []byte) bool {
	return len(record) == 12+txBytes+txResultBytes-12 && binary.BigEndian.Uint64(record) == uint64(height) &&
		binary.BigEndian.Uint32(record[8:]) == uint32(tx) && len(inPart) >= 8 && string(inPart[:8]) == string(s.txHash(height, tx)[:8])
}

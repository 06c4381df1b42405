package storage

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// maxBatchBytes is slightly below Pebble's batch size limit of 4 GiB.
const maxBatchBytes = 4<<30 - 64<<20

// merger combines the changes of many blocks; the last change of a key wins. It refers to the
// blocks' slices and copies nothing until the batch is filled.
type merger struct {
	seed    maphash.Seed
	changes []change
	// Open addressing by hash: 1 + index of a change; 0: empty. The length is a power of two.
	slots []uint32

	// list has the records of the page list by key; an empty one removes the record. whole is the
	// last block that replaces the page list, whose records list does not have; nil: there is none.
	list  map[string][]byte
	whole *waiting
}

type change struct {
	hash       uint64
	key, value []byte
	leaf       leafChange
	setHeight  bool
	height     uint8
}

type leafChange uint8

const (
	leafKept leafChange = iota
	leafPut
	leafDeleted
)

func newMerger() *merger {
	return &merger{seed: maphash.MakeSeed(), slots: make([]uint32, 1<<10), list: map[string][]byte{}}
}

// add adds the changes of a block, after Zone.take.
func (m *merger) add(w *waiting) {
	for _, key := range w.Deletes {
		c := m.at(key)
		c.leaf, c.value, c.setHeight, c.height = leafDeleted, nil, true, 0
	}
	for _, l := range w.Puts {
		c := m.at(l.Key)
		c.leaf, c.value = leafPut, l.Value
	}
	w.eachHeight(func(key []byte, height uint8) {
		c := m.at(key)
		c.setHeight, c.height = true, height
	})
	if w.NewPageList {
		clear(m.list)
		m.whole = w
		return
	}
	for key, record := range w.eachPage {
		m.list[string(key)] = record
	}
}

// at returns the change of a key, valid until the next call.
func (m *merger) at(key []byte) *change {
	if 2*len(m.changes) >= len(m.slots) {
		m.grow()
	}
	hash := maphash.Bytes(m.seed, key)
	slot := m.slot(hash, key)
	if *slot == 0 {
		m.changes = append(m.changes, change{hash: hash, key: key})
		*slot = uint32(len(m.changes))
	}
	return &m.changes[*slot-1]
}

func (m *merger) slot(hash uint64, key []byte) *uint32 {
	mask := uint64(len(m.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		slot := &m.slots[i]
		if *slot == 0 {
			return slot
		}
		if c := &m.changes[*slot-1]; c.hash == hash && bytes.Equal(c.key, key) {
			return slot
		}
	}
}

func (m *merger) grow() {
	m.slots = make([]uint32, 2*len(m.slots))
	mask := uint64(len(m.slots) - 1)
	for n, c := range m.changes {
		i := c.hash & mask
		for m.slots[i] != 0 {
			i = (i + 1) & mask
		}
		m.slots[i] = uint32(n + 1)
	}
}

// sorted returns the indexes of the changes in key order.
func (m *merger) sorted() []uint32 {
	type ref struct {
		prefix uint64 // of the key after the common prefix of all keys; decides most comparisons
		i      uint32
	}
	if len(m.changes) == 0 {
		return nil
	}
	common := len(m.changes[0].key)
	for _, c := range m.changes {
		common = min(common, len(c.key))
		for common > 0 && !bytes.Equal(c.key[:common], m.changes[0].key[:common]) {
			common--
		}
	}
	refs := make([]ref, len(m.changes))
	for i, c := range m.changes {
		var b [8]byte
		copy(b[:], c.key[common:])
		refs[i] = ref{binary.BigEndian.Uint64(b[:]), uint32(i)}
	}
	slices.SortFunc(refs, func(a, b ref) int {
		if a.prefix != b.prefix {
			return cmp.Compare(a.prefix, b.prefix)
		}
		return bytes.Compare(m.changes[a.i].key, m.changes[b.i].key)
	})
	order := make([]uint32, len(refs))
	for i, r := range refs {
		order[i] = r.i
	}
	return order
}

// batch returns all changes and meta as one batch. The changes are in key order, which Pebble
// inserts fastest.
func (m *merger) batch(db *pebble.DB, meta Meta) (*pebble.Batch, error) {
	size := 1 << 10
	for _, c := range m.changes {
		size += 2*(len(c.key)+16) + len(c.value)
	}
	for key, record := range m.list {
		size += len(key) + len(record) + 16
	}
	if size > maxBatchBytes {
		return nil, fmt.Errorf("%d bytes of changes up to height %d exceed the limit of a batch", size, meta.Height)
	}
	batch, order := db.NewBatchWithSize(size), m.sorted()
	for _, i := range order {
		if err := m.changes[i].appendTo(batch); err != nil {
			return nil, errors.Join(err, batch.Close())
		}
	}
	if err := m.appendPageList(batch); err != nil {
		return nil, errors.Join(err, batch.Close())
	}
	return batch, batch.Set([]byte{kindMeta}, meta.encode(), nil)
}

// appendPageList appends the changes of the page list in key order.
func (m *merger) appendPageList(batch *pebble.Batch) error {
	for _, key := range slices.Sorted(maps.Keys(m.list)) {
		if err := setPage(batch, []byte(key), m.list[key]); err != nil {
			return err
		}
	}
	return nil
}

// appendTo appends the change as one record (see leaf.go). The height of a deleted key follows the
// deletion, so that readers find it.
func (c *change) appendTo(batch *pebble.Batch) error {
	if c.height > maxHeight {
		return fmt.Errorf("height %d of key %x exceeds the limit of %d", c.height, c.key, maxHeight)
	}
	if c.leaf == leafDeleted {
		op := batch.DeleteDeferred(1 + len(c.key))
		fillKey(op.Key, c.key)
		if err := op.Finish(); err != nil || c.height == 0 {
			return err
		}
	}
	add, height := batch.MergeDeferred, c.height
	switch {
	case c.leaf == leafPut && c.setHeight:
		add = batch.SetDeferred
	case c.leaf == leafPut:
		height = heightBelow
	}
	op := add(1+len(c.key), 1+len(c.value))
	fillKey(op.Key, c.key)
	op.Value[0] = height
	copy(op.Value[1:], c.value)
	return op.Finish()
}

func fillKey(diskKey, key []byte) {
	diskKey[0] = kindLeaf
	copy(diskKey[1:], key)
}

// Package nodedbtest has the common code of nodedb's tests: a database in memory that fails and
// loses writes like a killed process or a machine without power, the records of naive trees, and
// the suite that runs real applications' stores on installed states.
package nodedbtest

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/starling-kv/starling/cosmos/nodedb"
)

// ErrKilled is the error of every write after the kill.
var ErrKilled = errors.New("killed")

// Mem is a nodedb.DB in memory.
type Mem struct {
	mu     sync.Mutex
	values map[string][]byte
	sorted []string            // keys of values, ascending; nil: not computed; guarded by mu
	log    []map[string][]byte // old values of each unsynced batch; nil: absent
	writes int
	left   int // writes until the kill; negative: never
}

// NewMem returns an empty database.
func NewMem() *Mem { return &Mem{values: map[string][]byte{}, left: -1} }

// KillAfter makes all writes fail after n more writes.
func (m *Mem) KillAfter(n int) { m.left = n }

// Writes returns the number of writes so far.
func (m *Mem) Writes() int { return m.writes }

// Unsynced returns the number of batches that a crash of the machine could lose.
func (m *Mem) Unsynced() int { return len(m.log) }

// Crash returns the database after a crash that loses the last lost batches of those that were not
// durable.
func (m *Mem) Crash(lost int) *Mem {
	after := NewMem()
	after.values = maps.Clone(m.values)
	for _, b := range slices.Backward(m.log) { // undo
		if lost == 0 {
			break
		}
		lost--
		for key, before := range b {
			if before == nil {
				delete(after.values, key)
			} else {
				after.values[key] = before
			}
		}
	}
	return after
}

// Get implements nodedb.DB.
func (m *Mem) Get(key []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values[string(key)], nil
}

// Set sets a key without a batch.
func (m *Mem) Set(key, value []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[string(key)], m.sorted = append([]byte{}, value...), nil
}

// Delete deletes a key without a batch.
func (m *Mem) Delete(key []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, string(key))
	m.sorted = nil
}

// Keys returns all keys, ascending.
func (m *Mem) Keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.ascending())
}

// ascending must be called with mu held.
func (m *Mem) ascending() []string {
	if m.sorted == nil {
		m.sorted = slices.Sorted(maps.Keys(m.values))
	}
	return m.sorted
}

// Iterator implements nodedb.DB.
func (m *Mem) Iterator(start, end []byte) (nodedb.Iterator, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	it := &iterator{}
	keys := m.ascending()
	at, _ := slices.BinarySearch(keys, string(start))
	for ; at < len(keys) && (end == nil || keys[at] < string(end)); at++ {
		it.keys, it.values = append(it.keys, []byte(keys[at])), append(it.values, m.values[keys[at]])
	}
	return it, nil
}

type iterator struct{ keys, values [][]byte }

func (i *iterator) Valid() bool   { return len(i.keys) > 0 }
func (i *iterator) Next()         { i.keys, i.values = i.keys[1:], i.values[1:] }
func (i *iterator) Key() []byte   { return i.keys[0] }
func (i *iterator) Value() []byte { return i.values[0] }
func (i *iterator) Error() error  { return nil }
func (i *iterator) Close() error  { return nil }

// NewBatch implements nodedb.DB.
func (m *Mem) NewBatch() nodedb.Batch { return &batch{m: m} }

type batch struct {
	m       *Mem
	changes []change
}

type change struct{ key, value, was []byte }

func (b *batch) Set(key, value []byte) error {
	b.changes = append(b.changes, change{key, value, bytes.Clone(value)})
	return nil
}

func (b *batch) Delete(key []byte) error {
	b.changes = append(b.changes, change{key, nil, nil})
	return nil
}

func (b *batch) Write() error { return b.write(false) }

func (b *batch) WriteSync() error { return b.write(true) }

func (b *batch) write(sync bool) error {
	m := b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left == 0 {
		return ErrKilled
	}
	m.left--
	m.writes++
	m.sorted = nil
	undo := map[string][]byte{}
	for _, c := range b.changes {
		if !bytes.Equal(c.value, c.was) {
			return errors.New("a value was modified after it was passed to the batch")
		}
		key := string(c.key)
		if _, ok := undo[key]; !ok {
			undo[key] = m.values[key]
		}
		if c.value == nil {
			delete(m.values, key)
		} else {
			m.values[key] = append([]byte{}, c.value...)
		}
	}
	if m.log = append(m.log, undo); sync {
		m.log = nil
	}
	return nil
}

func (b *batch) Close() error { return nil }

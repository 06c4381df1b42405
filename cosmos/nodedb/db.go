package nodedb

import (
	"encoding/binary"
)

// DB is what is needed of a database. Of makes one of cosmos-db's. All methods may be called at
// the same time. Keys and values are not modified, neither those that are given nor those that are
// returned.
type DB interface {
	// Get returns the value of a key, nil if there is none.
	Get(key []byte) ([]byte, error)
	// Iterator iterates over the keys from start up to but without end, ascending.
	Iterator(start, end []byte) (Iterator, error)
	// NewBatch returns an empty batch. What is written in one batch is there as a whole or not at
	// all, and not without the batches that were written durably before it.
	NewBatch() Batch
}

// Iterator is at a key while Valid. Key and Value are valid until Next. The caller closes it.
type Iterator interface {
	Valid() bool
	Next()
	Key() []byte
	Value() []byte
	Error() error
	Close() error
}

// Batch collects changes. Keys and values that were given to it are not modified later. The caller
// closes it.
type Batch interface {
	Set(key, value []byte) error
	Delete(key []byte) error
	Write() error
	WriteSync() error // and makes it durable
	Close() error
}

// database is the DB of another package, whose iterators and batches have types of their own.
type database[I Iterator, B Batch] interface {
	Get(key []byte) ([]byte, error)
	Iterator(start, end []byte) (I, error)
	NewBatch() B
}

type adapter[I Iterator, B Batch] struct{ db database[I, B] }

// Of makes a DB of one with the same methods, such as the DB of cosmos-db.
func Of[I Iterator, B Batch](db database[I, B]) DB { return adapter[I, B]{db} }

func (a adapter[I, B]) Get(key []byte) ([]byte, error) { return a.db.Get(key) }

func (a adapter[I, B]) Iterator(start, end []byte) (Iterator, error) {
	it, err := a.db.Iterator(start, end)
	if err != nil {
		return nil, err
	}
	return it, nil
}

func (a adapter[I, B]) NewBatch() Batch { return a.db.NewBatch() }

// The first byte of a key in a store.
const (
	kindNode       = 's'
	kindLegacyNode = 'n'
	kindLegacyRoot = 'r'
	kindFast       = 'f'
	kindMetadata   = 'm'
)

// Keys of the multi-store (cosmossdk.io/store, rootmulti/store.go).
const (
	storesPrefix  = "s/k:"
	commitsPrefix = "s/"
	latestKey     = "s/latest"
)

// appendStore appends the beginning of all keys of a store.
func appendStore(b []byte, name string) []byte {
	return append(append(append(b, storesPrefix...), name...), '/')
}

// Lengths of the keys of nodes, without their prefixes.
const (
	nodeKeyBytes   = 8 + 4
	legacyKeyBytes = 32
)

// The nonce of every root; IAVL's pruning moves a root that a later version refers to, to nonce 0.
const (
	rootNonce  = 1
	movedNonce = 0
)

// nodeKey returns the key of a node: version:8 ‖ nonce:4.
func nodeKey(version int64, nonce uint32) []byte {
	return appendNodeKey(make([]byte, 0, nodeKeyBytes), version, nonce)
}

func appendNodeKey(b []byte, version int64, nonce uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(b, uint64(version)), nonce)
}

func splitNodeKey(key []byte) (version int64, nonce uint32) {
	return int64(binary.BigEndian.Uint64(key)), binary.BigEndian.Uint32(key[8:])
}

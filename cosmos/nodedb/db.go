package nodedb

import (
	"encoding/binary"
)

// DB is a database; Of adapts a database of cosmos-db. All methods may be called concurrently.
// Neither side modifies a key or value that it has passed to the other.
type DB interface {
	// Get returns the value of a key, or nil if it is absent.
	Get(key []byte) ([]byte, error)
	// Iterator iterates over the keys in [start, end), ascending.
	Iterator(start, end []byte) (Iterator, error)
	// NewBatch returns an empty batch. After a crash, a batch is present completely or not at all,
	// and only together with all batches that were written durably before it.
	NewBatch() Batch
}

// Iterator is at a key while Valid. Key and Value are valid until Next. The caller closes the
// Iterator.
type Iterator interface {
	Valid() bool
	Next()
	Key() []byte
	Value() []byte
	Error() error
	Close() error
}

// Batch collects changes. The caller does not modify keys and values after passing them, and closes
// the Batch.
type Batch interface {
	Set(key, value []byte) error
	Delete(key []byte) error
	Write() error
	WriteSync() error // Write, durably
	Close() error
}

// database is a DB of another package, which has its own types of iterators and batches.
type database[I Iterator, B Batch] interface {
	Get(key []byte) ([]byte, error)
	Iterator(start, end []byte) (I, error)
	NewBatch() B
}

type adapter[I Iterator, B Batch] struct{ db database[I, B] }

// Of returns a DB over a database with the same methods, such as a DB of cosmos-db.
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

// First bytes of the keys in a store.
const (
	kindNode     = 's'
	kindFast     = 'f'
	kindMetadata = 'm'
)

// Keys of the multi-store (the SDK's store, rootmulti/store.go).
const (
	storesPrefix  = "s/k:"
	commitsPrefix = "s/"
	latestKey     = "s/latest"
	snapshotsKey  = "s/prunesnapshotheights" // pruning/manager.go
)

// appendStore appends the prefix of all keys of a store.
func appendStore(b []byte, name string) []byte {
	return append(append(append(b, storesPrefix...), name...), '/')
}

// nodeKeyBytes is the length of a node's key without its prefix.
const nodeKeyBytes = 8 + 4

// Nonces of roots. IAVL's pruning moves a root that a later version references to movedNonce.
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

package store

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	pruningtypes "github.com/cosmos/cosmos-sdk/store/v2/pruning/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/avlstar"
)

// Type is the store type of this package, for MountStoreWithDB of package rootmulti. The SDK
// numbers its own types from 0.
const Type types.StoreType = 0x53

// DefaultHistoryBytes is used if Options.HistoryBytes is 0.
const DefaultHistoryBytes = 1 << 30

// historyEvery is the number of versions between two checks of the memory that old versions hold.
const historyEvery = 16

// ErrNoVersion reports that a store does not have a version in memory: the version was pruned or is
// not committed yet.
var ErrNoVersion = errors.New("no such version: pruned, or not committed yet")

// errImmutable is the panic value of Set, Delete, Commit and other mutating methods of a store of a
// past height.
var errImmutable = errors.New("store: a store of a past height cannot be changed")

// Options of a Store.
type Options struct {
	// ChunkBytes is the chunk limit B of the tree, in bytes (docs/spec/chunks.md), 1 to
	// avlstar.MaxChunkBytes; 0: avlstar.DefaultChunkBytes. The root depends on it, so all nodes of
	// a chain must use the same value and never change it.
	ChunkBytes uint64
	// HistoryBytes limits the memory of the versions before the last. Beyond it the oldest versions
	// are dropped, even if they were not pruned; 0: DefaultHistoryBytes.
	HistoryBytes uint64
}

// Version is a version of a store.
type Version struct {
	Height int64
	State  *avlstar.Version
}

// Store is a CommitKVStore over a tree in memory. All methods may be called concurrently; an
// iterator sees the store as it was when the iterator was made.
type Store struct {
	o      Options
	frozen *held // set in a store of a past height; nil: the store is mutable

	mu       sync.RWMutex     // guards the fields below
	first    int64            // version that the first Commit makes; 0: 1
	versions []Version        // ascending, each with a reference; the last one is committed
	empty    *avlstar.Version // the committed state while versions is empty; nil afterwards
	pending  pending          // changes since the committed version
	working  *avlstar.Version // the committed version with pending applied; nil: not computed
	last     Commit           // the last commit, until TakeCommit
}

var (
	_ types.CommitKVStore           = (*Store)(nil)
	_ types.Queryable               = (*Store)(nil)
	_ types.StoreWithInitialVersion = (*Store)(nil)
)

// Commit describes what a commit changed, for the code that makes the commit durable.
type Commit struct {
	Version Version
	Base    *avlstar.Version // the state before; nil: unknown, and Changes puts every key
	Changes []avlstar.Change // in key order, values in stored form; some may have no effect
}

// Release releases the references of c.
func (c Commit) Release() {
	for _, v := range []*avlstar.Version{c.Version.State, c.Base} {
		if v != nil {
			v.Release()
		}
	}
}

// New returns a store with the given versions, which must ascend, and takes over their references.
// Without versions the store is empty, at version 0.
func New(o Options, versions ...Version) (*Store, error) {
	if o.ChunkBytes == 0 {
		o.ChunkBytes = avlstar.DefaultChunkBytes
	}
	if o.HistoryBytes == 0 {
		o.HistoryBytes = DefaultHistoryBytes
	}
	s := &Store{o: o, versions: versions}
	if len(versions) == 0 {
		var err error
		if s.empty, err = avlstar.Empty(o.ChunkBytes); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// committed returns the last version's state. The caller holds mu.
func (s *Store) committed() *avlstar.Version {
	if len(s.versions) == 0 {
		return s.empty
	}
	return s.versions[len(s.versions)-1].State
}

// height returns the last version's height. The caller holds mu.
func (s *Store) height() int64 {
	if len(s.versions) == 0 {
		return 0
	}
	return s.versions[len(s.versions)-1].Height
}

// GetStoreType implements types.Store.
func (s *Store) GetStoreType() types.StoreType { return Type }

// CacheWrap implements types.CacheWrapper.
func (s *Store) CacheWrap() types.CacheWrap { return NewCache(s) }

// SetPruning panics, as it does in the SDK's IAVL store: pruning is set on the multi-store.
func (s *Store) SetPruning(pruningtypes.PruningOptions) {
	panic(errors.New("store: pruning is set on the multi-store"))
}

// GetPruning panics, as it does in the SDK's IAVL store: pruning is set on the multi-store.
func (s *Store) GetPruning() pruningtypes.PruningOptions {
	panic(errors.New("store: pruning is set on the multi-store"))
}

// SetInitialVersion sets the version that the first Commit makes. It has no effect after that.
func (s *Store) SetInitialVersion(version int64) {
	s.assertMutable()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = version
}

func (s *Store) assertMutable() {
	if s.frozen != nil {
		panic(errImmutable)
	}
}

// Set implements types.KVStore. It panics with an error that wraps ErrLimit if the key or the value
// is invalid (Check). Both are copied.
func (s *Store) Set(key, value []byte) {
	s.assertMutable()
	AssertValid(key, value)
	// One allocation holds both the key and the value.
	b := append(make([]byte, 0, len(key)+storedBytes(value)), key...)
	b = appendEscaped(b, value)
	s.change(avlstar.Change{Key: b[:len(key):len(key)], Value: b[len(key):]})
}

// Delete implements types.KVStore.
func (s *Store) Delete(key []byte) {
	s.assertMutable()
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return // no store can have this key
	}
	s.change(avlstar.Change{Key: bytes.Clone(key)})
}

func (s *Store) change(c avlstar.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropWorking()
	s.pending.set(c)
}

func (s *Store) dropWorking() {
	if s.working != nil {
		s.working.Release()
		s.working = nil
	}
}

// Get implements types.KVStore. It returns a copy of the value, or nil if the key is absent.
func (s *Store) Get(key []byte) []byte {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if c, ok := s.pending.get(key); ok {
		if c.Value == nil {
			return nil
		}
		return bytes.Clone(Unescape(c.Value))
	}
	return value(s.committed(), key)
}

// value returns a copy of the value of a key, or nil if the key is absent.
func value(v *avlstar.Version, key []byte) []byte {
	stored, ok, err := v.View(key)
	if err != nil {
		panic(fmt.Errorf("store: %w", err))
	}
	if !ok {
		return nil
	}
	return append(make([]byte, 0, len(stored)), Unescape(stored)...) // empty, but not nil
}

// Has implements types.KVStore.
func (s *Store) Has(key []byte) bool {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if c, ok := s.pending.get(key); ok {
		return c.Value != nil
	}
	ok, err := s.committed().Has(key)
	if err != nil {
		panic(fmt.Errorf("store: %w", err))
	}
	return ok
}

// Iterator implements types.KVStore. It iterates over the keys in [start, end) in ascending order;
// a nil bound is open. It does not see changes made after it was created.
func (s *Store) Iterator(start, end []byte) types.Iterator { return s.iterator(start, end, true) }

// ReverseIterator is Iterator in descending order.
func (s *Store) ReverseIterator(start, end []byte) types.Iterator {
	return s.iterator(start, end, false)
}

func (s *Store) iterator(start, end []byte, ascending bool) types.Iterator {
	s.mu.Lock() // copying the pending changes marks them as shared
	defer s.mu.Unlock()
	return newIterator(s.committed(), s.pending.copy(), start, end, ascending)
}

// work returns the committed version with the pending changes applied. The caller holds mu.
func (s *Store) work() *avlstar.Version {
	if s.working == nil {
		v, err := s.committed().Apply(s.pending.changes())
		if err != nil {
			panic(fmt.Errorf("store: %w", err))
		}
		s.working = v
	}
	return s.working
}

// WorkingHash implements types.Committer. It returns the root that Commit would return.
func (s *Store) WorkingHash() []byte {
	s.assertMutable()
	s.mu.Lock()
	defer s.mu.Unlock()
	hash := s.work().AppHash()
	return hash[:]
}

// Commit implements types.Committer.
func (s *Store) Commit() types.CommitID {
	s.assertMutable()
	s.mu.Lock()
	defer s.mu.Unlock()
	next, base := Version{Height: max(s.height()+1, 1), State: s.work()}, s.committed()
	if len(s.versions) == 0 {
		next.Height = max(next.Height, s.first)
	}
	s.last.Release()
	base.Retain()
	next.State.Retain()
	s.last = Commit{next, base, s.pending.changes()}
	s.working, s.pending = nil, pending{}
	if s.empty != nil {
		s.empty.Release()
		s.empty = nil
	}
	s.versions = append(s.versions, next)
	if next.Height%historyEvery == 0 {
		s.limitHistory()
	}
	return next.id()
}

// TakeCommit returns what the last Commit changed. ok is false if there was no commit since the
// last call. The caller releases the result.
func (s *Store) TakeCommit() (c Commit, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, s.last = s.last, Commit{}
	return c, c.Version.State != nil
}

func (v Version) id() types.CommitID {
	hash := v.State.AppHash()
	return types.CommitID{Version: v.Height, Hash: hash[:]}
}

// LastCommitID implements types.Committer.
func (s *Store) LastCommitID() types.CommitID {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Version{s.height(), s.committed()}.id()
}

// limitHistory drops the oldest versions until the versions before the last hold at most
// HistoryBytes. The caller holds mu.
func (s *Store) limitHistory() {
	held := uint64(0)
	for i := len(s.versions) - 2; i >= 0; i-- {
		if held += s.versions[i].State.HeldBytes(); held > s.o.HistoryBytes {
			s.dropOldest(i + 1)
			return
		}
	}
}

func (s *Store) dropOldest(n int) {
	for _, v := range s.versions[:n] {
		v.State.Release()
	}
	s.versions = append([]Version(nil), s.versions[n:]...)
}

// Prune drops the versions up to height, except the last one. Stores returned by GetImmutable stay
// valid.
func (s *Store) Prune(height int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(s.versions)-1 && s.versions[n].Height <= height {
		n++
	}
	if n > 0 {
		s.dropOldest(n)
	}
}

// MemoryBytes returns the memory of all versions together, in bytes. Changes since the last commit
// are not included.
func (s *Store) MemoryBytes() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m := s.committed().Memory()
	return m.NodeBytes + m.LeafBytes
}

// VersionExists reports whether the store has a version in memory.
func (s *Store) VersionExists(version int64) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.version(version)
	return ok
}

func (s *Store) version(height int64) (Version, bool) {
	for i := len(s.versions) - 1; i >= 0 && s.versions[i].Height >= height; i-- {
		if s.versions[i].Height == height {
			return s.versions[i], true
		}
	}
	return Version{}, false
}

// State returns the state of a version, which provides its manifest, chunks and proofs. The caller
// releases it. The error wraps ErrNoVersion.
func (s *Store) State(version int64) (*avlstar.Version, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v, ok := s.version(version)
	if !ok {
		return nil, fmt.Errorf("version %d: %w", version, ErrNoVersion)
	}
	v.State.Retain()
	return v.State, nil
}

// GetImmutable returns a read-only store of a past version: its Set, Delete and Commit panic. The
// error wraps ErrNoVersion.
func (s *Store) GetImmutable(version int64) (*Store, error) {
	v, err := s.State(version)
	if err != nil {
		return nil, err
	}
	defer v.Release()
	h := hold(v)
	return &Store{o: s.o, frozen: h, versions: []Version{{version, v}}}, nil
}

// Close releases all versions. The store must not be used afterwards.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropWorking()
	s.last.Release()
	s.last = Commit{}
	if s.frozen != nil {
		s.frozen.release()
		return
	}
	if s.empty != nil {
		s.empty.Release()
	}
	s.dropOldest(len(s.versions))
}

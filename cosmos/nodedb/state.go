package nodedb

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

var (
	// ErrNoState reports that the database has no state, or none at a height.
	ErrNoState = errors.New("no such state")
	// ErrOtherState reports a state whose stores do not match its commit.
	ErrOtherState = errors.New("the stores do not match the recorded hashes")
	// ErrTooLarge reports a state with too many leaves for the chunks of a format.
	ErrTooLarge = errors.New("the state is too large for this format")
)

// Latest returns the latest height of the application, or ErrNoState.
func Latest(db DB) (int64, error) {
	b, err := db.Get([]byte(latestKey))
	switch {
	case err != nil:
		return 0, fmt.Errorf("latest height: %w", err)
	case b == nil:
		return 0, fmt.Errorf("latest height: %w", ErrNoState)
	}
	return DecodeLatest(b)
}

// State is an application's state at a height, which must not be pruned during use. Its methods may
// be called concurrently.
type State struct {
	height int64
	commit *Commit
	stores []*store
	byName map[string]*store

	preparing sync.Mutex // held by the request that may prepare responses; see Answer
}

// Open opens the state of a height.
func Open(db DB, height int64) (*State, error) {
	b, err := db.Get(commitKey(height))
	switch {
	case err != nil:
		return nil, fmt.Errorf("commit of height %d: %w", height, err)
	case b == nil:
		return nil, fmt.Errorf("commit of height %d: %w", height, ErrNoState)
	}
	commit, err := DecodeCommit(b)
	if err != nil {
		return nil, err
	}
	if commit.Height != height {
		return nil, fmt.Errorf("commit: %w: its height is %d, not %d", ErrInvalidRecord, commit.Height, height)
	}
	s := &State{height: height, commit: commit, byName: map[string]*store{}}
	for _, c := range commit.Stores {
		st, err := openStore(db, c.Name, height)
		if err != nil {
			return nil, fmt.Errorf("store %q at height %d: %w", c.Name, height, err)
		}
		s.stores = append(s.stores, st)
		s.byName[c.Name] = st
	}
	return s, nil
}

// LimitProcessors limits the processors used by a pass over all records of a store; the default is
// all processors. Nodes that execute blocks meanwhile should use fewer. Call it before other
// methods.
func (s *State) LimitProcessors(n int) {
	for _, st := range s.stores {
		st.processors = max(1, n)
	}
}

// Height returns the height of s.
func (s *State) Height() int64 { return s.height }

// entryBytes is the minimum size of a chunk in a manifest: an image and its two hashes.
const entryBytes = 67

// fits fails with ErrTooLarge if the manifest of s would be too large in a format. It uses only the
// sizes in the roots of the stores, before anything is cut.
func (s *State) fits(f iavlsync.Format) error {
	limit, known := f.Leaves()
	if !known {
		return nil // Cut reports the unknown format
	}
	leaves := int64(0)
	for _, st := range s.stores {
		if st.root == nil {
			continue
		}
		n, err := st.Node(st.root)
		if err != nil {
			return fmt.Errorf("root of store %q at height %d: %w", st.name, s.height, err)
		}
		leaves += n.Size
	}
	if leaves/limit > iavlsync.MaxManifestBytes/entryBytes {
		return fmt.Errorf("%w: %d leaves at height %d in chunks of %d", ErrTooLarge, leaves, s.height, limit)
	}
	return nil
}

// Manifest cuts s into chunks, and compares the manifest with the recorded hashes of the stores.
// Errors include ErrTooLarge and ErrOtherState.
func (s *State) Manifest(f iavlsync.Format) (*iavlsync.Manifest, error) {
	if err := s.fits(f); err != nil {
		return nil, err
	}
	m := &iavlsync.Manifest{Format: f, Height: s.height}
	for i, st := range s.stores {
		cut, err := iavlsync.Cut(f, s.height, st.name, st.root, st)
		if err != nil {
			return nil, err
		}
		m.Stores = append(m.Stores, cut)
		u, err := m.Upper(i)
		if err != nil {
			return nil, err
		}
		if want := s.commit.Stores[i].Hash; !bytes.Equal(u.Hash[:], want) {
			return nil, fmt.Errorf("%w: store %q at height %d has %s, its commit has %x", ErrOtherState, st.name, s.height, u.Hash, want)
		}
	}
	return m, nil
}

// Answer responds to a request. Occasionally it first passes over all records of a store, or
// compares the state with a newer tree, which takes seconds: one request at a time does, and others
// are answered meanwhile without waiting, as by AnswerSoon. It fails with iavlsync.ErrNoSubtree for
// a request that no honest peer sends.
func (s *State) Answer(q *iavlsync.Request) ([]byte, error) { return s.answer(q, true) }

// AnswerSoon is Answer without such preparations: it reads only what the chunk needs.
func (s *State) AnswerSoon(q *iavlsync.Request) ([]byte, error) { return s.answer(q, false) }

// Close frees the memory of sweeps and comparisons, and prevents new ones. Requests are still
// served.
func (s *State) Close() {
	for _, st := range s.stores {
		st.sweeping.close()
		st.indexing.close()
	}
}

func (s *State) answer(q *iavlsync.Request, maySweep bool) ([]byte, error) {
	st := s.byName[q.Store]
	if q.Height != s.height || st == nil || st.root == nil {
		return nil, fmt.Errorf("store %q at height %d: %w", q.Store, q.Height, iavlsync.ErrNoSubtree)
	}
	if maySweep = maySweep && s.preparing.TryLock(); maySweep {
		defer s.preparing.Unlock()
	}
	if b := st.scanned(q, maySweep); b != nil {
		return b, nil
	}
	return iavlsync.Answer(q, st.root, st)
}

// store is one store of a state. It is an iavlsync.Reader.
type store struct {
	db     DB
	name   string
	prefix []byte // prefix of all its keys
	root   []byte // node key; nil: the store is empty
	height int64

	processors int // maximum for a sweep

	indexed  int64 // version of the fast index; 0: no index
	indexing indexing
	shapes   shapes
	sweeping sweeping
}

func openStore(db DB, name string, height int64) (*store, error) {
	s := &store{db: db, name: name, prefix: appendStore(nil, name), height: height, processors: runtime.GOMAXPROCS(0)}
	var err error
	if s.root, err = s.rootOf(height); err != nil {
		return nil, err
	}
	b, err := db.Get(s.key(kindMetadata, []byte(storageVersionKey)))
	if err != nil {
		return nil, fmt.Errorf("storage version: %w", err)
	}
	if s.indexed = DecodeStorageVersion(b); s.indexed == height {
		s.indexing.ready.Store(&index{})
	}
	return s, nil
}

func (s *store) key(kind byte, rest []byte) []byte {
	b := make([]byte, 0, len(s.prefix)+1+len(rest))
	return append(append(append(b, s.prefix...), kind), rest...)
}

// rootOf returns the node key of a version's root, or nil if the store is empty (iavl v1,
// nodedb.go, GetRoot).
func (s *store) rootOf(version int64) ([]byte, error) {
	key := nodeKey(version, rootNonce)
	b, err := s.db.Get(s.key(kindNode, key))
	if err != nil {
		return nil, err
	}
	if b == nil {
		return nil, ErrNoState
	}
	refers, empty, err := DecodeRoot(b)
	switch {
	case err != nil || empty:
		return nil, err
	case refers != nil:
		return refers, nil // Node also finds a root that pruning has moved
	}
	return key, nil
}

// Node implements iavlsync.Reader.
func (s *store) Node(key []byte) (*iavlsync.Node, error) {
	version, nonce := splitNodeKey(key)
	b, err := s.db.Get(s.key(kindNode, key))
	if err == nil && b == nil && nonce == rootNonce {
		b, err = s.db.Get(s.key(kindNode, nodeKey(version, movedNonce)))
	}
	if err == nil && b == nil {
		err = errMissing
	}
	if err != nil {
		return nil, err
	}
	return DecodeNode(version, b)
}

var errMissing = fmt.Errorf("%w: a node is missing", iavlsync.ErrDamagedStore)

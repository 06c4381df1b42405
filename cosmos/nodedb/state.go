package nodedb

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

var (
	// ErrNoState reports that the database has no state, or none of a height.
	ErrNoState = errors.New("no such state")
	// ErrOtherState reports a state whose stores are not those that its commit names.
	ErrOtherState = errors.New("the stores are not those of the recorded hashes")
	// ErrTooLarge reports a state that has too many leaves for the chunks of a format.
	ErrTooLarge = errors.New("the state is too large for this format")
)

// Latest returns the latest height of the application; ErrNoState: it has none.
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

// State is an application's state at a height, which must not be pruned while it is used. Its
// methods may be called at the same time.
type State struct {
	height int64
	commit *Commit
	stores []*store
	byName map[string]*store
	room   room
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
		return nil, fmt.Errorf("commit: %w: it is of height %d, not %d", ErrInvalidRecord, commit.Height, height)
	}
	s := &State{height: height, commit: commit, byName: map[string]*store{}}
	s.room.leaves.Store(mostSwept)
	for _, c := range commit.Stores {
		st, err := openStore(db, c.Name, height)
		if err != nil {
			return nil, fmt.Errorf("store %q at height %d: %w", c.Name, height, err)
		}
		st.sweeping.room = &s.room
		s.stores = append(s.stores, st)
		s.byName[c.Name] = st
	}
	return s, nil
}

// LimitProcessors sets how many processors a pass over all records of a store uses at most: of a
// node that makes blocks meanwhile, fewer than all, which is what it uses otherwise. It is called
// before other methods.
func (s *State) LimitProcessors(n int) {
	for _, st := range s.stores {
		st.processors = max(1, n)
	}
}

// Height returns the height of s.
func (s *State) Height() int64 { return s.height }

// entryBytes is the least that a chunk takes in a manifest: an image and its two hashes.
const entryBytes = 67

// fits fails with ErrTooLarge if no manifest of a format can be of s, which is known from the roots
// of its stores, before anything is cut.
func (s *State) fits(f iavlsync.Format) error {
	limit, known := f.Leaves()
	if !known {
		return nil // Cut says so
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

// Manifest cuts s. The manifest is compared with the recorded hashes of the stores. It may fail
// with ErrTooLarge.
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
			return nil, fmt.Errorf("%w: store %q at height %d has %s, recorded is %x", ErrOtherState, st.name, s.height, u.Hash, want)
		}
	}
	return m, nil
}

// Answer answers a request, now and then after a pass over all records of a store, or a comparison
// with a newer tree, which take seconds. iavlsync.ErrNoSubtree: an honest peer would not ask that.
func (s *State) Answer(q *iavlsync.Request) ([]byte, error) { return s.answer(q, true) }

// AnswerSoon is Answer without these, for callers that others wait for: it reads what the
// chunk needs.
func (s *State) AnswerSoon(q *iavlsync.Request) ([]byte, error) { return s.answer(q, false) }

// Close gives the memory of sweeps and of compared trees back, of which none is kept afterwards.
// Requests are answered all the same.
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
	if b := st.scanned(q, maySweep); b != nil {
		return b, nil
	}
	return iavlsync.Answer(q, st.root, st)
}

// store is one store of a state. It is an iavlsync.Reader.
type store struct {
	db     DB
	name   string
	prefix []byte // of all its keys
	root   []byte // node key; nil: the store is empty
	height int64

	processors int // that a sweep uses at most

	indexed  int64 // the version that the fast index is of; 0: there is none
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

// rootOf returns the node key of the root of a version; nil: the store is empty (iavl v1,
// nodedb.go, GetRoot).
func (s *store) rootOf(version int64) ([]byte, error) {
	key := nodeKey(version, rootNonce)
	b, err := s.db.Get(s.key(kindNode, key))
	if err != nil {
		return nil, err
	}
	if b == nil {
		return s.legacyRootOf(version)
	}
	refers, empty, err := DecodeRoot(b)
	switch {
	case err != nil || empty:
		return nil, err
	case refers != nil:
		return refers, nil // Node finds it where pruning has moved it, too
	}
	return key, nil
}

func (s *store) legacyRootOf(version int64) ([]byte, error) {
	b, err := s.db.Get(s.key(kindLegacyRoot, nodeKey(version, 0)[:8]))
	switch {
	case err != nil:
		return nil, err
	case b == nil:
		return nil, ErrNoState
	case len(b) == 0:
		return nil, nil
	case len(b) != legacyKeyBytes:
		return nil, fmt.Errorf("root of iavl before v1: %w: %x", ErrInvalidRecord, b)
	}
	return b, nil
}

// Node implements iavlsync.Reader.
func (s *store) Node(key []byte) (*iavlsync.Node, error) {
	if len(key) == legacyKeyBytes {
		b, err := s.db.Get(s.key(kindLegacyNode, key))
		if err == nil && b == nil {
			err = errMissing
		}
		if err != nil {
			return nil, err
		}
		return DecodeLegacyNode(iavlsync.Hash(key), b)
	}
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

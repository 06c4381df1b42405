package contestant

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	ics23 "github.com/cosmos/ics23/go"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/workload"
)

// starling keeps the newest version, and one older version while a stream has it pinned. A commit
// is Apply, AppHash, and the release of the previous version.
type starling struct {
	newest *avlstar.Version
	chunk  uint32 // first chunk of the next stream
}

func openStarling(indexed bool) (*starling, error) {
	v, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	if err == nil && indexed {
		v.EnableIndex()
	}
	return &starling{newest: v}, err
}

func (s *starling) Prepare(changes []workload.Change) func() ([]byte, error) {
	given := make([]avlstar.Change, len(changes))
	for i, c := range changes {
		given[i] = avlstar.Change{Key: c.Key, Value: c.Value}
	}
	return func() ([]byte, error) {
		next, err := s.newest.Apply(given) // sorts
		if err != nil {
			return nil, err
		}
		root := next.AppHash()
		s.newest.Release()
		s.newest = next
		return root[:], nil
	}
}

// Get returns a slice of the tree's own memory, as the other contestants do.
func (s *starling) Get(key []byte) ([]byte, error) {
	value, _, err := s.newest.View(key)
	return value, err
}

func (s *starling) GetMany(values, keys [][]byte) error { return s.newest.ViewMany(values, keys) }

func (s *starling) Prove(key []byte) (Proof, error) {
	p, err := s.newest.Prove(key)
	return Proof{p.State, p.Map}, err
}

func (s *starling) VerifyProof(p Proof, key, value []byte) error {
	var proof ics23.CommitmentProof
	if err := proof.Unmarshal(p[0]); err != nil {
		return fmt.Errorf("the proof does not decode: %w", err)
	}
	root := s.newest.Root().Hash
	if !ics23.VerifyMembership(avlstar.StateSpec, root[:], &proof, key, value) {
		return fmt.Errorf("the proof of key %x does not verify against the root %s", key, root)
	}
	return avlstar.VerifyProof(s.newest.AppHash(), key, value, avlstar.Proof{State: p[0], Map: p[1]})
}

func (s *starling) Hashed() (inner, leaves uint64) { return s.newest.Hashed() }

func (s *starling) CheckLen(n int) error { return checkLen(int(s.newest.Len()), n) }

func (s *starling) Close() error {
	s.newest.Release()
	return nil
}

// starlingStream encodes one chunk after another.
type starlingStream struct {
	owner *starling
	v     *avlstar.Version
}

func (s *starling) Stream() (Stream, error) {
	s.newest.Retain()
	return &starlingStream{owner: s, v: s.newest}, nil
}

func (t *starlingStream) Next() (int, error) {
	t.owner.chunk++
	chunk, err := t.v.Chunk(t.owner.chunk % t.v.NumChunks())
	return len(chunk), err
}

func (t *starlingStream) Close() { t.v.Release() }

// starlingExport is what a node sends: the manifest and all chunks.
type starlingExport struct {
	appHash  avlstar.Hash
	keys     uint64
	manifest []byte
	chunks   [][]byte
}

func (s *starling) Export() (Export, error) {
	v := s.newest
	e := &starlingExport{appHash: v.AppHash(), keys: v.Len(), manifest: v.Manifest().Encode(), chunks: make([][]byte, v.NumChunks())}
	return e, parallel(len(e.chunks), func(k int) (err error) {
		e.chunks[k], err = v.Chunk(uint32(k))
		return err
	})
}

func (e *starlingExport) Bytes() (n int) {
	for _, c := range e.chunks {
		n += len(c)
	}
	return n
}

func (e *starlingExport) Import() (func(), error) {
	m, err := avlstar.VerifyManifest(e.manifest, e.appHash)
	if err != nil {
		return nil, err
	}
	chunks := make([]*avlstar.Chunk, len(e.chunks))
	err = parallel(len(chunks), func(k int) (err error) {
		chunks[k], err = m.VerifyChunk(uint32(k), e.chunks[k])
		return err
	})
	if err != nil {
		return nil, err
	}
	v, err := avlstar.Assemble(m, chunks)
	if err != nil {
		return nil, err
	}
	appHash := v.AppHash()
	return v.Release, errors.Join(checkRoot(appHash[:], e.appHash[:]), checkLen(int(v.Len()), int(e.keys)))
}

// parallel calls do(0) … do(n-1), using all CPUs.
func parallel(n int, do func(int) error) error {
	var next atomic.Int64
	errs := make([]error, runtime.GOMAXPROCS(0))
	var workers sync.WaitGroup
	for w := range errs {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[w] == nil; i = int(next.Add(1)) - 1 {
				errs[w] = do(i)
			}
		})
	}
	workers.Wait()
	return errors.Join(errs...)
}

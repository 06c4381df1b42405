package nodedb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/internal/durable"
)

// Spool keeps the verified chunks of a state as files, until Finish makes sorted tables of them.
//
//	empty ── NewSpool ──▶ joining ── Install × chunks ──▶ Finish ──▶ a new database, by Tables
//
// Only the manifest is synced. After a crash, NewSpool verifies the files again, which takes less
// than a microsecond per leaf, and damaged chunks are fetched again. Methods may be called
// concurrently.
type Spool struct {
	*placing
	dir string
	// MemoryBytes is the approximate size of the records that Finish holds at a time. It keeps
	// those of a larger state in files. 0: DefaultSpoolMemory.
	MemoryBytes int64
	// Progress, if not nil, is called with the share of Finish that is done, not concurrently.
	Progress func(share float64)

	mu    sync.Mutex
	done  []bool   // by chunk; guarded by mu
	bytes int64    // record bytes of the installed subtrees; guarded by mu
	some  []nodeAt // a leaf and an inner node for each sampleEvery of these bytes; guarded by mu
}

// DefaultSpoolMemory is the default of Spool.MemoryBytes.
const DefaultSpoolMemory = 256 << 20

// nodeAt is a node's position in the key order of a database.
type nodeAt struct {
	store   int
	version int64
	nonce   uint32
}

const (
	spoolManifest = "manifest" // format:u32, big endian ‖ the manifest
	sampleEvery   = 64 << 10
)

// NewSpool begins, or resumes, the join of a verified manifest's state in a folder, which it
// creates. It fails with ErrNotEmpty or ErrOtherJoin if the folder has anything else.
func NewSpool(dir string, m *iavlsync.Manifest) (*Spool, error) {
	p, err := newPlacing(m)
	if err != nil {
		return nil, err
	}
	s := &Spool{placing: p, dir: dir, done: make([]bool, m.Chunks())}
	f, b, err := UnfinishedSpool(dir)
	switch {
	case err != nil:
		return nil, err
	case b == nil:
		return s, s.begin()
	case f != m.Format || !slices.Equal(b, m.Encode()):
		return nil, ErrOtherJoin
	}
	return s, s.resume()
}

// UnfinishedSpool returns the format and the encoded manifest of an unfinished spool; manifest is
// nil if the folder has none.
func UnfinishedSpool(dir string) (f iavlsync.Format, manifest []byte, err error) {
	b, err := os.ReadFile(filepath.Join(dir, spoolManifest))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil, nil
	case err != nil:
		return 0, nil, fmt.Errorf("look for a join: %w", err)
	case len(b) < 4:
		return 0, nil, fmt.Errorf("unfinished join: %w", ErrInvalidRecord)
	}
	return iavlsync.Format(binary.BigEndian.Uint32(b)), b[4:], nil
}

func (s *Spool) begin() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	left, err := os.ReadDir(s.dir)
	if err == nil && len(left) > 0 && !(len(left) == 1 && isTemporary(left[0].Name())) {
		err = ErrNotEmpty
	}
	if err != nil {
		return fmt.Errorf("folder %s: %w", s.dir, err)
	}
	described := append(binary.BigEndian.AppendUint32(nil, uint32(s.m.Format)), s.m.Encode()...)
	return s.write(spoolManifest, described, true)
}

const temporary = ".part-*"

func isTemporary(name string) bool {
	match, _ := filepath.Match(temporary, name)
	return match
}

// write writes a file atomically, so that two copies of a chunk are never mixed.
func (s *Spool) write(name string, b []byte, durably bool) (err error) {
	f, err := os.CreateTemp(s.dir, temporary)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if durably {
		err = errors.Join(err, f.Sync())
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.dir, name))
	}
	if err == nil && durably {
		err = durable.SyncDir(s.dir)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// resume verifies the chunks in the folder.
func (s *Spool) resume() error {
	left, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range left {
		if isTemporary(e.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(s.dir, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	return parallel(len(s.done), func(k int) error {
		total, some := int64(0), []nodeAt(nil)
		_, err := s.chunk(k, func(i int, first int64, c *iavlsync.Chunk) (*Placed, error) {
			b, n := s.sample(i, first, c)
			total, some = total+b, append(some, n...)
			return &Placed{first: first, leaves: int64(len(c.Leaves))}, nil
		}, func(_ int, _ *iavlsync.Image, left, right *Placed) (*Placed, error) {
			return &Placed{first: left.first, leaves: left.leaves + right.leaves}, nil
		})
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, iavlsync.ErrInvalidChunk) {
			return nil // the chunk is fetched again
		}
		if err == nil {
			s.add(k, true, total, some)
		}
		return err
	})
}

// parallel calls fn with 0 … n-1 on all processors. It stops at the first error, and returns all
// errors.
func parallel(n int, fn func(k int) error) error {
	return parallelUpTo(runtime.GOMAXPROCS(0), n, fn)
}

// parallelUpTo is parallel on a limited number of processors.
func parallelUpTo(processors, n int, fn func(k int) error) error {
	var mu sync.Mutex
	var failed error
	next := 0
	var wg sync.WaitGroup
	for range min(n, processors) {
		wg.Go(func() {
			for {
				mu.Lock()
				k := next
				next++
				stop := failed != nil || k >= n
				mu.Unlock()
				if stop {
					return
				}
				if err := fn(k); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// sample returns the approximate record size of a subtree, and some of its nodes. Inner nodes are
// newer than most leaves. Subtrees are sampled from different offsets, so that short ones count.
func (s *Spool) sample(i int, first int64, c *iavlsync.Chunk) (total int64, some []nodeAt) {
	const golden = 40503 // 2^16 divided by the golden ratio: multiples are spread evenly
	at := first * golden % sampleEvery
	for j := range c.Leaves {
		leaf := &c.Leaves[j]
		n := int64(2*len(leaf.Key)+len(leaf.Value)) + recordBytes
		total += n
		if at += n; at >= sampleEvery {
			at %= sampleEvery
			place := 2 * (first + int64(j))
			some = append(some, nodeAt{i, leaf.Version, s.stores[i].nonce(place, 1)})
			if j > 0 {
				some = append(some, nodeAt{i, c.Inner[j].Version, s.stores[i].nonce(place-1, c.Inner[j].Size)})
			}
		}
	}
	return total, some
}

// recordBytes is the approximate size that Finish holds for a leaf and an inner node with versions
// of their own, without the key, which both have, and the value.
const recordBytes = 200

// add counts an installed subtree of chunk k, or the whole chunk.
func (s *Spool) add(k int, whole bool, total int64, some []nodeAt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done[k] {
		s.done[k] = whole
		s.bytes += total
		s.some = append(s.some, some...)
	}
}

// Missing returns the numbers of the missing chunks, ascending.
func (s *Spool) Missing() (missing []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, done := range s.done {
		if !done {
			missing = append(missing, k)
		}
	}
	return missing
}

// name returns the name of a subtree's file. The file has the whole subtree after AnswerWhole, or
// the images of its halves after AnswerHalves.
func (s *Spool) name(i int, first, leaves int64) string {
	return fmt.Sprintf("%d-%d-%d", i, first, leaves)
}

// Install stores chunk k, which VerifyChunk has decoded from data.
func (s *Spool) Install(k int, c *iavlsync.Chunk, data []byte) error {
	i, e := s.m.At(k)
	_, err := s.InstallPart(k, s.upper[i].First[e], c, data)
	return err
}

// InstallPart stores a subtree of chunk k, which VerifyChunk has decoded from data, if the chunk
// arrives in halves. first is the number of its first leaf, counted in the store. Join combines
// parts.
func (s *Spool) InstallPart(k int, first int64, c *iavlsync.Chunk, data []byte) (*Placed, error) {
	i, _ := s.m.At(k)
	p := &Placed{first: first, leaves: int64(len(c.Leaves))}
	total, some := s.sample(i, first, c)
	return p, s.put(k, p, append([]byte{byte(iavlsync.AnswerWhole)}, data...), total, some)
}

// Join stores a subtree of chunk k that has two parts as its children. data has their images,
// verified by VerifyHalves. When the subtree is the whole chunk, the chunk is complete.
func (s *Spool) Join(k int, _ *iavlsync.Image, left, right *Placed, data []byte) (*Placed, error) {
	p := &Placed{first: left.first, leaves: left.leaves + right.leaves}
	return p, s.put(k, p, append([]byte{byte(iavlsync.AnswerHalves)}, data...), 0, nil)
}

func (s *Spool) put(k int, p *Placed, b []byte, total int64, some []nodeAt) error {
	i, _ := s.m.At(k)
	if err := s.write(s.name(i, p.first, p.leaves), b, false); err != nil {
		return fmt.Errorf("keep chunk %d: %w", k, err)
	}
	s.add(k, p.leaves == s.image(k).Size, total, some)
	return nil
}

// chunk reads and verifies chunk k. It calls subtree for its parts and join for the nodes above
// them.
func (s *Spool) chunk(k int, subtree func(i int, first int64, c *iavlsync.Chunk) (*Placed, error),
	join func(i int, image *iavlsync.Image, left, right *Placed) (*Placed, error)) (*Placed, error) {
	i, e := s.m.At(k)
	var read func(image *iavlsync.Image, first int64) (*Placed, error)
	read = func(image *iavlsync.Image, first int64) (*Placed, error) {
		b, err := os.ReadFile(filepath.Join(s.dir, s.name(i, first, image.Size)))
		if err != nil {
			return nil, err
		}
		kind, b, err := iavlsync.SplitAnswer(b)
		if err != nil {
			return nil, err
		}
		if kind == iavlsync.AnswerWhole {
			c, err := iavlsync.VerifyChunk(image, b)
			if err != nil {
				return nil, err
			}
			return subtree(i, first, c)
		}
		l, h, err := iavlsync.VerifyHalves(image, s.m.Height, b)
		if err != nil {
			return nil, err
		}
		left, err := read(l, first)
		if err != nil {
			return nil, err
		}
		right, err := read(h, first+l.Size)
		if err != nil {
			return nil, err
		}
		return join(i, image, left, right)
	}
	return read(s.image(k), s.upper[i].First[e])
}

// Remove removes the folder, once the database is complete.
func (s *Spool) Remove() error { return os.RemoveAll(s.dir) }

package nodedb

import (
	"bytes"
	"encoding/binary"
	"sync"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/internal/crc32c"
)

// shapes keeps the inner nodes of chunks that were read, mostly two bytes per leaf. With a shape, a
// response takes only one scan of the fast index.
type shapes struct {
	mu   sync.Mutex
	kept map[[2]int64]*shape // by first leaf and leaves; guarded by mu
}

// shape is a chunk without its keys and values. It is immutable.
type shape struct {
	version  int64  // version of the chunk's root
	first    []byte // key of the first leaf
	inner    []byte // encoded by AppendInner
	versions []byte // encoded by AppendLeaf; nil: those in the fast index are right
	sum      uint32 // CRC-32C of the verified response, which later responses must match
}

// Only the shapes of chunks of about Format8192's size are kept. A store has few such subtrees, so
// requests cannot exhaust memory.
const (
	leastShape = 2048
	mostShape  = 8192
)

func (s *shapes) get(first, leaves int64) *shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[[2]int64{first, leaves}]
}

func (s *shapes) put(first, leaves int64, sh *shape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil {
		s.kept = map[[2]int64]*shape{}
	}
	s.kept[[2]int64{first, leaves}] = sh
}

// shaped makes a response with a kept shape, or returns nil if the database has changed.
func (s *store) shaped(sh *shape, leaves int64) []byte {
	prefix := s.key(kindFast, nil)
	x := s.index(false)
	if x == nil { // the state has been closed
		return nil
	}
	it, err := x.from(s, sh.first)
	if err != nil {
		return nil
	}
	defer it.Close() //nolint:errcheck // everything read is compared with the checksum
	b := []byte{byte(iavlsync.AnswerWhole)}
	inner, versions := sh.inner, sh.versions
	for i := range leaves {
		if !it.Valid() {
			return nil
		}
		key, ok := bytes.CutPrefix(it.Key(), prefix)
		version, value, err := DecodeFast(it.Value())
		if !ok || err != nil {
			return nil
		}
		if i > 0 {
			n := 1
			for inner[n] >= 0x80 {
				n++
			}
			b, inner = append(b, inner[:n+1]...), inner[n+1:]
		}
		if sh.versions != nil {
			below, n := binary.Uvarint(versions)
			version, versions = sh.version-int64(below), versions[n:]
		}
		b = iavlsync.AppendLeaf(b, sh.version, version, key, value)
		it.Next()
	}
	if crc32c.Sum(b) != sh.sum {
		return nil
	}
	return b
}

package nodedb

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"sync"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// shapes keeps what was read of the inner nodes of chunks: two bytes a leaf, mostly. With these an
// answer costs one scan of the fast index.
type shapes struct {
	mu   sync.Mutex
	kept map[[2]int64]*shape // by first leaf and leaves; guarded by mu
}

// shape is what a chunk has beside keys and values. It does not change.
type shape struct {
	version  int64  // of the chunk's root
	first    []byte // the key of its first leaf
	inner    []byte // as AppendInner has them
	versions []byte // as AppendLeaf has them; nil: those of the fast index are right
	sum      uint32 // of the chunk, which was proved: what is read later is compared with it
}

// Only chunks of about Format8192's size are kept. Their subtrees are few, so that requests for
// other ones cannot fill the memory.
const (
	leastShape = 2048
	mostShape  = 8192
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

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

// shaped answers with a shape that was kept; nil: the database is not what it was.
func (s *store) shaped(sh *shape, leaves int64) []byte {
	prefix := s.key(kindFast, nil)
	x := s.index(false)
	if x == nil { // the shape was made with it, but the state is closed
		return nil
	}
	it, err := x.from(s, sh.first)
	if err != nil {
		return nil
	}
	defer it.Close() //nolint:errcheck // what it has read is compared
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
	if crc32.Checksum(b, castagnoli) != sh.sum {
		return nil
	}
	return b
}

package archive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

const (
	testChain  = "test-chain"
	testHeight = 1200
)

// source is a snapshot of a version; bad alters its chunks.
type source struct {
	v   *avlstar.Version
	bad func(k uint32, data []byte) ([]byte, error)
}

func (s source) Height() int64                  { return testHeight }
func (s source) Commitment() avlstar.Commitment { return s.v.Commitment() }
func (s source) Manifest() []byte               { return s.v.Manifest().Encode() }

func (s source) Chunk(k uint32) ([]byte, error) {
	data, err := s.v.Chunk(k)
	if err == nil && s.bad != nil {
		return s.bad(k, data)
	}
	return data, err
}

// state builds a tree of random keys. Some values are compressible, some are not.
func state(t *testing.T, random *rand.Rand, keys int, chunkBytes uint64) source {
	t.Helper()
	v, err := avlstar.Empty(chunkBytes)
	require.NoError(t, err)
	var changes []avlstar.Change
	seen := map[string]bool{}
	for range keys {
		key := fmt.Sprintf("%08x", random.Uint32())
		if seen[key] {
			continue
		}
		seen[key] = true
		value := make([]byte, 1+random.IntN(120))
		if key[0] < '8' {
			for i := range value {
				value[i] = byte(random.Uint32())
			}
		}
		changes = append(changes, avlstar.Change{Key: []byte(key), Value: value})
	}
	next, err := v.Apply(changes)
	require.NoError(t, err)
	v.Release()
	t.Cleanup(next.Release)
	return source{v: next}
}

// written returns the encoded file of a snapshot.
func written(t testing.TB, src Source, workers int) []byte {
	t.Helper()
	var out bytes.Buffer
	stats, err := Write(t.Context(), &out, src, Options{ChainID: testChain, workers: workers})
	require.NoError(t, err)
	require.EqualValues(t, out.Len(), stats.FileBytes)
	return out.Bytes()
}

// readAll reads a whole file and returns its verified chunks.
func readAll(file []byte, appHash avlstar.Hash) (h Header, chunks [][]byte, err error) {
	r, err := Open(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return h, nil, err
	}
	c, err := r.Verify(appHash)
	if err != nil {
		return h, nil, err
	}
	for chunk, err := range c.Chunks() {
		if err != nil {
			return h, nil, err
		}
		data, err := chunk.Data()
		if err != nil {
			return h, nil, err
		}
		if _, err := c.Manifest.VerifyChunk(chunk.Index, data); err != nil {
			return h, nil, chunk.Damaged(err)
		}
		chunks = append(chunks, data)
	}
	return r.Header(), chunks, nil
}

// forge encodes a file with the frames that frame returns; all checksums are right.
func forge(src source, frame func(k uint32, chunk []byte) (method byte, payload []byte)) []byte {
	manifest := src.Manifest()
	file := Header{testChain, testHeight, src.Commitment(), uint64(len(manifest))}.encode()
	file = append(file, appendCRC(manifest)...)
	var total uint64
	for k := range src.v.NumChunks() {
		chunk, _ := src.v.Chunk(k)
		total += uint64(len(chunk))
		method, payload := frame(k, chunk)
		f := binary.BigEndian.AppendUint32([]byte{method}, uint32(len(payload)))
		file = append(file, appendCRC(append(f, payload...))...)
	}
	return append(file, trailer{src.v.NumChunks(), total, uint64(len(file)) + uint64(trailerBytes)}.encode()...)
}

func pack(data []byte, options ...zstd.EOption) []byte {
	e, err := zstd.NewWriter(nil, options...)
	if err != nil {
		panic(err)
	}
	return e.EncodeAll(data, nil)
}

var errTest = errors.New("injected by the test")

package avlstar

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// fuzzKeys are keys whose first 8 bytes do not help much: equal, padded with zeros, or prefixes of
// each other.
var fuzzKeys = func() (keys [][]byte) {
	for i := range byte(8) {
		keys = append(keys, make([]byte, i+1), []byte{i + 1}, []byte{i, 0, 0xff}, append([]byte("equal 8 "), make([]byte, i)...),
			append([]byte("equal 8 "), i, 1), bytes.Repeat([]byte{0xff}, int(4+i)), append(bytes.Repeat([]byte{7}, 200), i))
	}
	slices.SortFunc(keys, bytes.Compare)
	return slices.CompactFunc(keys, bytes.Equal)
}()

// FuzzApply makes blocks from its input, with kept versions, releases, released forks and pruning
// between them, and compares every version with the naive reference tree.
//
//	input  = chunk limit:u8 ‖ block …
//	block  = what:u8 ‖ number of changes:u8 ‖ change …
//	change = key:u8 ‖ value:u8      an index of fuzzKeys; the source of the value, from 0xc0 on a deletion
func FuzzApply(f *testing.F) {
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) > 1000 {
			return // the reference is slow
		}
		next := func() (b byte) {
			if len(input) > 0 {
				b, input = input[0], input[1:]
			}
			return b
		}
		w := fuzzed{v: mustEmpty(t, 1+8*uint64(next())), content: model{}}
		for len(input) > 0 {
			what := next()
			block := map[string][]byte{}
			for range next() % 64 {
				key := fuzzKeys[int(next())%len(fuzzKeys)]
				block[string(key)] = fuzzValue(next())
			}
			w.step(t, what, sortedBlock(block))
		}
		w.end(t)
	})
}

func fuzzValue(b byte) []byte {
	switch {
	case b >= 0xc0:
		return nil
	case b == 0xbf:
		return bytes.Repeat([]byte{b}, 9000)
	case b >= 0xb0:
		return bytes.Repeat([]byte{b}, 480+4*int(b&0xf))
	}
	return bytes.Repeat([]byte{b}, 1+int(b)/8)
}

// fuzzed is a version with its reference, and older versions that are kept.
type fuzzed struct {
	v       *Version
	content model
	ref     *refNode
	pinned  []pinned
}

func (w *fuzzed) step(t *testing.T, what byte, block []Change) {
	const prune, fork, pin, release, reload = 1, 2, 4, 8, 16
	root := w.v.Root()
	var partial *Partial
	if what&prune != 0 {
		partial = applyPartial(t, w.v, block)
	}
	// Make another version from the same block, a following one, and one from half of the block.
	if what&fork != 0 {
		a := mustApply(t, w.v, slices.Concat(block, []Change{{[]byte("fork"), []byte("1")}})...)
		b := mustApply(t, a, block[:len(block)/2]...)
		a.Release()
		b.Release()
		require.Equal(t, root, w.v.Root())
	}
	next := mustApply(t, w.v, block...)
	if what&pin != 0 {
		w.pinned = append(w.pinned, pinned{w.v, maps.Clone(w.content), root})
	} else {
		w.v.Release()
	}
	if what&release != 0 && len(w.pinned) > 0 {
		i := int(what>>5) % len(w.pinned)
		w.release(t, w.pinned[i])
		w.pinned = slices.Delete(w.pinned, i, i+1)
	}
	w.v = next
	w.content.apply(block)
	w.ref = refApply(w.ref, block)
	require.Equal(t, refCommit(w.ref), w.v.Root())
	if partial != nil {
		require.Equal(t, w.v.Commitment(), partial.Commitment())
	}
	if what&reload != 0 {
		for _, p := range w.pinned {
			w.release(t, p)
		}
		w.pinned = nil
		again := fromLeaves(t, nil, fromChunks(t, nil, w.v))
		w.v.Release()
		w.v = again
	}
}

func (w *fuzzed) release(t *testing.T, p pinned) {
	require.Equal(t, p.root, p.v.Root())
	p.content.requireContent(t, p.v)
	p.v.Release()
}

func (w *fuzzed) end(t *testing.T) {
	w.content.requireContent(t, w.v)
	require.Equal(t, w.ref.manifest(int(w.v.ChunkBytes())), w.v.Manifest().Encode())
	for i := range 5 {
		key := fuzzKeys[int(w.v.Root().Hash[i])%len(fuzzKeys)]
		p, err := w.v.Prove(key)
		require.NoError(t, err)
		require.NoError(t, VerifyProof(w.v.AppHash(), key, w.content[string(key)], p))
	}
	for _, p := range w.pinned {
		w.release(t, p)
	}
	requireOnlyLatest(t, advance(t, w.v, Change{[]byte("last"), []byte("1")}))
}

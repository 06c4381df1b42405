package avlstar

import (
	"encoding/binary"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/hugemem"
	"github.com/starling-kv/starling/internal/seeds"
)

// allInFrames lets even the smallest tree take frames, until the test ends.
func allInFrames(t *testing.T) {
	if !inFrames {
		t.Skip("this build has all trees in Go's heap")
	}
	if f := hugemem.Take(); f == nil {
		t.Skip("this system has no frames")
	} else {
		f.Give()
	}
	usual := tune
	t.Cleanup(func() { tune = usual })
	tune.heapBytes = 0
}

// framesOf returns the number of frames that a tree has.
func framesOf(v *Version) (n int) {
	if v.tree.mu.frames == nil {
		return 0
	}
	for i := range v.tree.mu.frames.kinds {
		for _, f := range v.tree.mu.frames.kinds[i].frames {
			if f != nil {
				n++
			}
		}
	}
	return n
}

// manyKeys returns a block of n keys.
func manyKeys(rnd *rand.Rand, n int) []Change {
	block := make([]Change, n)
	for i := range block {
		key := binary.BigEndian.AppendUint64(nil, uint64(i)*0x9e37_79b9_7f4a_7c15)
		block[i] = Change{key, make([]byte, 1+rnd.IntN(200))}
		binary.BigEndian.PutUint32(append(block[i].Value[:0], 0, 0, 0, 0), rnd.Uint32())
	}
	return block
}

// TestFramesReturn: the frames of a tree are returned when its last version is released, and not
// before.
func TestFramesReturn(t *testing.T) {
	allInFrames(t)
	rnd := seeds.Rand(t)
	v := advance(t, mustEmpty(t, DefaultChunkBytes), manyKeys(rnd, 30_000)...)
	n := framesOf(v)
	require.Greater(t, n, 3)
	v.Retain()
	next := mustApply(t, v, manyKeys(rnd, 30)...)
	next.Release()
	v.Release()
	require.Equal(t, n, framesOf(v))
	lent := hugemem.Lent()
	v.Release()
	hugemem.Settle()
	// Another tree may have become garbage meanwhile; no other test runs.
	require.LessOrEqual(t, hugemem.Lent(), lent-n)
	require.Zero(t, framesOf(v))
	require.PanicsWithValue(t, "avlstar: use of a released version", func() { _, _, _ = v.View([]byte("a")) })
}

// TestFramesOfGarbageReturn: a tree whose versions were not released returns its frames when it
// becomes garbage. So does a tree that was not finished.
func TestFramesOfGarbageReturn(t *testing.T) {
	allInFrames(t)
	rnd := seeds.Rand(t)
	settle()
	before := hugemem.Lent()
	grown := func() int {
		v := mustApply(t, mustEmpty(t, 10_000), manyKeys(rnd, 30_000)...)
		m := v.Manifest()
		a := NewAssembler(m)
		for k := range m.Entries[:len(m.Entries)/2] {
			b, err := v.Chunk(uint32(k))
			require.NoError(t, err)
			c, err := m.VerifyChunk(uint32(k), b)
			require.NoError(t, err)
			require.NoError(t, a.Add(uint32(k), c))
		}
		n := hugemem.Lent()
		runtime.KeepAlive(v)
		runtime.KeepAlive(a)
		return n
	}()
	require.Greater(t, grown, 3)
	for tries := 0; hugemem.Lent() > before; tries++ { // cleanups run concurrently
		require.Less(t, tries, 10_000, "collections, and %d frames are still lent", hugemem.Lent())
		runtime.GC()
	}
}

// TestFramesShrink: a tree that loses its keys returns its frames.
func TestFramesShrink(t *testing.T) {
	allInFrames(t)
	rnd := seeds.Rand(t)
	block := manyKeys(rnd, 100_000)
	v := advance(t, mustEmpty(t, DefaultChunkBytes), block...)
	large := framesOf(v)
	for i := range block {
		block[i].Value = nil
	}
	v = advance(t, v, block[1:]...)
	for i := range 100 { // each Apply frees a part of the released nodes
		v = advance(t, v, Change{[]byte("one"), []byte{1, byte(i)}})
	}
	require.LessOrEqual(t, framesOf(v), 3, "of %d", large)
	v.Release()
}

// TestBytesAKey: a tree that was made by blocks of 10,000 puts takes little more than its nodes,
// which have 272 bytes for each key of 20 bytes with a value of 100. The rest is the nodes that the
// last block replaced, and the unused part of the last frame of each kind. A frame is 10 bytes for
// each of 200,000 keys, and the random keys determine whether there are 28 or 29: the limit has
// room for one more.
func TestBytesAKey(t *testing.T) {
	usual := tune
	allInFrames(t)
	tune.heapBytes = usual.heapBytes
	rnd := seeds.Rand(t)
	for _, c := range []struct{ keys, most int }{{200_000, 345}, {1_000_000, 300}} {
		if c.keys > 200_000 && testing.Short() {
			continue
		}
		v, value := mustEmpty(t, DefaultChunkBytes), make([]byte, 100)
		for range c.keys / 10_000 {
			block := make([]Change, 10_000)
			for i := range block {
				key := make([]byte, 20)
				binary.BigEndian.PutUint64(key, rnd.Uint64())
				block[i] = Change{key, value}
			}
			v = advance(t, v, block...)
		}
		inHeap := 0
		for _, b := range v.tree.mu.slabBlocks {
			for kind := range 2 {
				if b != nil && b.slots > 0 && b.places[kind] == 0 {
					inHeap += pieceBytes[kind]
				}
			}
		}
		for _, b := range v.tree.mu.pageBlocks {
			if b != nil && b.slots > 0 && b.places[0] == 0 {
				inHeap += pageBytes
			}
		}
		bytes := framesOf(v)*hugemem.FrameBytes + inHeap
		m := v.Memory()
		t.Logf("%d keys: %d bytes a key, %d frames, %d bytes in Go's heap; %d in slabs, %d in pages, %d held", c.keys, bytes/c.keys, framesOf(v), inHeap,
			m.NodeBytes/uint64(c.keys), m.LeafBytes/uint64(c.keys), m.HeldBytes/uint64(c.keys))
		require.LessOrEqual(t, bytes/c.keys, c.most)
		v.Release()
	}
}

// TestPieces takes and gives back pieces of frames at random. Each keeps its content, the free
// pieces that have memory are counted and bounded, and a piece that was dropped can be taken again.
func TestPieces(t *testing.T) {
	allInFrames(t)
	rnd := seeds.Rand(t)
	const size = 256 << 10
	lent := hugemem.Lent()
	for range 10 {
		var p pieces
		var had []uint64 // dropped pieces
		type taken struct {
			memory []byte
			place  place
			tint   byte
		}
		var list []taken
		dropped := 0
		for step := range 600 {
			if grow := step%200 < 100; rnd.IntN(4) > 0 == grow {
				memory, at := p.take(size)
				require.Len(t, memory, size)
				tint := byte(rnd.Uint32())
				memory[0], memory[size-1] = tint, tint
				list = append(list, taken{memory, at, tint})
			} else if len(list) > 0 {
				i := rnd.IntN(len(list))
				require.Equal(t, [2]byte{list[i].tint, list[i].tint}, [2]byte{list[i].memory[0], list[i].memory[size-1]})
				p.give(list[i].place, size)
				list[i] = list[len(list)-1]
				list = list[:len(list)-1]
			}
			// last is the number of the last idle piece, first that of the first one that this step
			// dropped
			idle, last, first := 0, -1, math.MaxInt
			had = append(had, make([]uint64, len(p.frames)-len(had))...)
			for i, f := range p.frames {
				if f != nil {
					free := p.blocks[i].free[0] &^ p.dropped[i]
					idle += bits.OnesCount64(free)
					dropped += bits.OnesCount64(p.dropped[i])
					if free != 0 {
						last = 64*i + bits.Len64(free) - 1
					}
					if now := p.dropped[i] &^ had[i]; now != 0 {
						first = min(first, 64*i+bits.TrailingZeros64(now))
					}
				}
			}
			require.Greater(t, first, last, "the last ones are dropped first")
			copy(had, p.dropped)
			require.Equal(t, idle, p.idle)
			require.Equal(t, len(list), p.used)
			require.LessOrEqual(t, p.idle, max(p.used/4+idleFrames*hugemem.FrameBytes/size, hugemem.FrameBytes/size))
		}
		require.Positive(t, dropped)
		for _, x := range list {
			p.give(x.place, size)
		}
		require.Zero(t, p.idle)
	}
	require.LessOrEqual(t, hugemem.Lent(), lent)
}

// TestFramesRunOut: if no frame is available, a tree continues in Go's heap, with the same results,
// and returns the frames that it had.
func TestFramesRunOut(t *testing.T) {
	allInFrames(t)
	usual := takeFrame
	t.Cleanup(func() { takeFrame = usual })
	rnd := seeds.Rand(t)
	refused := 0
	takeFrame = func() *hugemem.Frame {
		if rnd.IntN(2) == 0 {
			refused++
			return nil
		}
		return usual()
	}
	for range 5 {
		v, content := mustEmpty(t, 3000), model{}
		for range 10 {
			block := randomBlock(rnd, 1+rnd.IntN(2000), 9000, 0.3, true)
			content.apply(block)
			v = advance(t, v, block...)
		}
		content.requireContent(t, v)
		requireInvariants(t, v)
		v.Release()
	}
	require.Positive(t, refused)
}

// TestTreesInFrames repeats stories of other tests with all trees in frames.
func TestTreesInFrames(t *testing.T) {
	allInFrames(t)
	for name, story := range map[string]func(*testing.T){
		"lifetimes": TestLifetimes, "undo": TestSlabGivenBackInUndo, "sizes": TestRecordSizes, "nodes": TestNodes,
	} {
		t.Run(name, story)
	}
}

// TestReadersKeepTheirVersion: frames are returned when no version of their tree can be reached. So
// a function that checks that a version is in use must also keep it alive until it returns. find
// does not, since it returns only a reference.
func TestReadersKeepTheirVersion(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	checked := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		file, err := parser.ParseFile(token.NewFileSet(), name, source, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			block, is := n.(*ast.BlockStmt)
			if !is {
				return true
			}
			for i, s := range block.List {
				text := string(source[s.Pos()-1 : s.End()-1])
				if !strings.HasSuffix(text, ".inUse()") {
					continue
				}
				checked++
				keep := "defer runtime.KeepAlive(" + strings.TrimSuffix(text, ".inUse()") + ")"
				next := block.List[i+1]
				if got := string(source[next.Pos()-1 : next.End()-1]); got != keep && !strings.HasPrefix(got, "prefix, n := ") {
					t.Errorf("%s: %s is followed by %s, not by %s", name, text, got, keep)
				}
			}
			return true
		})
	}
	require.Greater(t, checked, 15)
}

package avlstar

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestGroups applies blocks so large that several goroutines make and hash them, in trees of every
// shape. The result must equal that of one goroutine, and that of small blocks.
func TestGroups(t *testing.T) {
	rnd := seeds.Rand(t)
	// New keys in one corner, so that everything above must rotate.
	corner := func(n int) (block []Change) {
		for i := range n {
			block = append(block, Change{fmt.Appendf(nil, "shared/prefix/that/is/long/000123%06d", i), []byte("new")})
		}
		return block
	}
	spread := func(n, keys int) []Change { return randomBlock(rnd, scaled(n), scaled(keys), 0.3, false) }
	for _, shape := range []struct {
		name        string
		first, then []Change
	}{
		{"grown from nothing", nil, spread(20_000, 5_000)},
		{"all changed", spread(20_000, 2_000), spread(20_000, 2_000)},
		{"some changed", spread(60_000, 20_000), spread(8_000, 20_000)},
		{"few keys", spread(500, 20), spread(2_000, 20)},
		{"one corner", spread(60_000, 20_000), corner(3_000)},
		{"one corner and others", spread(60_000, 20_000), merged(spread(8_000, 20_000), corner(3_000))},
		{"all gone but a corner", spread(60_000, 5_000), nil},
	} {
		t.Run(shape.name, func(t *testing.T) {
			if shape.then == nil {
				for _, c := range shape.first {
					if bytes.Compare(c.Key, []byte("f")) < 0 {
						shape.then = append(shape.then, Change{Key: c.Key})
					}
				}
			}
			in := func(procs, batch int) *Version {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				v := advance(t, mustEmpty(t, 1000), shape.first...)
				for part := range slices.Chunk(shape.then, batch) {
					v = advance(t, v, part...)
				}
				return v
			}
			all := len(shape.then)
			want := in(1, all)
			requireInvariants(t, want)
			for _, procs := range []int{2, 3, 8, 32} {
				got := in(procs, all)
				requireEqual(t, want, got)
				wantInner, wantLeaves := want.Hashed()
				inner, leaves := got.Hashed()
				require.Equal(t, [2]uint64{wantInner, wantLeaves}, [2]uint64{inner, leaves})
				a, b := want.Memory(), got.Memory()
				require.Equal(t, [3]uint64{a.InnerNodes, a.Leaves, a.Held}, [3]uint64{b.InnerNodes, b.Leaves, b.Held})
				require.Equal(t, newInnerOf(want), newInnerOf(got))
				got = advance(t, got, Change{[]byte("last"), []byte("1")})
				requireOnlyLatest(t, got)
			}
			requireEqual(t, want, in(2, 150))
			requireEqual(t, want, in(8, 600))
		})
	}
}

// merged returns one block of two; changes of b win.
func merged(a, b []Change) []Change {
	m := model{}
	for _, c := range slices.Concat(a, b) {
		m[string(c.Key)] = c.Value
	}
	return sortedBlock(m)
}

func newInnerOf(v *Version) (all []string) {
	for key, height := range v.NewInner(nil) {
		all = append(all, fmt.Sprintf("%x %d", key, height))
	}
	return all
}

// TestHashed: exactly the nodes that are not in the previous version are hashed.
func TestHashed(t *testing.T) {
	rnd := seeds.Rand(t)
	for _, n := range []int{1, 30, 1000} {
		v := mustEmpty(t, 500)
		for range 20 {
			next := mustApply(t, v, randomBlock(rnd, 1+rnd.IntN(n), n, 0.3, false)...)
			before := map[Stub]bool{}
			count := func(v *Version, count func(Subtree)) {
				p, err := v.Prune(func(s Subtree) bool { count(s); return false })
				require.NoError(t, err)
				p.Release()
			}
			count(v, func(s Subtree) { before[s.Stub] = true })
			var inner, leaves uint64
			count(next, func(s Subtree) {
				switch {
				case before[s.Stub]:
				case s.Height == 0:
					leaves++
				default:
					inner++
				}
			})
			if next != v {
				gotInner, gotLeaves := next.Hashed()
				require.Equal(t, leaves, gotLeaves)
				// A node that ends unchanged, because other changes of the block undid a change, is
				// hashed too.
				require.GreaterOrEqual(t, gotInner, inner)
				require.LessOrEqual(t, gotInner, inner+inner/10+5, fmt.Sprint(n))
			}
			v.Release()
			v = next
		}
	}
}

// TestBulk hashes messages of many lengths at once: more lengths than may wait at a time, and
// messages that are too long for a batch.
func TestBulk(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 3))
	var b bulk
	for range 20 {
		var messages [][]byte
		lengths := 1 + rnd.IntN(200)
		for range 2000 {
			messages = append(messages, make([]byte, rnd.IntN(lengths)*(1+rnd.IntN(2)*rnd.IntN(40)), 10_000))
		}
		got := make([]Hash, len(messages))
		for i, m := range messages {
			for k := range m {
				m[k] = byte(i + k)
			}
			b.add(m, &got[i])
		}
		b.flush()
		for i, m := range messages {
			require.Equal(t, Hash(refSHA(m)), got[i], "%d bytes", len(m))
		}
	}
}

package avlstar

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// The same version results in whatever order chunks arrive, and however many arrive at the same
// time.
func TestAssemblerInAnyOrder(t *testing.T) {
	r := seeds.Rand(t)
	v := cutTree(t, r, 5000, 6000, 100)
	encoded := encodeChunks(t, v)
	orders := map[string]func(i int) int{
		"ascending":  func(i int) int { return i },
		"descending": func(i int) int { return len(encoded) - 1 - i },
		"random":     func(order []int) func(i int) int { return func(i int) int { return order[i] } }(r.Perm(len(encoded))),
	}
	for name, order := range orders {
		for _, workers := range []int{1, 4} {
			t.Run(name, func(t *testing.T) {
				a := NewAssembler(v.Manifest())
				work := make(chan int, len(encoded))
				for i := range encoded {
					work <- order(i)
				}
				close(work)
				var wg sync.WaitGroup
				for range workers {
					wg.Go(func() {
						for k := range work {
							c, err := v.Manifest().VerifyChunk(uint32(k), encoded[k])
							if err == nil {
								err = a.Add(uint32(k), c)
							}
							if err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				got, err := a.Finish()
				require.NoError(t, err)
				requireSame(t, v, got)
				// It can be used like any other version.
				next := mustApply(t, got, Change{Key: []byte("new"), Value: []byte{byte(rand.Uint32())}})
				requireInvariants(t, next)
			})
		}
	}
}

func TestAssemblerRefuses(t *testing.T) {
	r := seeds.Rand(t)
	v := cutTree(t, r, 5000, 500, 100)
	other := cutTree(t, r, 5000, 500, 100)
	chunk := func(v *Version, k uint32) *Chunk {
		data, err := v.Chunk(k)
		require.NoError(t, err)
		c, err := v.Manifest().VerifyChunk(k, data)
		require.NoError(t, err)
		return c
	}
	a := NewAssembler(v.Manifest())
	require.ErrorContains(t, a.Add(1, chunk(other, 1)), "another manifest")
	require.ErrorContains(t, a.Add(v.NumChunks(), chunk(v, 0)), "the manifest has")
	require.ErrorContains(t, a.Add(0, nil), "missing")
	c := chunk(v, 0)
	require.NoError(t, a.Add(0, c))
	require.Nil(t, c.Bytes(), "it is part of the tree")
	require.ErrorContains(t, a.Add(0, chunk(v, 0)), "already added")
	require.ErrorContains(t, NewAssembler(v.Manifest()).Add(0, c), "another tree")
	_, err := a.Finish()
	require.ErrorIs(t, err, ErrInvalidChunk)
	require.ErrorContains(t, err, "1: it is missing")
}

// TestUsedLists verifies chunks with reused lists that have other content and any length.
func TestUsedLists(t *testing.T) {
	rnd := seeds.Rand(t)
	v := mustApply(t, mustEmpty(t, 2000), manyKeys(rnd, 500)...)
	m := v.Manifest()
	for k, data := range encodeChunks(t, v) {
		used := &run{at: make([]uint32, rnd.IntN(200)), links: make([]link, rnd.IntN(200)), images: make([]image, rnd.IntN(200))}
		for i := range used.at {
			used.at[i] = rnd.Uint32()
		}
		for i := range used.links {
			used.links[i] = link{rnd.Uint64(), [2]ref{ref(rnd.Uint32()), ref(rnd.Uint32())}}
		}
		for i := range used.images {
			for j := range used.images[i] {
				used.images[i][j] = byte(rnd.Uint32())
			}
		}
		images := used.images
		used.done()
		c, err := m.VerifyChunk(uint32(k), data)
		require.NoError(t, err)
		if n := c.run.len(); n <= len(images) {
			require.Same(t, &images[0], &c.run.images[0])
		}
		fresh, err := newRun(data, limits{chunkBytes: m.ChunkBytes, height: 255})
		require.NoError(t, err)
		require.Equal(t, fresh, c.run)
		at := &c.run.images[0]
		c.Done()
		require.Nil(t, c.Bytes())
		require.Empty(t, slices.Collect(c.Leaves()))
		c.Done()
		require.Same(t, at, &spareRuns.take().images[:1][0])
	}
	spareRuns.forget()
	require.Empty(t, spareRuns.runs)
}

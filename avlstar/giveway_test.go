package avlstar

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
)

// ofBytes returns a state of one chunk of about n bytes.
func ofBytes(t *testing.T, n int) *Version {
	var changes []Change
	for i := range n / 1000 {
		changes = append(changes, Change{fmt.Appendf(nil, "key%08d", i), make([]byte, 1000-16)})
	}
	return advance(t, mustEmpty(t, MaxChunkBytes), changes...)
}

// took runs f and returns the time that it took on the fake clock, where only waiting takes time.
func took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// TestEncodersGiveWay encodes chunks, ranges and pieces while a version is made, and while none is.
func TestEncodersGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := ofBytes(t, 3<<20+100_000)
		defer v.Release()
		want, err := v.Chunk(0)
		require.NoError(t, err)
		cut, err := v.CutChunk(0, 1<<20)
		require.NoError(t, err)
		encode := map[string]func() time.Duration{
			"chunk": func() time.Duration {
				return took(func() {
					got, err := v.Chunk(0)
					require.NoError(t, err)
					require.Equal(t, want, got)
				})
			},
			"range": func() time.Duration {
				return took(func() {
					got, err := v.ChunkRange(0, 1000, 1<<20)
					require.NoError(t, err)
					require.Equal(t, want[1000:1<<20], got)
				})
			},
			"piece": func() time.Duration {
				return took(func() {
					_, err := cut.Piece(0)
					require.NoError(t, err)
				})
			},
		}
		require.Greater(t, len(want), 3<<20)
		first, err := cut.Piece(0)
		require.NoError(t, err)
		bytes := map[string]int{"chunk": len(want), "range": 1<<20 - 1000, "piece": len(first)}
		for name, encode := range encode {
			require.Zero(t, encode(), "%s: no version is made", name)

			made := v.tree.gate.begin()
			var wait sync.WaitGroup
			wait.Go(func() {
				bubble.Sleep(5 * time.Millisecond)
				made.end()
			})
			require.Equal(t, 5*time.Millisecond, encode(), "%s: it must wait until the version is made", name)
			wait.Wait()

			made = v.tree.gate.begin()
			require.Equal(t, maxGiveWay*time.Duration(bytes[name])/(1<<20), encode(), "%s: encoding must not starve", name)
			made.end()
		}
	})
}

// TestSmallChunksGiveWayTogether encodes many small chunks. Together they wait as one chunk of
// their total length does, and not each of them.
func TestSmallChunksGiveWayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := ofBytes(t, 10_000)
		defer v.Release()
		v.tree.gate.encoded.Store(0)
		defer v.tree.gate.begin().end()
		waits := 0
		const chunks = 100
		for range chunks {
			waited := took(func() {
				_, err := v.Chunk(0)
				require.NoError(t, err)
			})
			require.LessOrEqual(t, waited, maxGiveWay/16, "64 KiB are a sixteenth of a MiB")
			if waited > 0 {
				waits++
			}
		}
		bytes := int(v.tree.gate.encoded.Load())
		require.Greater(t, bytes, 9000*chunks)
		require.InDelta(t, bytes/giveWayEvery, waits, float64(bytes/giveWayEvery)/2)
	})
}

// This test encodes during blocks of 2 ms that follow each other without a pause.
func TestRateBesideBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := ofBytes(t, 1<<20)
		defer v.Release()
		stop := make(chan struct{})
		var blocks sync.WaitGroup
		blocks.Go(func() {
			for {
				made := v.tree.gate.begin()
				bubble.Sleep(2 * time.Millisecond)
				made.end()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		encoded := 0
		elapsed := took(func() {
			for range 50 {
				b, err := v.Chunk(0)
				require.NoError(t, err)
				encoded += len(b)
			}
		})
		close(stop)
		blocks.Wait()
		require.Greater(t, float64(encoded)/elapsed.Seconds(), 40e6, "bytes a second")
	})
}

// TestApplyClosesTheGate checks the gate during an Apply, and after Apply has ended with each
// possible outcome. The gate is open while Apply reads the pages that it will need, and closed
// while it makes the version, which reads pages again that could not be read.
func TestApplyClosesTheGate(t *testing.T) {
	var p slicePages
	for l := range mustLeaves(t, ofBytes(t, 100_000)) {
		p.leaves = append(p.leaves, l)
	}
	pages := gatePages{Pages: &p}
	v, err := FromLeavesPaged(50_000, Paging{Pages: &pages, Budget: func() int64 { return 1 << 40 }}, func(yield func(Leaf, error) bool) {
		for _, l := range p.leaves {
			if !yield(l, nil) {
				return
			}
		}
	})
	require.NoError(t, err)
	pages.gate = &v.tree.gate
	next := mustApply(t, v, Change{[]byte("key00000050"), []byte("new")})
	require.Equal(t, []bool{false, true}, pages.closed)
	open := func() { require.Nil(t, v.tree.gate.making.Load()) }
	open()
	_, err = v.Apply(nil)
	require.ErrorIs(t, err, ErrNotLatest)
	open()
	_, err = next.Apply([]Change{{}})
	require.ErrorIs(t, err, ErrInvalidChange)
	open()
	mustApply(t, next).Release()
	open()
	next.Release()
	require.Panics(t, func() { _, _ = next.Apply(nil) })
	open()
}

// gatePages records for each read whether the gate is closed. The first read fails.
type gatePages struct {
	Pages
	gate   *gate
	closed []bool
}

func (p *gatePages) Page(s Subtree) (*Page, error) {
	p.closed = append(p.closed, p.gate.making.Load() != nil)
	if len(p.closed) == 1 {
		return nil, errBroken
	}
	return p.Pages.Page(s)
}

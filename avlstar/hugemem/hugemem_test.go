package hugemem

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// fake is a system in Go's heap that records the calls that it gets.
type fake struct {
	sync.Mutex
	left             int // number of mappings that it still grants
	mapped           map[*byte]bool
	touched, dropped int           // number of frames
	gate             chan struct{} // if it is not nil, memory returns only after it is closed
}

// wait returns when memory may return, with the lock held.
func (f *fake) wait() {
	if f.gate != nil {
		<-f.gate
	}
	f.Lock()
}

func newFake(left int) (*fake, *pool) {
	f := &fake{left: left, mapped: map[*byte]bool{}}
	return f, &pool{system: system{
		reserve: func(n int) ([]byte, error) {
			f.Lock()
			defer f.Unlock()
			if f.left == 0 {
				return nil, errors.New("no address space")
			}
			f.left--
			b := make([]byte, n)
			f.mapped[&b[0]] = true
			return b, nil
		},
		remove: func(b []byte) error {
			f.wait()
			defer f.Unlock()
			f.left++
			delete(f.mapped, &b[0])
			return nil
		},
		touch: func([]byte) { f.touched++ },
		drop: func(b []byte) error {
			f.wait()
			defer f.Unlock()
			f.dropped += len(b) / FrameBytes
			return nil
		},
		advise: func([]byte, bool) {},
	}}
}

// takeAndWait takes a frame and waits until the next one is ready.
func takeAndWait(p *pool) *Frame {
	f := p.take()
	synctest.Wait()
	return f
}

// Frames that are lent are aligned and never overlap, in whatever order they are taken and given
// back. At the end no mapping is left.
func TestFrames(t *testing.T) {
	rnd := seeds.Rand(t)
	synctest.Test(t, func(t *testing.T) {
		system, p := newFake(4)
		lent := map[uintptr]*Frame{}
		var list []*Frame
		for range 2000 {
			if len(list) > 0 && rnd.IntN(200) == 0 {
				n := rnd.IntN(len(list))
				for _, f := range list[n:] {
					delete(lent, uintptr(unsafe.Pointer(f.Bytes())))
				}
				p.giveAll(list[n:])
				list = list[:n]
				continue
			}
			if len(list) > 0 && rnd.IntN(2) == 0 {
				i := rnd.IntN(len(list))
				delete(lent, uintptr(unsafe.Pointer(list[i].Bytes())))
				p.give(list[i])
				list = append(list[:i], list[i+1:]...)
				continue
			}
			f := p.take()
			if rnd.IntN(2) == 0 {
				synctest.Wait()
			}
			if f == nil {
				synctest.Wait() // until the frames that were given back are free
				f = p.take()
			}
			if f == nil {
				require.GreaterOrEqual(t, len(list), 4*framesPerMapping-2, "there was room")
				continue
			}
			at := uintptr(unsafe.Pointer(f.Bytes()))
			require.Zero(t, at%FrameBytes)
			require.NotContains(t, lent, at, "lent twice")
			lent[at] = f
			list = append(list, f)
			require.Equal(t, len(list), p.mu.lent)
		}
		for _, f := range list {
			p.give(f)
		}
		synctest.Wait()
		require.Empty(t, system.mapped, "mappings without a frame that is lent")
		require.Empty(t, p.mu.mappings)
		require.Empty(t, p.mu.ready)
	})
}

// A caller that gives many frames back does not wait for the kernel, which gets whole mappings at
// once. A frame that is taken meanwhile may be one of them, and settle waits for the rest.
func TestGiveAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		system, p := newFake(4)
		var all []*Frame
		for range 3 * framesPerMapping {
			all = append(all, takeAndWait(p))
		}
		require.Len(t, system.mapped, 4, "with the one of the frame that is ready")
		stays := all[framesPerMapping] // its mapping stays too
		gone := append(append([]*Frame(nil), all[:framesPerMapping]...), all[framesPerMapping+1:]...)
		system.gate = make(chan struct{})
		p.giveAll(gone)
		require.Equal(t, 1, p.mu.lent)
		synctest.Wait() // until the first mapping is being removed
		require.Len(t, system.mapped, 4)

		lent := map[*[FrameBytes]byte]*Frame{stays.Bytes(): stays}
		touched := system.touched
		for range framesPerMapping {
			f := p.take()
			require.NotNil(t, f)
			require.Nil(t, lent[f.Bytes()], "lent twice")
			require.NotSame(t, all[0].mapping, f.mapping, "it is being removed")
			lent[f.Bytes()] = f
		}
		synctest.Wait()
		require.Equal(t, touched, system.touched, "these had memory")

		close(system.gate)
		p.settle() // also waits for the other goroutine
		require.False(t, system.mapped[&all[0].mapping.whole[0]])
		require.LessOrEqual(t, len(system.mapped), 3)
		require.Zero(t, p.mu.back)

		p.giveAll(slices.Collect(maps.Values(lent)))
		synctest.Wait()
		require.Empty(t, system.mapped)
		require.Empty(t, p.mu.mappings)
	})
}

// While a frame is taken, another goroutine touches the next one, and there is never more than one.
func TestOneIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		system, p := newFake(1)
		a := takeAndWait(p)
		require.Equal(t, 1, system.touched)
		b := takeAndWait(p)
		require.Equal(t, 2, system.touched, "b was ready")
		require.Zero(t, system.dropped)
		p.give(b)
		require.Equal(t, 1, system.dropped, "one is ready already")
		require.Len(t, p.mu.ready, readyFrames)
		p.give(a)
		require.Empty(t, system.mapped)
	})
}

// A frame that becomes ready after the last one was given back is not kept.
func TestReadyTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		system, p := newFake(1)
		gate := make(chan struct{})
		p.system.touch = func([]byte) { <-gate }
		f := takeAndWait(p)
		p.give(f)
		require.Len(t, system.mapped, 1)
		close(gate)
		synctest.Wait()
		require.Empty(t, system.mapped)
	})
}

// If no address space is left, no frame is available until one is given back.
func TestNoMapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := newFake(0)
		require.Nil(t, takeAndWait(p))
		_, p = newFake(1)
		var all []*Frame
		for f := takeAndWait(p); f != nil; f = takeAndWait(p) {
			all = append(all, f)
		}
		require.Len(t, all, framesPerMapping)
		p.give(all[3])
		require.Same(t, all[3], takeAndWait(p))
	})
}

// A piece that is smaller than the system's page shares it with others, which may be in use.
func TestInnerPages(t *testing.T) {
	for _, c := range []struct{ from, to, page, first, after int }{
		{0, 32 << 10, 4 << 10, 0, 32 << 10},
		{32 << 10, 64 << 10, 16 << 10, 32 << 10, 64 << 10},
		{0, 32 << 10, 64 << 10, 0, 0},
		{32 << 10, 64 << 10, 64 << 10, 64 << 10, 64 << 10},
		{32 << 10, 160 << 10, 64 << 10, 64 << 10, 128 << 10},
	} {
		first, after := inner(c.from, c.to, c.page)
		require.Equal(t, [2]int{c.first, c.after}, [2]int{first, after}, c)
	}
}

package avlstar

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// rootAway returns a tree of one leaf that was a stub until all other leaves were deleted.
func rootAway(t *testing.T) *Version {
	d := &disk{}
	v := mustEmpty(t, 1<<20)
	v.EnablePaging(Paging{Pages: d, Budget: func() int64 { return 0 }})
	v = advance(t, v, Change{[]byte("a"), []byte("1")}, Change{[]byte("b"), []byte("2")})
	d.store(t, v)
	v.Stored()
	for i := 0; i < 40 && v.Memory().Evicted == 0; i++ { // until "a" is a stub
		v = advance(t, v, Change{[]byte("b"), []byte{byte(3 + i)}})
	}
	require.NotZero(t, v.Memory().Evicted)
	v = advance(t, v, Change{[]byte("b"), nil})
	require.Equal(t, uint64(1), v.Len())
	return v
}

// TestLastLeafWasAway: the root is in memory, even if it was in a page before.
func TestLastLeafWasAway(t *testing.T) {
	v := rootAway(t)
	n := 0
	for range mustAscend(t, v, nil, nil) {
		n++
	}
	require.Equal(t, 1, n)
	require.Len(t, slices.Collect(mustLeaves(t, v)), 1)
	require.Len(t, v.Manifest().Entries, 1)
	_, err := v.Chunk(0)
	require.NoError(t, err)
	p, err := v.Prove([]byte("a"))
	require.NoError(t, err)
	require.NoError(t, VerifyProof(v.AppHash(), []byte("a"), []byte("1"), p))
	entries, next, proof, err := v.ProveRange(nil, nil, 10)
	require.NoError(t, err)
	require.NoError(t, VerifyRange(v.AppHash(), nil, nil, 10, entries, next, proof))
	v = advance(t, v, Change{[]byte("a"), nil})
	require.Equal(t, mustEmpty(t, 1<<20).AppHash(), v.AppHash())
}

func spreadKey(i int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)*0x9e3779b97f4a7c15) }

// TestPagesLeaveWithoutChanges: pages that leave memory before a block without changes stay
// evicted.
func TestPagesLeaveWithoutChanges(t *testing.T) {
	d := &disk{}
	v := mustEmpty(t, 1<<20)
	v.EnablePaging(Paging{Pages: d, Budget: func() int64 { return 0 }})
	var block []Change
	for i := range 20_000 {
		block = append(block, Change{spreadKey(i), []byte("value of some bytes, more or less")})
	}
	v = advance(t, v, block...)
	d.store(t, v)
	v.Stored()
	for range 100 {
		v = advance(t, v)
	}
	m := v.Memory()
	require.Less(t, m.Evicted, uint64(2000)) // each page once
	require.Less(t, m.Leaves, uint64(5000))
}

// TestPagedLargeBlock: a block that a tree in memory accepts is not too large for a paged one.
func TestPagedLargeBlock(t *testing.T) {
	d := &disk{}
	v := mustEmpty(t, 1<<20)
	var leaves []Change
	for i := range 100_000 {
		leaves = append(leaves, Change{spreadKey(i), []byte("v")})
	}
	v = advance(t, v, leaves...)
	d.store(t, v)
	paged, err := FromLeavesPaged(1<<20, Paging{Pages: d, Budget: func() int64 { return 1 << 40 }}, withoutError(slices.Values(d.generations[0])))
	require.NoError(t, err)
	block := make([]Change, 70_000)
	for i := range block {
		block[i] = Change{spreadKey(1_000_000 + i), []byte("v")}
	}
	full, err := v.Apply(block)
	require.NoError(t, err)
	again, err := paged.Apply(block)
	require.NoError(t, err)
	require.Equal(t, full.AppHash(), again.AppHash())
}

// TestPagedLeftEdge deletes keys from the least one on, where no inner node has the least key of a
// stub. The time must not be quadratic.
func TestPagedLeftEdge(t *testing.T) {
	for name, from := range map[string]int{"left edge": 0, "middle": 30_000} {
		t.Run(name, func(t *testing.T) {
			d := &disk{}
			v := mustEmpty(t, 1<<20)
			var leaves []Change
			for i := range 100_000 {
				leaves = append(leaves, Change{fmt.Appendf(nil, "key %08d", i), bytes.Repeat([]byte{1}, 100)})
			}
			v = advance(t, v, leaves...)
			d.store(t, v)
			paged, err := FromLeavesPaged(1<<20, Paging{Pages: d, Budget: func() int64 { return 1 << 40 }}, withoutError(slices.Values(d.generations[0])))
			require.NoError(t, err)
			var block []Change
			for _, c := range leaves[from : from+20_000] {
				block = append(block, Change{c.Key, nil})
			}
			require.Equal(t, mustApply(t, v, block...).AppHash(), mustApply(t, paged, block...).AppHash())
		})
	}
}

// flaky is a disk on which some reads fail.
type flaky struct {
	mu sync.RWMutex
	*disk
	rate atomic.Int64 // percent
	seed atomic.Int64
}

func (f *flaky) Page(s Subtree) (*Page, error) {
	x := uint64(f.seed.Add(1)) * 0x9e3779b97f4a7c15
	if int64((x>>33)%100) < f.rate.Load() {
		return nil, errBroken
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.disk.Page(s)
}

// TestPagedStory compares a paged tree with one in memory: random blocks in parallel tasks, failing
// reads, versions that are dropped, and older versions that other goroutines read while pages
// leave.
func TestPagedStory(t *testing.T) {
	oldTune := tune
	t.Cleanup(func() { tune = oldTune })
	rnd := seeds.Rand(t)
	failures := 0
	for round := range scaled(60) {
		tune.minChanges, tune.minTask, tune.minTaskHeight, tune.maxBackoff = 8, 1+rnd.IntN(4), uint8(1+rnd.IntN(3)), rnd.IntN(3)
		tune.pageBytes = uint64([]int{60, 200, 500, 2000}[rnd.IntN(4)])
		chunk := uint64([]int{1, 100, 300, 5000}[rnd.IntN(4)])
		f := &flaky{disk: &disk{}}
		f.seed.Store(rnd.Int64())
		var budget atomic.Int64
		paging := Paging{Pages: f, Budget: budget.Load}
		v := mustEmpty(t, chunk)
		v.EnablePaging(paging)
		w := mustEmpty(t, chunk)
		keys := 3 + rnd.IntN([]int{8, 200, 3000}[rnd.IntN(3)])
		type pin struct {
			v, w *Version
		}
		var pins []pin
		var wg sync.WaitGroup
		for range 60 {
			budget.Store([]int64{0, 0, 1000, 20_000, 1 << 40}[rnd.IntN(5)])
			var block []Change
			seen := map[string]bool{}
			n := rnd.IntN(1 + []int{1, 10, 200}[rnd.IntN(3)])
			lo := 0
			if rnd.IntN(3) == 0 {
				lo = rnd.IntN(keys)
			}
			for range n {
				i := lo + rnd.IntN(max(1, (keys-lo)/(1+rnd.IntN(8))))
				k := fmt.Appendf(nil, "k%06d", i)
				if seen[string(k)] {
					continue
				}
				seen[string(k)] = true
				c := Change{Key: k}
				if rnd.IntN(100) < 55 {
					c.Value = bytes.Repeat([]byte{byte(1 + rnd.IntN(255))}, 1+rnd.IntN(30))
					if rnd.IntN(200) == 0 {
						c.Value = bytes.Repeat([]byte{7}, 9000)
					}
				}
				block = append(block, c)
			}
			if rate := []int64{0, 0, 3, 30}[rnd.IntN(4)]; rate > 0 {
				wg.Wait() // readers would fail too
				f.rate.Store(rate)
			}
			next, err := v.Apply(block)
			f.rate.Store(0)
			if err != nil {
				failures++
				require.ErrorIs(t, err, errBroken)
				if next, err = v.Apply(block); err != nil {
					require.NoError(t, err)
				}
			}
			wnext := mustApply(t, w, block...)
			require.Equal(t, wnext.Commitment(), next.Commitment(), "round %d", round)
			if rnd.IntN(6) == 0 { // the version is dropped
				next.Release()
				wnext.Release()
				continue
			}
			if rnd.IntN(4) == 0 {
				v.Retain()
				w.Retain()
				p := pin{v, w}
				if rnd.IntN(2) == 0 {
					wg.Go(func() {
						requireAlike(t, p.w, p.v)
						p.v.Release()
					})
				} else {
					pins = append(pins, p)
				}
			}
			v.Release()
			w.Release()
			v, w = next, wnext
			if rnd.IntN(2) == 0 {
				var leaves []Leaf
				for l := range mustLeaves(t, w) {
					leaves = append(leaves, Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: l.Height})
				}
				f.mu.Lock()
				f.disk.generations = append(f.disk.generations, leaves)
				f.mu.Unlock()
				v.Stored()
			}
			if len(pins) > 0 && rnd.IntN(3) == 0 {
				i := rnd.IntN(len(pins))
				requireAlike(t, pins[i].w, pins[i].v)
				pins[i].v.Release()
				pins = slices.Delete(pins, i, i+1)
			}
		}
		wg.Wait()
		requireAlike(t, w, v)
		for _, p := range pins {
			requireAlike(t, p.w, p.v)
			p.v.Release()
		}
	}
	require.NotZero(t, failures)
}

// requireAlike reports differences between the reads of two versions. It may run in any goroutine.
func requireAlike(t *testing.T, w, v *Version) {
	var a, b []string
	for l := range mustLeaves(t, w) {
		a = append(a, fmt.Sprintf("%s %x %d", l.Key, l.Value, l.Height))
	}
	for l := range mustLeaves(t, v) {
		b = append(b, fmt.Sprintf("%s %x %d", l.Key, l.Value, l.Height))
	}
	if !slices.Equal(a, b) {
		t.Errorf("leaves differ: %d, %d", len(a), len(b))
		return
	}
	rnd := rand.New(rand.NewPCG(uint64(len(a)), 1))
	for range 10 {
		k := fmt.Appendf(nil, "k%06d", rnd.IntN(3000))
		e := fmt.Appendf(k[:len(k):len(k)], "%d", rnd.IntN(30))
		x, xok := mustGet(t, w, k)
		y, yok := mustGet(t, v, k)
		if xok != yok || !bytes.Equal(x, y) {
			t.Errorf("get %s", k)
		}
		fk, _, fok := mustFloor(t, w, e)
		gk, _, gok := mustFloor(t, v, e)
		if fok != gok || !bytes.Equal(fk, gk) {
			t.Errorf("floor %s: %s %s", e, fk, gk)
		}
		if mustRangeBytes(t, w, k, nil) != mustRangeBytes(t, v, k, nil) {
			t.Errorf("range bytes")
		}
		p, err1 := w.Prove(e)
		q, err2 := v.Prove(e)
		if err1 != nil || err2 != nil || !bytes.Equal(p.State, q.State) || !bytes.Equal(p.Map, q.Map) {
			t.Errorf("prove %s: %v %v", e, err1, err2)
		}
	}
	start := fmt.Appendf(nil, "k%06d", rnd.IntN(3000))
	_, n1, r1, err1 := w.ProveRange(start, nil, 7)
	_, n2, r2, err2 := v.ProveRange(start, nil, 7)
	if err1 != nil || err2 != nil || !bytes.Equal(n1, n2) || !bytes.Equal(r1.Tree, r2.Tree) {
		t.Errorf("prove range %v %v", err1, err2)
	}
	for k := range w.NumChunks() {
		c, _ := w.Chunk(k)
		d, err := v.Chunk(k)
		if err != nil || !bytes.Equal(c, d) {
			t.Errorf("chunk %d: %v", k, err)
		}
	}
}

package avlstar

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/starling-kv/starling/internal/seeds"
)

// snapshot is a version with its expected content, for readers.
type snapshot struct {
	v       *Version
	content model
	keys    []string
	appHash Hash
}

// TestManyReaders reads many versions while a writer commits new ones and releases them in any
// order. Readers take them from a shared slot in which the writer may replace and release them at
// the same time.
func TestManyReaders(t *testing.T) {
	rnd := seeds.Rand(t)
	var places [8]atomic.Pointer[snapshot]
	content := model{}
	v := mustEmpty(t, 2000)
	publish := func(block []Change) {
		v = advance(t, v, block...)
		content.apply(block)
		s := &snapshot{v, maps.Clone(content), content.keys(), v.AppHash()}
		v.Retain()
		if old := places[rnd.IntN(len(places))].Swap(s); old != nil {
			old.v.Release()
		}
	}
	for range places {
		publish(randomBlock(rnd, 300, 200, 0, true))
	}

	var done atomic.Bool
	var reads, missed atomic.Uint64
	var readers sync.WaitGroup
	for range 6 {
		seed := rnd.Uint64()
		readers.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 2))
			for !done.Load() {
				s := places[rnd.IntN(len(places))].Load()
				if s == nil {
					continue
				}
				if !s.v.TryRetain() {
					missed.Add(1)
					continue
				}
				if err := s.read(rnd); err != nil {
					t.Error(err)
				}
				s.v.Release()
				reads.Add(1)
			}
		})
	}
	for range scaled(800) {
		publish(randomBlock(rnd, 1+rnd.IntN(400), 200, 0.3, true))
	}
	for reads.Load() < 100 { // on a busy machine there may be few so far
		publish(randomBlock(rnd, 1+rnd.IntN(400), 200, 0.3, true))
	}
	done.Store(true)
	readers.Wait()
	t.Logf("%d reads, %d came too late", reads.Load(), missed.Load())
	for i := range places {
		if s := places[i].Load(); s != nil {
			s.v.Release()
		}
	}
	v = advance(t, v, Change{[]byte("last"), []byte("one more")})
	requireOnlyLatest(t, v)
}

// read performs one random read, and checks the result.
func (s *snapshot) read(rnd *rand.Rand) error {
	key := []byte(s.keys[rnd.IntN(len(s.keys))])
	absent := append(bytes.Clone(key), "absent"...)
	switch rnd.IntN(8) {
	case 0:
		value, ok, err := s.v.Get(key)
		if err != nil {
			return err
		}
		found, err := s.v.Has(absent)
		if err != nil || !ok || found || !bytes.Equal(value, s.content[string(key)]) {
			return fmt.Errorf("get %x: %v, %v, %w", key, ok, found, err)
		}
	case 1:
		i := 0
		for kv, err := range s.v.Ascend(nil, nil) {
			if err != nil || i >= len(s.keys) || s.keys[i] != string(kv.Key) || !bytes.Equal(s.content[string(kv.Key)], kv.Value) {
				return fmt.Errorf("ascend: entry %d is %x, %w", i, kv.Key, err)
			}
			i++
		}
	case 2:
		i := 0
		for l, err := range s.v.Leaves() {
			if err != nil || s.keys[i] != string(l.Key) || !bytes.Equal(s.content[string(l.Key)], l.Value) {
				return fmt.Errorf("leaves: leaf %d is %x, %w", i, l.Key, err)
			}
			i++
		}
	case 3:
		m, err := VerifyManifest(s.v.Manifest().Encode(), s.appHash)
		if err != nil {
			return err
		}
		k := rnd.Uint32N(s.v.NumChunks())
		data, err := s.v.Chunk(k)
		if err != nil {
			return err
		}
		if _, err = m.VerifyChunk(k, data); err != nil {
			return err
		}
	case 4:
		for _, key := range [][]byte{key, absent} {
			p, err := s.v.Prove(key)
			if err != nil {
				return err
			}
			if err := VerifyProof(s.appHash, key, s.content[string(key)], p); err != nil {
				return err
			}
		}
	case 5:
		entries, next, p, err := s.v.ProveRange(key, nil, 5)
		if err != nil {
			return err
		}
		return VerifyRange(s.appHash, key, nil, 5, entries, next, p)
	case 6:
		if n, err := s.v.RangeBytes(nil, nil); err != nil || n != s.v.Root().Bytes || s.v.AppHash() != s.appHash {
			return fmt.Errorf("root %v", s.v.Root())
		}
	case 7:
		k, value, ok, err := s.v.Floor(absent)
		if err != nil || !ok || bytes.Compare(k, key) < 0 || !bytes.Equal(value, s.content[string(k)]) {
			return fmt.Errorf("floor of %x: %x, %w", absent, k, err)
		}
	}
	return nil
}

// TestWriterDoesNotWait stops readers in the middle of their iterations until the writer has made
// many versions.
func TestWriterDoesNotWait(t *testing.T) {
	v := stateOf(t, 50, 50)
	want := v.AppHash()
	commits := make(chan struct{})
	var stopped, readers sync.WaitGroup
	wait := func() {
		stopped.Done()
		<-commits
	}
	for _, read := range []func(*Version) int{
		func(v *Version) (n int) {
			for range mustAscend(t, v, nil, nil) {
				if n++; n == 20 {
					wait()
				}
			}
			return n
		},
		func(v *Version) (n int) {
			for range mustLeaves(t, v) {
				if n++; n == 20 {
					wait()
				}
			}
			return n
		},
		func(v *Version) (n int) {
			for range v.NewInner(nil) {
				if n++; n == 20 {
					wait()
				}
			}
			return n + 1 // there is one node fewer than leaves
		},
		func(v *Version) (n int) {
			p, err := v.Prune(func(s Subtree) bool {
				if n += 1 - int(min(s.Height, 1)); s.Height == 0 && n == 20 {
					wait()
				}
				return false
			})
			if err != nil || p.Commitment() != v.Commitment() {
				return 0
			}
			return n
		},
	} {
		v.Retain()
		stopped.Add(1)
		readers.Go(func() {
			defer v.Release()
			if n := read(v); n != 50 || v.AppHash() != want {
				t.Errorf("%d entries of 50", n)
			}
		})
	}
	stopped.Wait()
	next := v
	for i := range 200 { // i*7+1 is never i, modulo 100
		next = advance(t, next, Change{fmt.Appendf(nil, "k%02d", i%100), fmt.Append(nil, i)}, Change{Key: fmt.Appendf(nil, "k%02d", (i*7+1)%100)})
	}
	close(commits) // only now do the readers continue
	readers.Wait()
	requireInvariants(t, next)
}

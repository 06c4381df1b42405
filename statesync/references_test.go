package statesync

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

func released(v *avlstar.Version) bool {
	if v.TryRetain() {
		v.Release()
		return false
	}
	return true
}

// A version lives exactly as long as it is pinned.
func TestPinsHoldReferences(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	m := NewManager(Options{Interval: 1, Keep: 2, Hold: time.Minute, now: func() time.Time { return now }})
	v := randomTree(t, newRNG(t, 5), 50, 200)
	var all []*avlstar.Version // all[h-1] was committed at height h
	inUse := func() (heights []int64) {
		for i, v := range all {
			if !released(v) {
				heights = append(heights, int64(i+1))
			}
		}
		return heights
	}
	commit := func(upTo int64) {
		for h := int64(len(all) + 1); h <= upTo; h++ {
			v = next(t, v, avlstar.Change{Key: []byte("height"), Value: fmt.Append(nil, h)})
			m.Committed(h, v)
			m.Committed(h, v)
			all = append(all, v)
		}
	}
	commit(7)
	require.Equal(t, []int64{6, 7}, inUse())
	require.Equal(t, 3, v.Memory().Versions, "and the one that the last pin released")
	_, err := m.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
	require.NoError(t, err)
	require.Len(t, m.List(), 2)
	for _, h := range []uint64{7, 6, 5, 0} {
		load(t, m, h, 1, 0)
		load(t, m, h, 1, 1<<32-1)
		load(t, m, h, 2, 0)
	}
	commit(20)
	require.Equal(t, []int64{6, 7, 19, 20}, inUse(), "6 and 7 are held")
	now = now.Add(2 * time.Minute)
	commit(21)
	require.Equal(t, []int64{20, 21}, inUse())
	v.Release()
	require.Equal(t, []int64{20, 21}, inUse())
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.Empty(t, inUse())
}

// While a manifest takes very long to encode, versions are committed, the pin is dropped, and even
// Close does not wait. The resulting list is right.
func TestSlowServingDelaysNobody(t *testing.T) {
	m := NewManager(Options{Interval: 1, Keep: 1})
	v := randomTree(t, newRNG(t, 6), 50, 200)
	m.Committed(1, v)
	hash, manifest := v.AppHash(), v.Manifest().Encode()
	began, goOn := make(chan struct{}), make(chan struct{})
	pinned := m.serving.pins[0].source.(*inMemory)
	encode := pinned.encoded
	pinned.encoded = sync.OnceValue(func() []byte {
		close(began)
		<-goOn
		return encode()
	})
	first, done := v, make(chan *abci.ResponseListSnapshots)
	go func() {
		list, _ := m.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
		done <- list
	}()
	<-began
	for h := int64(2); h < 10; h++ {
		v = next(t, v, avlstar.Change{Key: []byte("height"), Value: fmt.Append(nil, h)})
		m.Committed(h, v)
	}
	require.NoError(t, m.Close())
	require.False(t, released(first))
	close(goOn)
	list := <-done
	require.Len(t, list.Snapshots, 1)
	require.Equal(t, hash[:], list.Snapshots[0].Hash)
	require.Equal(t, manifest, list.Snapshots[0].Metadata)
	require.True(t, released(first))
	v.Release()
	require.True(t, released(v))
}

// Joiners request chunks while blocks drop the pins, under the race detector: each chunk is right
// or missing.
func TestServingWhilePinsAreDropped(t *testing.T) {
	var clock atomic.Int64 // never advances far enough to hold a pin
	m := NewManager(Options{Interval: 1, Keep: 1, Hold: 1, now: func() time.Time { return time.Unix(clock.Add(1), 0) }})
	v := randomTree(t, newRNG(t, 7), 100, 200)
	m.Committed(1, v)
	var (
		joiners sync.WaitGroup
		stop    atomic.Bool
		chunks  atomic.Int64
	)
	for range 3 {
		joiners.Go(func() {
			for !stop.Load() {
				list, err := m.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
				if err != nil || len(list.Snapshots) != 1 {
					t.Errorf("%v: %v", list, err)
					return
				}
				s := list.Snapshots[0]
				manifest, err := avlstar.VerifyManifest(s.Metadata, avlstar.Hash(s.Hash))
				if err != nil {
					t.Error(err)
					return
				}
				for k := range s.Chunks {
					resp, err := m.LoadSnapshotChunk(context.Background(), &abci.RequestLoadSnapshotChunk{Height: s.Height, Format: s.Format, Chunk: k})
					if err != nil {
						t.Error(err)
						return
					}
					if resp.Chunk == nil {
						break // dropped
					}
					if _, err := manifest.VerifyChunk(k, resp.Chunk); err != nil {
						t.Error(err)
						return
					}
					chunks.Add(1)
				}
			}
		})
	}
	for h := int64(2); h < 200 || chunks.Load() < 500 && !t.Failed(); h++ {
		v = next(t, v, avlstar.Change{Key: fmt.Appendf(nil, "%x", h%16), Value: fmt.Append(nil, h)}, avlstar.Change{Key: fmt.Appendf(nil, "%x", (h+8)%16)})
		m.Committed(h, v)
	}
	stop.Store(true)
	joiners.Wait()
	v = next(t, v, avlstar.Change{Key: []byte("last"), Value: []byte("one")})
	require.Equal(t, 2, v.Memory().Versions, "the pinned one and the last")
	v.Release()
	require.NoError(t, m.Close())
}

// A restored state belongs to the target and, if it is served, to the pin. A failed restore leaves
// no reference.
func TestRestoredStatesAreReleased(t *testing.T) {
	want := randomTree(t, newRNG(t, 8), 100, 200)
	server := serverOf(t, want, 20)
	restore := func(fault error, knownInterval int64) (*Manager, *fakeTarget) {
		m, target := joiner(t, 2)
		target.fault.commit = fault
		require.Equal(t, offerAccept, offer(t, m, offerOf(t, server)))
		m.SetInterval(knownInterval)
		for k, chunk := range chunksOf(t, want) {
			apply(t, m, uint32(k), slices.Clone(chunk), "peer")
		}
		return m, target
	}
	for _, fault := range []error{errDisk, ErrWrongInterval} {
		_, target := restore(fault, interval)
		target.requireEmpty()
		require.NotNil(t, target.mu.refused)
		require.True(t, released(target.mu.refused))
	}
	for _, c := range []struct {
		interval int64
		served   bool
	}{{interval, true}, {interval * 7, false}} {
		m, target := restore(nil, c.interval)
		target.requireRestored(20, want)
		v := target.mu.version
		target.release()
		require.Equal(t, c.served, !released(v))
		require.NoError(t, m.Close())
		require.True(t, released(v))
	}
}

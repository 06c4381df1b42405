package storage

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestKeptStatesEqualTheModel: a kept state answers like the model of its height during flushes,
// compactions and trims. An emptied or closed zone returns nothing, and never a wrong value.
func TestKeptStatesEqualTheModel(t *testing.T) {
	rng := seeds.Rand(t)
	all, history := randomHistory(rng, 60)
	opts := testOptions(vfs.NewMem())
	opts.Generations = true
	s, err := Open("zone", opts)
	require.NoError(t, err)
	require.Nil(t, s.Kept(1<<40))
	var held []*Kept
	newest := int64(0)
	for _, b := range all {
		require.NoError(t, s.Write(b))
		if rng.IntN(3) == 0 {
			require.NoError(t, s.Flush())
			newest = b.Meta.Height
		}
		if k := s.Kept(b.Meta.Height - int64(rng.IntN(5))); k != nil {
			require.LessOrEqual(t, k.Height(), newest)
			held = append(held, k)
		}
		if k := s.Kept(1 << 40); newest > 0 {
			require.Equal(t, newest, k.Height())
			held = append(held, k)
		}
		switch rng.IntN(12) {
		case 0:
			s.Trim(b.Meta.Height-int64(rng.IntN(12)), nil)
		case 1:
			require.NoError(t, s.Compact(t.Context(), nil))
		}
		for _, k := range held {
			for range 4 {
				requireAsModel(t, k, history[k.Height()], fmt.Appendf(nil, "%d", rng.IntN(100)))
			}
		}
		for i := len(held) - 1; i >= 0; i-- {
			if rng.IntN(6) == 0 {
				held[i].Release()
				held[i].Release() // has no effect
				held = append(held[:i], held[i+1:]...)
			}
		}
	}
	require.NotEmpty(t, held)
	require.Positive(t, s.Metrics().RecordReads)
	require.NoError(t, s.Reset())
	require.Nil(t, s.Kept(1<<40))
	for _, k := range held {
		_, ok, err := k.Get([]byte("1"))
		require.NoError(t, err)
		require.False(t, ok)
	}
	require.NoError(t, s.Close())
	for _, k := range held {
		_, _, err := k.Get([]byte("1"))
		require.ErrorIs(t, err, ErrClosed)
		k.Release()
	}
}

func requireAsModel(t *testing.T, k *Kept, m model, key []byte) {
	t.Helper()
	value, ok, err := k.Get(key)
	require.NoError(t, err)
	want, there := m.leaves[string(key)]
	require.Equal(t, there, ok, "%s at %d", key, k.Height())
	require.Equal(t, want, string(value))
}

// TestKeptStatesWhileTheZoneIsEmptied: with concurrent readers, flushes and a reset, a reader gets
// the value of its state or nothing.
func TestKeptStatesWhileTheZoneIsEmptied(t *testing.T) {
	opts := testOptions(vfs.NewMem())
	opts.Generations = true
	s, err := Open("zone", opts)
	require.NoError(t, err)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				k := s.Kept(1 << 40)
				if k == nil {
					continue
				}
				value, ok, err := k.Get([]byte("key"))
				if err != nil || ok && string(value) != fmt.Sprint(k.Height()) {
					t.Errorf("height %d: %q, %v", k.Height(), value, err)
				}
				k.Release()
			}
		})
	}
	for range 5 {
		for height := int64(1); height <= 20; height++ {
			write(t, s, blockOf(height, "key", fmt.Sprint(height)))
			s.Trim(height, nil)
		}
		require.NoError(t, s.Reset())
	}
	stop.Store(true)
	wg.Wait()
	require.NoError(t, s.Close())
}

// TestDroppedStatesAreRevoked: a state that Trim dropped while it was lent is revoked with the
// others when the zone is emptied: its snapshot then shows nothing, and no iterator may be created
// on it.
func TestDroppedStatesAreRevoked(t *testing.T) {
	for name, empty := range map[string]func(*Zone) error{
		"reset": (*Zone).Reset,
		"restore": func(s *Zone) error {
			_, err := s.BeginRestore(nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := testOptions(vfs.NewMem())
			opts.Generations = true
			s, err := Open("zone", opts)
			require.NoError(t, err)
			write(t, s, blockOf(1, "key", "1"))
			old := s.Kept(1)
			write(t, s, blockOf(2, "key", "2"))
			newest := s.Kept(2)
			s.Trim(2, nil)
			require.Equal(t, 1, s.generations.count())
			require.NoError(t, empty(s))
			for _, k := range []*Kept{old, newest} {
				_, err := k.g.newCursor(nil, nil)
				require.ErrorIs(t, err, errEmptied, "height %d", k.Height())
				k.Release()
			}
			require.NoError(t, s.Close())
		})
	}
}

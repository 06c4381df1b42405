package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/crashfs"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage/seglog"
)

// After a crash before any change of the file system, the log has everything that was confirmed,
// and possibly some of the changes in progress, without gaps.
func TestRedoCrash(t *testing.T) {
	const heights, ranges = 10, 4
	seed := seeds.New(t)
	update := func(i int, height int64) []byte { // some span several blocks
		return bytes.Repeat([]byte{byte(i), byte(height)}, 1+(i+int(height))%3*4000)
	}
	run := func(c *crashfs.FS) {
		l := openRedo(t, c)
		for height := int64(1); height <= heights; height++ {
			errs := make(chan error, ranges)
			for i := range ranges {
				go func() { errs <- l.Append(server.RangeID{byte(i)}, height, update(i, height)) }()
			}
			for range ranges {
				require.NoError(t, <-errs)
			}
			c.Done.Store(height)
			for i := range ranges {
				require.NoError(t, l.Truncate(server.RangeID{byte(i)}, height-2))
			}
		}
		require.NoError(t, l.Close())
	}
	torn := 0
	check := func(t *testing.T, c *crashfs.FS) {
		l := openRedo(t, c.Left)
		if l.Torn().Bytes > 0 {
			torn++
		}
		for i := range ranges {
			id := server.RangeID{byte(i)}
			oldest, newest, ok := l.Heights(id)
			if !ok {
				require.Zero(t, c.Confirmed)
				continue
			}
			require.LessOrEqual(t, oldest, max(1, c.Confirmed-1))
			require.Contains(t, []int64{c.Confirmed, c.Confirmed + 1}, newest)
			for e, err := range l.Since(id, 0) {
				require.NoError(t, err)
				require.True(t, bytes.Equal(update(i, e.Height), e.Update))
			}
			require.NoError(t, l.Append(id, newest+1, update(i, newest+1)))
			require.NoError(t, l.Close())
			l = openRedo(t, c.Left)
			require.Equal(t, seglog.Torn{}, l.Torn())
			_, again, _ := l.Heights(id)
			require.Equal(t, newest+1, again)
		}
		require.NoError(t, l.Close())
	}
	// The number of changes depends on the groups, so a later crash may not happen.
	for n := int64(1); ; n++ {
		c := crashfs.New(t, rand.New(rand.NewPCG(seed, uint64(n))), n) //nolint:gosec // it must be reproducible
		run(c)
		if c.Left == nil {
			require.Greater(t, n, int64(20))
			break
		}
		check(t, c)
	}
	require.Positive(t, torn)
}

// A failing write, sync or removal is reported, and so by all later changes. The log opened again
// has everything that was confirmed.
func TestRedoFaults(t *testing.T) {
	for n := int64(1); ; n++ {
		mem := newCrashFS(t)
		changes, armed, injected := int64(0), false, false
		l := openRedo(t, errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if !armed || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose {
				return nil
			}
			if changes++; changes != n {
				return nil
			}
			injected = true
			return errorfs.ErrInjected
		})))
		armed = true
		confirmed, failed := [2]int64{}, error(nil)
		for step := 0; step < 45 && failed == nil; step++ {
			i := step % 3
			if i == 2 {
				failed = errors.Join(l.Truncate(server.RangeID{0}, confirmed[0]-1), l.Truncate(server.RangeID{1}, confirmed[1]-1))
				continue
			}
			if failed = l.Append(server.RangeID{byte(i)}, confirmed[i]+1, make([]byte, 900)); failed == nil {
				confirmed[i]++
			}
		}
		if !injected {
			require.NoError(t, failed)
			require.Greater(t, n, int64(60))
			return
		}
		require.ErrorIs(t, failed, errorfs.ErrInjected)
		for i := range 2 {
			require.ErrorIs(t, l.Append(server.RangeID{byte(i)}, confirmed[i]+1, nil), errorfs.ErrInjected)
			require.ErrorIs(t, l.Forget(server.RangeID{byte(i)}), errorfs.ErrInjected)
		}
		require.NoError(t, l.Close())
		l = openRedo(t, mem)
		for i, newest := range confirmed {
			_, got, _ := l.Heights(server.RangeID{byte(i)})
			require.Contains(t, []int64{newest, newest + 1}, got, fmt.Sprint("fault ", n))
			require.NoError(t, l.Append(server.RangeID{byte(i)}, got+1, nil))
		}
		require.NoError(t, l.Close())
	}
}

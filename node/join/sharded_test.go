package join

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/snapshot"
)

// fakeHeaders are the headers of a chain.
type fakeHeaders struct {
	newest   int64
	wrong    error // error of every AppHash
	conflict error
}

func (h *fakeHeaders) Newest(context.Context) (int64, error) { return h.newest, nil }
func (h *fakeHeaders) Conflict() error                       { return h.conflict }

func (h *fakeHeaders) AppHash(_ context.Context, height int64) ([]byte, error) {
	return fmt.Append(nil, "state ", height), h.wrong
}

// fakeSharded plays storage nodes that have some heights, and an application.
type fakeSharded struct {
	t              *testing.T
	oldest, newest int64
	silent         int            // number of failing calls of Newest
	broken         map[int64]bool // heights that cannot be fetched
	tried          []int64
}

func (s *fakeSharded) Newest(_ context.Context, limit int64) (int64, error) {
	if s.silent--; s.silent >= 0 {
		return 0, errors.New("nobody answers")
	}
	height := min(s.newest, limit)
	if height < s.oldest {
		return 0, errors.New("no height in common")
	}
	return height, nil
}

func (s *fakeSharded) TakeUp(_ context.Context, height int64, appHash []byte) error {
	require.Equal(s.t, fmt.Sprint("state ", height), string(appHash))
	s.tried = append(s.tried, height)
	if s.broken[height] {
		return errors.New("broken")
	}
	return nil
}

func TestTakeUp(t *testing.T) {
	for name, c := range map[string]struct {
		headers fakeHeaders
		nodes   fakeSharded
		want    int64
		tried   []int64
		pauses  time.Duration
	}{
		"behind the chain":                {fakeHeaders{newest: 20}, fakeSharded{oldest: 5, newest: 15}, 15, []int64{15}, 0},
		"CometBFT needs two headers more": {fakeHeaders{newest: 20}, fakeSharded{oldest: 5, newest: 19}, 18, []int64{18}, 0},
		"a height that nobody can have":   {fakeHeaders{newest: 20}, fakeSharded{oldest: 5, newest: 1 << 60}, 18, []int64{18}, 0},
		"silent at first":                 {fakeHeaders{newest: 20}, fakeSharded{oldest: 5, newest: 15, silent: 3}, 15, []int64{15}, 3},
		"an older one": {
			fakeHeaders{newest: 20}, fakeSharded{oldest: 5, newest: 15, broken: map[int64]bool{15: true, 14: true}},
			13, []int64{15, 14, 13}, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.nodes.t = t
				began := time.Now()
				height, err := takeUp(t.Context(), &c.headers, &c.nodes, log.NewNopLogger())
				require.NoError(t, err)
				require.Equal(t, c.want, height)
				require.Equal(t, c.tried, c.nodes.tried)
				require.Equal(t, c.pauses*takeUpPause, time.Since(began))
			})
		})
	}
}

// A join waits for a chain or storage nodes that are not up yet, and retries newer heights after it
// has tried all.
func TestTakeUpWaits(t *testing.T) {
	for name, c := range map[string]struct {
		headers fakeHeaders
		nodes   fakeSharded
		tried   bool
	}{
		"a chain of two blocks":     {fakeHeaders{newest: 2}, fakeSharded{newest: 1}, false},
		"storage nodes ahead":       {fakeHeaders{newest: 20}, fakeSharded{oldest: 30, newest: 40}, false},
		"no state yet":              {fakeHeaders{newest: 20}, fakeSharded{}, false},
		"all heights are of no use": {fakeHeaders{newest: 20}, fakeSharded{oldest: 17, newest: 18, broken: map[int64]bool{17: true, 18: true}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.nodes.t = t
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := takeUp(ctx, &c.headers, &c.nodes, log.NewNopLogger())
				require.ErrorIs(t, err, context.DeadlineExceeded)
				if c.tried {
					require.Equal(t, []int64{18, 17, 18, 17}, c.nodes.tried[:4])
				} else {
					require.Empty(t, c.nodes.tried)
				}
			})
		})
	}
}

func TestTakeUpEnds(t *testing.T) {
	for _, h := range []fakeHeaders{
		{newest: 20, wrong: fmt.Errorf("%w: too new", snapshot.ErrHopeless)},
		{newest: 20, conflict: fmt.Errorf("%w: two headers", lightblocks.ErrConflict)},
	} {
		_, err := takeUp(t.Context(), &h, &fakeSharded{t: t, oldest: 1, newest: 18}, log.NewNopLogger())
		require.ErrorIs(t, err, snapshot.ErrHopeless)
	}
}

func TestDecideSharded(t *testing.T) {
	o := Options{Config: &config.Config{CometBFT: config.DefaultCometBFT(), App: config.DefaultApp()}, Sharded: &fakeSharded{}}
	decide := func() Way {
		t.Helper()
		way, err := Decide(o)
		require.NoError(t, err)
		return way
	}
	require.Equal(t, None, decide())
	o.Config.CometBFT.StateSync.Enable = true
	require.Equal(t, New, decide())
	require.False(t, o.InBand())
	o.OnlyValidator = true
	require.Equal(t, None, decide())
	o.OnlyValidator, o.Have = false, comet.Heights{Block: 5, State: 5, Base: 1}
	require.Equal(t, None, decide(), "it continues by its blocks")
	o.Have = comet.Heights{}
	o.Config.App.Join.Mode = config.JoinCometBFT
	_, err := Decide(o)
	require.ErrorIs(t, err, config.ErrInvalid)
}

package health

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// well are the facts of a node that is ready.
func well() Facts {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	return Facts{
		Now: now, Started: true, Height: 100, BlockTime: now.Add(-2 * time.Second), MaxBlockAge: time.Minute, MaxPending: 20 * time.Second,
		Disk: &Disk{Free: 1 << 30, Minimum: 64 << 20},
	}
}

func TestOf(t *testing.T) {
	for _, c := range []struct {
		name        string
		change      func(*Facts)
		live, ready bool
		line        string
	}{
		{"well", func(*Facts) {}, true, true, "ready at height 100"},
		{"a clock that is behind", func(f *Facts) { f.BlockTime = f.Now.Add(time.Hour) }, true, true, "ready at height 100"},
		{"the disk is not checked", func(f *Facts) { f.Disk = nil }, true, true, "ready at height 100"},
		{"no minimum", func(f *Facts) { f.Disk = &Disk{Free: 1} }, true, true, "ready at height 100"},
		{"twice the minimum", func(f *Facts) { f.Disk.Free = 128 << 20 }, true, true, "ready at height 100"},
		{"a largest minimum", func(f *Facts) { f.Disk.Minimum = 1<<63 - 1 }, true, false, "not ready: disk low: 1024.0 MiB free, the node stops below 8796093022208.0 MiB: free some space"},
		{"less than twice the minimum", func(f *Facts) { f.Disk.Free = 128<<20 - 2 }, true, false, "not ready: disk low: 128.0 MiB free, the node stops below 64.0 MiB: free some space"},
		{"an old block", func(f *Facts) { f.BlockTime = f.Now.Add(-61 * time.Second) }, true, false, "not ready: block 100 is 1m1s old, more than 1m0s"},
		{"an old block where blocks are made only for transactions", func(f *Facts) { f.BlockTime, f.MaxBlockAge = time.Time{}, 0 }, true, true, "ready at height 100"},
		{"a block in its first round", func(f *Facts) { f.Pending = &Pending{101, 0, f.Now.Add(-20 * time.Second)} }, true, true, "ready at height 100"},
		{"rounds that time out", func(f *Facts) { f.Pending = &Pending{101, 3, f.Now.Add(-21 * time.Second)} }, true, false,
			"not ready: block 101 has been pending for 21s, in round 3: the chain is stalled (limit 20s)"},
		{"the same where blocks are made only for transactions", func(f *Facts) {
			f.Pending, f.MaxBlockAge = &Pending{101, 3, f.Now.Add(-21 * time.Second)}, 0
		}, true, false, "not ready: block 101 has been pending for 21s, in round 3: the chain is stalled (limit 20s)"},
		{"a clock that was set back", func(f *Facts) { f.Pending = &Pending{101, 0, f.Now.Add(time.Hour)} }, true, true, "ready at height 100"},
		{"no block", func(f *Facts) { f.Height = 0 }, true, false, "not ready: no block yet"},
		{"catching up", func(f *Facts) { f.CatchingUp = true }, true, false, "not ready: fetching blocks, at height 100"},
		{"joining", func(f *Facts) { f.Joining, f.Started, f.Height = "12 of 300 chunks", false, 0 }, true, false,
			"not ready: joining: 12 of 300 chunks; the node has not started yet; no block yet"},
		{"waiting for storage nodes", func(f *Facts) { f.Waiting = "no storage node answers" }, true, false,
			"not ready: waiting for storage nodes: no storage node answers"},
		{"a replica is down", func(f *Facts) { f.Degraded = "a is down" }, true, true, "ready at height 100; degraded: a is down"},
		{"a replica is down and the node is behind", func(f *Facts) { f.Degraded, f.CatchingUp = "a is down", true }, true, false,
			"not ready: fetching blocks, at height 100; degraded: a is down"},
		{"a block without a known time", func(f *Facts) { f.BlockTime = time.Time{} }, true, false, "not ready: the time of block 100 is not known yet"},
		{"failed", func(f *Facts) { f.Failed = errors.New("consensus has ended: x") }, false, false, "not ready: the node is stopping: consensus has ended: x"},
	} {
		facts := well()
		c.change(&facts)
		r := Of(facts)
		require.Equal(t, c.live, r.Live, c.name)
		require.Equal(t, c.ready, r.Ready, c.name)
		require.Equal(t, c.line, r.Line(false), c.name)
		require.Equal(t, map[bool]string{true: "live", false: "not live: the node is stopping: consensus has ended: x"}[c.live], r.Line(true), c.name)
		var names []string
		for _, check := range r.Checks {
			names = append(names, check.Name)
			require.NotEmpty(t, check.Detail)
		}
		require.Equal(t, []string{NameFailure, NameJoin, NameSync, NameBlocks, NameRound, NameDisk, NameState, NameReplicas}, names)
	}
}

func TestHandlers(t *testing.T) {
	facts := well()
	mux := new(http.ServeMux)
	Register(mux, func() Report { return Of(facts) })
	ask := func(method, path string) (int, Report) {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(method, path, nil))
		var r Report
		if answer.Header().Get("Content-Type") == "application/json" {
			require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &r))
		}
		return answer.Code, r
	}
	status := func(path string) int {
		code, r := ask(http.MethodGet, path)
		require.Equal(t, Of(facts), r)
		return code
	}
	require.Equal(t, http.StatusOK, status(PathLive))
	require.Equal(t, http.StatusOK, status(PathReady))
	facts.CatchingUp = true
	require.Equal(t, http.StatusOK, status(PathLive))
	require.Equal(t, http.StatusServiceUnavailable, status(PathReady))
	facts.Failed = errors.New("x")
	require.Equal(t, http.StatusServiceUnavailable, status(PathLive))
	code, _ := ask(http.MethodPost, PathLive)
	require.Equal(t, http.StatusMethodNotAllowed, code)
}

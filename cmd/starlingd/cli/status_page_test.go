package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/health"
	"github.com/starling-kv/starling/node/statuspage"
)

// If RPC does not answer yet, the node's status page reports the progress, as text and as JSON.
func TestStatusBeforeRPC(t *testing.T) {
	home := t.TempDir()
	var out, errOut bytes.Buffer
	require.Zero(t, Run([]string{"init", "ann", "--home", home, "--chain-id", "demo-1", "--open"}, &out, &errOut), &errOut)
	nobody := freeAddress(t)
	t.Setenv("STARLINGD_RPC_LADDR", "tcp://"+nobody)
	var page any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == statusPath {
			_ = json.NewEncoder(w).Encode(page)
		}
	}))
	defer server.Close()
	t.Setenv("STARLINGD_STATUS_LADDR", server.Listener.Addr().String())
	status := func(more ...string) (string, string, int) {
		var out, errOut bytes.Buffer
		code := Run(append([]string{"status", "--home", home}, more...), &out, &errOut)
		return out.String(), errOut.String(), code
	}
	of := func(phase string, change func(*statuspage.Status)) statuspage.Status {
		s := statuspage.Status{
			Time: time.Now(), Phase: phase, Node: statuspage.Node{Moniker: "ann\x1b[2J", ID: "id", ChainID: "demo-1", Version: "v1"},
			Chain: statuspage.Chain{Height: 1200, AppHash: "cafe", Validator: &statuspage.Validator{Power: 10}},
		}
		if change != nil {
			change(&s)
		}
		return s
	}
	blocks := &statuspage.CatchUp{
		State: "catch_up", Height: 1200, Target: 5000, Blocks: 200, Bytes: 1 << 30, Rate: 12 << 20, BlockRate: 85.33, Connected: 3, Banned: 1, Seconds: 61, SecondsLeft: 44.6,
	}
	for name, c := range map[string]struct {
		page statuspage.Status
		says []string
	}{
		"blocks": {of(statuspage.PhaseCatchingUp, func(s *statuspage.Status) { s.CatchUp = blocks }), []string{
			"phase +fetching and executing blocks", "progress +block 1200 of 5000", `speed +85\.3 blocks/s, 12 MiB/s`,
			"time +1m1s so far, about 45s left", "peers +3, 1 banned", "state +height 1200, app hash cafe",
		}},
		"state": {of(statuspage.PhaseJoining, func(s *statuspage.Status) {
			s.CatchUp = &statuspage.CatchUp{State: "state_sync"}
			s.Join = &statuspage.Join{
				Phase: "fetching", Height: 4000, Chunks: 300, ChunksDone: 120, Bytes: 3 << 30, BytesDone: 1 << 30, Rate: 100 << 20, Seconds: 10, Connected: 2,
			}
		}), []string{
			"phase +fetching the state", `progress +120 of 300 chunks, 1\.0 GiB of 3\.0 GiB, state at height 4000 \(fetching\)`,
			"speed +100 MiB/s", `time +10s so far\n`, `peers +2\n`,
		}},
		"looking": {of(statuspage.PhaseJoining, func(s *statuspage.Status) {
			s.Join = &statuspage.Join{Phase: "looking"}
		}), []string{"phase +fetching the state", "progress +looking for peers and a snapshot", `peers +0\n`}},
		"after it": {of(statuspage.PhaseStarting, func(s *statuspage.Status) {
			over := *blocks
			over.State, s.CatchUp = "normal", &over
		}), []string{"phase +starting: "}},
		"CometBFT's blocks":     {of(statuspage.PhaseCatchingUp, nil), []string{"phase +CometBFT's block sync"}},
		"CometBFT's state sync": {of(statuspage.PhaseStateSync, nil), []string{"phase +CometBFT's own state sync"}},
		"RPC that fails":        {of(statuspage.PhaseRunning, nil), []string{"phase +following consensus"}},
		"storage nodes": {of(statuspage.PhaseStarting, func(s *statuspage.Status) {
			s.Sharded = &statuspage.Sharded{Waiting: "no node answers"}
		}), []string{"waiting +no node answers"}},
		"a newer node": {of("sleeping\x1b[2J", nil), []string{`phase +"sleeping`}},
	} {
		page = c.page
		got, said, code := status()
		require.Zero(t, code, "%s: %s", name, said)
		require.NotContains(t, got, "\x1b", name)
		for _, words := range append(c.says, "node +.*at http://"+server.Listener.Addr().String(), "chain +demo-1", "RPC +no response from http://"+nobody+": .*connection refused\n") {
			require.Regexp(t, words, got, name)
		}
	}

	page = of(statuspage.PhaseCatchingUp, func(s *statuspage.Status) { s.CatchUp = blocks })
	got, _, code := status("--output", "json")
	require.Zero(t, code)
	var answer struct {
		NoRPC       string `json:"no_rpc"`
		Phase       string
		VotingPower int64 `json:"voting_power"`
		CatchingUp  bool  `json:"catching_up"`
		Validators  []any
		CatchUp     statuspage.CatchUp `json:"catch_up"`
	}
	require.NoError(t, json.Unmarshal([]byte(got), &answer))
	require.Contains(t, answer.NoRPC, "connection refused")
	require.Equal(t, statuspage.PhaseCatchingUp, answer.Phase)
	require.Equal(t, int64(10), answer.VotingPower)
	require.True(t, answer.CatchingUp)
	require.NotNil(t, answer.Validators)
	require.Equal(t, *blocks, answer.CatchUp)

	// --node may name another machine's node: the status page of this home is not asked.
	_, said, code := status("--node", "http://"+nobody)
	require.Equal(t, exitFailed, code)
	require.Equal(t, 1, bytes.Count([]byte(said), []byte("\n")), said)

	for what, c := range map[string]struct {
		page any
		says string
	}{
		"another program": {[]int{1}, "is this another program's address"},
		"no phase":        {map[string]int{"a": 1}, "no phase in the response"},
		"a health report": {health.Report{}, "no phase in the response"},
	} {
		page = c.page
		_, said, code := status()
		require.Equal(t, exitFailed, code, what)
		require.Contains(t, said, c.says, what)
		require.Contains(t, said, "no response from http://"+nobody, what)
	}
	t.Setenv("STARLINGD_STATUS_LADDR", nobody)
	_, said, code = status()
	require.Equal(t, exitFailed, code)
	require.Contains(t, said, "nor from its status page, http://"+nobody+" (status.laddr): ")
	require.Contains(t, said, "it is served once the node has read its state")
	home = t.TempDir()
	_, said, code = status()
	require.Equal(t, exitFailed, code)
	require.Contains(t, said, "is not a home folder")
}

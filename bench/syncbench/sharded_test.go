package syncbench

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

func TestShardedRows(t *testing.T) {
	s := &shardedSiege{o: SiegeOptions{Keys: 1000, Kinds: []string{"claims", "uppers", mixed}, Repeat: 1, Seconds: 30, Limit: 60}, rows: map[string]*ShardedRow{}}
	*s.row(honest) = ShardedRow{intervals: []float64{200, 300}, HaltS: 0.3, witnesses: []float64{2, 4}, JoinsS: []float64{5}, RSSMB: 100}
	*s.row("claims") = ShardedRow{intervals: []float64{250, 450}, HaltS: 0.5, witnesses: []float64{3, 5}, JoinsS: []float64{6}, RSSMB: 120}
	*s.row("uppers") = ShardedRow{intervals: []float64{250, 500}, HaltS: 0.6, witnesses: []float64{3, 12}, WitnessFailed: 2, JoinsS: []float64{60}, Unended: 1, RSSMB: 130}
	*s.row(mixed) = ShardedRow{HaltS: 30, witnesses: []float64{3, 6}, JoinsS: []float64{20}, RSSMB: 500}
	r := s.result()
	require.Equal(t, 1.5, r.Kinds["claims"].BlockX)
	require.Equal(t, 100.0, r.Kinds[mixed].BlockX, "without blocks, the halt counts")
	require.Equal(t, []harness.Target{
		{Name: "no halt above 5 s", Figure: 30, Measure: "30 s with mixed"},
		{Name: "p99 of blocks at most twice that without attackers", Figure: 100, Measure: "100× with mixed"},
		{Name: "p99 of witnesses at most twice that without attackers", Figure: 3, Measure: "3× with uppers"},
		{Name: "no witness failed", Figure: 2, Measure: "2 of 2 with uppers"},
		{Name: "a join within three times the honest time and 10 s", Figure: 60, Measure: "60 s, at most 25 s with uppers"},
		{Name: "memory of a node within its budget for strangers and 20 %", Figure: 500, Measure: "500 MB, at most 442 MB with mixed"},
	}, r.Targets)

	blocks := func() harness.Target { return s.result().Targets[1] }
	delete(s.rows, mixed)
	s.o.Kinds = []string{"claims", "uppers"}
	require.Equal(t, "the p99 of 2 blocks is nearly their longest time", blocks().Undecided)
	for _, row := range s.rows {
		row.intervals = slices.Repeat(row.intervals, 50)
	}
	require.Equal(t, harness.Target{
		Name: "p99 of blocks at most twice that without attackers", Met: true, Figure: 500. / 300, Measure: "1.67× with uppers",
	}, blocks())
	s.rows["uppers"].witnesses, s.rows["uppers"].WitnessFailed = nil, 0
	require.Equal(t, "not measured with uppers", s.result().Targets[2].Undecided)
	require.Equal(t, harness.Target{Name: "no witness failed", Figure: 1, Measure: "none measured with uppers"}, s.result().Targets[3])

	// Few blocks do not excuse a miss, and one kind with few does not hide another one.
	s.rows["claims"].intervals = []float64{700}
	require.Equal(t, harness.Target{
		Name: "p99 of blocks at most twice that without attackers", Figure: 700. / 300, Measure: "2.33× with claims",
	}, blocks())
	s.rows["claims"].intervals = []float64{250}
	require.Equal(t, "the p99 of 1 blocks is nearly their longest time", blocks().Undecided)
}

// A failed measurement counts as long as the patience, or as it took.
func TestSamplesOfFailures(t *testing.T) {
	s := samples{patience: time.Hour}
	s.add(time.Now().Add(-time.Minute), nil)
	s.add(time.Now().Add(-time.Minute), errors.New("refused"))
	s.add(time.Now().Add(-2*time.Hour), errors.New("refused"))
	millis, failed := s.take()
	require.Equal(t, 2, failed)
	require.Len(t, millis, 3)
	require.Less(t, millis[0], 3_600_000.0)
	require.InDelta(t, 3_600_000, millis[1], 0)
	require.GreaterOrEqual(t, millis[2], 7_200_000.0)
}

// All attackers of each kind start and stop, although no victim answers. The relay advertises those
// that listen.
func TestStrangers(t *testing.T) {
	if err := manyLoopbacks(); err != nil {
		t.Skip("NOT RUN: ", err)
	}
	s, err := openStrangers()
	require.NoError(t, err)
	nobody := []string{"0123456789abcdef0123456789abcdef01234567@127.0.0.1:1"}
	unreachable := victims{Storage: nobody, Validators: nobody, RPCs: []string{"http://127.0.0.1:1"}}
	d, err := newDialer(s.relay.target)
	require.NoError(t, err)
	relay, err := s.relay.target.addresses()
	require.NoError(t, err)
	conn, err := d.Dial(t.Context(), relay[0])
	require.NoError(t, err)
	for _, kind := range append(ShardedKinds, mixed, "") {
		require.NoError(t, s.prepare(kind), kind)
		require.NoError(t, s.attack(kind, unreachable), kind)
		list, err := conn.Call(t.Context(), transport.Call{Method: protocol.MethodPeers, Max: protocol.MaxPeersBytes})
		require.NoError(t, err, kind)
		peers, err := protocol.DecodePeers(list)
		require.NoError(t, err, kind)
		require.Len(t, peers, map[string]int{"claims": advertised, "givers": advertised, "silent": advertised, mixed: 3 * advertised}[kind], kind)
		if len(peers) > 0 {
			peer, err := d.Dial(t.Context(), peers[0])
			require.NoError(t, err, kind)
			_, err = peer.Call(t.Context(), transport.Call{Method: protocol.MethodPeers, Max: protocol.MaxPeersBytes})
			require.NoError(t, err, kind)
			require.NoError(t, peer.Close())
		}
	}
	require.NoError(t, conn.Close())
	require.NoError(t, s.close())
}

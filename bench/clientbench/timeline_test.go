package clientbench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A step ends at the node that completes two thirds, and the steps add up to the put.
func TestTimelineSteps(t *testing.T) {
	start := time.Unix(0, 0)
	at := func(ms ...int) (times []time.Time) {
		for _, m := range ms {
			times = append(times, start.Add(time.Duration(m)*time.Millisecond))
		}
		return times
	}
	complete := &heightEvents{}
	for step := stepSpread; step < stepAnswer; step++ {
		complete.at[step] = at(10*step, 10*step+1, 10*step+2, 10*step+30)
	}
	put := timedPut{height: 7, began: start, accepted: at(5)[0], answered: at(90)[0]}
	events := &blockEvents{of: map[int64]*heightEvents{7: complete, 8: {rounds: true}, 9: {}}}
	l := Timeline{Validators: 4}
	l.add([]timedPut{put, {height: 8}, {height: 9}, {height: 10}}, events)
	require.Equal(t, 1, l.Puts)
	require.Equal(t, 3, l.Left)
	want := map[string]float64{"accept": 5, "propose": 15, "spread": 2, "prevote": 10, "polka": 10, "precommit": 10, "decide": 10, "answer": 28}
	require.Len(t, l.Steps, len(want))
	for name, ms := range want {
		require.InDelta(t, ms, l.Steps[name], 1e-9, name)
	}
	require.InDelta(t, 90, l.PutMS, 1e-9)
	require.InDelta(t, 90, l.P50MS, 1e-9)
}

func TestParseSyncs(t *testing.T) {
	const report = `strace: Process 10 attached with 9 threads
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 90.00    0.900000        1000       900         1 fdatasync
 10.00    0.100000        1000       100           fsync
------ ----------- ----------- --------- --------- ----------------
100.00    1.000000        1000      1000         1 total
`
	syncs := parseSyncs([]byte(report), 100)
	require.InDelta(t, 10, syncs.PerBlock, 1e-9)
	require.InDelta(t, 1, syncs.MS, 1e-9)
	require.Nil(t, parseSyncs([]byte(report), 0))
	require.Nil(t, parseSyncs([]byte("strace: attach: ptrace(PTRACE_SEIZE, 10): Operation not permitted\n"), 100))
	require.Equal(t, "-", (*Syncs)(nil).perBlock())
}

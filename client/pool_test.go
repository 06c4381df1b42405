package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOrder: nodes are asked in the order of rank, and then of distance.
func TestOrder(t *testing.T) {
	now := time.Now()
	ready := func(d time.Duration) record { return record{admitted: true, latency: d} }
	later := now.Add(time.Second)
	for name, test := range map[string]struct {
		records []record
		best    int
		want    []int
	}{
		"nobody":             {nil, -1, nil},
		"as given":           {make([]record, 3), -1, []int{0, 1, 2}},
		"near first":         {[]record{ready(3), ready(1), ready(2)}, -1, []int{1, 2, 0}},
		"about equal":        {[]record{ready(10), ready(12), ready(11)}, 1, []int{1, 0, 2}},
		"a third nearer":     {[]record{ready(10), ready(18), ready(11)}, 1, []int{0, 2, 1}},
		"the best was lost":  {[]record{ready(10), {lost: errLost}, ready(11)}, 1, []int{0, 2, 1}},
		"silent":             {[]record{{admitted: true, latency: 1, penalty: 200}, ready(100)}, 0, []int{1, 0}},
		"ranks":              {[]record{{doubted: later}, {lost: errLost}, {behind: later, admitted: true}, {}, ready(9), {foreign: ErrWrongChain}}, 5, []int{4, 3, 2, 1, 0}},
		"behind, until now":  {[]record{ready(2), {behind: now, admitted: true, latency: 1}}, -1, []int{1, 0}},
		"doubted, though ok": {[]record{ready(2), {doubted: later, admitted: true, latency: 1}}, 1, []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, order(now, test.records, test.best)) })
	}
}

func TestMeasured(t *testing.T) {
	r := new(record)
	for _, step := range []struct{ took, want time.Duration }{{100, 100}, {200, 125}, {50, 50}, {50, 50}} {
		r.measured(step.took)
		require.Equal(t, step.want, r.latency)
	}
	r.penalty = 200
	require.EqualValues(t, 200, r.distance())
	r.measured(80)
	require.EqualValues(t, 80, r.distance(), "measurements before the silence are discarded")
}

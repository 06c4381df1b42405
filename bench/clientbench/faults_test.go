package clientbench

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// A cost is the difference of the mean times, round by round. A target that is missed by intervals
// that overlap is undecided.
func TestCostOfAFault(t *testing.T) {
	o := FaultsOptions{Workers: 8, Faults: []string{"silent", "slow", "accused"}}
	rounds := map[string]map[string][]Figures{}
	add := func(kind, fault string, rates ...float64) {
		var all []Figures
		for _, rate := range rates {
			all = append(all, Figures{Rate: rate})
		}
		rounds[faultyName(kind, fault)] = map[string][]Figures{OpPut: all}
	}
	add(nameStarling, faultNone, 800, 400, 800)
	add(faultyKVStore, faultNone, 400, 400, 400)
	add(nameStarling, "silent", 80, 80, 80)     // 90, 80, 90 ms more
	add(faultyKVStore, "silent", 40, 40, 40)    // 180 ms more
	add(nameStarling, "slow", 100, 100, 50)     // 70, 60, 150
	add(faultyKVStore, "slow", 200, 200, 100)   // 20, 20, 60
	add(nameStarling, "accused", 800, 400, 800) // none

	r := newFaultsResult(o, rounds)
	require.Len(t, r.Faults, 4)
	require.InDelta(t, 0, r.Faults[0].StarlingCost.Median, 1e-9)
	require.InDelta(t, 90, r.Faults[1].StarlingCost.Median, 1e-9)
	require.InDelta(t, 80, r.Faults[1].StarlingCost.Low, 1e-9)
	require.InDelta(t, 180, r.Faults[1].KVStoreCost.Median, 1e-9)
	require.Nil(t, r.Faults[3].KVStore)
	require.Len(t, r.Targets, 2)
	require.True(t, r.Targets[0].Met)
	require.False(t, r.Targets[1].Met)
	require.NotEmpty(t, r.Targets[1].Undecided, "60 to 150, and 20 to 60")

	var out bytes.Buffer
	r.Print(&out)
	require.Contains(t, out.String(), "90 [80, 90]")
	require.NotContains(t, out.String(), "accused   kvstore")
}

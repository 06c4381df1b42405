package transportbench

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport/rdma"
)

// TestFlight: concurrent calls stay within the memory that a server lends to one host.
func TestFlight(t *testing.T) {
	require.Equal(t, 4, flightOf(64<<10, 8))
	require.Equal(t, 4, flightOf(4<<20, 2))
	require.Equal(t, 1, flightOf(4<<20, 8))
}

func TestDevices(t *testing.T) {
	at := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	ports := []rdma.Port{
		{Device: "rxe0", Err: errors.New("it is down")}, {Device: "ib0"}, {Device: "rxe1", Addrs: at("10.7.0.2")}, {Device: "rxe2", Addrs: at("10.7.0.3")},
	}
	for device, want := range map[string]ends{
		"":               {"10.7.0.2", "10.7.0.2", "rxe1"},
		"rxe2":           {"10.7.0.3", "10.7.0.3", "rxe2"},
		"rxe2,rxe1":      {"10.7.0.3", "10.7.0.2", "rxe2,rxe1"},
		"10.8.0.1,rxe1":  {"10.8.0.1", "10.7.0.2", "10.8.0.1,rxe1"},
		"fd00::1,ib0":    {},
		"rxe0":           {},
		"rxe2,no-device": {},
	} {
		e, absent, err := choose(device, ports, nil)
		require.NoError(t, absent)
		if want == (ends{}) {
			require.ErrorContains(t, err, "no RDMA device ", device)
			require.ErrorContains(t, err, "\nit takes a build with -tags rdma", device)
			continue
		}
		require.NoError(t, err, device)
		require.Equal(t, want, e)
	}
	for device, want := range map[string]string{
		"mlx5_0,mlx5_1": "no RDMA device mlx5_0: the kernel has none\n", "rxe2,mlx5_1": `no RDMA device mlx5_1: none of ["rxe0" "ib0" "rxe1" "rxe2"] has that name`,
		"rxe0": "no RDMA device rxe0: it is down\n",
	} {
		var fails error
		if strings.HasPrefix(device, "mlx5_0") {
			fails = errors.New("the kernel has none")
		}
		_, _, err := choose(device, ports, fails)
		require.ErrorContains(t, err, want)
	}
	_, _, err := choose("mlx5_0", nil, nil)
	require.ErrorContains(t, err, "no RDMA device mlx5_0: this machine has none\n")
	e, absent, err := choose("", ports[:2], nil)
	require.NoError(t, err)
	require.ErrorContains(t, absent, "none of 2 RDMA ports")
	require.Equal(t, ends{loopback, loopback, ""}, e)
}

// TestResult checks medians of three rounds, and ratios round by round.
func TestResult(t *testing.T) {
	const bytesOf = 1 << 30
	rdmaTurn := &turn{path: pathRDMA, size: 1 << 20, peers: 2, samples: []sample{
		{bytes: bytesOf, seconds: 1, server: 1, client: 2, machine: 12, events: 3 << 10},
		{bytes: bytesOf, seconds: 2, server: 3, client: 4, machine: 40, events: 2 << 10},
		{bytes: bytesOf, seconds: 4, server: 5, client: 6, machine: 20, events: 9 << 10},
	}}
	raw := &turn{path: pathReference, size: 1 << 20, peers: 2, samples: []sample{
		{bytes: bytesOf, seconds: 1, machine: 10, events: 1 << 10}, {bytes: bytesOf, seconds: 1, machine: 20, events: 1 << 10}, {bytes: bytesOf, seconds: 1, machine: 20, events: 1 << 10},
	}}
	tls := &turn{path: pathTLS, size: 1 << 20, peers: 2, samples: []sample{{bytes: bytesOf, seconds: 1, machine: -1}}}
	r := newResult(Options{Rounds: 3}, []*turn{tls, rdmaTurn, raw})
	require.Len(t, r.Runs, 2)
	require.Nil(t, r.Runs[0].CPUMachine, "unknown")
	require.Nil(t, r.Runs[0].Events)
	row := r.Runs[1]
	require.InDelta(t, bytesOf/2e6, row.MBPerS, 1e-6)
	require.InDelta(t, 3, row.CPUServer, 1e-9)
	require.InDelta(t, 4, row.CPUClient, 1e-9)
	require.InDelta(t, 20, *row.CPUMachine, 1e-9)
	require.InDelta(t, 3, *row.Events, 1e-9)
	require.InDelta(t, 1.2, *row.Times, 1e-9)
	require.Equal(t, []ReferenceRow{{Size: 1 << 20, BesidePeers: 2, MBPerS: bytesOf / 1e6, CPUMachine: 20, Events: 1}}, r.Reference)
	requireTargets := func(want ...string) {
		t.Helper()
		var out bytes.Buffer
		r.Guest, r.Targets = true, r.targets()
		r.Print(&out)
		_, got, found := strings.Cut(out.String(), "\nTargets (set for the emulated VM)\n")
		require.True(t, found, out.String())
		require.Equal(t, strings.Join(want, "\n")+"\n", got)
	}
	events := "  met       rdma at most 6 events a MiB and side: 3.00 with 1MiB to 2 peers"
	requireTargets("  met       rdma at most 1.5× raw: 1.20× with 1MiB to 2 peers", events)
	*r.Runs[1].Times = 1.6
	requireTargets("  not met   rdma at most 1.5× raw: 1.60× with 1MiB to 2 peers", events)
	r.Runs[1].Times = nil
	requireTargets(events)
}

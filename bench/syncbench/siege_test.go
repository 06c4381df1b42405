package syncbench

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

func TestSiegeRows(t *testing.T) {
	s := &siege{o: SiegeOptions{Keys: 1000, Kinds: []string{"dawdle", "pending", mixed, transactions}, Repeat: 1, Blocks: harness.FewBlocks, Limit: 60}, rows: map[string]*SiegeRow{}}
	*s.row(honest) = SiegeRow{JoinS: 1, joinCPU: 1, RateMBS: 100, StatusMS: 50, BlockMS: 4}
	*s.row("dawdle") = SiegeRow{JoinS: 13, joinCPU: 2}
	*s.row("pending") = SiegeRow{RateMBS: 60, StatusMS: 300, BlockMS: 6, Kept: 2}
	*s.row(mixed) = SiegeRow{JoinS: 14, RateMBS: 40, StatusMS: 200, BlockMS: 7}
	*s.row(transactions) = SiegeRow{TxBlocks: 11, TxTimeS: 3}
	r := s.result()
	require.Equal(t, 13.0, r.Kinds["dawdle"].JoinX)
	require.Equal(t, 0.6, r.Kinds["pending"].RateX)
	require.Zero(t, r.Kinds["pending"].JoinX)
	got := map[string]string{}
	for _, g := range r.Targets {
		got[g.Name] = map[bool]string{true: "met ", false: "not met "}[g.Met] + g.Measure
	}
	require.Equal(t, map[string]string{
		"a join within three times the honest time and 10 s":       "not met 14 s, at most 13 s with mixed",
		"an honest joiner keeps half of its rate":                  "not met 0.4× with mixed",
		"a newcomer's status within 1 s":                           "met 300 ms with pending",
		"no newcomer is kept out":                                  "not met 2 with pending",
		"transactions of 10,000 deletes: all in within ten blocks": "not met 11 with transactions",
		"… every block in round 0":                                 "met round 0 with transactions",
		"p99 of a commit at most twice that without attackers":     "met 1.75× with mixed",
	}, got)
	var out bytes.Buffer
	r.Print(&out)
	require.NotContains(t, out.String(), "%!", "a format does not match its arguments")

	for _, c := range []struct{ asked, joins, serves []string }{
		{[]string{"dawdle", mixed}, []string{honest, "dawdle", mixed}, nil},
		{[]string{"idle"}, nil, []string{honest, "idle"}},
		{[]string{mixed}, []string{honest, mixed}, []string{honest, mixed}},
		{[]string{mixed, transactions}, []string{honest, mixed}, []string{honest, mixed}},
		{[]string{transactions}, nil, nil},
	} {
		s.o.Kinds = c.asked
		require.Equal(t, c.joins, s.of(JoinKinds), c.asked)
		require.Equal(t, c.serves, s.of(ServeKinds), c.asked)
	}
}

// Every kind has its attackers, and a besieger that is stopped leaves no attacker running.
func TestBesieger(t *testing.T) {
	if err := manyLoopbacks(); err != nil {
		t.Skip("NOT RUN: ", err)
	}
	for _, kind := range ServeKinds {
		require.Contains(t, attacks, kind)
	}
	require.Len(t, attacks, len(ServeKinds))
	v := loaded(t, 30_000)
	s := serveOnly(v)
	require.NoError(t, s.listen(tcp.Options{}, nil))
	b := &besieger{version: v}
	for _, kind := range append(JoinKinds, mixed) {
		a, err := b.besiege(request{Kind: kind, Target: s.target, Seed: 1})
		require.NoError(t, err, kind)
		d, err := newDialer(a.Target)
		require.NoError(t, err)
		told := map[transport.ID]int{}
		relays, err := a.Target.addresses()
		require.NoError(t, err)
		for _, relay := range relays {
			conn, err := d.Dial(t.Context(), relay)
			require.NoError(t, err, kind)
			list, err := conn.Call(t.Context(), transport.Call{Method: protocol.MethodPeers, Max: 1 << 16})
			require.NoError(t, err)
			for rest := list[2:]; len(rest) > 0; {
				n := 2 + int(rest[0])<<8 + int(rest[1])
				address, err := transport.ParseAddress(string(rest[2:n]))
				require.NoError(t, err)
				told[address.ID]++
				rest = rest[n:]
			}
			require.NoError(t, conn.Close())
		}
		peers, err := s.target.addresses()
		require.NoError(t, err)
		want := map[string]int{"dawdle": 41, "garbage": 41, "sybils": 129, "proxy": 1, mixed: 209}[kind]
		require.Len(t, told, want, kind)
		require.Equal(t, map[bool]int{true: 2, false: 1}[kind == "proxy" || kind == mixed], told[peers[0].ID], kind)
	}
	for _, kind := range append(ServeKinds, mixed) {
		siegeOf(kind, s.target)() // returns when all attackers have stopped
	}
	require.NoError(t, b.close())
	require.NoError(t, s.close())
}

func TestStingy(t *testing.T) {
	near, far := net.Pipe()
	s := &stingy{Conn: near, closed: make(chan struct{})}
	s.stop(false, true)
	written := make(chan int, 1)
	go func() {
		n, _ := s.Write(make([]byte, 5<<10)) // returns when the connection is closed
		written <- n
	}()
	_, err := io.ReadFull(far, make([]byte, 4<<10))
	require.NoError(t, err)
	s.stop(true, false)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.Zero(t, <-written)
	_, err = s.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestSiegeJudgesNothingThatWasNotMeasured(t *testing.T) {
	r := &SiegeResult{Kinds: map[string]SiegeRow{honest: {}}, order: []string{honest}, Machine: harness.ThisMachine()}
	r.judge()
	require.Empty(t, r.Targets)
}

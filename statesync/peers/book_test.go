package peers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cometbft/cometbft/p2p"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// shelf is a book with a manual clock.
type shelf struct {
	*book
	t   *testing.T
	now time.Time
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	rng := seeds.Rand(t)
	return &shelf{newBook(rand.New(rand.NewPCG(rng.Uint64(), 0)), false), t, time.Unix(0, 0)}
}

func nobody(transport.ID) bool { return false }

// idOf returns the ID of a node without a key.
func idOf(n int) transport.ID { return transport.ID(fmt.Sprintf("%040x", n)) }

// hostAt returns host n of its own network.
func hostAt(network, n int) string {
	return fmt.Sprintf("[2600:%x:%x::%x]:1", network>>16, network&0xffff, n)
}

func operators(n int) advertiser {
	return advertiser{id: idOf(1_000_000 + n), root: idOf(1_000_000 + n)}
}

func (s *shelf) learns(by advertiser, id int, hostPort string) bool {
	return s.learn(s.now, by, []transport.Address{{ID: idOf(id), HostPort: hostPort}}, nobody)
}

// dial returns all nodes that may be dialled now.
func (s *shelf) dial() (list []transport.Address) {
	for {
		a, ok, _ := s.next(s.now, nobody)
		if !ok {
			return list
		}
		list = append(list, a)
	}
}

// dialled dials one node and connects it.
func (s *shelf) dialled() transport.Address {
	s.t.Helper()
	list := s.dial()
	require.Len(s.t, list, 1)
	s.connected(s.now, list[0])
	return list[0]
}

func TestGroups(t *testing.T) {
	for hostPort, want := range map[string]groups{
		"1.2.3.4:5":                {"1.2.3.4/32", "1.2.3.0/24", "1.2.0.0/16"},
		"[::ffff:1.2.3.4]:5":       {"1.2.3.4/32", "1.2.3.0/24", "1.2.0.0/16"},
		"[2600:1:2:3456:7::8]:5":   {"2600:1:2:3456::/64", "2600:1:2:3400::/56", "2600:1:2::/48"},
		"[2600:1:2:3456:7::8%a]:5": {"2600:1:2:3456::/64", "2600:1:2:3400::/56", "2600:1:2::/48"},
		"one.example:5":            {"one.example", "names", "names"},
		"no port":                  {"no port", "names", "names"},
	} {
		require.Equal(t, want, groupsOf(hostPort), hostPort)
	}
}

// Addresses that CometBFT's address book refuses are refused, also when they embed an IPv4 address.
func TestPublicAddresses(t *testing.T) {
	addresses := map[string]bool{
		"1.2.3.4": true, "2600::1": true, "::ffff:8.8.8.8": true,
		"127.0.0.1": false, "127.9.9.9": false, "::1": false, "::ffff:127.0.0.1": false,
		"10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false, "::ffff:10.0.0.1": false,
		"169.254.169.254": false, "fe80::1": false, "fd00::1": false, "0.0.0.0": false, "0.1.2.3": false, "::": false,
		"255.255.255.255": false, "2001:db8::1": false, "2001:10::1": false,
	}
	id := p2p.ID(idOf(1))
	for ip, want := range addresses {
		require.Equal(t, want, public(net.JoinHostPort(ip, "1")), ip)
		theirs := p2p.NewNetAddressIPPort(net.ParseIP(ip), 1)
		theirs.ID = id
		require.Equal(t, want, theirs.Routable(), "CometBFT about %s", ip)
	}
	for _, hostPort := range []string{
		"node.example:1", "localhost:1", "1.2.3.4:0", "1.2.3.4:http", "1.2.3.4", "[2600::1%eth0]:1", "224.0.0.1:1",
		"[64:ff9b::7f00:1]:1", "[2002:7f00:1::]:1", ":1", "",
	} {
		require.False(t, public(hostPort), hostPort)
	}
}

func TestStrictBookRefuses(t *testing.T) {
	s := newShelf(t)
	s.strict = true
	require.False(t, s.learns(operators(0), 1, "localhost:1"))
	require.False(t, s.learns(operators(0), 1, "10.0.0.1:1"))
	require.True(t, s.learns(operators(0), 1, "1.2.3.4:1"))
	require.Equal(t, []transport.Address{{ID: idOf(1), HostPort: "1.2.3.4:1"}}, s.dial())
}

// Each advertiser has one address per node. When a fifth address arrives, the slowest tried one is
// dropped.
func TestFourAddressesOfAnID(t *testing.T) {
	s := newShelf(t)
	at := func() (list []string) {
		for _, a := range s.known[idOf(1)].addresses {
			list = append(list, a.hostPort)
		}
		return list
	}
	require.True(t, s.learns(operators(0), 1, "a:1"))
	require.False(t, s.learns(operators(0), 1, "a:1"), "nothing new")
	require.True(t, s.learns(operators(0), 1, "b:1"))
	require.Equal(t, []string{"b:1"}, at(), "its last address counts")
	require.True(t, s.learns(operators(1), 1, "b:1"), "another one vouches for it")
	require.True(t, s.learns(operators(0), 1, "c:1"))
	require.Equal(t, []string{"b:1", "c:1"}, at(), "the other advertiser's address stays")
	s.learns(operators(2), 1, "d:1")
	s.learns(operators(3), 1, "e:1")
	require.Len(t, at(), 4)
	n := s.known[idOf(1)]
	for i, rate := range []float64{5, 2, 3} {
		n.addresses[i].tried, n.addresses[i].rate = true, meter{rate, s.now}
	}
	s.learns(operators(4), 1, "f:1")
	require.Equal(t, []string{"b:1", "d:1", "e:1", "f:1"}, at())
	require.Equal(t, 4, s.size)
	s.learns(operators(5), 1, "g:1")
	require.Equal(t, []string{"b:1", "e:1", "f:1", "g:1"}, at())
	require.False(t, s.learns(advertiser{idOf(9), operators(0).id, 1}, 1, "h:1"), "a discovered advertiser ranks lower")
	s.learns(operators(6), 1, "i:1")
	require.Contains(t, at(), "b:1", "the best of those that were tried stays")
	require.Equal(t, 4, s.size)
}

// A node is tried at each of its addresses and stays where it sends the most. Trying costs less and
// less.
func TestTheFasterAddressIsPreferred(t *testing.T) {
	s := newShelf(t)
	rates := map[string]int{"fast:1": 100, "slow:1": 10, "slower:1": 1, "silent:1": 0}
	i := 0
	for hostPort := range rates {
		s.learns(operators(i), 1, hostPort)
		i++
	}
	at := s.dialled()
	spent := map[string]time.Duration{}
	const day = 24 * time.Hour
	for end := s.now.Add(day); s.now.Before(end); s.now = s.now.Add(time.Second) {
		if rate := rates[at.HostPort]; rate > 0 {
			s.useful(s.now, at.ID, rate)
		}
		if to, ok := s.better(s.now, at.ID); ok {
			at = to
			s.connected(s.now, to)
		}
		spent[at.HostPort] += time.Second
	}
	require.Greater(t, spent["fast:1"], day-10*time.Minute)
}

// An address where nothing arrived is tried again, for longer each time: a chunk may take an hour.
func TestNoAddressIsLeftForGood(t *testing.T) {
	s := newShelf(t)
	s.learns(operators(0), 1, "a:1")
	s.learns(operators(1), 1, "b:1")
	s.learns(operators(2), 1, "c:1")
	at := s.dialled()
	longest, since := map[string]time.Duration{}, s.now
	for end := s.now.Add(24 * time.Hour); s.now.Before(end); s.now = s.now.Add(time.Second) {
		if to, ok := s.better(s.now, at.ID); ok {
			longest[at.HostPort] = max(longest[at.HostPort], s.now.Sub(since))
			at, since = to, s.now
			s.connected(s.now, to)
		}
	}
	for _, hostPort := range []string{"a:1", "b:1", "c:1"} {
		require.Equal(t, maxPatience, longest[hostPort], hostPort)
	}
}

// The addresses of an operator's peer may cost a number of invalid answers; after that there is the
// reserve. A node that sends something costs nothing.
func TestBudgetOfAnAdvertiser(t *testing.T) {
	s := newShelf(t)
	for i := range 500 {
		s.learns(operators(i/250), i, hostAt(i, 1))
	}
	first := s.dial()
	require.Len(t, first, 2*operatorsBudget+1, "one is from the reserve")
	s.now = s.now.Add(reserveEvery)
	require.Len(t, s.dial(), 1)
	require.Empty(t, s.dial())
	for _, a := range first[:40] { // more from each advertiser than the reserve allows
		s.connected(s.now, a)
		require.True(t, s.useful(s.now, a.ID, 1))
		require.False(t, s.useful(s.now, a.ID, 1))
	}
	require.Len(t, s.dial(), 40-2, "the reserve has lent two")
	for _, a := range first[40:50] {
		s.lied(s.now, a.ID)
		s.left(s.now, a.ID, true)
	}
	require.Empty(t, s.dial(), "an invalid answer has used its reservation")
	s.now = s.now.Add(20 * forgiven)
	require.NotEmpty(t, s.dial())
}

// A discovered advertiser has a smaller budget, and its charges also count against the operator's
// peer.
func TestBudgetOfAStranger(t *testing.T) {
	s := newShelf(t)
	s.reserve = s.now
	s.learns(operators(0), 1, hostAt(1, 1))
	s.dialled()
	s.useful(s.now, idOf(1), 1)
	by, ok := s.advertiser(idOf(1), false)
	require.True(t, ok)
	require.Equal(t, advertiser{idOf(1), operators(0).id, 1}, by)
	for i := range 100 {
		s.learns(by, 100+i, hostAt(100+i, 1))
	}
	require.Len(t, s.dial(), strangersBudget)
	for i := range 100 {
		s.learns(operators(0), 200+i, hostAt(200+i, 1))
	}
	require.Len(t, s.dial(), operatorsBudget-strangersBudget)
	_, ok = s.advertiser(idOf(999), false)
	require.False(t, ok, "only connected nodes advertise")
}

// Identities of one host share one budget.
func TestBudgetOfAHost(t *testing.T) {
	s := newShelf(t)
	s.reserve = s.now
	for i := range hostsBudget {
		s.learns(operators(0), i, hostAt(1, i))
		s.lied(s.now, s.dialled().ID)
		s.left(s.now, idOf(i), true)
	}
	s.learns(operators(1), 100, hostAt(1, 100))
	require.Empty(t, s.dial())
	s.learns(operators(1), 101, hostAt(2, 1))
	require.Len(t, s.dial(), 1, "another host's")
	s.now = s.now.Add(reserveEvery)
	require.Len(t, s.dial(), 1, "the reserve knows no hosts")
}

// Dead addresses are charged once and tried again less and less often.
func TestDeadAddresses(t *testing.T) {
	s := newShelf(t)
	s.learns(operators(0), 1, "a:1")
	dials := 0
	for end := s.now.Add(time.Hour); s.now.Before(end); s.now = s.now.Add(time.Second) {
		for _, a := range s.dial() {
			dials++
			s.unreachable(s.now, a, false)
			s.left(s.now, a.ID, false)
		}
	}
	require.Less(t, dials, 30)
	require.Greater(t, dials, 10)
	require.Less(t, s.advertisers[string(operators(0).id)].spent.amount, vainCost+1e-9)
	s.learns(operators(0), 2, "b:1")
	a := s.dial()[0]
	s.unreachable(s.now, a, true)
	s.left(s.now, a.ID, false)
	require.Nil(t, s.known[idOf(2)], "another node answered")
}

// Sybils that advertise each other hide neither a node advertised by an operator's peer, nor a node
// advertised by an honest discovered peer.
func TestDrawsDoNotFollowNumbers(t *testing.T) {
	s := newShelf(t)
	near, far := idOf(500_000), idOf(500_001)
	for i := range protocol.MaxPeers - 1 {
		s.learns(operators(0), i, hostAt(1, i))
	}
	s.learns(operators(0), 500_000, hostAt(2, 1))
	for i := range 800 {
		s.learns(advertiser{idOf(i / 20), operators(0).id, 1}, 1000+i, hostAt(1, 1000+i))
	}
	s.learns(advertiser{idOf(300_000), operators(0).id, 1}, 500_001, hostAt(3, 1))
	draws := map[transport.ID]int{}
	candidates := s.candidates(s.now, nobody)
	const n = 2_000
	for range n {
		draws[s.draw(candidates).n.id]++
	}
	require.Greater(t, draws[near], n/8, "its network is as good as the sybils'")
	require.Greater(t, draws[far], n/1000)
}

// If there are too many addresses, those far from the operator are dropped first, then those of the
// advertiser with the most, then those in the most crowded network.
func TestTheBookIsBounded(t *testing.T) {
	s := newShelf(t)
	near := func(why string) {
		t.Helper()
		require.Equal(t, maxAddresses, s.size)
		for i := range 10 {
			require.NotNil(t, s.known[idOf(i)], why)
		}
	}
	for i := range 10 {
		s.learns(operators(0), i, hostAt(i, 1))
	}
	for i := range maxAddresses + 100 {
		s.learns(advertiser{idOf(0), operators(0).id, 1}, 100+i, hostAt(100+i, 1))
	}
	near("a stranger's go first")
	for i := range maxAddresses + 100 {
		s.learns(operators(1), 10_000+i, hostAt(50_000, i))
	}
	near("another advertiser has more")
	s.learns(operators(1), 9_999, hostAt(60_000, 1))
	for i := range 100 {
		s.learns(operators(1), 20_000+i, hostAt(50_000, i))
	}
	near("still")
	require.NotNil(t, s.known[idOf(9_999)], "its network is less crowded")
}

// seated connects nodes that have all sent something.
func (s *shelf) seated(first, n int, hostPort func(i int) string) {
	s.t.Helper()
	for i := range n {
		s.learns(operators(first+i), first+i, hostPort(i))
		s.useful(s.now, s.dialled().ID, 1000)
	}
}

// A node that sends nothing for a turn makes room for waiting nodes, and gets twice as long the
// next time.
func TestIdleNodesMakeRoom(t *testing.T) {
	s := newShelf(t)
	s.seated(0, 3, func(i int) string { return hostAt(i, 1) })
	require.Empty(t, s.leaving(s.now.Add(turn-1), 2))
	s.now = s.now.Add(turn / 2)
	s.useful(s.now, idOf(1), 1)
	s.now = s.now.Add(turn / 2)
	require.Empty(t, s.leaving(s.now, 0), "no other node waits")
	require.ElementsMatch(t, []transport.ID{idOf(0), idOf(2)}, s.leaving(s.now, 5), "slots are free: nodes that send something stay")
	require.Empty(t, s.leaving(s.now, 5), "they are leaving already")
	require.True(t, s.leaves(idOf(0)), "it gets no other connection")
	require.False(t, s.leaves(idOf(1)))
	s.left(s.now, idOf(0), false)
	require.False(t, s.leaves(idOf(0)))
	require.Empty(t, s.dial())
	s.now = s.now.Add(turn)
	s.connected(s.now, s.dial()[0])
	s.now = s.now.Add(2*turn - 1)
	require.NotContains(t, s.leaving(s.now, 5), idOf(0))
	s.now = s.now.Add(1)
	require.Contains(t, s.leaving(s.now, 5), idOf(0))
}

// The number of slots is limited, however many nodes are useful.
func TestPlacesAreLimited(t *testing.T) {
	s := newShelf(t)
	for i := range 2 * maxConnections {
		s.learns(operators(i), i, hostAt(i, 1))
	}
	list := s.dial()
	require.Len(t, list, maxConnections)
	_, _, waiting := s.next(s.now, nobody)
	require.Equal(t, maxConnections, waiting)
	s.left(s.now, list[0].ID, true)
	require.Len(t, s.dial(), 1)
}

// If all slots are taken, the worst sending node makes room from time to time, measured by what its
// network sends per slot. A site with many slots loses one before a single host that sends less
// than any of the site's nodes.
func TestPlacesRotate(t *testing.T) {
	s := newShelf(t)
	s.seated(0, 1, func(int) string { return hostAt(1, 1) })
	s.seated(1, maxConnections-1, func(i int) string { return hostAt(2, i) })
	s.now = s.now.Add(turn)
	for i := range maxConnections {
		s.useful(s.now, idOf(i), min(1+i, 3)) // the single host sends least
	}
	s.useful(s.now, idOf(77), 1_000_000)
	gone := map[transport.ID]bool{}
	for range 60 {
		ids := s.leaving(s.now, 5)
		require.Len(t, ids, 1)
		require.Empty(t, s.leaving(s.now.Add(rotateEvery-1), 5))
		gone[ids[0]] = true
		s.left(s.now, ids[0], false)
		s.visits++ // another node takes the slot
		for i := range maxConnections {
			s.useful(s.now, idOf(i), min(1+i, 3))
		}
		s.now = s.now.Add(rotateEvery)
	}
	require.Len(t, gone, 60)
	require.NotContains(t, gone, idOf(0))
	require.NotContains(t, gone, idOf(77))
}

// Random events in random order: nothing is counted twice or forgotten.
func TestRandomBooks(t *testing.T) {
	rng := seeds.Rand(t)
	for range 10 {
		s := newShelf(t)
		visited := map[transport.ID]transport.Address{}
		someone := func() (a transport.Address, ok bool) {
			for i := range 60 {
				if x, is := visited[idOf(i)]; is && rng.IntN(4) == 0 {
					return x, true
				}
			}
			return a, false
		}
		for range 2000 {
			s.now = s.now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			by := operators(rng.IntN(3))
			a, ok := someone()
			switch op := rng.IntN(8); {
			case op < 3:
				if stranger, is := s.advertiser(a.ID, false); is && rng.IntN(2) == 0 {
					by = stranger
				}
				s.learns(by, rng.IntN(60), hostAt(rng.IntN(10), rng.IntN(60)))
			case op == 3:
				for _, x := range s.dial() {
					require.NotContains(t, visited, x.ID)
					visited[x.ID] = x
					if rng.IntN(3) > 0 {
						s.connected(s.now, x)
					}
				}
			case !ok:
			case op == 4:
				s.useful(s.now, a.ID, rng.IntN(1000))
			case op == 5:
				if to, is := s.better(s.now, a.ID); is && rng.IntN(2) == 0 {
					s.connected(s.now, to)
				} else if is {
					s.unreachable(s.now, to, rng.IntN(2) == 0)
				}
			case op == 6:
				if rng.IntN(2) == 0 {
					s.lied(s.now, a.ID)
				} else if rng.IntN(2) == 0 {
					s.unreachable(s.now, a, rng.IntN(2) == 0)
				}
				s.left(s.now, a.ID, rng.IntN(3) == 0)
				delete(visited, a.ID)
			case op == 7:
				for _, id := range s.leaving(s.now, rng.IntN(3)) {
					require.Contains(t, visited, id)
				}
			}
			s.check(len(visited))
		}
		for id := range visited {
			s.left(s.now, id, false)
		}
		for _, a := range s.advertisers {
			require.Zero(t, a.open)
		}
	}
}

// check checks the invariants of a book. (require would walk the stack a million times.)
func (s *shelf) check(visits int) {
	s.t.Helper()
	size, seen := 0, 0
	open := map[transport.ID]int{}
	must := func(ok bool, what string) {
		if !ok {
			require.Fail(s.t, what)
		}
	}
	must(len(s.list) == len(s.known), "a node is known, and listed")
	for _, n := range s.list {
		must(n == s.known[n.id], "it is the same")
		size += len(n.addresses)
		must(len(n.addresses) > 0 && len(n.addresses) <= maxPerID, "it has addresses")
		for _, a := range n.addresses {
			must(len(a.advertisers) <= maxPerID && (len(a.advertisers) > 0 || n.busyAt(a)), "each address has an advertiser")
		}
		if v := n.visit; v != nil {
			seen++
			must(slices.Contains(n.addresses, v.at), "an address that is visited stays")
			if !v.proved {
				for _, p := range payersOf(v.by) {
					open[p.id]++
				}
			}
		}
	}
	must(s.size == size && s.visits == seen && seen == visits, "the counters are right")
	for id, a := range s.advertisers {
		must(open[transport.ID(id)] == a.open, "exactly the nodes without valid bytes are charged")
	}
}

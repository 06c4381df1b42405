package scheduler

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRatesNeitherOverflowNorDivideByZero(t *testing.T) {
	require.EqualValues(t, 1000, rateOf(100, 100*time.Millisecond))
	require.EqualValues(t, 1, rateOf(0, time.Hour))
	require.EqualValues(t, uint64(math.MaxUint64), rateOf(math.MaxUint64, 0))
	require.Equal(t, 100*time.Millisecond, timeFor(100, 1000))
	require.Equal(t, timeFor(1, 1), timeFor(1, 0))
	require.Positive(t, timeFor(math.MaxUint64, 0)*8, "sums of a few must not overflow")
	require.EqualValues(t, 100, bytesIn(100*time.Millisecond, 1000))
	require.EqualValues(t, uint64(math.MaxUint64), bytesIn(math.MaxInt64, math.MaxUint64))
	require.EqualValues(t, 0, bytesIn(-1, 5))
}

func TestRateForgetsWhatWasLongAgo(t *testing.T) {
	var v speed
	v.sample(1000)
	for range rateWindow - 1 {
		v.sample(10)
	}
	require.EqualValues(t, 1000, v.rate)
	v.sample(10)
	require.EqualValues(t, 10, v.rate)
	v.firstByte(30 * time.Millisecond)
	v.firstByte(50 * time.Millisecond)
	require.Equal(t, 30*time.Millisecond, v.rtt)
	v.sample(1000)
	require.EqualValues(t, 60, v.window(), "two round trips")
	v.firstByte(10 * time.Millisecond)
	require.EqualValues(t, 50, v.window(), "the horizon, where that is longer")
}

// A limited number of disconnected peers is remembered, whatever their IDs.
func TestLostPeersAreForgottenAtLast(t *testing.T) {
	s := New(0, 0)
	s.Step(0, Add{[]Item{{ID: 1, Group: 1, Bytes: 100}}})
	for i := range 3 * maxLost {
		id := PeerID(binary.BigEndian.AppendUint32(nil, uint32(i)))
		s.Step(time.Duration(i), PeerUp{id})
		s.Step(time.Duration(i), PeerHas{Peer: id, Groups: []Group{1}})
		s.Step(time.Duration(i), PeerDown{id})
		if i%97 == 0 {
			require.NoError(t, s.checkInvariants())
		}
	}
	require.NoError(t, s.checkInvariants())
	require.Len(t, s.peers, maxLost)
	require.Len(t, s.timers.All(), maxLost)
}

// The same events give the same actions: nothing depends on map order.
func TestSameEventsSameActions(t *testing.T) {
	for seed := uint64(1); seed <= 30; seed++ {
		var logs [2][]string
		for i := range logs {
			w, limit := randomWorld(seed)
			w.trace = func(format string, args ...any) { logs[i] = append(logs[i], fmt.Sprintf(format, args...)) }
			require.NoError(t, w.run(limit))
		}
		require.Equal(t, logs[0], logs[1], "seed %d", seed)
	}
}

// FuzzStep sends events that no correct caller would send: there is no panic, and the counters stay
// right.
func FuzzStep(f *testing.F) {
	f.Add([]byte{3, 1, 100, 0, 1, 0, 2, 1, 1, 6, 1, 100, 7, 1, 0})
	f.Add([]byte{3, 9, 50, 0, 1, 0, 2, 1, 3, 6, 1, 50, 8, 1, 0, 1, 1, 0, 4, 2, 0, 10, 0, 200})
	f.Add([]byte{3, 9, 50, 3, 20, 70, 0, 1, 0, 2, 129, 1, 6, 1, 50, 7, 1, 0, 9, 2, 5, 2, 129, 200, 10, 0, 200})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 3000 {
			return
		}
		s, now := newScheduler(limits{memory: 300, perPeer: 3, copies: 2}), time.Duration(0)
		for ; len(script) >= 3; script = script[3:] {
			a, b := script[1], script[2]
			peer, request, item, group := PeerID([]byte{'a' + a%8}), RequestID(a), ItemID(a%32), Group(b%4)
			var e Event
			switch script[0] % 11 {
			case 0:
				e = PeerUp{peer}
			case 1:
				e = PeerDown{peer}
			case 2:
				has := PeerHas{Peer: peer, Groups: []Group{group, group + 1}[:b%2+1]}
				if a >= 128 {
					has.Groups = has.Groups[1:]
					has.Parts = []Part{{group, []Span{{uint32(b % 16), uint32(b%16) + uint32(b/16)}, {uint32(b%16) + 40, 70}}}}
				}
				e = has
			case 3:
				e = Add{[]Item{{ID: item, Group: group, Bytes: uint64(b), Exact: a%3 > 0, At: uint32(item)}, {ID: item + 32, Group: 1, At: uint32(a), Bytes: 1 << (b % 64)}}}
			case 4:
				e = Drop{[]ItemID{item, item + 32}}
			case 5:
				e = Progress{request, uint64(b)}
			case 6:
				e = Received{request, uint64(b)}
				if r := s.requests[request]; r != nil && b > 100 {
					e = Received{request, r.item.Bytes}
				}
			case 7:
				e = Verified{request}
			case 8:
				e = Rejected{request, ""}
			case 9:
				e = Failed{Request: request, Reason: Reason(b % 7)}
			case 10:
				now += time.Duration(b) * time.Duration(b) * time.Millisecond
				e = Tick{}
			}
			s.Step(now, e)
			if err := s.checkInvariants(); err != nil {
				t.Fatalf("after %T%+v: %v", e, e, err)
			}
			if at, ok := s.Next(); ok && at < now {
				t.Fatalf("a tick is due at %v, before %v", at, now)
			}
			s.Stats()
		}
	})
}

// A peer whose wrong answer proves nothing has one request at a time until the doubt is over.
// Answers to earlier requests may still arrive and be right; they do not end the doubt.
func TestDoubtedPeersHaveOneRequest(t *testing.T) {
	s := newScheduler(limits{perPeer: 4})
	now := time.Duration(0)
	step := func(e Event) (asked []RequestID) {
		t.Helper()
		now += time.Millisecond
		for _, a := range s.Step(now, e) {
			if ask, is := a.(Ask); is {
				asked = append(asked, ask.Request)
			}
		}
		require.NoError(t, s.checkInvariants())
		return asked
	}
	give := func(r RequestID) []RequestID {
		t.Helper()
		require.Empty(t, step(Received{r, 100}), "it is being verified")
		return step(Verified{r})
	}
	var items []Item
	for i := range 50 {
		items = append(items, Item{ID: ItemID(i + 1), Group: 1, Bytes: 100})
	}
	step(Add{items})
	step(PeerUp{"p"})
	first := step(PeerHas{Peer: "p", Groups: []Group{1}})
	require.Len(t, first, 1)
	flying := give(first[0])
	require.Len(t, flying, 4)

	require.Empty(t, step(Doubt{Peer: "p"}))
	require.Empty(t, step(Failed{Request: flying[0], Reason: Broken}))
	require.Empty(t, give(flying[1]), "two are in flight")
	now += time.Minute // its pause has ended
	require.Empty(t, give(flying[2]), "one is in flight")
	next := give(flying[3])
	require.Len(t, next, 1)
	next = give(next[0])
	require.Len(t, next, 1, "right answers end no doubt")

	require.Len(t, step(Doubt{Peer: "p", Over: true}), 3)
	step(Doubt{Peer: "p"})
	step(PeerDown{"p"})
	now += time.Hour
	step(PeerUp{"p"})
	next = step(PeerHas{Peer: "p", Groups: []Group{1}})
	require.Len(t, step(Received{next[0], 100}), 1, "a reconnected peer is not doubted")
}

package scheduler

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// script runs the files in testdata/scripts against one Scheduler:
//
//	new [memory=N] [per-peer=N] [copies=N]   a new Scheduler at time 0
//	step                                     an event per line; prints each event that has actions, with its actions
//	    +DURATION                            time passes; everything due meanwhile happens at its time
//	    up P...  down P  has P G...  connect P G...      G is a group, or G:A-B,C-D the items of a part
//	    add I... [group=G] [bytes=N] [at-most]     I is a number or a range A-B
//	    drop I...
//	    progress R N  received R [N]  verified R  rejected R  failed R REASON
//	    give R                               received (complete) and verified
//	stats                                    prints the statistics
//
// The invariants are checked after each event.
type script struct {
	t   *testing.T
	s   *Scheduler
	now time.Duration
	out strings.Builder
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		sc := &script{s: New(0, 0)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			sc.t = t
			sc.out.Reset()
			switch d.Cmd {
			case "new":
				var l limits
				d.MaybeScanArgs(t, "memory", &l.memory)
				d.MaybeScanArgs(t, "per-peer", &l.perPeer)
				d.MaybeScanArgs(t, "copies", &l.copies)
				sc.s, sc.now = newScheduler(l), 0
			case "step":
				for line := range strings.Lines(d.Input) {
					sc.line(strings.TrimSpace(line))
				}
			case "stats":
				sc.stats()
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return sc.out.String()
		})
	})
}

func (sc *script) line(line string) {
	word, rest, _ := strings.Cut(line, " ")
	args := strings.Fields(rest)
	switch {
	case strings.HasPrefix(word, "+"):
		d, err := time.ParseDuration(word[1:])
		require.NoError(sc.t, err)
		until := sc.now + d
		for at, ok := sc.s.Next(); ok && at <= until; at, ok = sc.s.Next() {
			sc.now = max(sc.now, at)
			sc.step(fmt.Sprintf("at %v", sc.now), Tick{})
		}
		sc.now = until
	case word == "up":
		for _, p := range args {
			sc.step(line, PeerUp{PeerID(p)})
		}
	case word == "connect":
		sc.step(line, PeerUp{PeerID(args[0])})
		sc.step(line, sc.has(args[0], args[1:]))
	case word == "down":
		sc.step(line, PeerDown{PeerID(args[0])})
	case word == "has":
		sc.step(line, sc.has(args[0], args[1:]))
	case word == "add":
		sc.step(line, Add{sc.items(args)})
	case word == "drop":
		var ids []ItemID
		for _, it := range sc.items(args) {
			ids = append(ids, it.ID)
		}
		sc.step(line, Drop{ids})
	case word == "tick":
		sc.step(line, Tick{})
	default:
		sc.request(word, line, RequestID(sc.number(args[0])), args[1:])
	}
}

func (sc *script) request(word, line string, id RequestID, args []string) {
	bytes := uint64(0)
	if r := sc.s.requests[id]; r != nil {
		bytes = r.item.Bytes
	}
	if len(args) > 0 && word != "failed" {
		bytes = sc.number(args[0])
	}
	switch word {
	case "progress":
		sc.step(line, Progress{id, bytes})
	case "received":
		sc.step(line, Received{id, bytes})
	case "verified":
		sc.step(line, Verified{id})
	case "rejected":
		sc.step(line, Rejected{id, "bad bytes"})
	case "give":
		sc.step(line, Received{id, bytes})
		sc.step(line, Verified{id})
	case "failed":
		why := Gone
		for ; why.String() != args[0]; why++ {
			require.NotEqual(sc.t, "unknown", why.String(), line)
		}
		sc.step(line, Failed{Request: id, Reason: why})
	default:
		require.Fail(sc.t, "unknown event "+line)
	}
}

func (sc *script) step(line string, e Event) {
	actions := sc.s.Step(sc.now, e)
	require.NoError(sc.t, sc.s.checkInvariants(), line)
	if len(actions) == 0 {
		return
	}
	fmt.Fprintf(&sc.out, "%s:\n", line)
	for _, a := range actions {
		switch a := a.(type) {
		case Ask:
			fmt.Fprintf(&sc.out, "  %d: ask %s for item %d\n", a.Request, a.Peer, a.Item)
		case Cancel:
			fmt.Fprintf(&sc.out, "  %d: cancel\n", a.Request)
		case Verify:
			fmt.Fprintf(&sc.out, "  %d: verify\n", a.Request)
		case Ban:
			fmt.Fprintf(&sc.out, "  ban %s: %s\n", a.Peer, a.Reason)
		case Done:
			fmt.Fprintf(&sc.out, "  done\n")
		}
	}
}

func (sc *script) number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(sc.t, err)
	return n
}

// has parses a peer's claims: groups, and parts of groups.
func (sc *script) has(peer string, args []string) PeerHas {
	e := PeerHas{Peer: PeerID(peer)}
	for _, a := range args {
		group, spans, isPart := strings.Cut(a, ":")
		id := Group(sc.number(group))
		if !isPart {
			e.Groups = append(e.Groups, id)
			continue
		}
		part := Part{Group: id}
		for _, s := range strings.Split(spans, ",") {
			from, last, _ := strings.Cut(s, "-")
			part.Spans = append(part.Spans, Span{uint32(sc.number(from)), uint32(sc.number(last)) + 1})
		}
		e.Parts = append(e.Parts, part)
	}
	return e
}

func (sc *script) items(args []string) (items []Item) {
	template := Item{Group: 1, Bytes: 1000, Exact: true}
	for _, a := range args {
		if a == "at-most" {
			template.Exact = false
		} else if key, value, is := strings.Cut(a, "="); is {
			n := sc.number(value)
			switch key {
			case "group":
				template.Group = Group(n)
			case "bytes":
				template.Bytes = n
			}
		}
	}
	for _, a := range args {
		if a == "at-most" || strings.Contains(a, "=") {
			continue
		}
		from, to, isRange := strings.Cut(a, "-")
		if !isRange {
			to = from
		}
		for id := sc.number(from); id <= sc.number(to); id++ {
			template.ID, template.At = ItemID(id), uint32(id)
			items = append(items, template)
		}
	}
	return items
}

func (sc *script) stats() {
	st := sc.s.Stats()
	fmt.Fprintf(&sc.out, "items %d/%d, bytes %d/%d, in flight %d, verifying %d, memory %d\n",
		st.ItemsDone, st.Items, st.BytesDone, st.Bytes, st.InFlight, st.Verifying, st.MemoryBytes)
	fmt.Fprintf(&sc.out, "asked %d, refetched %d, rejected %d, wasted %d, rate %d\n",
		st.Asked, st.Refetched, st.Rejected, st.WastedBytes, st.Rate)
	for _, p := range st.Peers {
		fmt.Fprintf(&sc.out, "%s: %v, %d B/s, round trip %v, in flight %d, verified %d (%d), wasted %d\n",
			p.ID, p.State, p.Rate, p.RoundTrip, p.InFlight, p.Verified, p.VerifiedBytes, p.WastedBytes)
	}
}

package feed

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/worlds"
)

// script runs the files in testdata/scripts against one Machine:
//
//	new [head=N] [lag=BLOCKS] [bytes=N] [acks=N] [senders=N] [keep=BLOCKS]   a new Machine at time 0; a range per line: FIRST AFTER NODE...
//	step                             an event per line; prints each event that has actions, with its actions
//	    +DURATION                    time passes, with a Tick whenever one is due
//	    validators COUNT SELF
//	    commit BYTES...              the next block, with the bytes of the update of each range
//	    sent NODE SHARD DURABLE NEEDS [part | missing]     part: the replica does not have the whole
//	                                 update; missing: it waited for it, and had nothing of it
//	    notsent NODE SHARD
//	    claims NODE DURABLE NEEDS    for all ranges of the node; without numbers it claims no range
//	    notpolled NODE  up NODE
//	change                           replaces the map of the ranges, which come as in new; next ranges begin with "next"
//	lags                             prints the lag of each replica, the queued bytes, and the ranges that a block waits for
//
// Every node is polled at the start, and whenever it has been silent for 500 ms.
type script struct {
	t   *testing.T
	w   *watch
	now time.Duration
	out strings.Builder
}

func testPolicy() Policy {
	return Policy{
		MaxLagBlocks: 5, MaxLagBytes: 10_000, MinAcks: 1, Senders: 1, Stagger: 250 * time.Millisecond, Patience: time.Second, Poll: 500 * time.Millisecond,
		BackOff: 100 * time.Millisecond, MaxBackOff: 400 * time.Millisecond,
	}
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		sc := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			sc.t = t
			sc.out.Reset()
			switch d.Cmd {
			case "new":
				return sc.start(d)
			case "step":
				for line := range strings.Lines(d.Input) {
					sc.line(strings.TrimSpace(line))
				}
			case "change":
				sc.change(d.Input)
			case "lags":
				sc.lags()
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return sc.out.String()
		})
	})
}

func (sc *script) start(d *datadriven.TestData) string {
	p, head := testPolicy(), 0
	lag, bytes := int(p.MaxLagBlocks), int(p.MaxLagBytes)
	d.MaybeScanArgs(sc.t, "head", &head)
	d.MaybeScanArgs(sc.t, "lag", &lag)
	d.MaybeScanArgs(sc.t, "bytes", &bytes)
	d.MaybeScanArgs(sc.t, "acks", &p.MinAcks)
	d.MaybeScanArgs(sc.t, "senders", &p.Senders)
	keep := 0
	d.MaybeScanArgs(sc.t, "keep", &keep)
	p.KeepBlocks, p.KeepBytes = int64(keep), 1500
	p.MaxLagBlocks, p.MaxLagBytes = int64(lag), uint64(bytes)
	ranges, _ := scriptRanges(sc.t, d.Input)
	m, err := New(ranges, p, int64(head))
	if err != nil {
		require.ErrorIs(sc.t, err, ErrPolicy)
		return err.Error() + "\n"
	}
	sc.w, sc.now = newWatch(m), 0
	return ""
}

func scriptKey(word string) []byte {
	if word == "-" {
		return nil
	}
	return []byte(word)
}

func scriptRanges(t *testing.T, input string) (ranges *dsm.Ranges, next []dsm.Placement) {
	var shards []dsm.Placement
	for line := range strings.Lines(input) {
		rest, isNext := strings.CutPrefix(line, "next ")
		f := strings.Fields(rest)
		s := dsm.Placement{Range: avlstar.KeyRange{First: scriptKey(f[0]), After: scriptKey(f[1])}}
		for _, n := range f[2:] {
			s.Replicas = append(s.Replicas, dsm.NodeID(n))
		}
		if isNext {
			next = append(next, s)
		} else {
			shards = append(shards, s)
		}
	}
	ranges, err := dsm.NewRanges(shards)
	require.NoError(t, err)
	require.NoError(t, ranges.CheckNext(next))
	return ranges, next
}

func (sc *script) change(input string) {
	ranges, next := scriptRanges(sc.t, input)
	require.NoError(sc.t, sc.w.policy.Check(ranges, next))
	sc.step("change", Change{ranges, next})
}

func (sc *script) numbers(words []string) (n []int64) {
	for _, word := range words {
		i, err := strconv.ParseInt(word, 10, 64)
		require.NoError(sc.t, err)
		n = append(n, i)
	}
	return n
}

func (sc *script) line(line string) {
	word, rest, _ := strings.Cut(line, " ")
	args := strings.Fields(rest)
	if strings.HasPrefix(word, "+") {
		sc.pass(word[1:])
		return
	}
	switch word {
	case "validators":
		n := sc.numbers(args)
		sc.step(line, Validators{int(n[0]), int(n[1])})
	case "commit":
		e := Committed{Height: sc.w.head + 1}
		for _, n := range sc.numbers(args) {
			e.Bytes = append(e.Bytes, uint64(n))
		}
		sc.step(fmt.Sprintf("commit %d", e.Height), e)
	case "sent":
		n := sc.numbers(args[1:4])
		word := append(args, "")[4]
		sc.step(line, Sent{dsm.NodeID(args[0]), int(n[0]), dsm.UpdateAnswer{Durable: n[1], Needs: n[2]}, word != "part", word == "missing"})
	case "notsent":
		sc.step(line, NotSent{dsm.NodeID(args[0]), int(sc.numbers(args[1:])[0])})
	case "claims":
		e := Claimed{Node: dsm.NodeID(args[0])}
		if n := sc.numbers(args[1:]); len(n) > 0 {
			e.Claims = sc.w.claims(e.Node, n[0], n[1])
		}
		sc.step(line, e)
	case "notpolled":
		sc.step(line, NotPolled{dsm.NodeID(args[0])})
	case "up":
		sc.step(line, Up{dsm.NodeID(args[0])})
	default:
		require.Fail(sc.t, "unknown event "+line)
	}
}

func (sc *script) pass(duration string) {
	d, err := time.ParseDuration(duration)
	require.NoError(sc.t, err)
	sc.now = worlds.Pass(sc.t, sc.now, d, sc.w.Next, func(at time.Duration) {
		sc.now = at
		sc.step(fmt.Sprintf("at %v", at), Tick{})
	})
}

func (sc *script) step(line string, e Event) {
	actions, err := sc.w.step(sc.now, e)
	require.NoError(sc.t, err, line)
	if len(actions) == 0 {
		return
	}
	fmt.Fprintf(&sc.out, "%s:\n", line)
	for _, a := range actions {
		switch a := a.(type) {
		case Send:
			how := "send"
			if a.Probe {
				how = "probe and send"
			}
			fmt.Fprintf(&sc.out, "  %s %s %d of range %d\n", how, a.Node, a.Height, a.Shard)
		case Poll:
			fmt.Fprintf(&sc.out, "  poll %s\n", a.Node)
		case Forget:
			fmt.Fprintf(&sc.out, "  forget range %d up to %d\n", a.Shard, a.Height)
		case Left:
			fmt.Fprintf(&sc.out, "  %s left range %d, durable at %d of %d\n", a.Node, a.Shard, a.Durable, a.Head)
		case Back:
			fmt.Fprintf(&sc.out, "  %s is back in range %d\n", a.Node, a.Shard)
		}
	}
}

func (sc *script) lags() {
	for _, s := range sc.w.Shards() {
		next := ""
		if s.Next {
			next = "next "
		}
		fmt.Fprintf(&sc.out, "%srange %d, %d bytes:", next, s.Number, sc.w.Queued(s.Number))
		for _, l := range sc.w.Lags(s.Number) {
			fmt.Fprintf(&sc.out, " %s %s, %d blocks and %d bytes behind;", l.Node, l.State, l.Blocks, l.Bytes)
		}
		fmt.Fprintln(&sc.out)
	}
	for _, b := range sc.w.Blocked() {
		fmt.Fprintf(&sc.out, "the next block waits for %v\n", b.Range)
	}
}

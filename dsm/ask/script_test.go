package ask

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/worlds"
)

// script runs the files in testdata/scripts against one Machine:
//
//	new [copies=N] [wants=N]           a new one, at time 0; a range per line: FIRST AFTER NODE..., "-" is open
//	step                               an event per line; prints each that has actions, and these
//	    +DURATION                      time passes, with a Tick whenever one is due
//	    fetch ID HEIGHT [rounds=N] WANT...    WANT: KEY, A..B, next:KEY or delete:KEY
//	    drop ID
//	    proved R...  failed R REASON  refuted R VERDICT [left WANT...]
//	    claims NODE [FIRST AFTER OLDEST NEWEST]
//	    up NODE
//	waiting                            what fetches wait for
//
// watch checks every step.
type script struct {
	t   *testing.T
	w   *watch
	now time.Duration
	out strings.Builder
}

// testPolicy has round numbers.
func testPolicy() Policy {
	return Policy{
		Slow: 100 * time.Millisecond, GiveUp: 2 * time.Second, Copies: 3, Wants: 100,
		Retry: 100 * time.Millisecond, MaxRetry: time.Second, BackOff: 50 * time.Millisecond, MaxBackOff: time.Second,
		Avoid: 10 * time.Second, MaxAvoid: time.Minute, Forget: 10 * time.Second,
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
				p := testPolicy()
				d.MaybeScanArgs(t, "copies", &p.Copies)
				d.MaybeScanArgs(t, "wants", &p.Wants)
				sc.w, sc.now = newWatch(scriptRanges(t, d.Input), p), 0
			case "step":
				for line := range strings.Lines(d.Input) {
					sc.line(strings.TrimSpace(line))
				}
			case "waiting":
				for _, w := range sc.w.Waiting() {
					fmt.Fprintf(&sc.out, "fetch %d waits for %v at height %d since %v: %v\n", w.Fetch, w.Range, w.Height, w.Since, w.Tried)
				}
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return sc.out.String()
		})
	})
}

func scriptKey(word string) []byte {
	if word == "-" {
		return nil
	}
	return []byte(word)
}

func scriptRanges(t *testing.T, input string) *dsm.Ranges {
	var shards []dsm.Shard
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		s := dsm.Shard{Range: dsm.Range{First: scriptKey(f[0]), After: scriptKey(f[1])}}
		for _, n := range f[2:] {
			s.Replicas = append(s.Replicas, dsm.Node(n))
		}
		shards = append(shards, s)
	}
	r, err := dsm.NewRanges(shards)
	require.NoError(t, err)
	return r
}

func scriptWants(words []string) (wants []dsm.Want) {
	for _, word := range words {
		var w dsm.Want
		if first, after, is := strings.Cut(word, ".."); is {
			w = dsm.Want{Key: scriptKey(first), Range: true, After: scriptKey(after)}
		} else if k, is := strings.CutPrefix(word, "next:"); is {
			w = dsm.Want{Key: scriptKey(k), Next: true}
		} else if k, is := strings.CutPrefix(word, "delete:"); is {
			w = dsm.Want{Key: scriptKey(k), Deleted: true}
		} else {
			w = dsm.Want{Key: scriptKey(word)}
		}
		wants = append(wants, w)
	}
	return wants
}

func (sc *script) number(word string) uint64 {
	n, err := strconv.ParseUint(word, 10, 64)
	require.NoError(sc.t, err)
	return n
}

func (sc *script) line(line string) {
	word, rest, _ := strings.Cut(line, " ")
	args := strings.Fields(rest)
	if strings.HasPrefix(word, "+") {
		d, err := time.ParseDuration(word[1:])
		require.NoError(sc.t, err)
		sc.now = worlds.Pass(sc.t, sc.now, d, sc.w.Next, func(at time.Duration) {
			sc.now = at
			sc.step(fmt.Sprintf("at %v", at), Tick{})
		})
		return
	}
	switch word {
	case "fetch":
		f := Fetch{ID: FetchID(sc.number(args[0])), Height: int64(sc.number(args[1]))}
		words := args[2:]
		if len(words) > 0 && strings.HasPrefix(words[0], "rounds=") {
			f.Rounds = int(sc.number(words[0][len("rounds="):]))
			words = words[1:]
		}
		var err error
		f.Parts, err = sc.w.ranges.Route(scriptWants(words))
		require.NoError(sc.t, err)
		sc.step(line, f)
	case "drop":
		sc.step(line, Drop{FetchID(sc.number(args[0]))})
	case "proved":
		for _, r := range args {
			sc.step("proved "+r, Proved{RequestID(sc.number(r))})
		}
	case "failed":
		why := Gone
		for ; why.String() != strings.Join(args[1:], " "); why++ {
			require.NotEqual(sc.t, "unknown", why.String(), line)
		}
		sc.step(line, Failed{RequestID(sc.number(args[0])), why})
	case "refuted":
		e := Refuted{Request: RequestID(sc.number(args[0])), Verdict: map[string]Verdict{
			"no-bag": Undecodable, "nothing": OpensNothing, "omits": Omits, "long": TooLong,
		}[args[1]]}
		require.NotEmpty(sc.t, e.Verdict, line)
		if len(args) > 2 {
			e.Left = append([]dsm.Want{}, scriptWants(args[3:])...)
		}
		sc.step(line, e)
	case "claims":
		e := Claimed{Node: dsm.Node(args[0]), Claims: []dsm.Claim{}}
		if len(args) > 1 {
			r := dsm.Range{First: scriptKey(args[1]), After: scriptKey(args[2])}
			e.Claims = append(e.Claims, dsm.Claim{Range: r, Oldest: int64(sc.number(args[3])), Newest: int64(sc.number(args[4]))})
		}
		sc.step(line, e)
	case "up":
		sc.step(line, Up{dsm.Node(args[0])})
	default:
		require.Fail(sc.t, "unknown event "+line)
	}
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
		case Ask:
			fmt.Fprintf(&sc.out, "  %d: ask %s of %v at %d for %s\n", a.Request, a.Node, a.Range, a.Height, inWords(a.Wants))
		case Cancel:
			fmt.Fprintf(&sc.out, "  %d: cancel\n", a.Request)
		case Lied:
			fmt.Fprintf(&sc.out, "  %s lied about %v: %s; avoided until %v\n", a.Node, a.Range, a.Verdict, a.Until)
		case Unserved:
			fmt.Fprintf(&sc.out, "  nobody serves %v at %d: %v\n", a.Range, a.Height, a.Tried)
		case Oversized:
			fmt.Fprintf(&sc.out, "  fetch %d: too large for any answer: %s of %v\n", a.Fetch, inWords([]dsm.Want{a.Want}), a.Range)
		case Done:
			fmt.Fprintf(&sc.out, "  fetch %d: done\n", a.Fetch)
		case GaveUp:
			fmt.Fprintf(&sc.out, "  fetch %d: gave up %v\n", a.Fetch, a.Ranges)
		}
	}
}

func inWords(wants []dsm.Want) string {
	var words []string
	for _, w := range wants {
		switch {
		case w.Range:
			words = append(words, string(w.Key)+".."+string(w.After))
		case w.Next:
			words = append(words, "next:"+string(w.Key))
		case w.Deleted:
			words = append(words, "delete:"+string(w.Key))
		default:
			words = append(words, string(w.Key))
		}
	}
	return strings.Join(words, " ")
}

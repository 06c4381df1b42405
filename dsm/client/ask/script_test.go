package ask

import (
	"bytes"
	"fmt"
	"slices"
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
//	new [copies=N] [wants=N] [silent]  a new Machine at time 0; a range per line: FIRST AFTER NODE..., "-" is open.
//	                                   Each node claims the heights 1 to 100, unless silent is given
//	step                               an event per line; prints each event that has actions, with its actions
//	    +DURATION                      time passes, with a Tick whenever one is due
//	    fetch ID HEIGHT [max=BYTES] [helpers=NODE,...] WANT...    WANT: KEY, A..B, next:KEY or delete:KEY
//	    upper ID HEIGHT [helpers=NODE,...]
//	    drop ID
//	    proved R [BYTES [LEAF...]]     LEAF: a key, or - for none
//	    proved R nothing RANGE...      RANGE: number of a range in which nothing opens
//	    failed R REASON  refuted R VERDICT [left WANT...] [in RANGE]    RANGE: nothing opens in it
//	    claims NODE [FIRST AFTER OLDEST NEWEST]...
//	    up NODE
//
// watch checks each step.
type script struct {
	t   *testing.T
	w   *watch
	now time.Duration
	out strings.Builder
}

// testPolicy uses round numbers.
func testPolicy() Policy {
	return Policy{
		Slow: 100 * time.Millisecond, GiveUp: 2 * time.Second, Copies: 3, Wants: 100,
		Claim: time.Second, Help: 200 * time.Millisecond, Helpers: 4, Grace: 20 * time.Millisecond,
		Doubt: time.Second, BackOff: 50 * time.Millisecond, MaxBackOff: time.Second,
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
				for _, n := range sc.w.ranges.Nodes() {
					if d.HasArg("silent") {
						break
					}
					e := Claimed{Node: n}
					for _, i := range sc.w.ranges.Of(n) {
						e.Claims = append(e.Claims, dsm.Claim{Range: sc.w.ranges.Shard(i).Range, Oldest: 1, Newest: 100})
					}
					sc.step("", e)
				}
			case "step":
				for line := range strings.Lines(d.Input) {
					sc.line(strings.TrimSpace(line))
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
	var shards []dsm.Placement
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		s := dsm.Placement{Range: avlstar.KeyRange{First: scriptKey(f[0]), After: scriptKey(f[1])}}
		for _, n := range f[2:] {
			s.Replicas = append(s.Replicas, dsm.NodeID(n))
		}
		shards = append(shards, s)
	}
	r, err := dsm.NewRanges(shards)
	require.NoError(t, err)
	return r
}

func scriptWants(words []string) (wants []avlstar.Want) {
	for _, word := range words {
		var w avlstar.Want
		if first, after, is := strings.Cut(word, ".."); is {
			w = avlstar.Want{Key: scriptKey(first), Range: true, After: scriptKey(after)}
		} else if k, is := strings.CutPrefix(word, "next:"); is {
			w = avlstar.Want{Key: scriptKey(k), Next: true}
		} else if k, is := strings.CutPrefix(word, "delete:"); is {
			w = avlstar.Want{Key: scriptKey(k), Deleted: true}
		} else {
			w = avlstar.Want{Key: scriptKey(word)}
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
	case "fetch", "upper":
		f := Fetch{ID: FetchID(sc.number(args[0])), Height: int64(sc.number(args[1])), Upper: word == "upper"}
		words := args[2:]
		for ; len(words) > 0 && strings.Contains(words[0], "="); words = words[1:] {
			if names, is := strings.CutPrefix(words[0], "helpers="); is {
				for _, n := range strings.Split(names, ",") {
					f.Helpers = append(f.Helpers, dsm.NodeID(n))
				}
			} else {
				f.MaxBytes = int(sc.number(strings.TrimPrefix(words[0], "max=")))
			}
		}
		var err error
		f.Parts, err = sc.w.ranges.Route(scriptWants(words))
		require.NoError(sc.t, err)
		sc.step(line, f)
	case "drop":
		sc.step(line, Drop{FetchID(sc.number(args[0]))})
	case "proved":
		e := Proved{Request: RequestID(sc.number(args[0])), Bytes: 1}
		if len(args) > 1 && args[1] == "nothing" {
			for _, number := range args[2:] {
				e.Nothing = append(e.Nothing, int(sc.number(number)))
			}
		} else if len(args) > 1 {
			e.Bytes = int(sc.number(args[1]))
			for _, leaf := range args[2:] {
				e.Leaves = append(e.Leaves, scriptKey(leaf))
			}
		}
		sc.step(line, e)
	case "failed":
		why := Gone
		for ; why.String() != strings.Join(args[1:], " "); why++ {
			require.NotEqual(sc.t, "unknown", why.String(), line)
		}
		sc.step(line, Failed{RequestID(sc.number(args[0])), why})
	case "refuted":
		e := Refuted{Request: RequestID(sc.number(args[0])), Verdict: map[string]Verdict{
			"no-multiproof": Undecodable, "nothing": OpensNothing, "omits": Omits, "long": TooLong,
		}[args[1]]}
		require.NotEmpty(sc.t, e.Verdict, line)
		if at := slices.Index(args, "in"); at >= 0 {
			e.Nothing, args = []int{int(sc.number(args[at+1]))}, args[:at]
		}
		if len(args) > 2 {
			e.Left = append([]avlstar.Want{}, scriptWants(args[3:])...)
		}
		sc.step(line, e)
	case "claims":
		e := Claimed{Node: dsm.NodeID(args[0]), Claims: []dsm.Claim{}}
		for of := range slices.Chunk(args[1:], 4) {
			r := avlstar.KeyRange{First: scriptKey(of[0]), After: scriptKey(of[1])}
			e.Claims = append(e.Claims, dsm.Claim{Range: r, Oldest: int64(sc.number(of[2])), Newest: int64(sc.number(of[3]))})
		}
		sc.step(line, e)
	case "up":
		sc.step(line, Up{dsm.NodeID(args[0])})
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
			what := [...]string{Open: "for", Neighbor: "at neighbours, for", Path: "from the root, for", Upper: "for the upper tree"}[a.Kind]
			of := sc.w.ranges.Shard(a.Shard).Range.String()
			for _, also := range a.Also {
				of += " and " + sc.w.ranges.Shard(also).Range.String()
			}
			fmt.Fprintf(&sc.out, "  %d: ask %s of %s at %d %s\n", a.Request, a.Node, of, a.Height, strings.TrimSpace(what+" "+inWords(a.Wants)))
		case Cancel:
			fmt.Fprintf(&sc.out, "  %d: cancel\n", a.Request)
		case Lied:
			fmt.Fprintf(&sc.out, "  %s sent an invalid answer about %v: %s; avoided until %v\n", a.Node, sc.w.ranges.Shard(a.Shard).Range, a.Verdict, a.Until)
		case Missed:
			fmt.Fprintf(&sc.out, "  fetch %d: %v of %v at %d %v", a.Fetch, a.Why, sc.w.ranges.Shard(a.Shard).Range, a.Height, a.Tried)
			if a.Oldest > 0 {
				fmt.Fprintf(&sc.out, ", claimed from %d on", a.Oldest)
			}
			sc.out.WriteString("\n")
		case Done:
			fmt.Fprintf(&sc.out, "  fetch %d: done\n", a.Fetch)
		}
	}
}

func inWords(wants []avlstar.Want) string {
	var words []string
	for _, w := range wants {
		switch {
		case w.Range:
			words = append(words, string(w.Key)+".."+string(w.After))
		case w.Next:
			words = append(words, "next:"+string(w.Key))
		case w.Deleted:
			words = append(words, "delete:"+string(w.Key))
		case len(w.Key) == avlstar.MaxKeyBytes: // the greatest key with these bytes
			words = append(words, string(bytes.TrimRight(w.Key, "\xff"))+"~")
		default:
			words = append(words, string(w.Key))
		}
	}
	return strings.Join(words, " ")
}

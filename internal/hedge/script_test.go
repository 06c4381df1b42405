package hedge

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/worlds"
)

// script runs the files in testdata/scripts against one Machine:
//
//	new PACE [start=N] [most=N] [after=D] [rate=BYTES] [turn=D] [compare=D] [linger]
//	                                          a new Machine at time 0; PACE is each-slow, by-rate or doubling; rate is per second
//	step                                      one event per line; prints the actions of each
//	    +DURATION                             time passes, with a Tick whenever one is due
//	    add I...                              I is a number or a range A-B
//	    known ANSWER
//	    answered I... [=ANSWER]               without ANSWER, the answer is unique
//	    answered-proved I... [=ANSWER]        the answer needs no proof
//	    failed I...  proved I...  refuted I...
//	    prompt I  slow I  trusted I  doubtful I    Standing: prompt or not, trusted or not
//	    moved I BYTES                         this many more bytes have arrived
//	    drip DURATION I... BYTES              time passes, and each candidate sends that many bytes every 100 ms
//	    stop
//
// watch checks each step.
type script struct {
	t     *testing.T
	w     *watch
	now   time.Duration
	stand map[ID]Standing
	moved map[ID]int64
	out   strings.Builder
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		sc := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			sc.t = t
			sc.out.Reset()
			switch d.Cmd {
			case "new":
				sc.w, sc.now, sc.stand = newWatch(sc.policy(d)), 0, map[ID]Standing{}
				sc.moved = map[ID]int64{}
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

func (sc *script) policy(d *datadriven.TestData) Policy {
	p := Policy{Start: 1, Most: 3, After: 300 * time.Millisecond, Rate: 100_000, Turn: time.Second}
	paces := map[string]Pace{"each-slow": EachSlow, "by-rate": ByRate, "doubling": Doubling}
	var known bool
	p.Pace, known = paces[d.CmdArgs[0].Key]
	require.True(sc.t, known, d.CmdArgs[0].Key)
	d.MaybeScanArgs(sc.t, "start", &p.Start)
	d.MaybeScanArgs(sc.t, "most", &p.Most)
	d.MaybeScanArgs(sc.t, "rate", &p.Rate)
	for name, at := range map[string]*time.Duration{"after": &p.After, "turn": &p.Turn, "compare": &p.Compare} {
		var text string
		if d.MaybeScanArgs(sc.t, name, &text); text != "" {
			var err error
			*at, err = time.ParseDuration(text)
			require.NoError(sc.t, err)
		}
	}
	p.Linger = d.HasArg("linger")
	return p
}

func (sc *script) line(line string) {
	word, rest, _ := strings.Cut(line, " ")
	if strings.HasPrefix(word, "+") {
		sc.pass(word[1:])
		return
	}
	fields := strings.Fields(rest)
	switch word {
	case "moved":
		sc.arrive(line, fields)
		return
	case "drip":
		d, err := time.ParseDuration(fields[0])
		require.NoError(sc.t, err)
		for until := sc.now + d; sc.now < until; {
			sc.pass("100ms")
			sc.arrive(fmt.Sprintf("at %v", sc.now), fields[1:])
		}
		return
	}
	rest, answer, _ := strings.Cut(rest, "=")
	ids := sc.ids(strings.Fields(rest))
	switch word {
	case "add":
		sc.step(line, Add{ids})
		return
	case "known":
		sc.step(line, Known{answer})
		return
	case "stop":
		sc.step(line, Stop{})
		return
	}
	for _, id := range ids {
		sc.step(line, sc.about(word, id, answer))
	}
}

// pass lets time pass, with a Tick whenever one is due.
func (sc *script) pass(duration string) {
	d, err := time.ParseDuration(duration)
	require.NoError(sc.t, err)
	sc.now = worlds.Pass(sc.t, sc.now, d, sc.w.Next, func(at time.Duration) {
		sc.now = at
		sc.step(fmt.Sprintf("at %v", at), Tick{})
	})
}

// arrive adds bytes (the last field) to the answers of candidates (the other fields).
func (sc *script) arrive(line string, fields []string) {
	last := len(fields) - 1
	n, err := strconv.Atoi(fields[last])
	require.NoError(sc.t, err)
	for _, id := range sc.ids(fields[:last]) {
		sc.moved[id] += int64(n)
		sc.step(line, Moved{id, sc.moved[id]})
	}
}

func (sc *script) about(word string, id ID, answer string) Event {
	switch word {
	case "answered", "answered-proved":
		return Answered{id, answer, word == "answered-proved"}
	case "failed":
		return Failed{id}
	case "proved":
		return Proved{id}
	case "refuted":
		return Refuted{id}
	}
	st, has := sc.stand[id]
	if !has {
		st = Standing{id, true, true}
	}
	switch word {
	case "prompt":
		st.Prompt = true
	case "slow":
		st.Prompt = false
	case "trusted":
		st.Trusted = true
	case "doubtful":
		st.Trusted = false
	default:
		require.Fail(sc.t, "unknown event "+word)
	}
	sc.stand[id] = st
	return st
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
			fmt.Fprintf(&sc.out, "  %d: ask\n", a.ID)
		case Park:
			fmt.Fprintf(&sc.out, "  %d: park\n", a.ID)
		case Prove:
			fmt.Fprintf(&sc.out, "  %d: prove\n", a.ID)
		case Accept:
			fmt.Fprintf(&sc.out, "  %d: accept\n", a.ID)
		case Cancel:
			fmt.Fprintf(&sc.out, "  %d: cancel\n", a.ID)
		case Overdue:
			fmt.Fprintf(&sc.out, "  overdue: asked %v, proving %v\n", a.Asked, a.Proving)
		case Settled:
			fmt.Fprintf(&sc.out, "  settled\n")
		case End:
			fmt.Fprintf(&sc.out, "  end\n")
		}
	}
}

func (sc *script) ids(args []string) (ids []ID) {
	for _, a := range args {
		from, to, isRange := strings.Cut(a, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		require.NoError(sc.t, err)
		last, err := strconv.Atoi(to)
		require.NoError(sc.t, err)
		for id := first; id <= last; id++ {
			ids = append(ids, ID(id))
		}
	}
	return ids
}

package server

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

// TestWaiting runs the files in testdata/waiting:
//
//	new next=N ahead=N senders=N update-bytes=N bytes=N patience=D rate=N refused=N known=(SENDER,…)
//	step                                      one event per line; prints the result of add, and then the waiting updates
//	    +DURATION                             time passes
//	                                          a SENDER is ID or, except for refute, ID@HOST
//	    SENDER HEIGHT UPDATE FROM-TO          bytes of an update, which is its name repeated to 100 bytes, or to LENGTH if UPDATE is NAME:LENGTH
//	    probe SENDER HEIGHT UPDATE
//	    candidate                             prints the candidate of the next height
//	    refute SENDER
//	    advance HEIGHT
func TestWaiting(t *testing.T) {
	datadriven.Walk(t, "testdata/waiting", func(t *testing.T, path string) {
		var w *waiting
		now := time.Unix(0, 0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				w = newWaitingOf(t, d)
				return ""
			case "step":
				var out strings.Builder
				for line := range strings.Lines(d.Input) {
					stepWaiting(t, w, &now, strings.Fields(line), &out)
				}
				return out.String()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func newWaitingOf(t *testing.T, d *datadriven.TestData) *waiting {
	l, next := Limits{}, int64(1)
	d.MaybeScanArgs(t, "next", &next)
	d.MaybeScanArgs(t, "ahead", &l.Ahead)
	d.MaybeScanArgs(t, "senders", &l.Senders)
	d.MaybeScanArgs(t, "update-bytes", &l.UpdateBytes)
	d.MaybeScanArgs(t, "bytes", &l.Bytes)
	d.MaybeScanArgs(t, "rate", &l.Rate)
	d.MaybeScanArgs(t, "refused", &l.Refused)
	var patience string
	if d.MaybeScanArgs(t, "patience", &patience); patience != "" {
		var err error
		l.Patience, err = time.ParseDuration(patience)
		require.NoError(t, err)
	}
	w := newWaiting(l, next)
	if arg, ok := d.Arg("known"); ok {
		w.known = func(id transport.ID) bool { return slices.Contains(arg.Vals, string(id)) }
	}
	return w
}

// namedUpdate returns the update of a name: NAME or NAME:LENGTH.
func namedUpdate(t *testing.T, name string) []byte {
	name, length, has := strings.Cut(name, ":")
	n := 100
	if has {
		_, err := fmt.Sscan(length, &n)
		require.NoError(t, err)
	}
	return bytes.Repeat([]byte(name), n/len(name)+1)[:n]
}

func stepWaiting(t *testing.T, w *waiting, now *time.Time, words []string, out *strings.Builder) {
	height := func(s string) (n int64) {
		_, err := fmt.Sscan(s, &n)
		require.NoError(t, err)
		return n
	}
	add := func(sender string, p dsm.UpdatePart) {
		id, host, _ := strings.Cut(sender, "@")
		have, err := w.add(*now, source{transport.ID(id), host}, p)
		if err != nil {
			fmt.Fprintf(out, "%s: %v\n", strings.Join(words, " "), err)
		} else {
			fmt.Fprintf(out, "%s: %d of %d\n", strings.Join(words, " "), have, p.Total)
		}
		for _, s := range w.takeSlow() {
			fmt.Fprintf(out, "  slow: %s at %d\n", s.sender, s.height)
		}
	}
	switch {
	case strings.HasPrefix(words[0], "+"):
		d, err := time.ParseDuration(words[0][1:])
		require.NoError(t, err)
		*now = now.Add(d)
		return
	case words[0] == "candidate":
		a, ok := w.candidate()
		if !ok {
			fmt.Fprintln(out, "candidate: none")
			return
		}
		fmt.Fprintf(out, "candidate: %.1s of %s\n", a.update, a.from.sender)
		return
	case words[0] == "refute":
		w.refute(transport.ID(words[1]))
	case words[0] == "advance":
		w.advance(height(words[1]))
	case words[0] == "probe":
		update := namedUpdate(t, words[3])
		p := dsm.PartOf(height(words[2]), avlstar.KeyRange{}, update, sha256.Sum256(update), len(update))
		add(words[1], p)
	default:
		update := namedUpdate(t, words[2])
		var from, to int
		_, err := fmt.Sscanf(words[3], "%d-%d", &from, &to)
		require.NoError(t, err)
		sum := sha256.Sum256(update)
		p := dsm.UpdatePart{Height: height(words[1]), Total: uint32(len(update)), Offset: uint32(from), Sum: sum, Part: update[from:to]}
		if len(words) > 4 { // invalid bytes
			p.Part = bytes.Repeat([]byte("!"), to-from)
		}
		add(words[0], p)
	}
	fmt.Fprintf(out, "  next %d, %d whole, %d begun, %d bytes\n", w.next, len(w.whole), len(w.begun), w.bytes)
}

// Whatever is sent, the waiting updates stay within the limits, their byte count is right, and the
// next height gets a slot.
func TestWaitingRandom(t *testing.T) {
	rng := seeds.Rand(t)
	l := Limits{Ahead: 5, Senders: 3, UpdateBytes: 2000, Bytes: 7000, Patience: time.Second, Rate: 1000, Refused: 10}
	w := newWaiting(l, 1)
	w.known = func(id transport.ID) bool { return strings.HasSuffix(string(id), "7") }
	w.named, w.strangers = NewShares(9000), NewShares(5000)
	hosts := func(id transport.ID) string { return string(id[len(id)-1:]) }
	now := time.Unix(0, 0)
	arrived := 0
	for step := range 20_000 {
		// New senders come now and then: if all were refused, no height would ever complete.
		drawn := step/500*8 + rng.IntN(8)
		sender := transport.ID(fmt.Sprint(drawn))
		switch op := rng.IntN(400); {
		case op < 2:
			w.refute(sender)
		case op < 20:
			if a, ok := w.candidate(); ok {
				require.Equal(t, w.next, a.height)
				w.advance(a.height)
				arrived++
			}
		case op < 24:
			now = now.Add(time.Duration(rng.IntN(800)) * time.Millisecond)
		default:
			height := w.next - 2 + rng.Int64N(9)
			if height < 1 {
				continue
			}
			kind := (drawn + rng.IntN(10)/9) % 4
			update := namedUpdate(t, fmt.Sprintf("%d:%d", height*10+int64(kind), 500+500*kind))
			offset := 500 * rng.IntN(1+len(update)/500)
			if b := w.find(sender, height); b != nil && rng.IntN(4) > 0 {
				offset = min(int(b.have), len(update))
			}
			p := dsm.UpdatePart{Height: height, Total: uint32(len(update)), Offset: uint32(offset), Sum: sha256.Sum256(update)}
			p.Part = update[offset:min(len(update), offset+500)]
			if len(p.Part) == 0 {
				p.Offset = 0
			}
			have, err := w.add(now, source{sender, hosts(sender)}, p)
			if err == nil && have == p.Total && height >= w.next {
				require.True(t, w.has(height, p.Sum))
			}
		}
		n, strangers, perHost, perHeight := 0, 0, map[string]int64{}, map[int64]int{}
		named, perNamed := 0, map[string]int64{}
		for _, a := range w.whole {
			n += len(a.update)
			if !w.known(a.from.sender) {
				strangers += len(a.update)
				perHost[a.from.host] += int64(len(a.update))
			} else {
				named += len(a.update)
				perNamed[string(a.from.sender)] += int64(len(a.update))
			}
			perHeight[a.height]++
			require.Equal(t, a.sum, sha256.Sum256(a.update))
		}
		for _, b := range w.begun {
			n += int(b.have)
			if !w.known(b.from.sender) {
				strangers += int(b.have)
				perHost[b.from.host] += int64(b.have)
			} else {
				bytes := int64(b.have)
				if b.height > w.next {
					bytes = int64(b.total)
				}
				named += int(bytes)
				perNamed[string(b.from.sender)] += bytes
			}
			perHeight[b.height]++
		}
		require.Equal(t, n, w.bytes)
		require.EqualValues(t, strangers, w.strangers.Used())
		require.LessOrEqual(t, strangers, 5000)
		for host, n := range perHost {
			require.LessOrEqual(t, n, int64(2500), host)
			require.Equal(t, n, w.strangers.holders[host])
		}
		require.EqualValues(t, named, w.named.Used())
		require.LessOrEqual(t, named, 9000+3*2000, "the next height is not refused")
		for sender, n := range perNamed {
			require.LessOrEqual(t, n, int64(4500+2000), sender)
			require.Equal(t, n, w.named.holders[sender])
		}
		require.LessOrEqual(t, n, 7000)
		for height, n := range perHeight {
			require.LessOrEqual(t, n, 3)
			require.GreaterOrEqual(t, height, w.next)
			require.Less(t, height, w.next+5)
		}
	}
	require.Greater(t, arrived, 20)
	w.close()
	for _, s := range []*Shares{w.named, w.strangers} {
		require.Zero(t, s.Used())
		require.Empty(t, s.holders)
	}
}

// The budget for strangers is that of all ranges together, in shares by host, and does not limit
// known senders.
func TestStrangersShareABudget(t *testing.T) {
	budget := NewShares(400)
	of := func() *waiting {
		w := newWaiting(Limits{}, 1)
		w.known, w.strangers = func(id transport.ID) bool { return id == "known" }, budget
		return w
	}
	a, b := of(), of()
	send := func(w *waiting, sender transport.ID, host string, height int64) error {
		update := bytes.Repeat([]byte(sender[:1]), 100)
		_, err := w.add(time.Unix(0, 0), source{sender, host}, dsm.UpdatePart{Height: height, Total: 100, Sum: sha256.Sum256(update), Part: update})
		return err
	}
	require.NoError(t, send(a, "stranger", "h", 1))
	require.NoError(t, send(b, "stranger", "h", 1))
	require.ErrorIs(t, send(b, "other", "h", 2), ErrFull) // identities buy no share
	require.NoError(t, send(b, "other", "i", 2))
	require.ErrorIs(t, send(b, "other", "i", 3), ErrFull)
	require.NoError(t, send(b, "known", "h", 2))
	require.EqualValues(t, 300, budget.Used())
	a.advance(1)
	require.NoError(t, send(b, "other", "i", 3))
	b.close()
	require.Zero(t, budget.Used())
}

// Named senders have one budget for all ranges. A sender that announces all it may leaves others
// their shares, and the next height of a range does not depend on the other ranges.
func TestNamedSendersShareABudget(t *testing.T) {
	budget := NewShares(900)
	ranges := map[string]*waiting{}
	for _, name := range []string{"a", "b", "c", "d"} {
		ranges[name] = newWaiting(Limits{Ahead: 10}, 1)
		ranges[name].known, ranges[name].named = func(transport.ID) bool { return true }, budget
	}
	send := func(to string, sender transport.ID, height int64, from, until int) error {
		update := fmt.Appendf(nil, "%099d%s", height, to)
		p := dsm.UpdatePart{Height: height, Total: 100, Offset: uint32(from), Sum: sha256.Sum256(update), Part: update[from:until]}
		_, err := ranges[to].add(time.Unix(0, 0), source{sender, ""}, p)
		return err
	}
	for _, faulty := range []transport.ID{"x", "y", "z"} {
		for height := int64(2); height < 10; height++ {
			for to := range ranges {
				_ = send(to, faulty, height, 0, 1)
			}
		}
	}
	require.LessOrEqual(t, budget.Used(), int64(800), "a later height takes its whole length")
	for to := range ranges {
		require.NoError(t, send(to, "honest", 1, 0, 50))
		require.NoError(t, send(to, "honest", 1, 50, 100))
		require.True(t, ranges[to].hasOf("honest", 1))
	}
	for _, w := range ranges {
		w.close()
	}
	require.Zero(t, budget.Used())

	// What has begun can be completed, whatever others begin.
	require.NoError(t, send("a", "honest", 2, 0, 50))
	require.EqualValues(t, 100, budget.Used())
	for to := range ranges {
		_ = send(to, "faulty", 3, 0, 1)
	}
	require.NoError(t, send("a", "honest", 2, 50, 100))
	require.True(t, ranges["a"].hasOf("honest", 2))
}

// A host whose share is used up by later heights can still send the next one. Otherwise that height
// would never arrive, and the share would never become free. A known sender at that host keeps its
// updates.
func TestLaterHeightsLeaveTheNextOneItsShare(t *testing.T) {
	w := newWaiting(Limits{}, 1)
	w.known, w.strangers = func(id transport.ID) bool { return id == "known" }, NewShares(400)
	send := func(sender transport.ID, host string, height int64) error {
		update := fmt.Appendf(nil, "%099d%.1s", height, sender)
		_, err := w.add(time.Unix(0, 0), source{sender, host}, dsm.UpdatePart{Height: height, Total: 100, Sum: sha256.Sum256(update), Part: update})
		return err
	}
	require.NoError(t, send("h", "h", 2))
	require.NoError(t, send("h", "h", 3))
	require.NoError(t, send("i", "i", 3))
	require.NoError(t, send("known", "h", 4))
	require.NoError(t, send("h", "h", 1))
	var heights []int64
	for _, a := range w.whole {
		heights = append(heights, a.height)
	}
	// 3 of h is dropped, 3 of i and 4 of known are not.
	require.Equal(t, []int64{2, 3, 4, 1}, heights)
	require.Equal(t, "i", w.whole[1].from.host)
}

// The only sender, after being cut off, is refused only for a time. If it were refused until the
// next height, that height would never arrive.
func TestTheOnlySenderComesBack(t *testing.T) {
	w := newWaiting(Limits{}, 1)
	update := bytes.Repeat([]byte("u"), 100)
	sum := sha256.Sum256(update)
	part := func(from, to int) dsm.UpdatePart {
		return dsm.UpdatePart{Height: 1, Total: 100, Offset: uint32(from), Sum: sum, Part: update[from:to]}
	}
	began := time.Unix(0, 0)
	_, err := w.add(began, source{"only", ""}, part(0, 10))
	require.NoError(t, err)
	back := began.Add(time.Hour)
	_, err = w.add(back, source{"only", ""}, part(0, 100))
	require.ErrorIs(t, err, ErrRefusedSender)
	_, err = w.add(back.Add(w.limits.Patience), source{"only", ""}, part(0, 100))
	require.NoError(t, err)
	_, complete := w.candidate()
	require.True(t, complete)
}

// An update that its sender's share has no room for, whatever is dropped, drops nothing: the sender
// has used up its share in another range.
func TestNothingIsDroppedInVain(t *testing.T) {
	budget := NewShares(400)
	ranges := map[string]*waiting{}
	for _, name := range []string{"a", "b"} {
		ranges[name] = newWaiting(Limits{}, 1)
		ranges[name].strangers = budget
	}
	send := func(to string, height int64, length int) error {
		update := bytes.Repeat([]byte(to), length)
		p := dsm.UpdatePart{Height: height, Total: uint32(length), Sum: sha256.Sum256(update), Part: update}
		_, err := ranges[to].add(time.Unix(0, 0), source{"s", "h"}, p)
		return err
	}
	require.NoError(t, send("a", 1, 150))
	require.NoError(t, send("b", 4, 20))
	require.NoError(t, send("b", 3, 20))
	require.ErrorIs(t, send("b", 2, 110), ErrFull, "100 at most, if both later ones are dropped")
	require.Len(t, ranges["b"].whole, 2)
	require.NoError(t, send("b", 2, 50), "one of them is enough")
	require.Len(t, ranges["b"].whole, 2)
	require.True(t, ranges["b"].hasOf("s", 3))
	require.False(t, ranges["b"].hasOf("s", 4))
	for _, w := range ranges {
		w.close()
	}
	require.Zero(t, budget.Used())
}

package cli

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/join"
)

// seen returns the lines that a terminal shows after these bytes, with erased lines removed.
func seen(written string) string {
	var lines []string
	for line := range strings.SplitSeq(written, "\n") {
		lines = append(lines, line[strings.LastIndex(line, eraseLine)+1:])
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), eraseLine[1:], "")
}

// Log output stays above the bar, complete, and the bar stays below it.
func TestLogAboveTheBar(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, width: func() int { return 20 }}
	write := func(text string) { _, err := s.Write([]byte(text)); require.NoError(t, err) }
	write("started\n")
	s.show("bar 1")
	write("first\n")
	s.show("bar 2")
	require.Equal(t, "started\nfirst\nbar 2", seen(out.String()))
	write("half of ")
	s.show("bar 3") // not into the middle of a line
	write("a line\nand another\n")
	require.Equal(t, "started\nfirst\nhalf of a line\nand another\nbar 3", seen(out.String()))
	s.show("a bar that is too long for the terminal")
	require.True(t, strings.HasSuffix(seen(out.String()), "\na bar that is too l"))
	s.show("bar 4")
	s.end()
	write("after\n")
	s.end()
	require.Equal(t, "started\nfirst\nhalf of a line\nand another\nbar 4\nafter\n", seen(out.String()))
}

func TestJoinOnTheScreen(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, width: func() int { return 0 }}
	b := joinBar{screen: s}
	show := func(p join.Progress) string {
		b.show(p)
		text := seen(out.String())
		return text[strings.LastIndex(text, "\n")+1:]
	}
	require.Equal(t, "looking for peers and a snapshot …", show(join.Progress{Phase: "looking"}))
	require.Equal(t, "height 40: looking for chunks that are already here, 64 of 100", show(join.Progress{Phase: "verifying", Height: 40, Chunks: 100, ChunksDone: 64}))
	p := join.Progress{Phase: "fetching", Height: 40, Chunks: 100, ChunksDone: 25, Bytes: 12 << 20, BytesDone: 3 << 20, Peers: 1, Rate: 1 << 20,
		Elapsed: 3 * time.Second, Left: 9 * time.Second}
	require.Equal(t, "height 40 [=====>              ]  25 %  3.0 MiB of 12 MiB, 1.0 MiB/s, 3s so far, about 9s left, 25 of 100 chunks, 1 peer", show(p))
	p.Left, p.Peers = 0, 2
	require.Contains(t, show(p), "3s so far, 25 of 100 chunks, 2 peers")
	p.Phase, p.BytesDone = "writing", p.Bytes
	require.Equal(t, "writing the state of height 40 …", show(p))
	p.Phase, p.ChunksDone = "done", 100
	b.show(p)
	require.Contains(t, seen(out.String()), "Joined at height 40: 12 MiB in 100 chunks, 3.0 s, 2 peers, 0 banned, 0 B already present, 0 B wasted\n")
}

func TestProgressOnTheScreen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &screen{out: &out, width: func() int { return 80 }}
		p := newProgress(s, "keys", 200, 0)
		require.Equal(t, "0 of 200 keys, 0/s, ? left", seen(out.String()))
		p.at(10) // too soon
		<-time.After(10 * time.Second)
		p.at(100)
		require.Equal(t, "[==========>         ]  50 %  100 of 200 keys, 10/s, 10s left", seen(out.String()))
		p.at(200)
		p.end()
		require.Equal(t, "[====================] 100 %  200 of 200 keys, 20/s, 0s left\n", seen(out.String()))
	})
}

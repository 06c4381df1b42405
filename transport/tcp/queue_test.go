package tcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

// TestQueue runs testdata/queue: requests are opened, answered and canceled; next shows the frames
// that are sent.
func TestQueue(t *testing.T) {
	var s *Server
	var q *queue
	var rooms map[uint64]*waiter // of requests that wait for room
	frames := map[byte]string{frameAnswer: "answer", frameMore: "more", frameError: "error", framePong: "pong"}
	next := func() string {
		p, ok := q.next()
		if !ok {
			return "nothing"
		}
		line := fmt.Sprintf("%s %d", frames[p.head[0]], p.head[8])
		switch p.head[0] {
		case frameError:
			return fmt.Sprintf("%s code %d", line, p.head[frameHeader])
		case framePong:
			return "pong"
		}
		return fmt.Sprintf("%s %d KiB", line, len(p.bytes)>>10)
	}
	datadriven.RunTest(t, "testdata/queue", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		if d.Cmd == "new" {
			s = prepare(Options{bounds: bounds{maxCalls: 4}})
			q, rooms = newQueue(s, newGuest("host")), map[uint64]*waiter{}
		}
		for _, line := range strings.Split(d.Input, "\n") {
			var id uint64
			var size, times int
			var err error
			result := ""
			switch verb, rest, _ := strings.Cut(line, " "); verb {
			case "":
			case "open":
				_, _ = fmt.Sscan(rest, &id)
				err = q.open(id, func() { fmt.Fprintf(&out, "context of %d ends\n", id) })
			case "room":
				_, _ = fmt.Sscan(rest, &id, &size)
				rooms[id] = q.wait(id, int64(size)<<10)
			case "making":
				for _, id := range slices.Sorted(maps.Keys(rooms)) {
					select {
					case <-rooms[id].granted:
						result += fmt.Sprintf("%d ", id)
					default:
					}
				}
				result = fmt.Sprintf("%sof %d, backlog %d KiB\n", result, len(rooms), q.mu.backlog>>10)
			case "leave":
				_, _ = fmt.Sscan(rest, &id, &size)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				require.ErrorIs(t, q.room(ctx, id, int64(size)<<10), context.Canceled)
			case "answer":
				_, _ = fmt.Sscan(rest, &id, &size)
				q.answer(id, make([]byte, size<<10), 0)
			case "gone":
				_, _ = fmt.Sscan(rest, &id)
				q.refuse(id, transport.ErrGone, 0)
			case "cancel":
				var known bool
				_, _ = fmt.Sscan(rest, &id)
				if known, err = q.cancel(id); err == nil && !known {
					result = fmt.Sprintf("%d is over\n", id)
				}
			case "pong":
				q.pong()
			case "next":
				if times = 1; rest != "" {
					_, _ = fmt.Sscan(rest, &times)
				}
				for range times {
					result += next() + "\n"
				}
			case "unsent":
				result = fmt.Sprintf("%d KiB, open %d\n", s.unsent.held()>>10, len(q.mu.open))
			case "close":
				q.close()
			default:
				d.Fatalf(t, "unknown command %q", line)
			}
			out.WriteString(result)
			if err != nil {
				require.True(t, errors.Is(err, transport.ErrProtocol))
				fmt.Fprintln(&out, err)
			}
		}
		return out.String()
	})
}

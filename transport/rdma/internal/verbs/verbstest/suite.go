package verbstest

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// completions is the completion queue size that Run requires of devices.
const completions = 1024

// Open returns two devices that reach each other, each with room for completions. They may belong
// to the same port.
type Open func(tb testing.TB, completions int) (left, right verbs.Device)

// Run checks that devices fulfil the contract of package verbs.
func Run(t *testing.T, open Open) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Open)
	}{
		{"messages", testMessages},
		{"writes", testWrites},
		{"quiet writes", testQuietWrites},
		{"many queues", testManyQueues},
		{"wrong key", testWrongKey},
		{"past the end", testPastTheEnd},
		{"no receive", testNoReceive},
		{"late receive", testLateReceive},
		{"break", testBreak},
		{"peer is gone", testPeerGone},
		{"completions of a closed queue", testClosedQueue},
		{"close", testClose},
		{"limits", testLimits},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open) })
	}
}

// side is a device and one queue of it.
type side struct {
	t      *testing.T
	device verbs.Device
	queue  verbs.Queue
	more   []verbs.Completion
}

func (s *side) next() verbs.Completion {
	s.t.Helper()
	if len(s.more) == 0 {
		s.more = make([]verbs.Completion, verbs.MaxBatch)
		n, err := s.device.Wait(s.more)
		require.NoError(s.t, err)
		s.more = s.more[:n]
	}
	c := s.more[0]
	s.more = s.more[1:]
	return c
}

var sizes = verbs.Sizes{Lent: 1 << 20, Own: 1 << 20, Writes: 16, Receives: 16}

// pair returns two connected sides. The right one has posted receives.
func pair(t *testing.T, open Open) (left, right *side) {
	t.Helper()
	l, r := open(t, completions)
	left, right = &side{t: t, device: l}, &side{t: t, device: r}
	for _, s := range []*side{left, right} {
		q, err := s.device.NewQueue(sizes)
		require.NoError(t, err)
		s.queue = q
		t.Cleanup(func() {
			require.NoError(t, q.Close())
			require.NoError(t, s.device.Close())
		})
	}
	require.NoError(t, right.queue.Receive(8))
	require.NoError(t, right.queue.Connect(left.queue.Local()))
	require.NoError(t, left.queue.Connect(right.queue.Local()))
	return left, right
}

func testMessages(t *testing.T, open Open) {
	left, right := pair(t, open)
	require.NoError(t, left.queue.Receive(1))
	for _, message := range []string{"", "one", string(bytes.Repeat([]byte("x"), verbs.MaxMessage))} {
		require.NoError(t, left.queue.Send([]byte(message), 7))
		c := right.next()
		require.NoError(t, c.Err)
		require.Equal(t, verbs.Received, c.Kind)
		require.Equal(t, right.queue.ID(), c.Queue)
		require.Equal(t, message, string(c.Message[:c.Length]))
		c = left.next()
		require.NoError(t, c.Err)
		require.Equal(t, verbs.Sent, c.Kind)
		require.Equal(t, uint32(7), c.Tag)
	}
	require.NoError(t, right.queue.Send([]byte("back"), 1))
	c := left.next()
	require.Equal(t, "back", string(c.Message[:c.Length]))
	require.Error(t, left.queue.Send(make([]byte, verbs.MaxMessage+1), 0))
}

// write returns a write of n bytes from the beginning of the local memory to an offset in the
// peer's lent memory.
func write(to verbs.Queue, at, n int, immediate uint32) verbs.Write {
	_, address, key := to.Lent()
	return verbs.Write{Length: n, To: address + uint64(at), Key: key, Immediate: immediate, Tag: immediate & 0xff}
}

func testWrites(t *testing.T, open Open) {
	left, right := pair(t, open)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // must be reproducible
	lent, _, _ := right.queue.Lent()
	for i := range left.queue.Own() {
		left.queue.Own()[i] = byte(random.Uint32())
	}
	const part = 100_001
	for round := range 4 {
		var batch []verbs.Write
		for i := range 5 {
			w := write(right.queue, i*part, part-i, uint32(1<<31+round*5+i))
			w.From = (i + round) * 7
			batch = append(batch, w)
		}
		require.NoError(t, left.queue.Write(batch))
		for i, w := range batch {
			c := right.next()
			require.NoError(t, c.Err)
			require.Equal(t, verbs.Landed, c.Kind)
			require.Equal(t, w.Immediate, c.Immediate, "in the order of posting")
			require.Equal(t, w.Length, c.Length)
			require.True(t, bytes.Equal(left.queue.Own()[w.From:w.From+w.Length], lent[i*part:i*part+w.Length]))
		}
		for _, w := range batch {
			c := left.next()
			require.NoError(t, c.Err)
			require.Equal(t, w.Tag, c.Tag)
		}
		require.NoError(t, right.queue.Receive(len(batch)))
	}
}

// testQuietWrites: a quiet write lands like any other and has no completion of its own. Its place
// stays taken until the next completion. A quiet write that fails has a completion.
func testQuietWrites(t *testing.T, open Open) {
	left, right := pair(t, open)
	copy(left.queue.Own(), "quiet")
	for round := range 4 { // more than Sizes.Writes in total
		var batch []verbs.Write
		for i := range 7 {
			w := write(right.queue, i*5, 5, uint32(round*7+i))
			w.Quiet = i < 6
			batch = append(batch, w)
		}
		require.NoError(t, left.queue.Write(batch))
		for _, w := range batch {
			c := right.next()
			require.NoError(t, c.Err)
			require.Equal(t, w.Immediate, c.Immediate)
			require.NoError(t, right.queue.Receive(1))
		}
		c := left.next()
		require.NoError(t, c.Err)
		require.Equal(t, batch[6].Tag, c.Tag)
	}
	lent, _, _ := right.queue.Lent()
	require.Equal(t, string(bytes.Repeat([]byte("quiet"), 7)), string(lent[:35]))

	w := write(right.queue, 0, 5, 1)
	w.Quiet, w.Key = true, w.Key+1
	require.NoError(t, left.queue.Write([]verbs.Write{w}))
	require.Error(t, left.next().Err)
}

// testManyQueues lets many queues of one pair of devices write concurrently.
func testManyQueues(t *testing.T, open Open) {
	const queues, writes = 8, 40
	small := verbs.Sizes{Lent: 1 << 16, Own: 1 << 16, Writes: 4, Receives: 4}
	l, r := open(t, completions)
	t.Cleanup(func() { require.NoError(t, l.Close()); require.NoError(t, r.Close()) })
	type couple struct{ from, to verbs.Queue }
	lefts, rights := map[verbs.ID]couple{}, map[verbs.ID]verbs.Queue{}
	for range queues {
		a, err := l.NewQueue(small)
		require.NoError(t, err)
		b, err := r.NewQueue(small)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, a.Close()); require.NoError(t, b.Close()) })
		require.NoError(t, b.Receive(4))
		require.NoError(t, b.Connect(a.Local()))
		require.NoError(t, a.Connect(b.Local()))
		lefts[a.ID()], rights[b.ID()] = couple{a, b}, b
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		landed := map[verbs.ID]uint32{}
		drain(t, r, queues*writes, func(c verbs.Completion) error {
			if c.Immediate != landed[c.Queue] {
				t.Errorf("%+v after %d", c, landed[c.Queue])
			}
			landed[c.Queue]++
			return rights[c.Queue].Receive(1)
		})
	})
	sent := map[verbs.ID]uint32{}
	for _, c := range lefts {
		require.NoError(t, c.from.Write([]verbs.Write{write(c.to, 0, 1<<12, 0)}))
	}
	drain(t, l, queues*writes, func(c verbs.Completion) error {
		n := sent[c.Queue] + 1
		if sent[c.Queue] = n; n == writes {
			return nil
		}
		return lefts[c.Queue].from.Write([]verbs.Write{write(lefts[c.Queue].to, 0, 1<<12, n)})
	})
}

// drain handles exactly count completions of a device.
func drain(t *testing.T, d verbs.Device, count int, handle func(verbs.Completion) error) {
	batch := make([]verbs.Completion, verbs.MaxBatch)
	for count > 0 {
		n, err := d.Wait(batch)
		for _, c := range batch[:n] {
			if c.Err != nil {
				t.Errorf("%+v", c)
			}
			if err := handle(c); err != nil {
				t.Error(err)
			}
		}
		if count -= n; err != nil {
			t.Error(err)
			return
		}
	}
}

// requireBroken requires that a side can send no more. Its next completions must be failures.
func requireBroken(t *testing.T, s *side, to verbs.Queue) {
	t.Helper()
	if err := s.queue.Write([]verbs.Write{write(to, 0, 1, 99)}); err == nil {
		c := s.next()
		for c.Kind != verbs.Sent { // completions from before the failure
			c = s.next()
		}
		require.Error(t, c.Err)
	}
}

func testWrongKey(t *testing.T, open Open) {
	left, right := pair(t, open)
	w := write(right.queue, 0, 10, 1)
	w.Key += 1 << 8
	require.NoError(t, left.queue.Write([]verbs.Write{w}))
	require.Error(t, left.next().Err)
	requireBroken(t, left, right.queue)
	requireBroken(t, right, left.queue) // the receiver gets no error
}

func testPastTheEnd(t *testing.T, open Open) {
	left, right := pair(t, open)
	lent, _, _ := right.queue.Lent()
	copy(left.queue.Own(), "0123456789")
	require.NoError(t, left.queue.Write([]verbs.Write{write(right.queue, len(lent)-9, 10, 1)}))
	require.Error(t, left.next().Err)
	require.Equal(t, make([]byte, 9), lent[len(lent)-9:], "nothing was written")
	requireBroken(t, left, right.queue)
}

// testNoReceive posts eight receives at the peer. The ninth write fails, after retries.
func testNoReceive(t *testing.T, open Open) {
	left, right := pair(t, open)
	for i := range 9 {
		require.NoError(t, left.queue.Write([]verbs.Write{write(right.queue, 0, 10, uint32(i))}))
	}
	for range 8 {
		require.NoError(t, left.next().Err)
		require.NoError(t, right.next().Err)
	}
	require.Error(t, left.next().Err)
}

func testLateReceive(t *testing.T, open Open) {
	left, right := pair(t, open)
	for i := range 9 {
		require.NoError(t, left.queue.Write([]verbs.Write{write(right.queue, 0, 10, uint32(i))}))
	}
	for range 8 {
		require.NoError(t, right.next().Err)
	}
	require.NoError(t, right.queue.Receive(1))
	require.Equal(t, uint32(8), right.next().Immediate)
	for range 9 {
		require.NoError(t, left.next().Err)
	}
}

// testBreak breaks the receiver during writes: afterwards nothing may write to the lent memory.
func testBreak(t *testing.T, open Open) {
	left, right := pair(t, open)
	lent, _, _ := right.queue.Lent()
	copy(left.queue.Own(), bytes.Repeat([]byte("x"), len(left.queue.Own())))
	const part = 1 << 17
	for i := range 8 {
		require.NoError(t, left.queue.Write([]verbs.Write{write(right.queue, i*part, part, uint32(i))}))
	}
	require.NoError(t, right.next().Err)
	require.NoError(t, right.queue.Break())
	clear(lent)
	failed := 0
	for range 8 { // the sender has exhausted its retries
		if left.next().Err != nil {
			failed++
		}
	}
	require.True(t, bytes.Equal(make([]byte, len(lent)), lent), "not a byte was written")
	requireBroken(t, right, left.queue)
	if failed > 0 {
		requireBroken(t, left, right.queue)
	}
}

func testPeerGone(t *testing.T, open Open) {
	left, right := pair(t, open)
	w := write(right.queue, 0, 10, 1)
	require.NoError(t, right.queue.Close())
	require.NoError(t, left.queue.Write([]verbs.Write{w}))
	require.Error(t, left.next().Err)
	require.ErrorIs(t, right.queue.Receive(1), verbs.ErrClosed)
	require.ErrorIs(t, right.queue.Send(nil, 1), verbs.ErrClosed)
	require.ErrorIs(t, right.queue.Write([]verbs.Write{{Length: 1}}), verbs.ErrClosed)
	require.ErrorIs(t, right.queue.Break(), verbs.ErrClosed)
}

// testClosedQueue closes a queue with pending completions: they are dropped.
func testClosedQueue(t *testing.T, open Open) {
	left, right := pair(t, open)
	for i := range 8 {
		require.NoError(t, left.queue.Write([]verbs.Write{write(right.queue, 0, 10, uint32(i))}))
	}
	for range 8 {
		require.NoError(t, left.next().Err)
	}
	require.NoError(t, right.queue.Close())
	again, err := right.device.NewQueue(sizes)
	require.NoError(t, err)
	require.NotEqual(t, right.queue.ID(), again.ID())
	t.Cleanup(func() { require.NoError(t, again.Close()) })
	other, err := left.device.NewQueue(sizes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	require.NoError(t, again.Receive(1))
	require.NoError(t, again.Connect(other.Local()))
	require.NoError(t, other.Connect(again.Local()))
	require.NoError(t, other.Send([]byte("new"), 1))
	c := right.next()
	require.Equal(t, again.ID(), c.Queue)
	require.Equal(t, "new", string(c.Message[:c.Length]))
}

func testClose(t *testing.T, open Open) {
	left, right := open(t, completions)
	q, err := left.NewQueue(sizes)
	require.NoError(t, err)
	require.Error(t, left.Close(), "it has a queue")
	require.NoError(t, q.Close())
	require.NoError(t, q.Close(), "once more")
	ended := make(chan error, 1)
	go func() {
		_, err := right.Wait(make([]verbs.Completion, 1))
		ended <- err
	}()
	require.NoError(t, right.Close())
	require.ErrorIs(t, <-ended, verbs.ErrClosed)
	require.NoError(t, left.Close())
	_, err = left.Wait(make([]verbs.Completion, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = left.NewQueue(sizes)
	require.ErrorIs(t, err, verbs.ErrClosed)
}

func testLimits(t *testing.T, open Open) {
	left, right := pair(t, open)
	_, err := left.device.NewQueue(verbs.Sizes{Writes: 1 << 14, Receives: 1 << 20})
	require.ErrorIs(t, err, verbs.ErrFull)
	_, err = left.device.NewQueue(verbs.Sizes{})
	require.Error(t, err)
	require.Error(t, left.queue.Write(nil))
	require.Error(t, left.queue.Write(make([]verbs.Write, verbs.MaxBatch+1)))
	for _, w := range []verbs.Write{{From: -1, Length: 1}, {Length: -1}, {From: 1 << 20, Length: 1}, {From: 1, Length: 1 << 20}} {
		require.Error(t, left.queue.Write([]verbs.Write{w}))
	}
	require.Error(t, right.queue.Receive(9), "eight are posted, of sixteen")
	require.Error(t, right.queue.Receive(0))
	for _, e := range []verbs.Endpoint{{}, {GID: verbs.GID{1}, QPN: 1 << 24, MTU: 1024}, {GID: verbs.GID{1}, QPN: 1, PSN: 1 << 24, MTU: 1024},
		{GID: verbs.GID{1}, QPN: 1, MTU: 1000}, {GID: verbs.GID{1}, QPN: 1, MTU: 8192}} {
		require.Error(t, right.queue.Connect(e))
	}
}

package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// group is that of all chunks: there is one state.
const group scheduler.Group = 1

// maxAnswer is the limit of an answer.
const maxAnswer = 1 + iavlsync.MaxAnswerBytes

// request is a chunk that was asked of a peer, until it has ended. Its fields are the loop's unless
// their comment says otherwise.
type request struct {
	id       scheduler.RequestID
	chunk    int
	peer     scheduler.PeerID
	cancel   context.CancelFunc
	received atomic.Int64 // bytes that have arrived so far, written by the transport
	base     atomic.Int64 // bytes of earlier calls for this chunk, which came in parts
	raw      int64        // both, as they were seen last
	told     int64        // what the scheduler knows of: weighed(raw)
	answer   *answer      // from its arrival on
}

// answer is a chunk that has arrived whole, or that was installed part by part as it came.
type answer struct {
	chunk []byte
	bytes int64
}

// fetch has all chunks that are missing fetched and installed.
func (j *joiner) fetch() error {
	ids := make([]scheduler.PeerID, 0, len(j.peers))
	for id := range j.peers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if !j.banned[transport.ID(id)] {
			j.present(id)
		}
	}
	var items []scheduler.Item
	for _, k := range j.state.installer.Missing() {
		items = append(items, scheduler.Item{ID: scheduler.ItemID(k), Group: group, At: uint32(k), Bytes: maxAnswer})
	}
	if len(items) == 0 {
		return nil
	}
	j.moved = time.Now()
	j.step(scheduler.Add{Items: items})
	return j.loop()
}

func (j *joiner) loop() error {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	report := time.NewTicker(j.o.Report)
	defer report.Stop()
	from, told := time.Now(), int64(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !j.done && j.failed == nil {
		wait := time.Hour
		if at, ok := j.sched.Next(); ok {
			wait = max(at-time.Since(j.started), 0)
		}
		timer.Reset(wait)
		select {
		case <-j.ctx.Done():
			return j.ctx.Err()
		case <-j.mail.Wake():
			for _, e := range j.mail.Take() {
				e.handle(j)
			}
		case <-timer.C:
			j.step(scheduler.Tick{})
		case <-report.C:
			if n := j.arrived(); n > told {
				told = n
				j.say("%s", progress(len(j.state.installer.Missing()), j.result.Chunks, j.result.Fetched, n, time.Since(from)))
			}
		case <-ticker.C:
			j.tellProgress()
			if time.Since(j.moved) > j.o.Stall {
				return fmt.Errorf("%w: %d of %d chunks are missing", ErrStalled, len(j.state.installer.Missing()), j.result.Chunks)
			}
		}
	}
	return j.failed
}

// step gives the scheduler an event and carries out what it orders, until it orders nothing more.
func (j *joiner) step(e scheduler.Event) {
	for queue := []scheduler.Event{e}; len(queue) > 0; queue = queue[1:] {
		for _, a := range j.sched.Step(time.Since(j.started), queue[0]) {
			switch a := a.(type) {
			case scheduler.Ask:
				if !j.ask(a) {
					queue = append(queue, scheduler.Failed{Request: a.Request, Reason: scheduler.Broken})
				}
			case scheduler.Cancel:
				if r := j.requests[a.Request]; r != nil {
					j.end(r)
				}
			case scheduler.Verify:
				j.check(j.requests[a.Request])
			case scheduler.Ban:
				j.ban(a.Peer, a.Reason)
			case scheduler.Done:
				j.done = true
			}
		}
	}
}

func (j *joiner) tellProgress() {
	for _, r := range j.requests {
		raw := r.base.Load() + r.received.Load()
		if raw <= r.raw {
			continue
		}
		r.raw, j.moved = raw, time.Now()
		if n := weighed(raw); n > r.told {
			r.told = n
			j.step(scheduler.Progress{Request: r.id, Bytes: uint64(n)})
		}
	}
}

// arrived returns the bytes of all right answers of this join, and of those under way.
func (j *joiner) arrived() int64 {
	n := j.result.Bytes
	for _, r := range j.requests {
		n += r.base.Load() + r.received.Load()
	}
	return n
}

// progress describes a join that has fetched some chunks, and bytes, in a time. How long the rest
// takes is known once a chunk has come.
func progress(missing, chunks, fetched int, bytes int64, took time.Duration) string {
	text := fmt.Sprintf("%d of %d chunks are there, %.1f MB fetched now, %.1f MB/s",
		chunks-missing, chunks, float64(bytes)/1e6, float64(bytes)/1e6/took.Seconds())
	if fetched == 0 {
		return text
	}
	left := took / time.Duration(fetched) * time.Duration(missing)
	return fmt.Sprintf("%s, about %s left", text, max(left.Round(time.Second), time.Second))
}

// weighed returns how many of the bytes of one answer the scheduler is told of for those that have
// arrived. A chunk in parts may be far longer than one answer, and the scheduler gives up on peers
// whose requests no longer grow: so from the middle on they grow ever slower, but do not end.
func weighed(raw int64) int64 {
	const half = maxAnswer / 2
	if raw <= half {
		return raw
	}
	return maxAnswer - half*half/raw
}

// ask sends a request. It returns false if its peer is no longer there.
func (j *joiner) ask(a scheduler.Ask) bool {
	p := j.peers[a.Peer]
	if p == nil {
		return false
	}
	ctx, cancel := context.WithCancel(j.ctx)
	r := &request{id: a.Request, chunk: int(a.Item), peer: a.Peer, cancel: cancel}
	j.requests[r.id] = r
	j.wg.Go(func() {
		defer cancel()
		f := fetching{j.state, p.conn, r, 0}
		answer, err := f.chunk(ctx)
		j.mail.Put(answered{r, answer, err})
	})
	return true
}

// answered is the end of a call: its answer, or why there is none.
type answered struct {
	r      *request
	answer *answer
	err    error
}

func (e answered) handle(j *joiner) {
	r := e.r
	if j.requests[r.id] == nil {
		return // the request was cancelled
	}
	if e.err != nil {
		reason := scheduler.Broken
		var own *ownError
		switch {
		case errors.As(e.err, &own):
			j.failed = own.err
			return
		case isLie(e.err):
			reason = scheduler.Lied
		case errors.Is(e.err, transport.ErrGone):
			reason = scheduler.Gone
		case errors.Is(e.err, transport.ErrBusy):
			reason = scheduler.Busy
		case errors.Is(e.err, transport.ErrRefused):
			reason = scheduler.Refused
		}
		j.end(r)
		j.step(scheduler.Failed{Request: r.id, Reason: reason, Detail: e.err.Error()})
		return
	}
	r.answer = e.answer
	j.moved = time.Now()
	j.step(scheduler.Received{Request: r.id, Bytes: uint64(min(e.answer.bytes, maxAnswer))})
}

// check lets a worker verify and install a chunk.
func (j *joiner) check(r *request) {
	s := j.state
	j.wg.Go(func() {
		j.workers <- struct{}{}
		defer func() { <-j.workers }()
		j.mail.Put(checked{r, s.install(r.chunk, r.answer.chunk)})
	})
}

// install verifies and installs a chunk. nil: it came in parts, and is installed already.
func (s *state) install(k int, b []byte) error {
	if b == nil {
		return nil
	}
	c, err := iavlsync.VerifyChunk(s.image(k), b)
	if err != nil {
		return err
	}
	return s.installer.Install(k, c, b)
}

func (s *state) image(k int) *iavlsync.Image {
	i, e := s.m.At(k)
	return &s.m.Stores[i].Entries[e].Root
}

// checked is what a worker has found: iavlsync.ErrInvalidChunk is a lie, all else our own failure.
type checked struct {
	r   *request
	err error
}

func (e checked) handle(j *joiner) {
	r := e.r
	switch {
	case errors.Is(e.err, iavlsync.ErrInvalidChunk):
		j.end(r)
		j.step(scheduler.Rejected{Request: r.id, Reason: e.err.Error()})
		return
	case e.err != nil:
		j.failed = e.err
		return
	}
	j.end(r)
	j.moved = time.Now()
	j.result.Fetched++
	j.result.Bytes += r.answer.bytes
	j.step(scheduler.Verified{Request: r.id})
}

// end forgets a request, and cancels its call if that is still under way.
func (j *joiner) end(r *request) {
	r.cancel()
	delete(j.requests, r.id)
}

// ownError is a failure of ours in the middle of a call.
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }

// fetching fetches one chunk from one peer.
type fetching struct {
	*state
	conn   transport.Conn
	r      *request
	proved int64 // bytes of parts that were proved and installed
}

// chunk returns the chunk. One that comes in halves is proved and installed as it comes: all of it
// may not fit into memory.
func (f *fetching) chunk(ctx context.Context) (*answer, error) {
	i, e := f.m.At(f.r.chunk)
	root := &f.m.Stores[i].Entries[e].Root
	q := iavlsync.Request{Height: f.m.Height, Store: f.m.Stores[i].Name, First: f.first[f.r.chunk], Leaves: root.Size}
	kind, b, err := f.ask(ctx, &q)
	if err != nil {
		return nil, err
	}
	if kind == iavlsync.AnswerWhole {
		return &answer{b, int64(len(b))}, nil
	}
	if _, err := f.part(ctx, q, root, kind, b); err != nil {
		return nil, err
	}
	// An honest peer halves only what is too long. Versions and inner nodes take at most 20 bytes a
	// leaf more in the whole than in its parts.
	if f.proved+20*root.Size <= iavlsync.MaxAnswerBytes {
		return nil, fmt.Errorf("%w: it came in halves, and has only about %d bytes", iavlsync.ErrInvalidChunk, f.proved)
	}
	return &answer{nil, f.proved}, nil
}

func (f *fetching) ask(ctx context.Context, q *iavlsync.Request) (iavlsync.AnswerKind, []byte, error) {
	f.r.base.Add(f.r.received.Swap(0))
	b, err := f.conn.Call(ctx, transport.Call{Method: iavlsync.MethodLeaves, Body: q.Encode(), Max: maxAnswer, Received: &f.r.received})
	if err != nil {
		return 0, nil, err
	}
	return iavlsync.SplitAnswer(b)
}

// part takes an answer to q, whose proved image is root, and installs all leaves below it.
func (f *fetching) part(ctx context.Context, q iavlsync.Request, root *iavlsync.Image, kind iavlsync.AnswerKind, b []byte) (*nodedb.Placed, error) {
	var c *iavlsync.Chunk
	var err error
	switch kind {
	case iavlsync.AnswerWhole:
		f.proved += int64(len(b))
		c, err = iavlsync.VerifyChunk(root, b)
	case iavlsync.AnswerPart:
		c, err = f.leaf(ctx, q, root, b)
	default:
		return f.halves(ctx, q, root, b)
	}
	if err != nil {
		return nil, err
	}
	if kind == iavlsync.AnswerPart { // all of the leaf, which came in several
		leaf := &c.Leaves[0]
		b = iavlsync.AppendLeaf(nil, root.Version, leaf.Version, leaf.Key, leaf.Value)
	}
	p, err := f.installer.InstallPart(f.r.chunk, q.First, c, b)
	if err != nil {
		return nil, &ownError{err}
	}
	return p, nil
}

func (f *fetching) leaf(ctx context.Context, q iavlsync.Request, root *iavlsync.Image, b []byte) (*iavlsync.Chunk, error) {
	var parts iavlsync.Parts
	for {
		if err := parts.Add(root, b); err != nil {
			return nil, err
		}
		if parts.Complete() {
			f.proved += parts.Offset()
			return parts.Verify(root)
		}
		q.Offset = parts.Offset()
		kind, next, err := f.ask(ctx, &q)
		if err != nil {
			return nil, err
		}
		if kind != iavlsync.AnswerPart {
			return nil, fmt.Errorf("%w: a part of a leaf was requested", iavlsync.ErrInvalidChunk)
		}
		b = next
	}
}

func (f *fetching) halves(ctx context.Context, q iavlsync.Request, root *iavlsync.Image, b []byte) (*nodedb.Placed, error) {
	left, right, err := iavlsync.VerifyHalves(root, q.Height, b)
	if err != nil {
		return nil, err
	}
	var placed [2]*nodedb.Placed
	for i, half := range []*iavlsync.Image{left, right} {
		below := iavlsync.Request{Height: q.Height, Store: q.Store, First: q.First + int64(i)*left.Size, Leaves: half.Size}
		kind, part, err := f.ask(ctx, &below)
		if err != nil {
			return nil, err
		}
		if placed[i], err = f.part(ctx, below, half, kind, part); err != nil {
			return nil, err
		}
	}
	p, err := f.installer.Join(f.r.chunk, root, placed[0], placed[1], b)
	if err != nil {
		return nil, &ownError{err}
	}
	return p, nil
}

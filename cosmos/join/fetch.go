package join

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/statesync/fetch"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// group is the only group of chunks, because there is only one state.
const group scheduler.Group = 1

// maxAnswer is the maximum length of a response.
const maxAnswer = 1 + iavlsync.MaxAnswerBytes

// fetch fetches and installs all missing chunks.
func (j *joiner) fetch() error {
	for _, id := range slices.Sorted(maps.Keys(j.peers)) {
		if !j.banned[transport.ID(id)] {
			j.present(id)
		}
	}
	missing := j.state.installer.Missing()
	if len(missing) == 0 {
		return nil
	}
	j.began = time.Now()
	j.moved, j.reported = j.began, j.began
	j.missing = len(missing)
	j.loop.Add(missing...)
	if err := j.loop.Run(j.tick); err != nil {
		return err
	}
	j.result.Fetched = j.missing
	return nil
}

// tick handles everything that depends on time.
func (j *joiner) tick() {
	if n := j.result.Bytes + j.loop.Arriving(); n > j.logged && time.Since(j.reported) >= j.o.Report {
		j.logged, j.reported = n, time.Now()
		missing := len(j.state.installer.Missing())
		j.say("%s", progress(missing, j.result.Chunks, j.missing-missing, n, time.Since(j.began)))
	}
	if err := j.useless(); err != nil {
		j.loop.Fail(j.short(err))
	}
	quiet := time.Since(j.moved)
	if quiet >= quietAfter && j.waited.Before(j.moved) {
		j.waited = time.Now()
		j.say("no data has arrived for %v: waiting up to %v%s", quietAfter, j.o.Stall, table(j.known))
	}
	if quiet > j.o.Stall {
		j.loop.Fail(j.short(ErrStalled))
	}
}

// quietAfter is the time without received data after which a join logs that it waits.
const quietAfter = 30 * time.Second

// short adds the number of missing chunks to an error.
func (j *joiner) short(err error) error {
	return fmt.Errorf("%w: %d of %d chunks are missing", err, len(j.state.installer.Missing()), j.result.Chunks)
}

// progress describes a join that has fetched fetched chunks and bytes bytes in the time took. The
// remaining time is known after the first chunk.
func progress(missing, chunks, fetched int, bytes int64, took time.Duration) string {
	text := fmt.Sprintf("%d of %d chunks are there, %.1f MB fetched now, %.1f MB/s",
		chunks-missing, chunks, float64(bytes)/1e6, float64(bytes)/1e6/took.Seconds())
	if fetched == 0 {
		return text
	}
	left := took / time.Duration(fetched) * time.Duration(missing)
	return fmt.Sprintf("%s, about %s left", text, max(left.Round(time.Second), time.Second))
}

// weighed maps the bytes received for a request to the number of bytes, within one response, that
// the scheduler is given. A chunk in parts may be far longer than one response, and the scheduler
// gives up on peers whose requests no longer grow. So above half of the limit the number grows ever
// more slowly, but does not stop.
func weighed(raw int64) int64 {
	const half = maxAnswer / 2
	if raw <= half {
		return raw
	}
	return maxAnswer - half*half/raw
}

// Spec implements fetch.Work.
func (j *joiner) Spec(k int) scheduler.Item {
	return scheduler.Item{Group: group, At: uint32(k), Bytes: maxAnswer}
}

// Call implements fetch.Work. A chunk that arrives in parts is installed by Call, and has no Data.
func (j *joiner) Call(ctx context.Context, conn transport.Conn, r *fetch.Request[int]) (fetch.Answer, error) {
	f := fetching{j.state, conn, r, 0}
	data, err := f.chunk(ctx)
	switch {
	case err == nil || j.ctx.Err() != nil:
	case ctx.Err() == nil:
		j.loop.Post(func() { j.failed(conn.Remote().ID, "no chunk", err) })
	case r.Received.Load() == 0: // the loop has cancelled the request
		j.loop.Post(func() { j.failed(conn.Remote().ID, "no chunk", context.DeadlineExceeded) })
	}
	return fetch.Answer{Data: data, Bytes: uint64(min(r.Received.Load(), maxAnswer))}, err
}

// Verify implements fetch.Work.
func (j *joiner) Verify(r *fetch.Request[int], a fetch.Answer) (none struct{}, err error) {
	if a.Data == nil {
		return none, nil
	}
	c, err := iavlsync.VerifyChunk(j.state.image(r.Item), a.Data)
	if err != nil {
		return none, err
	}
	j.state.chunkBytes.Add(int64(len(a.Data)))
	return none, j.state.installer.Install(r.Item, c, a.Data)
}

func (s *state) image(k int) *iavlsync.Image {
	i, e := s.m.At(k)
	return &s.m.Stores[i].Entries[e].Root
}

// Invalid implements fetch.Work.
func (*joiner) Invalid(err error) bool { return isLie(err) }

// Verified implements fetch.Work.
func (j *joiner) Verified(r *fetch.Request[int], _ struct{}) {
	j.moved = time.Now()
	j.result.Bytes += r.Received.Load()
	j.answered(transport.ID(r.Peer), "it has sent chunks", nil)
}

// At implements fetch.Work.
func (j *joiner) At(_ *fetch.Request[int], s fetch.Stage) {
	if s == fetch.Growing || s == fetch.Arrived {
		j.moved = time.Now()
	}
}

// Done implements fetch.Work.
func (*joiner) Done() bool { return true }

// fetching fetches one chunk from one peer.
type fetching struct {
	*state
	conn   transport.Conn
	r      *fetch.Request[int]
	proved int64 // bytes of verified and installed parts
}

// chunk returns the chunk, or nil if it arrives in halves. Halves are verified and installed as
// they arrive, because the whole chunk may not fit into memory.
func (f *fetching) chunk(ctx context.Context) ([]byte, error) {
	i, e := f.m.At(f.r.Item)
	root := &f.m.Stores[i].Entries[e].Root
	q := iavlsync.Request{Height: f.m.Height, Store: f.m.Stores[i].Name, First: f.first[f.r.Item], Leaves: root.Size}
	kind, b, err := f.ask(ctx, q)
	if err != nil {
		return nil, err
	}
	if kind == iavlsync.AnswerWhole {
		return b, nil
	}
	if _, err := f.part(ctx, q, root, kind, b); err != nil {
		return nil, err
	}
	// An honest peer halves only chunks that are too long. Versions and inner nodes need at most 20
	// bytes per leaf more in the whole chunk than in its parts.
	if f.proved+20*root.Size <= iavlsync.MaxAnswerBytes {
		return nil, fmt.Errorf("%w: it came in halves, and has only about %d bytes", iavlsync.ErrInvalidChunk, f.proved)
	}
	f.chunkBytes.Add(f.proved)
	return nil, nil
}

// ask sends a request, and decompresses the answer.
func (f *fetching) ask(ctx context.Context, q iavlsync.Request) (iavlsync.AnswerKind, []byte, error) {
	_, old := f.old.Load(f.r.Peer)
	q.Packed = !old
	b, err := f.call(ctx, &q)
	if q.Packed && errors.Is(err, transport.ErrRefused) {
		f.old.Store(f.r.Peer, true)
		q.Packed = false
		b, err = f.call(ctx, &q)
	}
	switch {
	case err != nil:
		return 0, nil, err
	case q.Packed:
		return f.unpacker.Split(b)
	}
	return iavlsync.SplitAnswer(b)
}

func (f *fetching) call(ctx context.Context, q *iavlsync.Request) ([]byte, error) {
	return f.conn.Call(ctx, transport.Call{Method: iavlsync.MethodLeaves, Body: q.Encode(), Max: maxAnswer, Received: &f.r.Received})
}

// part verifies a response to q against the verified image root, and installs all leaves below it.
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
	if kind == iavlsync.AnswerPart { // the whole leaf, which arrived in several parts
		leaf := &c.Leaves[0]
		b = iavlsync.AppendLeaf(nil, root.Version, leaf.Version, leaf.Key, leaf.Value)
	}
	p, err := f.installer.InstallPart(f.r.Item, q.First, c, b)
	if err != nil {
		return nil, &fetch.OwnError{Err: err}
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
		kind, next, err := f.ask(ctx, q)
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
		kind, part, err := f.ask(ctx, below)
		if err != nil {
			return nil, err
		}
		if placed[i], err = f.part(ctx, below, half, kind, part); err != nil {
			return nil, err
		}
	}
	p, err := f.installer.Join(f.r.Item, root, placed[0], placed[1], b)
	if err != nil {
		return nil, &fetch.OwnError{Err: err}
	}
	return p, nil
}

package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// scanBytes is the maximum number of bytes of events read for one answer, including events of keys
// that were not requested.
const scanBytes = 32 << 20

// eventOverhead is added to the size of an event when the limit of an answer is checked.
const eventOverhead = 64

// Answer answers a request for events. If there is no event yet, it waits for one, at most as long
// as wait and the request allow. After that, the answer only reports the height of the log. Errors:
// ErrBusy, ErrClosed, that of ctx, and read errors.
func (l *Log) Answer(ctx context.Context, r event.Request, wait time.Duration) (event.Answer, error) {
	timer := time.NewTimer(min(wait, time.Duration(r.WaitMS)*time.Millisecond))
	defer timer.Stop()
	asked := r.From
	for {
		number := l.number()
		a, full, err := l.read(&r)
		if errors.Is(err, engine.ErrCorrupt) {
			if err = l.replaceDamaged(damage{number, err}); err == nil {
				continue // the old events were compacted meanwhile
			}
		}
		if err != nil || full || len(a.Events) > 0 || a.Compacted(r.From) || wait <= 0 || r.WaitMS == 0 {
			compacted := a.Compacted(r.From) && a.Next == r.From
			return l.count(answerTo(asked, a, compacted), err, compacted)
		}
		r.From = a.Next
		w, err := l.register(r)
		if err != nil {
			return l.count(a, err, false)
		}
		if w == nil {
			continue // there is already another block
		}
		select {
		case <-w.woken:
			continue
		case <-timer.C:
			wait = 0 // read once more: there are new blocks without these keys
		case <-ctx.Done():
			err = ctx.Err()
		case <-l.life.Done():
			err = fmt.Errorf("events folder %s: %w", l.folder.Dir, ErrClosed)
		}
		l.forget(w)
		if err != nil {
			return l.count(a, err, false)
		}
	}
}

// answerTo makes the last answer an answer to the original request. Meanwhile From may have
// advanced, and the log may have been trimmed.
func answerTo(asked event.Token, a event.Answer, compacted bool) event.Answer {
	switch {
	case asked.Height == 0:
	case compacted:
		a.Next = asked
	default:
		a.Least = min(a.Least, asked.Height)
	}
	return a
}

// count updates the counters for an answer.
func (l *Log) count(a event.Answer, err error, compacted bool) (event.Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.answers++
	l.mu.events += uint64(len(a.Events))
	if compacted {
		l.mu.compacted++
	}
	if err != nil {
		l.mu.refused++
	}
	return a, err
}

// reader collects the events of an answer.
type reader struct {
	request *event.Request
	answer  event.Answer
	left    int // bytes that still fit
	scanned int
	full    bool
}

// take adds an event. It returns false if the event does not fit into this answer.
func (r *reader) take(e *event.Event, lent bool) bool {
	size := len(e.Key) + len(e.Value) + len(e.Kind) + len(e.Tx) + eventOverhead
	if r.request.Previous {
		size += len(e.Previous)
	}
	if len(r.answer.Events) > 0 && (size > r.left || len(r.answer.Events) == event.MaxAnswerEvents) {
		r.full = true
		return false
	}
	r.left -= size
	c := *e
	if !r.request.Previous {
		c.Previous = nil
	}
	if lent {
		c.Tx, c.Key, c.Value, c.Previous = bytes.Clone(c.Tx), bytes.Clone(c.Key), bytes.Clone(c.Value), bytes.Clone(c.Previous)
	}
	r.answer.Events = append(r.answer.Events, c)
	r.answer.Next = e.Token()
	return true
}

// read answers from the events in the log. full: the answer ends before the head.
func (l *Log) read(r *event.Request) (a event.Answer, full bool, err error) {
	limit := event.MaxAnswerBytes
	if r.MaxBytes > 0 {
		limit = min(limit, int(r.MaxBytes))
	}
	c := &reader{request: r, left: limit, answer: event.Answer{Next: r.From}}
	for {
		l.mu.Lock()
		s := l.mu.state
		l.mu.Unlock()
		c.answer.Head, c.answer.Least = s.published, s.base+1
		if c.answer.Next.Height == 0 { // the request asks for events from the next block on
			c.answer.Next = event.Token{Height: s.published + 1}
		}
		at := c.answer.Next
		switch {
		case at.Height <= s.base && len(c.answer.Events) == 0:
			c.answer.Next = r.From // compacted
			return c.answer, false, nil
		case at.Height <= s.base || c.full || c.scanned > scanBytes:
			return c.answer, true, nil
		case at.Height > s.published:
			return c.answer, false, nil
		}
		if n := s.block(at.Height); n != nil {
			c.memory(n, at)
			continue
		}
		there, err := l.disk(c, at, min(s.written, s.published))
		if err != nil {
			return c.answer, false, err
		}
		if !there && len(c.answer.Events) > 0 {
			return c.answer, true, nil
		}
	}
}

// block returns the block of a height if it is in memory.
func (s *state) block(height int64) *block {
	if len(s.tail) == 0 {
		return nil
	}
	i := height - s.tail[0].height
	if i < 0 || i >= int64(len(s.tail)) {
		return nil
	}
	return s.tail[i]
}

// memory adds the events of a block from a token on.
func (r *reader) memory(n *block, at event.Token) {
	for _, i := range n.find(r.request.Keys, at.Index) {
		if !r.take(&n.events[i], false) {
			return
		}
	}
	r.answer.Next = event.Token{Height: n.height + 1}
}

// disk adds the events on disk from a token up to a height.
func (l *Log) disk(c *reader, at event.Token, height int64) (there bool, err error) {
	select {
	case l.reads <- struct{}{}:
		defer func() { <-l.reads }()
	case <-l.life.Done():
		return false, fmt.Errorf("events folder %s: %w", l.folder.Dir, ErrClosed)
	}
	ended := true
	there, err = l.readDisk(at, height, func(e *event.Event) bool {
		c.scanned += len(e.Key) + len(e.Value) + len(e.Previous) + eventOverhead
		if !c.request.Keys.Contains(e.Key) {
			c.answer.Next = e.Token()
			ended = c.scanned <= scanBytes
			return ended
		}
		ended = c.take(e, true)
		return ended
	})
	if err == nil && there && ended {
		c.answer.Next = event.Token{Height: height + 1}
	}
	return there, err
}

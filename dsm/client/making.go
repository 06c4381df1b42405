package client

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/client/feed"
	"github.com/starling-kv/starling/internal/sleep"
)

// run encodes the updates of blocks, one block after another, until the Client is closed.
func (f *feeding) run() {
	for {
		select {
		case <-f.mu.wake:
		case <-f.c.ctx.Done():
			return
		}
		for f.next() {
		}
	}
}

// next encodes the updates of the next block. It returns false if there is none.
func (f *feeding) next() bool {
	f.mu.Lock()
	if len(f.mu.making) == 0 {
		f.mu.Unlock()
		return false
	}
	m := f.mu.making[0]
	m.v.Retain()
	if m.base != nil {
		m.base.Retain()
	}
	f.mu.Unlock()
	defer m.release()
	if !f.encode(m) {
		return false
	}
	if m.next != nil {
		f.c.useDue(m.next)
	}
	return true
}

// encode encodes and queues the updates of the first block in making for all ranges. It retries
// until it succeeds, or returns false once the Client is closed.
func (f *feeding) encode(m made) bool {
	updates := map[int]*update{} // by number of the range
	for f.c.ctx.Err() == nil {
		f.mu.Lock()
		missing := slices.DeleteFunc(slices.Clone(f.mu.shards), func(s *shard) bool { return updates[s.Number] != nil })
		if len(missing) == 0 || f.mu.closed {
			defer f.mu.Unlock()
			if !f.mu.closed {
				f.queue(m, updates)
			}
			return !f.mu.closed
		}
		f.mu.Unlock()
		for i, u := range f.make(m, missing) { // meanwhile, the map may change
			updates[missing[i].Number] = u
		}
	}
	return false
}

// queue passes the updates of the first block in making to the machine. The caller holds mu.
func (f *feeding) queue(m made, updates map[int]*update) {
	e := feed.Committed{Height: m.height, Bytes: make([]uint64, f.mu.machine.Numbers())}
	for number, s := range f.mu.by {
		u := updates[number]
		e.Bytes[number] = uint64(len(u.bytes))
		s.updates = append(s.updates, u)
	}
	f.mu.making[0].release()
	f.mu.making = f.mu.making[1:]
	f.mu.head, f.mu.failed = m.height, nil
	f.locked(e)
}

// make encodes the updates of a block for ranges. An update is nil if the Client was closed.
func (f *feeding) make(m made, shards []*shard) []*update {
	updates := make([]*update, len(shards))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i, s := range shards {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			updates[i] = f.makeOf(m, s.Range)
		})
	}
	all.Wait()
	return updates
}

func (f *feeding) makeOf(m made, r avlstar.KeyRange) *update {
	var logged time.Time
	for f.c.ctx.Err() == nil {
		u, err := m.v.UpdateOf(m.base, r, m.changes)
		if err == nil {
			return sumOf(u.Encode())
		}
		f.mu.Lock()
		f.mu.failed = err
		f.mu.Unlock()
		if time.Since(logged) >= logEvery {
			logged = time.Now()
			f.c.o.Logger.Error("cannot encode the update of a range", "range", r, "height", m.height, "err", err)
		}
		_ = sleep.For(f.c.ctx, time.Second)
	}
	return nil
}

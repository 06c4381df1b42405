package client

import (
	"runtime"
	"sync"
	"time"

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
	updates := f.make(m)
	if updates == nil {
		return false // closed
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return false
	}
	e := feed.Committed{Height: m.height, Bytes: make([]uint64, len(updates))}
	for i, u := range updates {
		e.Bytes[i] = uint64(len(u.bytes))
		f.mu.updates[i] = append(f.mu.updates[i], u)
	}
	f.mu.making[0].release()
	f.mu.making = f.mu.making[1:]
	f.mu.head, f.mu.failed = m.height, nil
	f.locked(e)
	return true
}

// make encodes the updates of a block for all ranges. It retries until it succeeds, or returns nil
// once the Client is closed.
func (f *feeding) make(m made) []*update {
	updates := make([]*update, f.c.o.Ranges.Len())
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i := range updates {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			updates[i] = f.makeOf(m, i)
		})
	}
	all.Wait()
	if f.c.ctx.Err() != nil {
		return nil
	}
	return updates
}

func (f *feeding) makeOf(m made, shard int) *update {
	var logged time.Time
	for f.c.ctx.Err() == nil {
		r := f.c.o.Ranges.Shard(shard).Range
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

package source

import (
	"runtime"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/feed"
)

// run makes the updates of blocks, one block after another, until the Source is closed.
func (f *feeding) run() {
	for {
		select {
		case <-f.mu.wake:
		case <-f.s.ctx.Done():
			return
		}
		for f.next() {
		}
	}
}

// next makes the updates of the next block. It reports false if there is none.
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
		f.mu.updates[place{i, m.height}] = u
	}
	f.mu.making[0].release()
	f.mu.making = f.mu.making[1:]
	f.mu.head, f.mu.failed = m.height, nil
	f.locked(e)
	return true
}

// make makes the updates of a block for all ranges. It tries until it has them, or until the Source
// is closed: then the result is nil.
func (f *feeding) make(m made) []*update {
	updates := make([]*update, f.s.o.Ranges.Len())
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
	if f.s.ctx.Err() != nil {
		return nil
	}
	return updates
}

func (f *feeding) makeOf(m made, shard int) *update {
	var logged time.Time
	for f.s.ctx.Err() == nil {
		r := f.s.o.Ranges.Shard(shard).Range
		u, err := m.v.UpdateOf(m.base, avlstar.KeyRange{First: r.First, After: r.After}, m.changes)
		if err == nil {
			return sumOf(u.Encode())
		}
		f.mu.Lock()
		f.mu.failed = err
		f.mu.Unlock()
		if time.Since(logged) >= logEvery {
			logged = time.Now()
			f.s.o.Logger.Error("the update of a range cannot be made", "range", r, "height", m.height, "err", err)
		}
		f.s.sleep(time.Second)
	}
	return nil
}

package app

import (
	"context"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
)

// maxQueued limits the wants that wait to be fetched ahead. What is beyond it is found to be
// missing when it is needed.
const maxQueued = 1 << 14

// aheadTimeout ends a request, whose answer holds nothing up. It does not depend on how long a
// proposal may wait: else a line that is a little slower would bring nothing, ever.
const aheadTimeout = 10 * time.Second

// ahead fetches what later blocks will need: one request at a time, by a goroutine that ends when
// nothing waits.
type ahead struct {
	mu struct {
		sync.Mutex
		queue *needs // nil: nothing waits
		busy  bool   // the goroutine runs
	}
	running sync.WaitGroup
}

// ask queues those of wants that v lacks. It never blocks.
func (a *App) ask(v *avlstar.Version, wants []avlstar.Want) {
	lacking, _ := v.Lacks(wants)
	if len(lacking) == 0 {
		return
	}
	h := &a.ahead
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.life.Err() != nil {
		return
	}
	if h.mu.queue == nil {
		h.mu.queue = newNeeds()
	}
	for _, w := range lacking {
		if len(h.mu.queue.wants) < maxQueued {
			h.mu.queue.add(w)
		}
	}
	if !h.mu.busy {
		h.mu.busy = true
		h.running.Go(a.fetchAhead)
	}
}

// take returns what waits, nil if that is nothing: then the goroutine ends.
func (h *ahead) take() *needs {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.mu.queue
	h.mu.queue, h.mu.busy = nil, n != nil
	return n
}

// fetchAhead fetches what was asked for until nothing waits. What does not come is dropped: whoever
// needs it asks again.
func (a *App) fetchAhead() {
	for n := a.ahead.take(); n != nil; n = a.ahead.take() {
		if err := a.fetchQueued(n); err != nil {
			a.logger.Debug("nodes for later blocks were not fetched", "wants", len(n.wants), "err", err)
		}
	}
}

func (a *App) fetchQueued(n *needs) error {
	at, refused := a.acquire(0)
	if refused != nil {
		return refused
	}
	wants, held := at.version.Lacks(n.wants) // some may be here by now
	at.version.Release()
	if len(held) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(a.life, aheadTimeout)
	defer cancel()
	f := &fetcher{app: a, call: forLater, height: at.height, version: a.latestVersion}
	f.lock, f.replace = &a.block, a.renew
	a.block.Lock()
	defer a.block.Unlock()
	_, why, err := f.once(ctx, wants, held)
	if err == nil {
		err = why
	}
	return err
}

// latestVersion returns the newest version of the tree: only that can be grafted into. It is nil if
// there is no state any more. The caller holds block's lock.
func (a *App) latestVersion() *avlstar.Version {
	if p := a.block.pending; p != nil {
		return p.version
	}
	return a.block.version
}

// renew puts next in the place of latestVersion. It takes over a reference. The caller holds
// block's lock.
func (a *App) renew(next *avlstar.Version) {
	p := a.block.pending
	if p == nil {
		a.refresh(next)
		return
	}
	if p.applied == nil {
		p.applied = p.version
	} else {
		p.version.Release()
	}
	p.version = next
}

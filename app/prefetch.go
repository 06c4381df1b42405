package app

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
)

// What later blocks will need is fetched ahead. Strangers can send as many transactions as they
// like, so only they wait behind what they send:
//
//	who asks                for what                               waits in   fetched by
//	proposers               what was left out of a proposal        proposed   a goroutine of its own
//	CheckTx, with rights    the keys of the transaction            checked    ┐ another one, a half of
//	CheckTx, unchecked      the records that the check lacked      unchecked  ┘ each request for both
const (
	// maxQueued limits the wants that wait in proposed and in checked. What is beyond it is found
	// to be missing when it is needed.
	maxQueued = 1 << 14
	// maxShare limits the wants of an unchecked transaction. The recheck asks for more.
	maxShare = 32
	// A request is for at most maxRequest wants, and for fewer, down to minRequest, if more than
	// requestBytes came for the last ones. So one brings at most maxRequest values of 1 MiB.
	minRequest, maxRequest = 16, 256
	requestBytes           = 4 << 20
	// aheadBytes limits what each goroutine brings between two blocks: it stays in memory for a
	// window of blocks.
	aheadBytes = 64 << 20
)

// aheadTimeout ends a request, whose answer holds nothing up. It does not depend on how long a
// proposal may wait: else a line that is a little slower would bring nothing, ever.
const aheadTimeout = 10 * time.Second

// ahead is what waits to be fetched ahead. Each goroutine makes one request at a time, and ends
// when nothing waits for it.
type ahead struct {
	mu struct {
		sync.Mutex
		proposed, checked *needs // nil: nothing waits
		unchecked         []asked
		line              [2]line
	}
	running sync.WaitGroup
}

// asked is what one unchecked transaction waits for.
type asked struct {
	id    [sha256.Size]byte
	wants []avlstar.Want
}

// line is one of the goroutines. It is guarded by ahead.mu.
type line struct {
	busy  bool
	most  int // wants of the next request; 0: maxRequest
	bytes int // that it brought since the last commit
}

const (
	lineOfProposers = 0
	lineOfChecks    = 1
)

// ask queues those of wants that v lacks, for a proposer. It never blocks.
func (a *App) ask(v *avlstar.Version, wants []avlstar.Want) {
	lacking, _ := v.Lacks(wants)
	a.ahead.add(a, lineOfProposers, lacking, func() { enqueue(&a.ahead.mu.proposed, lacking) })
}

// askChecked queues those of wants that v lacks, for a transaction that was checked.
func (a *App) askChecked(v *avlstar.Version, wants []avlstar.Want) {
	lacking, _ := v.Lacks(wants)
	a.ahead.add(a, lineOfChecks, lacking, func() { enqueue(&a.ahead.mu.checked, lacking) })
}

// askUnchecked queues a share of those of wants that v lacks, for a transaction that was let in
// unchecked.
func (a *App) askUnchecked(v *avlstar.Version, id [sha256.Size]byte, wants []avlstar.Want) {
	lacking, _ := v.Lacks(wants)
	lacking = lacking[:min(len(lacking), maxShare)]
	a.ahead.add(a, lineOfChecks, lacking, func() {
		if h := &a.ahead; len(h.mu.unchecked) < 2*maxUnchecked { // those of the last block, too
			h.mu.unchecked = append(h.mu.unchecked, asked{id, lacking})
		}
	})
}

func enqueue(queue **needs, wants []avlstar.Want) {
	if *queue == nil {
		*queue = newNeeds()
	}
	for _, w := range wants {
		if len((*queue).wants) < maxQueued {
			(*queue).add(w)
		}
	}
}

// add calls enqueue under the lock, if something is lacking, and starts the goroutine that fetches.
func (h *ahead) add(a *App, which int, lacking []avlstar.Want, enqueue func()) {
	if len(lacking) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.life.Err() != nil {
		return
	}
	enqueue()
	if l := &h.mu.line[which]; !l.busy {
		l.busy = true
		h.running.Go(func() { a.fetchAhead(which) })
	}
}

// take returns what a goroutine is to request next, and which unchecked transactions had waited for
// all of that; nothing, if nothing waits: then the goroutine ends.
func (h *ahead) take(which int) (wants []avlstar.Want, ids [][sha256.Size]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.mu.line[which]
	if l.bytes > aheadBytes { // what waits is found to be missing when it is needed
		if which == lineOfProposers {
			h.mu.proposed = nil
		} else {
			h.mu.checked, h.mu.unchecked = nil, nil
		}
	}
	if l.most == 0 {
		l.most = maxRequest
	}
	if which == lineOfProposers {
		wants = dequeue(&h.mu.proposed, l.most)
	} else {
		room := l.most
		if h.mu.checked != nil {
			room /= 2
		}
		for len(h.mu.unchecked) > 0 && len(wants) < room {
			first := &h.mu.unchecked[0]
			n := min(len(first.wants), room-len(wants))
			wants, first.wants = append(wants, first.wants[:n]...), first.wants[n:]
			if len(first.wants) == 0 {
				ids = append(ids, first.id)
				h.mu.unchecked = h.mu.unchecked[1:]
			}
		}
		wants = append(wants, dequeue(&h.mu.checked, l.most-len(wants))...)
	}
	l.busy = len(wants) > 0
	return wants, ids
}

// dequeue takes at most n of a queue, the oldest first.
func dequeue(queue **needs, n int) []avlstar.Want {
	q := *queue
	if q == nil {
		return nil
	}
	n = min(n, len(q.wants))
	wants := q.wants[:n:n]
	for _, w := range wants {
		delete(q.index, idOf(w))
	}
	q.taken += n
	if q.wants = q.wants[n:]; len(q.wants) == 0 {
		*queue = nil
	}
	return wants
}

// came counts what a request of a goroutine brought, and how many wants the next one is for.
func (h *ahead) came(which, wants, bytes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.mu.line[which]
	l.bytes += bytes
	if l.most = min(2*l.most, maxRequest); bytes > requestBytes {
		l.most = max(minRequest, min(l.most, wants*requestBytes/bytes))
	}
}

// committed begins to count anew.
func (h *ahead) committed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.mu.line {
		h.mu.line[i].bytes = 0
	}
}

// fetchAhead fetches what was asked for until nothing waits. What does not come is dropped: whoever
// needs it asks again.
func (a *App) fetchAhead(which int) {
	for wants, ids := a.ahead.take(which); len(wants) > 0; wants, ids = a.ahead.take(which) {
		bytes, err := a.fetchQueued(wants)
		if err != nil {
			a.logger.Debug("nodes for later blocks were not fetched", "wants", len(wants), "err", err)
		}
		a.ahead.came(which, len(wants), bytes)
		for _, id := range ids {
			a.checkArrived(id)
		}
	}
}

func (a *App) fetchQueued(wants []avlstar.Want) (bytes int, err error) {
	at, refused := a.acquire(0)
	if refused != nil {
		return 0, refused
	}
	wants, held := at.version.Lacks(wants) // some may be here by now
	at.version.Release()
	if len(held) == 0 {
		return 0, nil
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
	return f.bytes, err
}

// checkArrived checks a transaction that was let in unchecked, now that what it lacked may be here.
// If it has its rights, it gives up its place. If not, it keeps it, and the recheck refuses it.
func (a *App) checkArrived(id [sha256.Size]byte) {
	v, params := a.check.state()
	if v == nil {
		return
	}
	defer v.Release()
	t := a.decoder.lookup(id, params.ChainId)
	if t == nil {
		return // it is forgotten by now
	}
	newcomer, err := mayRun(v, params, t, nil)
	if err != nil {
		return
	}
	a.check.checked(id, newcomer, t.Text != nil)
	a.options.Metrics.Witness.Unchecked.Set(float64(a.check.numUnchecked()))
	n := newNeeds()
	nameKeys(n, t)
	a.askChecked(v, n.wants)
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

package app

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
)

// Nodes that later blocks will need are fetched ahead. Accounts without rights can send as many
// transactions as they like, so their requests delay only each other:
//
//	caller                  requested                              queue      fetched by
//	proposers               nodes of transactions left out         proposed   a goroutine of its own
//	CheckTx, with rights    the keys of the transaction            checked    ┐ another one, half of
//	CheckTx, unchecked      the records that the check missed      unchecked  ┘ each request for either
const (
	// maxQueued limits the wants that wait in proposed and in checked. Wants beyond the limit are
	// dropped; their nodes are fetched when they are needed.
	maxQueued = 1 << 14
	// maxShare limits the wants of an unchecked transaction. The recheck requests more.
	maxShare = 32
	// A request has at most maxRequest wants. It has fewer, down to minRequest, if the responses to
	// the last requests exceeded requestBytes. So a response has at most maxRequest values of 1
	// MiB.
	minRequest, maxRequest = 16, 256
	requestBytes           = 4 << 20
	// aheadBytes limits the bytes that each goroutine fetches between two blocks: they stay in
	// memory for a window of blocks.
	aheadBytes = 64 << 20
)

// aheadTimeout ends a request for which nothing waits. It does not depend on how long a proposal
// may wait, because a slightly slower network would then never deliver anything.
const aheadTimeout = 10 * time.Second

// ahead holds the wants that wait to be fetched ahead. Each goroutine makes one request at a time,
// and ends when no wants are left for it.
type ahead struct {
	mu struct {
		sync.Mutex
		proposed, checked *needs // nil: the queue is empty
		unchecked         []asked
		line              [2]line
	}
	running sync.WaitGroup
}

// asked holds the wants of one unchecked transaction.
type asked struct {
	id    [sha256.Size]byte
	wants []avlstar.Want
}

// line is the state of one of the goroutines. It is guarded by ahead.mu.
type line struct {
	busy  bool
	most  int // number of wants in the next request; 0: maxRequest
	bytes int // bytes that it fetched since the last commit
}

const (
	lineOfProposers = 0
	lineOfChecks    = 1
)

// ask queues those of wants that are missing in v, for a proposer. It never blocks.
func (a *App) ask(v *avlstar.Version, wants []avlstar.Want) {
	lacking, _ := v.Missing(wants)
	a.ahead.add(a, lineOfProposers, lacking, func() { enqueue(&a.ahead.mu.proposed, lacking) })
}

// askChecked queues those of wants that are missing in v, for a transaction that was checked.
func (a *App) askChecked(v *avlstar.Version, wants []avlstar.Want) {
	lacking, _ := v.Missing(wants)
	a.ahead.add(a, lineOfChecks, lacking, func() { enqueue(&a.ahead.mu.checked, lacking) })
}

// askUnchecked queues some of those wants that are missing in v, for a transaction that was let in
// unchecked.
func (a *App) askUnchecked(v *avlstar.Version, id [sha256.Size]byte, wants []avlstar.Want) {
	lacking, _ := v.Missing(wants)
	lacking = lacking[:min(len(lacking), maxShare)]
	a.ahead.add(a, lineOfChecks, lacking, func() {
		if h := &a.ahead; len(h.mu.unchecked) < 4*maxUnchecked { // with those of the last block
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

// add calls enqueue under the lock if wants are missing, and starts the goroutine that fetches
// them.
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

// take returns the next wants that a goroutine requests, and the unchecked transactions whose last
// wants are among them. If there are no wants, the goroutine ends.
func (h *ahead) take(which int) (wants []avlstar.Want, ids [][sha256.Size]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.mu.line[which]
	if l.bytes > aheadBytes { // nodes of dropped wants are fetched when they are needed
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

// dequeue takes at most n wants from a queue, the oldest first.
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

// came records the bytes that a goroutine's request returned, and adapts the number of wants of its
// next request.
func (h *ahead) came(which, wants, bytes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.mu.line[which]
	l.bytes += bytes
	if l.most = min(2*l.most, maxRequest); bytes > requestBytes {
		l.most = max(minRequest, min(l.most, wants*requestBytes/bytes))
	}
}

// committed resets the byte counts.
func (h *ahead) committed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.mu.line {
		h.mu.line[i].bytes = 0
	}
}

// fetchAhead fetches queued wants until none are left. Nodes that do not arrive are dropped:
// callers that need them request them again.
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
	wants, held := at.version.Missing(wants) // some may have arrived meanwhile
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

// checkArrived checks a transaction that was let in unchecked, now that the missing nodes may be
// present. If it has its rights, it gives up its slot. Otherwise it keeps the slot, and the recheck
// refuses it.
func (a *App) checkArrived(id [sha256.Size]byte) {
	v, params := a.check.state()
	if v == nil {
		return
	}
	defer v.Release()
	t := a.decoder.lookup(id, params.ChainId)
	if t == nil {
		return // forgotten meanwhile
	}
	newcomer, err := mayRun(v, params, t, nil)
	if err != nil {
		return
	}
	a.check.checked(id, newcomer, t.Text != nil)
	a.options.Metrics.Witness.Unchecked.Set(float64(a.check.numUnchecked()))
	n := newNeeds()
	nameKeys(n, t, true)
	a.askChecked(v, n.wants)
}

// latestVersion returns the newest version of the tree, the only one into which nodes can be
// grafted. It is nil if there is no state any more. The caller holds block's lock.
func (a *App) latestVersion() *avlstar.Version {
	if p := a.block.pending; p != nil {
		return p.version
	}
	return a.block.version
}

// renew replaces latestVersion by next, and takes over its reference. The caller holds block's
// lock.
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

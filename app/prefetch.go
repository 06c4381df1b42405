package app

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// Nodes that later blocks will need are fetched ahead. Accounts without rights can send as many
// transactions as they like, so their requests delay only each other:
//
//	caller                  requested                              queue      fetched by
//	proposers               nodes of transactions left out         named      a line of its own
//	CheckTx, with rights    the keys of the transaction            named      ┐ another one, half of
//	CheckTx, unchecked      the records that the check missed      unchecked  │ each request for named,
//	CheckTx, nonce too high the keys of the transaction            unchecked  ┘ half for unchecked
//
// A line has a lane for each range of Options.Edges, with requests that only nodes with that range
// answer. So a slow storage node delays only its own range, unless maxLanesInFlight are slow:
//
//	line ─┬─ lane of range 0 ── queues ──take──► up to maxInFlight requests ──ended──► grafted, in any order
//	      └─ lane of range 1 ── …                of at most maxRequest wants
const (
	// maxQueued limits the named wants that wait in a line. Wants beyond the limit are dropped;
	// their nodes are fetched when they are needed.
	maxQueued = 1 << 14
	// maxShare limits the wants of an unchecked transaction. The recheck requests more.
	maxShare = 32
	// maxUncheckedWants is enough for the unchecked transactions of four blocks.
	maxUncheckedWants = 4 * maxUnchecked * maxShare
	// maxEarlyWants limits the wants between two blocks for transactions that arrive too early.
	maxEarlyWants = 1 << 12
	// maxInFlight limits the requests of a lane at the same time, and maxForProposers those for
	// proposers. A connection to a storage node allows 16 calls. If the node has one range, the
	// rest is for blocks and updates.
	maxInFlight, maxForProposers = 8, 4
	// A request has at most maxRequest wants. It has fewer, down to minRequest, if the responses to
	// the last requests exceeded requestBytes. So a response has at most maxRequest values of 1
	// MiB.
	minRequest, maxRequest = 16, 256
	requestBytes           = 4 << 20
	// aheadBytes limits the bytes that each line fetches between two blocks: they stay in memory
	// for a window of blocks. What the requests in flight are expected to return counts too, except
	// for one request of each lane.
	aheadBytes = 64 << 20
	// inFlightBytes limits what a line's requests in flight are expected to return, except for one
	// request of each lane: a block's own request shares the connections with them.
	inFlightBytes = 32 << 20
	// maxLanesInFlight limits the requests of lanes that have no other. Others wait for their end.
	maxLanesInFlight = 32
)

// aheadTimeout ends a request for which nothing waits. It does not depend on how long a proposal
// may wait, because a slightly slower network would then never deliver anything.
const aheadTimeout = 10 * time.Second

// ahead holds the wants that wait to be fetched ahead. Each request has a goroutine.
type ahead struct {
	mu struct {
		sync.Mutex
		line    [2]line
		early   int            // wants since the last block for transactions that arrive too early
		arrived map[int]uint64 // number of requests that brought something, by lane
	}
	running sync.WaitGroup
}

const (
	lineOfProposers = 0
	lineOfChecks    = 1
)

// line decides what is requested next. It is guarded by ahead.mu.
type line struct {
	lanes     map[int]*lane      // by range; those with wants or requests
	flights   map[string]*flight // wants in flight, by idOf
	named     int                // number of wants in all lanes' queues
	unchecked int
	requests  int // in flight
	most      int // number of wants in the next request; 0: maxRequest
	expected  int // bytes of a response, by the largest of the last ones; 0: requestBytes/2
	bytes     int // bytes that it fetched since the last commit
}

// lane holds the wants for one range.
type lane struct {
	named     *needs // nil: the queue is empty
	unchecked []uncheckedWant
	requests  int // in flight
}

func (n *lane) len() int {
	if n.named == nil {
		return len(n.unchecked)
	}
	return len(n.named.wants) + len(n.unchecked)
}

// unchecked is a transaction whose records are requested. left counts those that have not arrived.
// If its id is zero, no transaction is checked when they arrive.
type unchecked struct {
	id   [sha256.Size]byte
	left int
}

type uncheckedWant struct {
	avlstar.Want
	of *unchecked // nil for a named want
}

// flight is a want in flight. The same want is not requested meanwhile.
type flight struct {
	want   avlstar.Want
	of     []*unchecked    // transactions that wait for it
	beyond []uncheckedWant // wants of the same key that open more; they are queued again
}

// request is a request in flight.
type request struct {
	lane  int
	wants []avlstar.Want
}

// ask queues those of wants that are missing in v, for a proposer. It never blocks.
func (a *App) ask(v *avlstar.Version, wants []avlstar.Want) {
	lacking, _ := v.Missing(wants)
	a.askAhead(lineOfProposers, lacking, nil)
}

// askChecked queues those of wants that are missing in v, for a transaction that was checked. The
// paths to all of them stay in memory for a while (expectedKeys).
func (a *App) askChecked(v *avlstar.Version, wants []avlstar.Want) {
	a.expected.add(wants)
	lacking, _ := v.Missing(wants)
	a.askAhead(lineOfChecks, lacking, nil)
}

// askUnchecked queues some of those wants that are missing in v, for a transaction that was let in
// unchecked.
func (a *App) askUnchecked(v *avlstar.Version, id [sha256.Size]byte, wants []avlstar.Want) {
	lacking, _ := v.Missing(wants)
	lacking = lacking[:min(len(lacking), maxShare)]
	a.askAhead(lineOfChecks, lacking, &unchecked{id, len(lacking)})
}

// askEarly queues the keys of a transaction that was refused because others of its account come
// first: a block may have all of them. It cost its sender nothing, and the same bytes may come
// again. So it may name only a few keys, no values are requested, and all such transactions
// together have maxEarlyWants between two blocks.
func (a *App) askEarly(v *avlstar.Version, t *tx.Tx) {
	if cost(t) > maxShare {
		return
	}
	n := new(needs)
	nameKeys(n, t, false)
	lacking, _ := v.Missing(n.wants)
	a.ahead.mu.Lock()
	a.ahead.mu.early += len(lacking)
	full := a.ahead.mu.early > maxEarlyWants
	a.ahead.mu.Unlock()
	if !full {
		a.askAhead(lineOfChecks, lacking, &unchecked{left: len(lacking)})
	}
}

// askAhead queues wants and starts requests. of is a transaction that was not checked, or nil.
func (a *App) askAhead(which int, wants []avlstar.Want, of *unchecked) {
	if len(wants) == 0 {
		return
	}
	lanes := a.lanesOf(wants)
	a.ahead.mu.Lock()
	defer a.ahead.mu.Unlock()
	l := &a.ahead.mu.line[which]
	if of != nil && l.unchecked+len(wants) > maxUncheckedWants {
		return
	}
	for i, w := range wants {
		l.queue(lanes[i], uncheckedWant{w, of})
	}
	a.startAhead(which)
}

// lanesOf returns the lane of each want.
func (a *App) lanesOf(wants []avlstar.Want) []int {
	lanes := make([]int, len(wants))
	if a.options.Edges == nil {
		return lanes
	}
	edges := a.options.Edges()
	for i, w := range wants {
		at, is := slices.BinarySearchFunc(edges, w.Least(), bytes.Compare)
		if lanes[i] = at; is {
			lanes[i]++
		}
	}
	return lanes
}

// arrivals returns the numbers of requests so far that brought something, of the lanes of wants. It
// also reports whether any of wants is being requested.
func (a *App) arrivals(wants []avlstar.Want) (arrived map[int]uint64, pending bool) {
	lanes := a.lanesOf(wants)
	a.ahead.mu.Lock()
	defer a.ahead.mu.Unlock()
	arrived = make(map[int]uint64)
	for i, at := range lanes {
		arrived[at] = a.ahead.mu.arrived[at]
		// Not those of rechecks, which request them again and again.
		pending = pending || a.ahead.mu.line[lineOfProposers].flights[idOf(wants[i])] != nil
	}
	return arrived, pending
}

// startAhead starts the requests for which there is room. The caller holds ahead.mu.
func (a *App) startAhead(which int) {
	l, most := &a.ahead.mu.line[which], maxInFlight
	if which == lineOfProposers {
		most = maxForProposers
	}
	for a.life.Err() == nil {
		r := l.next(most)
		if r == nil {
			return
		}
		a.ahead.running.Go(func() { a.fetchAhead(which, r) })
	}
}

// fetchAhead makes a request. Nodes that do not arrive are dropped: callers that need them request
// them again.
func (a *App) fetchAhead(which int, r *request) {
	bytes, err := a.fetchQueued(r.wants)
	if err != nil {
		a.logger.Debug("nodes for later blocks were not fetched", "wants", len(r.wants), "err", err)
	}
	a.ahead.mu.Lock()
	if bytes > 0 {
		if a.ahead.mu.arrived == nil {
			a.ahead.mu.arrived = make(map[int]uint64)
		}
		a.ahead.mu.arrived[r.lane]++
	}
	ids := a.ahead.mu.line[which].ended(r, bytes)
	a.startAhead(which)
	a.ahead.mu.Unlock()
	for _, id := range ids {
		a.checkArrived(id)
	}
}

// committed resets the byte counts.
func (h *ahead) committed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.early = 0
	for i := range h.mu.line {
		h.mu.line[i].bytes = 0
	}
}

// queue adds a want to a lane.
func (l *line) queue(at int, w uncheckedWant) {
	if l.lanes == nil {
		l.lanes, l.flights = map[int]*lane{}, map[string]*flight{}
	}
	n := l.lanes[at]
	if n == nil {
		n = &lane{}
		l.lanes[at] = n
	}
	switch {
	case w.of != nil:
		n.unchecked = append(n.unchecked, w)
		l.unchecked++
	case l.named < maxQueued:
		if n.named == nil {
			n.named = new(needs)
		}
		before := len(n.named.wants)
		n.named.add(w.Want)
		l.named += len(n.named.wants) - before
	}
}

// next returns the next request, which is in flight from now on, or nil if there is no room or no
// want for one. A lane with requests in flight waits for all wants of another one, so that fast
// storage nodes get few requests. It has at most inFlight.
func (l *line) next(inFlight int) *request {
	if l.bytes > aheadBytes { // nodes of dropped wants are fetched when they are needed
		for _, n := range l.lanes {
			n.named, n.unchecked = nil, nil
		}
		l.named, l.unchecked = 0, 0
	}
	room := min(aheadBytes-l.bytes, inFlightBytes) / cmp.Or(l.expected, requestBytes/2)
	most := cmp.Or(l.most, maxRequest)
	for at, n := range l.lanes {
		waits := l.requests >= maxLanesInFlight
		if n.requests > 0 {
			waits = n.requests >= inFlight || l.requests >= room || n.len() < most
		}
		if waits {
			continue
		}
		if wants := l.take(n, most); len(wants) > 0 {
			n.requests++
			l.requests++
			return &request{at, wants}
		}
		if n.requests == 0 {
			delete(l.lanes, at)
		}
	}
	return nil
}

// take takes at most so many wants from the queues of a lane. Those in flight do not count.
func (l *line) take(n *lane, most int) (wants []avlstar.Want) {
	room := most
	if n.named != nil {
		room /= 2
	}
	for len(n.unchecked) > 0 && len(wants) < room {
		wants = l.fly(wants, n.unchecked[0])
		n.unchecked = n.unchecked[1:]
		l.unchecked--
	}
	for n.named != nil && len(wants) < most {
		for _, w := range dequeue(&n.named, most-len(wants)) {
			wants = l.fly(wants, uncheckedWant{Want: w})
			l.named--
		}
	}
	return wants
}

// fly appends a want to those of a request, unless it is in flight.
func (l *line) fly(wants []avlstar.Want, w uncheckedWant) []avlstar.Want {
	id := idOf(w.Want)
	f := l.flights[id]
	switch {
	case f == nil:
		f = &flight{want: w.Want}
		l.flights[id] = f
		wants = append(wants, w.Want)
	case w.Deleted && !f.want.Deleted || !w.Written && f.want.Written:
		f.beyond = append(f.beyond, w)
		return wants
	}
	if w.of != nil {
		f.of = append(f.of, w.of)
	}
	return wants
}

// ended takes a request out of those in flight. It returned some bytes, which determine how many
// wants the next one has. The result is the unchecked transactions for which nothing is requested
// any more.
func (l *line) ended(r *request, bytes int) (ids [][sha256.Size]byte) {
	l.requests--
	l.lanes[r.lane].requests--
	for _, w := range r.wants {
		f := l.flights[idOf(w)]
		delete(l.flights, idOf(w))
		for _, of := range f.of {
			if of.left--; of.left == 0 && of.id != [sha256.Size]byte{} {
				ids = append(ids, of.id)
			}
		}
		for _, w := range f.beyond {
			l.queue(r.lane, w)
		}
	}
	l.bytes += bytes
	if bytes == 0 { // it has failed, or brought nothing: that says nothing about the next ones
		return ids
	}
	l.expected = max(bytes, l.expected-l.expected/8, requestBytes/2)
	if l.most = min(2*cmp.Or(l.most, maxRequest), maxRequest); bytes > requestBytes {
		l.most = max(minRequest, min(l.most, len(r.wants)*requestBytes/bytes))
	}
	return ids
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
	t := a.decoder.lookup(id, a.form(params))
	if t == nil {
		return // forgotten meanwhile
	}
	newcomer, err := a.mayRun(v, params, t, nil)
	if err != nil {
		return
	}
	a.check.checked(id, newcomer, t.Text != nil)
	a.options.Metrics.Witness.Unchecked.Set(float64(a.check.numUnchecked()))
	n := new(needs)
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

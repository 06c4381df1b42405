package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	rpctypes "github.com/cometbft/cometbft/rpc/jsonrpc/types"
)

const (
	// probeTimeout limits a status request to a node.
	probeTimeout = 5 * time.Second
	// The interval of status requests is probeLost for a node that did not answer lately, and
	// probeIdle otherwise. There are none while the client is not used.
	probeLost, probeIdle = time.Second, 10 * time.Second
	// behindFor is how long a node whose answer was too old is asked only after the others. It
	// doubles each time, up to behindMost doublings, until an answer of the node is recent enough.
	behindFor  = time.Second
	behindMost = 6
	// promptWithin is the latency above which a call does not wait for a node if others have
	// answered.
	promptWithin = 500 * time.Millisecond
	// doubtFor is how long a node is asked after all others, because its answer was false, or had a
	// height that no other node confirmed.
	doubtFor = time.Minute
)

// rank orders nodes by their recorded state. Nodes of lower rank are asked first.
type rank int

const (
	ready   rank = iota // its last call was answered
	unknown             // it has not been asked yet
	behind              // it is catching up, or its last answer was too old
	lost                // its last call was not answered
	doubted             // it sent a false answer
	foreign             // it serves another chain and is never asked
)

// record is the recorded state of a node. It has no lock: see endpoint.
type record struct {
	admitted bool          // it serves the chain; checked again after it was lost
	foreign  error         // not nil: it serves another chain
	latency  time.Duration // see measured; 0: unknown
	penalty  time.Duration // how long a call to it was open when another node answered
	lost     error         // error of its last call; nil if it answered
	heard    time.Time     // time of its last answer
	height   int64         // reported while it was not catching up; 0: unknown
	behind   time.Time     // until then it counts as behind
	late     int           // how often in a row it was behind
	doubted  time.Time     // until then it counts as doubted
	probed   time.Time     // time of the last status request
	probing  bool
	catchUp  bool // it was catching up when it last reported its status
	deaf     bool // it cannot be asked for results: see listen
}

func (r *record) rank(now time.Time) rank {
	switch {
	case r.foreign != nil:
		return foreign
	case now.Before(r.doubted):
		return doubted
	case r.lost != nil:
		return lost
	case now.Before(r.behind):
		return behind
	case !r.admitted:
		return unknown
	default:
		return ready
	}
}

// distance returns the time in which an answer is expected.
func (r *record) distance() time.Duration { return max(r.latency, r.penalty) }

func (r *record) fellBehind() {
	if now := time.Now(); !now.Before(r.behind) {
		r.behind = now.Add(behindFor << min(r.late, behindMost))
		r.late++
	}
}

// measured records the duration of an answered call. The latency approximates the minimum of recent
// calls: a shorter one replaces it at once, a longer one moves it by a quarter (EWMA). Measurements
// from before the node was lost or silent are discarded.
func (r *record) measured(took time.Duration) {
	switch {
	case r.latency == 0 || r.penalty > 0 || took < r.latency:
		r.latency = took
	default:
		r.latency += (took - r.latency) / 4
	}
	r.penalty = 0
}

func (r *record) lose(err error) {
	r.lost, r.admitted, r.latency, r.penalty, r.deaf = err, false, 0, 0, false
}

// due reports whether it is time for a status request.
func (r *record) due(now time.Time) bool {
	every := probeIdle
	if r.lost != nil || !r.admitted || r.distance() >= hedgeAfter {
		every = probeLost
	}
	return !r.probing && r.foreign == nil && now.Sub(r.probed) >= every
}

// order returns the indexes of the nodes to ask, best first. best is the index that was first
// before, or -1. It stays first within its rank unless another node is nearer by a third, so that
// two nodes at about the same distance do not alternate.
func order(now time.Time, records []record, best int) []int {
	var list []int
	for i := range records {
		if records[i].rank(now) != foreign {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int {
		return cmp.Or(cmp.Compare(records[a].rank(now), records[b].rank(now)), cmp.Compare(records[a].distance(), records[b].distance()))
	})
	at := slices.Index(list, best)
	if at <= 0 {
		return list
	}
	first := &records[list[0]]
	if records[best].rank(now) == first.rank(now) && records[best].distance()/3*2 <= first.distance() {
		list = slices.Insert(slices.Delete(list, at, at+1), 0, best)
	}
	return list
}

// endpoint is a node, with its recorded state.
type endpoint struct {
	RPC
	witness   bool          // it is only asked for headers, to confirm those of others
	listening chan struct{} // an element for each request that waits for a result
	mu        struct {
		sync.Mutex
		record
	}
}

func (e *endpoint) update(change func(*record)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.mu.record)
}

func (e *endpoint) record() record {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.record
}

// prompt reports whether a node is not behind and has answered its last call quickly. It is true
// for a node that was not asked yet.
func (e *endpoint) prompt() bool {
	r := e.record()
	return r.rank(time.Now()) <= unknown && r.penalty == 0 && r.latency < promptWithin
}

func (e *endpoint) isBehind() { e.update((*record).fellBehind) }

// isCurrent records that an answer was recent enough.
func (e *endpoint) isCurrent() {
	e.update(func(r *record) { r.behind, r.late = time.Time{}, 0 })
}

func (e *endpoint) isDoubted() {
	e.update(func(r *record) { r.doubted = time.Now().Add(doubtFor) })
}

// overtaken records that another node answered, or the caller gave up, while a call to e had been
// open for since. If e has answered meanwhile that it has no answer yet, it is not penalized.
func (e *endpoint) overtaken(since time.Duration) {
	e.update(func(r *record) {
		if time.Since(r.heard) >= since {
			r.penalty = max(r.penalty, since)
		}
	})
}

// isAlive records that a node has answered, even if only that it has no answer yet.
func (e *endpoint) isAlive() {
	e.update(func(r *record) { r.heard = time.Now() })
}

// note records the result of a call that took that long and whose context had not ended before.
// Only short calls are measured, because only their duration reflects the distance of the node.
func (e *endpoint) note(took time.Duration, err error, short bool) {
	e.update(func(r *record) {
		if err != nil && !heard(err) {
			r.lose(err)
			return
		}
		r.lost, r.heard = nil, time.Now()
		if short {
			r.measured(took)
		}
		if errors.Is(err, errCatchingUp) {
			r.fellBehind()
		}
	})
}

// pool is the set of nodes of a client. It measures them and orders them for each call.
type pool struct {
	all   []*endpoint
	nodes int // number of nodes in all that are not only witnesses
	mu    struct {
		sync.Mutex
		chainID string    // empty until the first node has reported it
		best    *endpoint // first node of the last order
		writer  *endpoint // node that accepted the last transaction

		// verified is the highest verified height of a state; later answers are never older.
		// claimed is the highest height that a node only reported, for a write or an unverified
		// answer. It may be false, so it is waited for only briefly.
		verified, claimed int64
	}
}

func newPool(nodes, witnesses []RPC, chainID string) *pool {
	p := new(pool)
	p.mu.chainID = chainID
	for i, n := range slices.Concat(nodes, witnesses) {
		if !slices.ContainsFunc(p.all, func(e *endpoint) bool { return e.Remote() == n.Remote() }) {
			p.all = append(p.all, &endpoint{RPC: n, witness: i >= len(nodes), listening: make(chan struct{}, maxListening)})
		}
	}
	p.nodes = len(p.all) - len(p.witnesses())
	return p
}

func (p *pool) witnesses() []*endpoint {
	return slices.DeleteFunc(slices.Clone(p.all), func(e *endpoint) bool { return !e.witness })
}

func (p *pool) chainID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.chainID
}

// order returns the nodes to ask, best first, without those to avoid. first precedes all others
// while it is prompt.
func (p *pool) order(first *endpoint, avoid []*endpoint) []*endpoint {
	records := make([]record, len(p.all))
	for i, e := range p.all {
		records[i] = e.record()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*endpoint
	for _, i := range order(time.Now(), records, slices.Index(p.all, p.mu.best)) {
		if !p.all[i].witness {
			list = append(list, p.all[i])
		}
	}
	if len(list) > 0 {
		p.mu.best = list[0]
	}
	if at := slices.Index(list, first); at > 0 && first.prompt() {
		list = slices.Insert(slices.Delete(list, at, at+1), 0, first)
	}
	return slices.DeleteFunc(list, func(e *endpoint) bool { return slices.Contains(avoid, e) })
}

// others returns all nodes except than and those known to serve another chain.
func (p *pool) others(than *endpoint) []*endpoint {
	return slices.DeleteFunc(slices.Clone(p.all), func(e *endpoint) bool { return e == than || e.record().foreign != nil })
}

// silent returns the nodes that are not prompt; nil if no node is prompt.
func (p *pool) silent() []*endpoint {
	all := slices.DeleteFunc(slices.Clone(p.all), (*endpoint).prompt)
	if len(all) == len(p.all) {
		return nil
	}
	return all
}

func (p *pool) writer() *endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.writer
}

func (p *pool) writes(to *endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.writer = to
}

func (p *pool) floors() (verified, claimed int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.verified, p.mu.claimed
}

func (p *pool) verified(height int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.verified = max(p.mu.verified, height)
}

func (p *pool) claimed(height int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.claimed = max(p.mu.claimed, height)
}

// unclaim forgets a claim that no node could confirm, unless a higher one was reported since.
func (p *pool) unclaim(height int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.claimed == height {
		p.mu.claimed = 0
	}
}

// admit checks that a node serves the chain, unless that is already known.
func (p *pool) admit(ctx context.Context, e *endpoint) error {
	if r := e.record(); r.foreign != nil || r.admitted {
		return r.foreign
	}
	return p.probe(ctx, e)
}

// probe requests the status of a node. It shows whether the node is alive, its distance, whether it
// serves the chain, and whether it is catching up.
func (p *pool) probe(ctx context.Context, e *endpoint) error {
	began := time.Now()
	e.update(func(r *record) { r.probed, r.probing = began, true })
	defer e.update(func(r *record) { r.probing = false })
	limited, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	status, err := e.Status(limited)
	if ctx.Err() != nil && err != nil {
		return err // says nothing about the node: the caller has given up
	}
	if err != nil {
		e.note(0, err, false)
		return fmt.Errorf("status: %w", err)
	}
	p.mu.Lock()
	network := status.NodeInfo.Network
	if p.mu.chainID == "" {
		p.mu.chainID = network
	}
	want := p.mu.chainID
	p.mu.Unlock()
	if network != want {
		err = fmt.Errorf("%w: %s serves %q, not %q", ErrWrongChain, e.Remote(), network, want)
	}
	e.update(func(r *record) {
		r.foreign, r.lost, r.heard = err, nil, time.Now()
		r.admitted = err == nil
		r.measured(time.Since(began))
		if r.catchUp = status.SyncInfo.CatchingUp; r.catchUp {
			r.fellBehind()
		} else {
			r.height = status.SyncInfo.LatestBlockHeight
		}
	})
	return err
}

// catchesUp asks a node whether it is catching up.
func (p *pool) catchesUp(ctx context.Context, e *endpoint) bool {
	return p.probe(ctx, e) == nil && e.record().catchUp
}

// refresh probes the nodes whose status is due, in the background. With a single node there is
// nothing to choose. Before the chain id is known, only the best node may determine it.
func (p *pool) refresh(ctx context.Context) {
	if len(p.all) == 1 || p.chainID() == "" {
		return
	}
	for _, e := range p.all {
		due := false
		e.update(func(r *record) {
			due = r.due(time.Now())
			r.probing = r.probing || due
		})
		if due {
			go func() { _ = p.probe(context.WithoutCancel(ctx), e) }() // the record keeps the error
		}
	}
}

var (
	// errBehind means that an answer is older than what the client already knows.
	errBehind = errors.New("the node is behind")
	// errCatchingUp means that a node refuses a call until it has all blocks.
	errCatchingUp = errors.New("the node is catching up")
)

// answered reports whether err is an answer of the node, and not a failure to reach it.
func answered(err error) bool {
	var rpc *rpctypes.RPCError
	return errors.As(err, &rpc)
}

// callMissing reports whether err is the answer of a node that does not serve the call: one that
// joins (node/comet/joiningrpc.go), or a proxy. The code is that of JSON-RPC 2.0, section 5.1.
func callMissing(err error) bool {
	var rpc *rpctypes.RPCError
	return errors.As(err, &rpc) && rpc.Code == -32601
}

// heard reports whether err shows that the node is alive: it is an answer of the node, or about
// one.
func heard(err error) bool {
	for _, about := range []error{errBehind, errCatchingUp, errInCache, errNotFound, errNoIndex, errNotYet, ErrUnproved, ErrUntrusted, ErrConflict, ErrWrongChain} {
		if errors.Is(err, about) {
			return true
		}
	}
	return answered(err) || errors.As(err, new(*QueryError)) || errors.As(err, new(*TxError))
}

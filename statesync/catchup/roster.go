package catchup

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/internal/bounded"
	"github.com/starling-kv/starling/transport"
)

// Peer is a connected node with its claim.
type Peer struct {
	Conn  transport.Conn
	Claim Claim
}

// roster holds the peers of a run and their records.
type roster struct {
	mu     sync.Mutex
	peers  map[transport.ID]*peer                 // connected
	gone   *bounded.Map[transport.ID, *character] // of disconnected peers
	banned int
	turn   int // rotates the order of equal peers
}

func newRoster() *roster {
	return &roster{peers: map[transport.ID]*peer{}, gone: bounded.New[transport.ID, *character](maxGone)}
}

// character is a peer's record across its connections. It is guarded by roster.mu.
type character struct {
	banned bool
	// idles counts requests without any answer (idleError) since the last right answer; idled is
	// when the last one was counted.
	idles  int
	idled  time.Time
	doubts transport.Doubts
}

// peer is a connected peer. It is guarded by roster.mu, except conn, which does not change.
type peer struct {
	*character
	conn  transport.Conn
	claim Claim
	there bool // present in the last update
	// useless: the peer is banned, refuses requests for blocks, or does not send what it claims.
	useless bool
	// above: the peer has answered that it does not have this height; 0: it has not.
	above int64
	until time.Time // not asked before this time
	out   int       // requests in flight
	// moves changes while the peer sends anything, for any request.
	moves atomic.Int64
}

const (
	// maxGone limits how many disconnected peers are remembered. Forgetting a peer is no worse than
	// a peer that changes its identity.
	maxGone = 1024
	// maxIdles is how often a peer may be idle. A peer that claims blocks and sends none would
	// otherwise keep a node from taking part in consensus.
	maxIdles = 3
	// maxOut limits the requests in flight to a peer, except hedged ones. A peer answers one
	// request after the other, so the last one would wait for all others.
	maxOut = 2
	// restAfter is how long a peer is not asked after it was busy, failed, or sent nothing.
	restAfter = 2 * time.Second
)

// update replaces the connected peers and their claims.
func (r *roster) update(list []Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		p.there = false
	}
	for _, l := range list {
		id := l.Conn.Remote().ID
		p := r.peers[id]
		if p == nil || p.conn != l.Conn { // its software may have changed, its record remains
			is := r.characterOf(id)
			p = &peer{character: is, conn: l.Conn, useless: is.banned || is.idles >= maxIdles}
			r.peers[id] = p
		}
		if p.claim != l.Claim { // it may have more blocks now
			p.above = 0
		}
		p.claim, p.there = l.Claim, true
	}
	for id, p := range r.peers {
		if !p.there {
			delete(r.peers, id)
			r.gone.Set(id, p.character)
		}
	}
}

// unfit reports whether a peer must not be asked. It may have been banned for an answer on an
// earlier connection.
func (p *peer) unfit() bool { return p.useless || p.banned }

// characterOf returns the record of a peer that connects. The caller holds r.mu.
func (r *roster) characterOf(id transport.ID) *character {
	if p := r.peers[id]; p != nil {
		return p.character
	}
	if is, known := r.gone.Get(id); known {
		r.gone.Delete(id)
		return is
	}
	return new(character)
}

// claims returns the claims and the number of the peers that may be asked.
func (r *roster) claims() (claims []Claim, peers, banned int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		if p.unfit() {
			continue
		}
		peers++
		c := p.claim
		if p.above > 0 {
			c.Last = min(c.Last, p.above)
		}
		claims = append(claims, c)
	}
	return claims, peers, r.banned
}

// idle returns the newest block claimed by peers that were given up because they sent nothing.
func (r *roster) idle() (last int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		if !p.banned && p.idles >= maxIdles {
			last = max(last, p.claim.Last)
		}
	}
	return last
}

// takeTurn returns the candidates for a search; equal candidates take turns.
func (r *roster) takeTurn(from int64, now time.Time) []*peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.turn++ }()
	return r.inOrder(from, now)
}

// candidates returns the peers to ask for blocks from a height on, those with the fewest requests
// in flight first. It returns none if all have maxOut requests in flight.
func (r *roster) candidates(from int64, now time.Time) []*peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inOrder(from, now)
}

// inOrder implements candidates. The caller holds r.mu.
func (r *roster) inOrder(from int64, now time.Time) []*peer {
	ids := make([]transport.ID, 0, len(r.peers))
	for id, p := range r.peers {
		lacks := p.above > 0 && from >= p.above
		if !p.unfit() && !lacks && p.mayBeAsked() && p.claim.First <= from && from < p.claim.Last && !now.Before(p.until) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	list := make([]*peer, 0, len(ids))
	for i := range ids {
		list = append(list, r.peers[ids[(i+r.turn)%len(ids)]])
	}
	slices.SortStableFunc(list, func(a, b *peer) int { return cmp.Compare(a.out, b.out) })
	if len(list) > 0 && list[0].out >= maxOut {
		return nil
	}
	return list
}

// mayBeAsked reports whether a peer may get another request. If its last answer was wrong and
// unproved, it gets one request at a time until an answer is right, since each may cost a wrong
// answer.
func (p *peer) mayBeAsked() bool { return !p.doubts.Open() || p.out == 0 }

// asking records a request to a peer if one is allowed. proved reports whether the answer must
// prove its sender.
func (r *roster) asking(p *peer) (proved, may bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !p.mayBeAsked() {
		return false, false
	}
	p.out++
	return p.doubts.MustProve(), true
}

func (r *roster) asked(p *peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.out--
}

// failed records that a peer did not answer a request for blocks from a height on. It returns true
// if that proves a fault.
func (r *roster) failed(p *peer, from int64, err error, now time.Time) (lie bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var idle *idleError
	switch {
	case errors.Is(err, transport.ErrTooLong), errors.Is(err, transport.ErrProtocol), errors.Is(err, errMessage):
		return true
	case errors.Is(err, transport.ErrGone):
		p.above = from
	case errors.Is(err, transport.ErrRefused):
		p.useless = true
	case errors.Is(err, errTurn), errors.Is(err, errDoubted):
	case errors.Is(err, errHeavy): // CometBFT may have more memory
		p.useless = true
	case errors.As(err, &idle):
		if !idle.began.Before(p.idled) { // requests that were idle at the same time count as one
			p.idles, p.idled = p.idles+1, now
			p.useless = p.useless || p.idles >= maxIdles
		}
		p.until = now.Add(restAfter)
	default:
		p.until = now.Add(restAfter)
	}
	return false
}

// doubt records a wrong answer. It returns true if another sender may have forged the answer, and
// false if the peer itself sent it and is now banned.
func (r *roster) doubt(p *peer, unproved bool) bool {
	if unproved {
		transport.Doubt(p.conn)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if unproved {
		p.doubts.Wrong()
		return true
	}
	if !p.banned {
		r.banned++
	}
	p.useless, p.banned = true, true
	return false
}

// right records a right answer. After an answer that proved its sender, a peer may answer unproved
// again.
func (r *roster) right(p *peer, unproved bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.doubts.Right(unproved)
	if !p.useless {
		p.idles = 0
	}
}

package catchup

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/transport"
)

// Peer is a connected node, and what it claims to have.
type Peer struct {
	Conn  transport.Conn
	Claim Claim
}

// roster is the peers of a run, and what each has shown itself to be.
type roster struct {
	mu    sync.Mutex
	peers map[transport.ID]*peer
	turn  int // rotates who of equal ones is asked first
}

// peer is guarded by roster.mu, but for conn, which does not change.
type peer struct {
	conn  transport.Conn
	claim Claim
	there bool // it is connected
	// useless: it was banned, answers no requests for blocks, as older versions, or does not give
	// what it claims to have.
	useless bool
	banned  bool
	// above: it has said that it does not have this height; 0: it has not.
	above int64
	until time.Time // it is asked again only then
	out   int       // questions under way
	// idles counts questions of which nothing came since its last right answer (idleError); idled:
	// when the last one was counted.
	idles int
	idled time.Time
	// moves changes while it sends something, whatever the question.
	moves atomic.Int64
	// doubts counts its wrong answers that came unproved; doubted: the next one must be proved.
	doubts  int
	doubted bool
}

const (
	// maxDoubts is how many wrong answers of a peer are excused because they came unproved.
	maxDoubts = 4
	// maxIdles is how often a peer may be idle: who claims to have blocks, and gives none, would
	// keep a node from taking part in consensus.
	maxIdles = 3
	// maxOut is how many questions a peer is asked at once, but for those asked beside: it answers
	// one after the other, and the last one would wait for all others.
	maxOut = 2
	// restAfter is how long a peer is left alone that was busy, failed, or sent nothing.
	restAfter = 2 * time.Second
)

// update replaces who is connected, and what they claim.
func (r *roster) update(list []Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		p.there = false
	}
	for _, l := range list {
		id := l.Conn.Remote().ID
		p := r.peers[id]
		if p == nil {
			p = &peer{conn: l.Conn}
			r.peers[id] = p
		} else if p.conn != l.Conn { // it may be a newer version by now, but is as honest
			p = &peer{
				conn: l.Conn, useless: p.banned || p.idles >= maxIdles, banned: p.banned, idles: p.idles, idled: p.idled,
				doubts: p.doubts, doubted: p.doubted,
			}
			r.peers[id] = p
		}
		if p.claim != l.Claim { // it may have more by now
			p.above = 0
		}
		p.claim, p.there = l.Claim, true
	}
}

// claims returns what those claim who may be of use, and how many these are.
func (r *roster) claims() (claims []Claim, peers, banned int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		if p.banned {
			banned++
		}
		if !p.there || p.useless {
			continue
		}
		peers++
		c := p.claim
		if p.above > 0 {
			c.Last = min(c.Last, p.above)
		}
		claims = append(claims, c)
	}
	return claims, peers, banned
}

// idle returns the newest block that those claim to have who were given up because nothing came.
func (r *roster) idle() (last int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		if p.there && !p.banned && p.idles >= maxIdles {
			last = max(last, p.claim.Last)
		}
	}
	return last
}

// takeTurn returns the candidates for a search, the first of equal ones in turn.
func (r *roster) takeTurn(from int64, now time.Time) []*peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.turn++ }()
	return r.inOrder(from, now)
}

// candidates returns whom to ask for the blocks from a height on: first those who are asked least.
// It returns nobody if all have been asked enough: otherwise these are only asked beside others.
func (r *roster) candidates(from int64, now time.Time) []*peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inOrder(from, now)
}

// inOrder is candidates. The caller holds r.mu.
func (r *roster) inOrder(from int64, now time.Time) []*peer {
	ids := make([]transport.ID, 0, len(r.peers))
	for id, p := range r.peers {
		lacks := p.above > 0 && from >= p.above
		if p.there && !p.useless && !lacks && p.mayBeAsked() && p.claim.First <= from && from < p.claim.Last && !now.Before(p.until) {
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

// mayBeAsked reports whether a peer may have one question more: if its last answer was wrong and
// came unproved, it has one at a time until a right one has come, since each may cost an answer.
func (p *peer) mayBeAsked() bool { return !p.doubted || p.out == 0 }

// asking notes that a peer is asked, if it may be, and returns whether its answer must prove who
// sends it.
func (r *roster) asking(p *peer) (proved, may bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !p.mayBeAsked() {
		return false, false
	}
	p.out++
	return p.doubted || p.doubts >= maxDoubts, true
}

func (r *roster) asked(p *peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.out--
}

// failed notes that a peer has not answered a question about the blocks from a height on. It
// returns whether that proves a lie.
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
		if !idle.began.Before(p.idled) { // questions that stood still together count as one
			p.idles, p.idled = p.idles+1, now
			p.useless = p.useless || p.idles >= maxIdles
		}
		p.until = now.Add(restAfter)
	default:
		p.until = now.Add(restAfter)
	}
	return false
}

// doubt notes a wrong answer that may be somebody else's. It returns false if the peer itself has
// sent it.
func (r *roster) doubt(p *peer, unproved bool) bool {
	if unproved {
		transport.Doubt(p.conn)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if unproved {
		p.doubts++
		p.doubted = true
	} else {
		p.useless, p.banned = true, true
	}
	return unproved
}

// right notes a right answer. After one that proved who sent it, a peer may answer unproved again.
func (r *roster) right(p *peer, unproved bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.doubted = p.doubted && unproved
	if !p.useless {
		p.idles = 0
	}
}

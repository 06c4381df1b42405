package lightblocks

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/hedge"
	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

// RangePeer is a Peer that serves ranges of headers. HeaderRange returns the headers of heights
// from, from-1, …, at least 1 and at most count. Each header is self-consistent and matches its
// evidence; Validators is not set. The errors are those of LightBlock.
type RangePeer interface {
	Peer
	HeaderRange(ctx context.Context, from int64, count int) ([]Ancestor, error)
}

// Ancestor is a block below a proved one, with the header and validators that evidence may refer to
// and the evidence in the block.
type Ancestor struct {
	*types.SignedHeader                    // with the canonical commit, which is in the next block
	Evidence            types.EvidenceList // in this block
	// Validators is the set that could sign the block. Neighbours share a set. Its proposer
	// priorities are made up, since no header proves them.
	Validators *types.ValidatorSet
}

// maxAncestors limits the memory of Ancestors, in bytes of headers, commits and evidence.
const maxAncestors = 256 << 20

// Ancestors returns the blocks from height from downwards, until last returns true for one of them.
// All are proved by the hashes that lead down from block from+1. Ancestors asks the RangePeers, one
// batch after another:
//
//	header h+1 ── LastBlockID ────► header h and its commit's block, part set included
//	           ── LastCommitHash ─► the commit's signatures; one signature proves their round, which no hash covers
//	header h   ── EvidenceHash ───► the evidence in block h
//	           ── ValidatorsHash ─► the validator set, requested once for all neighbours that share it
//
// With an error, it also returns the blocks found until then. The error is ErrUnavailable if no
// peer has more blocks.
func (v *Verifier) Ancestors(ctx context.Context, from int64, last func(*types.Header) bool) ([]Ancestor, error) {
	if from < 1 {
		return nil, fmt.Errorf("ancestors: there is no height %d", from)
	}
	child, err := v.LightBlock(ctx, from+1)
	if err != nil {
		return nil, fmt.Errorf("ancestors from height %d: %w", from, err)
	}
	return v.AncestorsBelow(ctx, child.Header, child.ValidatorSet, last)
}

// AncestorsBelow is Ancestors starting from the block before child, a header that the caller has
// proved. set is the validator set that child names.
func (v *Verifier) AncestorsBelow(ctx context.Context, child *types.Header, set *types.ValidatorSet, last func(*types.Header) bool) ([]Ancestor, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	d := &descent{v: v, asked: map[*peer]int{}, turn: firstTurn, below: child, sets: setsByHash{string(child.ValidatorsHash): set}}
	var found []Ancestor
	for kept := 0; ; {
		batch, err := d.next(ctx)
		if err != nil {
			return found, fmt.Errorf("ancestors from height %d downwards: %w", d.below.Height-1, err)
		}
		for _, a := range batch {
			found = append(found, a)
			if kept += a.size(); last(a.Header) {
				return found, nil
			}
		}
		if kept > maxAncestors {
			return found, fmt.Errorf("ancestors from height %d downwards: limit reached: the blocks above take %d bytes", d.below.Height-1, kept)
		}
	}
}

// setsByHash holds proved validator sets by hash. The map is shared and must not be changed; see
// missingSets.
type setsByHash map[string]*types.ValidatorSet

// size returns the approximate encoded size in bytes.
func (a Ancestor) size() int {
	size := a.SignedHeader.ToProto().Size()
	if len(a.Evidence) > 0 {
		size += int((&types.EvidenceData{Evidence: a.Evidence}).ByteSize())
	}
	return size
}

// descent is the progress of Ancestors. Only the goroutine of Ancestors changes it; goroutines that
// ask for a batch get copies of below and sets.
type descent struct {
	v     *Verifier
	below *types.Header // the lowest proved header
	sets  setsByHash
	asked map[*peer]int // number of batches requested from each peer
	// turn is the time that a peer may take while others wait. Only next changes it.
	turn time.Duration
}

// batch holds proved blocks of one peer, and the validator sets known after them.
type batch struct {
	ancestors []Ancestor
	sets      setsByHash
}

// The time after which a peer yields its slot to a peer that has not been tried: firstTurn in the
// first pass over all peers, twice as long in each further pass, at most lastTurn.
const (
	firstTurn = time.Second
	lastTurn  = 8 * time.Second
)

// errTurn is the reason that a request was cancelled: no response came while other peers waited for
// their turn.
var errTurn = errors.New("no answer while other peers waited")

// next returns the first proved batch. It tries all peers in passes. A peer that sends nothing
// while others wait yields its slot, and has more time in the next pass. So silent peers, however
// many, cannot keep an honest peer from its turn, and a slow peer eventually gets enough time.
// Peers that are added meanwhile are tried as well.
func (d *descent) next(ctx context.Context) ([]Ancestor, error) {
	tried := map[transport.ID]bool{}
	var why reasons
	for {
		found, again, err := d.pass(ctx, tried, &why)
		switch {
		case err != nil:
			return nil, err
		case found != nil:
			d.below, d.sets = found.ancestors[len(found.ancestors)-1].Header, found.sets
			return found.ancestors, nil
		case again && d.turn < lastTurn:
			d.turn *= 2
		case again || len(d.candidates(tried)) == 0:
			return nil, why.explain(d.below.Height-1, len(tried))
		}
	}
}

// candidates returns the peers that can be asked, in the order in which they are asked. Peers that
// were silent while another one answered come last. Otherwise the peers with the fewest requests
// come first, so that a peer with short responses cannot slow the descent down. The remaining order
// is random, so that an attacker cannot place its peers ahead of an honest one. Peers in tried are
// left out.
func (d *descent) candidates(tried map[transport.ID]bool) (peers []*peer) {
	for _, p := range d.v.usablePeers() {
		if _, can := p.Peer.(RangePeer); can && !tried[p.id] {
			peers = append(peers, p)
		}
	}
	d.v.opts.shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	slices.SortStableFunc(peers, func(p, q *peer) int {
		return cmp.Or(cmp.Compare(p.strikes, q.strikes), cmp.Compare(d.asked[p], d.asked[q]))
	})
	return peers
}

// pass asks all peers for a batch. It starts with one peer, asks another one after each failure,
// and doubles the number at each multiple of Options.hedge. It adds all peers to tried, and the
// reasons why they did not help to why. again reports that some peers yielded their slots.
func (d *descent) pass(ctx context.Context, tried map[transport.ID]bool, why *reasons) (found *batch, again bool, _ error) {
	peers := d.candidates(nil)
	if len(peers) == 0 {
		return nil, false, ErrNoPeers
	}
	var untried atomic.Int64
	untried.Store(int64(len(peers)))
	below, sets, turn := d.below, d.sets, d.turn
	s := hedge.Search[*peer, batch]{
		Policy: hedge.Policy{Pace: hedge.Doubling, Start: 1, Most: parallel, After: d.v.opts.hedge},
		Go:     d.v.spawn,
		More:   func() ([]*peer, <-chan struct{}) { return peers, nil },
		Ask: func(ctx context.Context, p *peer) (b batch, err error) {
			untried.Add(-1)
			ctx, give := context.WithCancelCause(ctx)
			defer give(nil)
			defer time.AfterFunc(turn, func() {
				if untried.Load() > 0 {
					give(errTurn)
				}
			}).Stop()
			b.ancestors, b.sets, err = d.v.ancestorsOf(ctx, p, below, sets)
			if err != nil && errors.Is(context.Cause(ctx), errTurn) {
				d.v.answered(p, false)
				err = errTurn
			}
			return b, err
		},
		Failed: func(p *peer, err error) bool {
			d.asked[p]++
			why.add(p, err)
			d.v.blame(p, err)
			again = again || errors.Is(err, errTurn)
			return false
		},
		Proved: func(p *peer, b batch) {
			d.asked[p]++
			found = &b
		},
		Unheard: func(p *peer, since time.Duration) {
			d.asked[p]++
			if since >= d.v.opts.hedge {
				d.v.answered(p, false)
			}
		},
	}
	for _, p := range peers {
		tried[p.id] = true
	}
	err := s.Run(ctx)
	return found, again, err
}

// ancestorsOf asks a peer for the blocks below a proved header, and proves them. It returns sets
// with the missing ones added.
func (v *Verifier) ancestorsOf(ctx context.Context, p *peer, below *types.Header, sets setsByHash) ([]Ancestor, setsByHash, error) {
	if lightclient.IsFirst(below) {
		return nil, nil, fmt.Errorf("%w: block %d is the first of the chain", ErrUnavailable, below.Height)
	}
	var headers []Ancestor
	err := v.ask(ctx, p, func(call context.Context) (err error) {
		headers, err = p.Peer.(RangePeer).HeaderRange(call, below.Height-1, MaxHeaders)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	child := below
	for _, a := range headers {
		if err := lightclient.CheckAncestor(a.SignedHeader, child); err != nil {
			return nil, nil, lie(err)
		}
		child = a.Header
	}
	sets, err = v.missingSets(ctx, p, headers, sets)
	if err != nil {
		return nil, nil, err
	}
	for i := range headers {
		a := &headers[i]
		a.Validators = sets[string(a.ValidatorsHash)]
		if err := lightclient.CheckRound(v.opts.ChainID, a.SignedHeader, a.Validators); err != nil {
			return nil, nil, lie(err)
		}
	}
	return headers, sets, nil
}

// missingSets returns a copy of sets with the validators of headers, which are proved, added. It
// asks other peers for the sets that this peer does not have.
func (v *Verifier) missingSets(ctx context.Context, p *peer, headers []Ancestor, sets setsByHash) (setsByHash, error) {
	sets = maps.Clone(sets)
	var missing []*types.Header
	for _, a := range headers {
		if _, known := sets[string(a.ValidatorsHash)]; !known {
			missing = append(missing, a.Header)
			sets[string(a.ValidatorsHash)] = nil // requested below
		}
	}
	found := make([]*types.ValidatorSet, len(missing))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers) // an honest peer serves this many requests at a time
	for i, header := range missing {
		g.Go(func() (err error) {
			found[i], err = v.validatorsOf(ctx, p, header)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, header := range missing {
		sets[string(header.ValidatorsHash)] = found[i]
	}
	return sets, nil
}

// validatorsOf returns the validators of a proved header that p sent. It asks p first, then the
// other peers.
func (v *Verifier) validatorsOf(ctx context.Context, p *peer, header *types.Header) (*types.ValidatorSet, error) {
	var why reasons
	others := v.usablePeers()
	peers := append([]*peer{p}, slices.DeleteFunc(others, func(q *peer) bool { return q == p })...)
	for _, q := range peers {
		lb, err := v.fetch(ctx, q, header.Height)
		if err == nil && !bytes.Equal(lb.Hash(), header.Hash()) {
			err = fmt.Errorf("%w: block %d has hash %X, the header above has %X", errLie, header.Height, lb.Hash(), header.Hash())
		}
		if err == nil {
			set := lb.ValidatorSet
			// without the peer's priorities, which are unproved
			err = lightclient.Guard(func() error {
				set = types.NewValidatorSet(set.Validators)
				return nil
			})
			return set, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		why.add(q, err)
		v.blame(q, err)
	}
	return nil, fmt.Errorf("validators: %w", why.explain(header.Height, len(peers)))
}

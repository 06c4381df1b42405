package lightblocks

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cometbft/cometbft/light"
	"github.com/cometbft/cometbft/types"
)

// HeaderPeer is a Peer that gives headers in ranges: those of from, from-1, …, at least one and at most count,
// each consistent in itself and with its evidence, without Validators. Its errors are LightBlock's.
type HeaderPeer interface {
	Peer
	Headers(ctx context.Context, from int64, count int) ([]Ancestor, error)
}

// Ancestor is what evidence may be about, and what evidence there was: a block below a proved one.
type Ancestor struct {
	*types.SignedHeader                    // with the canonical commit, the one that the next block holds
	Evidence            types.EvidenceList // in this block
	// Validators could sign it. Neighbours share a set. Its proposer priorities are made up: no header proves those.
	Validators *types.ValidatorSet
}

// maxAncestors bounds what Ancestors keeps in memory, in bytes of headers and commits.
const maxAncestors = 256 << 20

// Ancestors returns the blocks from height from downwards, until last says that one is the last, all proved by the hashes that lead down from
// block from+1. It asks whoever gives headers in ranges, a batch at a time:
//
//	header h+1 ── LastBlockID ────► header h and its commit's block, part set included
//	           ── LastCommitHash ─► the commit's signatures; their round by one of them, since it is not hashed
//	header h   ── EvidenceHash ───► the evidence in block h
//	           ── ValidatorsHash ─► the set, asked for once for all neighbours that have it
//
// What it has is returned with an error too: what stopped it, ErrUnavailable where no peer has more.
func (v *Verifier) Ancestors(ctx context.Context, from int64, last func(*types.Header) bool) ([]Ancestor, error) {
	if from < 1 {
		return nil, fmt.Errorf("ancestors: there is no height %d", from)
	}
	child, err := v.LightBlock(ctx, from+1)
	if err != nil {
		return nil, fmt.Errorf("ancestors from height %d: %w", from, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	d := &descent{v: v, asked: map[*peer]int{}, below: child.Header, sets: setsByHash{string(child.ValidatorsHash): child.ValidatorSet}}
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
			return found, fmt.Errorf("ancestors from height %d downwards: those above take %d bytes already", d.below.Height-1, kept)
		}
	}
}

// setsByHash are validator sets that were proved, by their hash. One that is shared is not changed.
type setsByHash map[string]*types.ValidatorSet

// size is how many bytes it has, about.
func (a Ancestor) size() int {
	size := a.SignedHeader.ToProto().Size()
	if len(a.Evidence) > 0 {
		size += int((&types.EvidenceData{Evidence: a.Evidence}).ByteSize())
	}
	return size
}

// descent is how far Ancestors is. Between batches it belongs to one goroutine; those that ask only read it.
type descent struct {
	v     *Verifier
	below *types.Header // the lowest that is proved
	sets  setsByHash
	asked map[*peer]int // batches that a peer was asked for
}

// batch is what a peer gave, proved, or why it is of no use.
type batch struct {
	p         *peer
	ancestors []Ancestor
	sets      setsByHash
	err       error
}

// next takes the first batch that is proved. One peer is asked, another one when somebody was of no use, and as many again whenever Hedge has
// passed. Who was silent while another answered comes last from then on, and who was asked least first, so that one who gives little at a
// time has little to say.
func (d *descent) next(ctx context.Context) ([]Ancestor, error) {
	var peers []*peer
	for _, p := range d.v.usablePeers() {
		if _, can := p.Peer.(HeaderPeer); can {
			peers = append(peers, p)
		}
	}
	if len(peers) == 0 {
		return nil, ErrNoPeers
	}
	d.v.mu.Lock()
	slices.SortStableFunc(peers, func(p, q *peer) int {
		return cmp.Or(cmp.Compare(p.strikes, q.strikes), cmp.Compare(d.asked[p], d.asked[q]))
	})
	d.v.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan batch, len(peers))
	hedge := time.NewTicker(d.v.opts.Hedge)
	defer hedge.Stop()
	var why reasons
	below, sets, asked := d.below, d.sets, 0
	out := map[*peer]time.Time{} // since when it is being asked
	more := func() {
		if asked == len(peers) || len(out) == parallel {
			return
		}
		p := peers[asked]
		asked++
		out[p] = time.Now()
		d.asked[p]++
		d.v.spawn(func() {
			b := batch{p: p}
			b.ancestors, b.sets, b.err = d.v.ancestorsOf(ctx, p, below, sets)
			results <- b
		})
	}
	for more(); len(out) > 0; {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-hedge.C:
			for range asked {
				more()
			}
		case b := <-results:
			delete(out, b.p)
			if b.err == nil {
				for p, since := range out {
					if time.Since(since) >= d.v.opts.Hedge {
						d.v.answered(p, false)
					}
				}
				d.below, d.sets = b.ancestors[len(b.ancestors)-1].Header, b.sets
				return b.ancestors, nil
			}
			why.add(b.p, b.err)
			d.v.blame(b.p, b.err)
			more()
		}
	}
	return nil, why.explain(below.Height-1, asked)
}

// ancestorsOf asks a peer for the blocks below a proved one, and proves them. It returns the sets with those that were not known.
func (v *Verifier) ancestorsOf(ctx context.Context, p *peer, below *types.Header, sets setsByHash) ([]Ancestor, setsByHash, error) {
	if below.LastBlockID.IsZero() {
		return nil, nil, fmt.Errorf("%w: block %d is the first of the chain", ErrUnavailable, below.Height)
	}
	var headers []Ancestor
	err := v.ask(ctx, p, func(call context.Context) (err error) {
		headers, err = p.Peer.(HeaderPeer).Headers(call, below.Height-1, MaxHeaders)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	child := below
	for _, a := range headers {
		if err := guard(func() error { return checkAncestor(a, child) }); err != nil {
			return nil, nil, fmt.Errorf("%w: block %d (%X) is not below block %d: %w", errLie, a.Height, a.Hash(), child.Height, err)
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
		if err := guard(func() error { return checkRound(v.opts.ChainID, *a) }); err != nil {
			return nil, nil, fmt.Errorf("%w: commit of block %d: %w", errLie, a.Height, err)
		}
	}
	return headers, sets, nil
}

// checkAncestor checks a header and the commit of its block against the proved header above: of a commit, LastCommitHash covers the signatures
// only, and LastBlockID the rest but for the round.
func checkAncestor(a Ancestor, child *types.Header) error {
	if err := light.VerifyBackwards(a.Header, child); err != nil {
		return err
	}
	if !a.Commit.BlockID.Equals(child.LastBlockID) {
		return fmt.Errorf("its commit is for %v, the header above says %v", a.Commit.BlockID, child.LastBlockID)
	}
	if hash := a.Commit.Hash(); !bytes.Equal(hash, child.LastCommitHash) {
		return fmt.Errorf("its commit has hash %X, the header above says %X", hash, child.LastCommitHash)
	}
	return nil
}

// checkRound checks one signature, the first for the block. All are of the round that the chain took the commit with, so no other round is right
// for any of them.
func checkRound(chainID string, a Ancestor) error {
	for i, sig := range a.Commit.Signatures {
		if sig.BlockIDFlag != types.BlockIDFlagCommit {
			continue
		}
		_, val := a.Validators.GetByIndex(int32(i))
		if val == nil || !val.PubKey.VerifySignature(a.Commit.VoteSignBytes(chainID, int32(i)), sig.Signature) {
			return fmt.Errorf("signature %d is not of round %d", i, a.Commit.Round)
		}
		return nil
	}
	return errors.New("nobody signed it")
}

// missingSets adds the validators of headers, which are proved, to sets. Where this peer has not got them, another may.
func (v *Verifier) missingSets(ctx context.Context, p *peer, headers []Ancestor, sets setsByHash) (setsByHash, error) {
	sets = maps.Clone(sets)
	var missing []*types.Header
	for _, a := range headers {
		if _, known := sets[string(a.ValidatorsHash)]; !known {
			missing = append(missing, a.Header)
			sets[string(a.ValidatorsHash)] = nil // asked for below
		}
	}
	type result struct {
		hash []byte
		set  *types.ValidatorSet
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, len(missing))
	places := make(chan struct{}, readers) // what an honest peer reads at a time
	for _, header := range missing {
		v.spawn(func() {
			if !send(ctx, places, struct{}{}) {
				return
			}
			defer func() { <-places }()
			r := result{hash: header.ValidatorsHash}
			r.set, r.err = v.validatorsOf(ctx, p, header)
			results <- r
		})
	}
	for range missing {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case r := <-results:
			if r.err != nil {
				return nil, r.err
			}
			sets[string(r.hash)] = r.set
		}
	}
	return sets, nil
}

// validatorsOf returns the validators of a proved header, which p gave.
func (v *Verifier) validatorsOf(ctx context.Context, p *peer, header *types.Header) (*types.ValidatorSet, error) {
	var why reasons
	others := v.usablePeers()
	peers := append([]*peer{p}, slices.DeleteFunc(others, func(q *peer) bool { return q == p })...)
	for _, q := range peers {
		lb, err := v.fetch(ctx, q, header.Height)
		if err == nil && !bytes.Equal(lb.Hash(), header.Hash()) {
			err = fmt.Errorf("%w: its block %d is %X, the header above names %X", errLie, header.Height, lb.Hash(), header.Hash())
		}
		if err == nil {
			set := lb.ValidatorSet
			err = guard(func() error { // without the peer's priorities, which are anything
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

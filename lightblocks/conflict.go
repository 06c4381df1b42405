package lightblocks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	cmtjson "github.com/cometbft/cometbft/libs/json"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/lightclient"
	"github.com/starling-kv/starling/transport"
)

// examine finds out why a peer has another block than the proved one, from the peer's own answers
// alone: it climbs from the trusted block along the heights by which the proved block was reached.
// The error is errLie if the peer's block cannot be proved that way, ErrConflict if it can, and
// otherwise what stopped the examination. If the two agree at all heights that both have, the
// peer's block is proved and kept. See CometBFT, light/detector.go,
// examineConflictingHeaderAgainstTrace.
//
//	trusted ── agree ── agree ── ours ── proved block
//	                        └─── theirs ─── …          common block, conflicting block, trusted block: evidence, both ways round
func (v *Verifier) examine(ctx context.Context, p *peer, target *types.LightBlock) (*lightclient.Proved, error) {
	v.mu.Lock()
	trace := v.mu.blocks.Trace(target.Height)
	v.mu.Unlock()
	common := trace[0].LightBlock
	get := func(ctx context.Context, height int64) (*types.LightBlock, bool, error) {
		lb, err := v.fetch(ctx, p, height)
		return lb, false, err
	}
	enough := v.rules
	enough.WholeCommits = false // a false block is an attack even if one of its signatures is wrong
	for _, ours := range trace[1:] {
		theirs := target
		if ours.Height != target.Height {
			var err error
			if theirs, err = v.fetch(ctx, p, ours.Height); err != nil {
				return nil, fmt.Errorf("block %d, to examine block %d: %w", ours.Height, target.Height, err)
			}
		}
		if bytes.Equal(theirs.Hash(), ours.Hash()) {
			common = ours.LightBlock
			continue
		}
		climb := []*types.LightBlock{common}
		err := v.climb(ctx, enough, common, theirs, get, func(_ int64, lb *types.LightBlock) { climb = append(climb, lb) })
		if err != nil {
			return nil, err
		}
		return nil, v.attack(ctx, p, ours, climb)
	}
	if common.Height == target.Height {
		return trace[len(trace)-1], nil
	}
	err := v.climb(ctx, v.rules, common, target, get, func(int64, *types.LightBlock) {})
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if b := v.mu.blocks.Put(&lightclient.Proved{LightBlock: target, From: common.Height, By: string(p.id)}); bytes.Equal(b.Hash(), target.Hash()) {
		return b, nil
	}
	return nil, fmt.Errorf("%w: another peer proved another block %d meanwhile", ErrUnavailable, target.Height)
}

// attack handles two proved blocks of one height. climb holds the blocks from the last common one
// to the peer's. It returns the conflict, which is the first one that was found.
func (v *Verifier) attack(ctx context.Context, p *peer, ours *lightclient.Proved, climb []*types.LightBlock) error {
	theirs := climb[len(climb)-1]
	conflict := fmt.Errorf("%w: block %d is %X according to peer %s and %X according to peer %s; the trusted block is %d (%X)",
		ErrConflict, ours.Height, ours.Hash(), transport.ID(ours.By), theirs.Hash(), p.id, v.opts.TrustHeight, v.opts.TrustHash)
	v.mu.Lock()
	if v.mu.conflict != nil {
		conflict = v.mu.conflict
		v.mu.Unlock()
		return conflict
	}
	v.mu.conflict = conflict
	// Whoever hears of the conflict may call Close before the reports have begun.
	done := func() {}
	if reported := make(chan struct{}); !v.mu.closed {
		v.mu.reported = reported
		v.wg.Add(1)
		done = func() { close(reported); v.wg.Done() }
	}
	flights := make([]*flight, 0, len(v.mu.flights))
	for _, f := range v.mu.flights {
		flights = append(flights, f)
	}
	peers := make([]*peer, len(v.mu.peers))
	copy(peers, v.mu.peers)
	v.mu.Unlock()
	v.log.Error("attack on the light client", "err", conflict)
	for _, f := range flights {
		v.finish(f, nil, conflict)
	}

	conflicting, trusted, common := v.fork(ctx, ours, climb)
	evidence := []*types.LightClientAttackEvidence{
		newEvidence(ours.LightBlock, theirs, climb[0]), // if theirs is right
		newEvidence(conflicting, trusted, common),      // if ours is right
	}
	if err := v.keepEvidence(transport.ID(ours.By), p.id, evidence); err != nil {
		v.log.Error("evidence of an attack could not be kept", "dir", v.opts.EvidenceDir, "err", err)
	}
	go func() {
		defer done()
		v.reportAll(peers, evidence)
	}()
	return conflict
}

// Reports of evidence are sent again to a peer that is busy, or has no stores yet: after
// firstRetry, then after twice as long each time, up to lastRetry. Close leaves them reportGrace.
const (
	firstRetry  = time.Second
	lastRetry   = 32 * time.Second
	reportGrace = 5 * time.Second
)

// reportAll reports evidence to peers. Those on the right chain accept one piece, and refuse the
// other.
func (v *Verifier) reportAll(peers []*peer, evidence []*types.LightClientAttackEvidence) {
	var wg sync.WaitGroup
	for _, p := range peers {
		wg.Go(func() {
			for wait, left := firstRetry, v.report(p, evidence); len(left) > 0 && wait <= lastRetry; wait *= 2 {
				select {
				case <-time.After(wait):
					left = v.report(p, left)
				case <-v.ctx.Done():
					return
				}
			}
		})
	}
	wg.Wait()
}

// report sends evidence to a peer, one piece after the other, since a server takes one at a time.
// It returns what is worth another try.
func (v *Verifier) report(p *peer, evidence []*types.LightClientAttackEvidence) (left []*types.LightClientAttackEvidence) {
	for _, ev := range evidence {
		call, cancel := context.WithTimeout(v.ctx, v.opts.callTimeout)
		err := lightclient.Guard(func() error { return p.ReportEvidence(call, ev) })
		cancel()
		if err == nil {
			continue
		}
		v.log.Info("a peer did not accept evidence of an attack", "peer", p.id, "height", ev.ConflictingBlock.Height, "err", err)
		for _, passing := range []error{transport.ErrBusy, transport.ErrGone, transport.ErrFailed, context.DeadlineExceeded} {
			if errors.Is(err, passing) {
				left = append(left, ev)
				break
			}
		}
	}
	return left
}

// fork finds the first block of climb that is not on our chain, by asking the peer that gave our
// block. Without an answer that is the last block of climb.
func (v *Verifier) fork(ctx context.Context, ours *lightclient.Proved, climb []*types.LightBlock) (conflicting, trusted, common *types.LightBlock) {
	v.mu.Lock()
	var by *peer
	for _, p := range v.mu.peers {
		if p.id == transport.ID(ours.By) {
			by = p
		}
	}
	v.mu.Unlock()
	last := len(climb) - 1
	for i := 1; i < last && by != nil; i++ {
		same, err := v.fetch(ctx, by, climb[i].Height)
		if err != nil {
			break
		}
		if !bytes.Equal(same.Hash(), climb[i].Hash()) {
			return climb[i], same, climb[i-1]
		}
	}
	return climb[last], ours.LightBlock, climb[last-1]
}

// newEvidence makes evidence as CometBFT does (light/detector.go, newLightClientAttackEvidence):
// with a header that could not be derived on the trusted chain (lunatic attack) the common height
// is that of the common block; otherwise (equivocation, amnesia) it is the height itself. Wrong
// signatures, over which every node would refuse the evidence, are removed from the conflicting
// commit.
func newEvidence(conflicting, trusted, common *types.LightBlock) *types.LightClientAttackEvidence {
	ev := &types.LightClientAttackEvidence{ConflictingBlock: withoutWrongSignatures(conflicting)}
	if ev.ConflictingHeaderIsInvalid(trusted.Header) {
		ev.CommonHeight, ev.Timestamp, ev.TotalVotingPower = common.Height, common.Time, common.ValidatorSet.TotalVotingPower()
	} else {
		ev.CommonHeight, ev.Timestamp, ev.TotalVotingPower = trusted.Height, trusted.Time, trusted.ValidatorSet.TotalVotingPower()
	}
	ev.ByzantineValidators = ev.GetByzantineValidators(common.ValidatorSet, trusted.SignedHeader)
	return ev
}

func withoutWrongSignatures(lb *types.LightBlock) *types.LightBlock {
	if lightclient.CheckCommit(lb) == nil {
		return lb
	}
	commit := lb.Commit.Clone()
	for i, sig := range commit.Signatures {
		if sig.BlockIDFlag == types.BlockIDFlagAbsent {
			continue
		}
		_, val := lb.ValidatorSet.GetByIndex(int32(i))
		if val == nil || !bytes.Equal(val.Address, sig.ValidatorAddress) ||
			!val.PubKey.VerifySignature(commit.VoteSignBytes(lb.ChainID, int32(i)), sig.Signature) {
			commit.Signatures[i] = types.NewCommitSigAbsent()
		}
	}
	return &types.LightBlock{SignedHeader: &types.SignedHeader{Header: lb.Header, Commit: commit}, ValidatorSet: lb.ValidatorSet}
}

// keptEvidence is a file of EvidenceDir.
type keptEvidence struct {
	Found   time.Time `json:"found"`
	ChainID string    `json:"chain_id"`
	// the peer that gave the conflicting block of the evidence at that index
	Peers    [2]transport.ID   `json:"peers"`
	Evidence []json.RawMessage `json:"evidence"`
}

// keepEvidence writes a file that is either complete or does not exist.
func (v *Verifier) keepEvidence(ours, theirs transport.ID, evidence []*types.LightClientAttackEvidence) error {
	if v.opts.EvidenceDir == "" {
		return nil
	}
	kept := keptEvidence{Found: v.opts.now().UTC(), ChainID: v.opts.ChainID, Peers: [2]transport.ID{ours, theirs}}
	for _, ev := range evidence {
		text, err := cmtjson.Marshal(ev)
		if err != nil {
			return fmt.Errorf("encode evidence: %w", err)
		}
		kept.Evidence = append(kept.Evidence, text)
	}
	text, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		return fmt.Errorf("encode evidence: %w", err)
	}
	if err := os.MkdirAll(v.opts.EvidenceDir, 0o700); err != nil {
		return fmt.Errorf("keep evidence: %w", err)
	}
	f, err := os.CreateTemp(v.opts.EvidenceDir, "tmp-*") // mode 0600
	if err != nil {
		return fmt.Errorf("keep evidence: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		block := evidence[1].ConflictingBlock
		err = os.Rename(f.Name(), filepath.Join(v.opts.EvidenceDir, fmt.Sprintf("light-client-attack-%d-%X.json", block.Height, block.Hash())))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("keep evidence: %w", err)
	}
	return nil
}

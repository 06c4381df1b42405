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

	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

// examine finds out why a peer has a block other than the proved one, using the peer's own
// responses only. It climbs from the trusted block along the heights by which the proved block was
// reached. The error is errLie if the peer's block cannot be proved in this way, and ErrConflict if
// it can; any other error is what stopped the examination. If the two chains agree at all heights
// that both have, the peer's block is proved and kept. See CometBFT, light/detector.go,
// examineConflictingHeaderAgainstTrace.
//
//	trusted ── agree ── agree ── ours ── proved block
//	                        └─── theirs ─── …          common block, conflicting block, trusted block: evidence in both directions
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
// to the peer's block. It returns the first conflict that was found.
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
	// A caller that learns of the conflict may call Close before the reports have begun, so wg is
	// incremented here.
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
	v.log.Error("light client attack detected", "err", conflict)
	for _, f := range flights {
		v.finish(f, nil, conflict)
	}

	conflicting, trusted, common := v.fork(ctx, ours, climb)
	evidence := []*types.LightClientAttackEvidence{
		newEvidence(ours.LightBlock, theirs, climb[0]), // if their block is right
		newEvidence(conflicting, trusted, common),      // if our block is right
	}
	if err := v.keepEvidence(transport.ID(ours.By), p.id, evidence); err != nil {
		v.log.Error("evidence of an attack could not be saved", "dir", v.opts.EvidenceDir, "err", err)
	}
	go func() {
		defer done()
		v.reportAll(peers, evidence)
	}()
	return conflict
}

// Reports of evidence are sent again to a peer that is busy or has no stores yet: first after
// firstRetry, then after twice the previous pause, up to lastRetry. Close gives the reports
// reportGrace to arrive.
const (
	firstRetry  = time.Second
	lastRetry   = 32 * time.Second
	reportGrace = 5 * time.Second
)

// reportAll reports both pieces of evidence to peers. A peer on the right chain accepts one of them
// and refuses the other.
func (v *Verifier) reportAll(peers []*peer, evidence []*types.LightClientAttackEvidence) {
	var wg sync.WaitGroup
	for _, p := range peers {
		wg.Go(func() {
			for wait, left := firstRetry, v.report(p, evidence); len(left) > 0 && wait <= lastRetry; wait *= 2 {
				if sleep.For(v.ctx, wait) != nil {
					return
				}
				left = v.report(p, left)
			}
		})
	}
	wg.Wait()
}

// report sends evidence to a peer, one piece after the other, since a server accepts one report at
// a time. It returns the pieces that are worth another attempt.
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

// fork finds the first block of climb that is not on our chain, by asking the peer that sent our
// block. Without a response it returns the last block of climb.
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

// newEvidence makes evidence as CometBFT does (light/detector.go, newLightClientAttackEvidence). If
// the header could not be derived on the trusted chain (lunatic attack), the common height is that
// of the common block. Otherwise (equivocation, amnesia) it is the height itself. Invalid
// signatures are removed from the conflicting commit, because every node would refuse the evidence
// with them.
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

// keptEvidence is the content of a file in EvidenceDir.
type keptEvidence struct {
	Found   time.Time `json:"found"`
	ChainID string    `json:"chain_id"`
	// Peers holds, for each piece of evidence, the peer that sent its conflicting block.
	Peers    [2]transport.ID   `json:"peers"`
	Evidence []json.RawMessage `json:"evidence"`
}

// evidencePattern matches the names of the files in EvidenceDir.
const evidencePattern = "light-client-attack-*.json"

// Evidence returns an ErrConflict that describes the last file of evidence in an EvidenceDir, by
// its name; nil if there is none. A file that cannot be read counts.
func Evidence(dir string) error {
	paths, _ := filepath.Glob(filepath.Join(dir, evidencePattern)) // the pattern is valid
	if len(paths) == 0 {
		return nil
	}
	path := paths[len(paths)-1]
	text, err := os.ReadFile(path)
	var kept keptEvidence
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err != nil {
		return fmt.Errorf("%w (%q: %w)", ErrConflict, path, err)
	}
	return fmt.Errorf("%w: peers %s and %s sent different blocks on %s (%q)",
		ErrConflict, kept.Peers[0], kept.Peers[1], kept.Found.UTC().Format("2006-01-02 15:04:05 MST"), path)
}

// keepEvidence writes a file atomically: it is complete or does not exist.
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
	block := evidence[1].ConflictingBlock
	name := fmt.Sprintf("light-client-attack-%d-%X.json", block.Height, block.Hash())
	if err := durable.Write(filepath.Join(v.opts.EvidenceDir, name), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("keep evidence: %w", err)
	}
	return nil
}

package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/hedge"
	"github.com/starling-kv/starling/statesync/lightclient"
)

// A validator set contains proposer priorities, which determine the proposer of each height. No
// header commits to them, since the hash of a set covers keys and powers only. So a peer can send
// true blocks with false priorities, and a node that starts from them expects other proposers than
// the rest of the network. CometBFT's light client gives up in this case
// (ErrProposerPrioritiesDiverge). Here:
//
//   - Only one set's priorities are taken from peers. The next sets are computed from it as CometBFT
//     does (state/execution.go, updateState).
//   - If peers differ, the rotation that each claims is replayed over the last blocks, and the claim
//     that predicts the most proposers named in the headers wins.
//
// See docs/spec/lightblocks.md#what-no-header-proves.
const (
	window     = 64 // number of heights that are replayed
	lateRounds = 16 // a later round may have any earlier round's proposer
)

// claim is one version of a validator set, and the peers that sent it.
type claim struct {
	set   *types.ValidatorSet
	peers []*peer
}

// validators returns the sets of three consecutive proved blocks, with the priorities of the best
// claim. These can differ from the priorities in blocks.
func (v *Verifier) validators(ctx context.Context, blocks [3]*types.LightBlock, initial int64) ([3]*types.ValidatorSet, error) {
	claims := v.claims(ctx, blocks[0])
	if len(claims) > 1 {
		v.log.Error("peers sent different proposer priorities, to which no header commits: comparing them with the proposers of the last blocks",
			"height", blocks[0].Height, "versions", len(claims))
		claims = v.judge(ctx, blocks, claims, initial)
	}
	because := errors.New("no peer sent valid priorities")
	for _, c := range claims { // best first
		sets := [3]*types.ValidatorSet{c.set.Copy()}
		right := 0
		err := lightclient.Guard(func() error {
			for i := range sets[1:] {
				var err error
				if sets[i+1], err = successor(sets[i], blocks[i+1].ValidatorSet); err != nil {
					return err
				}
				if foretold(sets[i+1], blocks[i+1]) {
					right++
				}
			}
			return nil
		})
		if err != nil {
			because = err
			continue
		}
		if right < 2 {
			v.log.Info("the proposer priorities do not predict the proposers of the last blocks: "+
				"a faulty proposer, or peers with false priorities", "height", blocks[0].Height)
		}
		if _, proposer := sets[0].GetByAddress(blocks[0].ProposerAddress); proposer != nil {
			sets[0].Proposer = proposer
		}
		return sets, nil
	}
	return [3]*types.ValidatorSet{}, fmt.Errorf("%w: validators with proposer priorities of height %d: %w",
		ErrUnavailable, blocks[0].Height, errors.Join(ctx.Err(), because))
}

// claims collects the versions of a proved block's validator set, starting with the version that
// most peers sent. It waits for peers as long as a comparison does, and uses the block's own set if
// no peer answers.
func (v *Verifier) claims(ctx context.Context, block *types.LightBlock) []*claim {
	var claims []*claim
	add := func(set *types.ValidatorSet, p *peer) {
		var of *claim
		for _, c := range claims {
			if bytes.Equal(c.set.ProposerPriorityHash(), set.ProposerPriorityHash()) {
				of = c
			}
		}
		if of == nil {
			of = &claim{set: set}
			claims = append(claims, of)
		}
		if p != nil {
			of.peers = append(of.peers, p)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, v.opts.compareWait)
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	q := v.newQuestion(block.Height)
	s := q.search(hedge.Policy{Compare: v.opts.compareWait})
	s.More = func() ([]*peer, <-chan struct{}) {
		peers, _ := q.more()
		return peers, nil // peers that join later are not asked
	}
	s.Ask = func(ctx context.Context, p *peer) (*types.LightBlock, error) {
		lb, err := v.fetch(ctx, p, block.Height)
		if err == nil && (!bytes.Equal(lb.Hash(), block.Hash()) || !sane(lb.ValidatorSet)) {
			err = errors.New("another block, or impossible priorities")
		}
		return lb, err
	}
	s.Prove, s.Overdue = nil, nil
	s.Failed = func(p *peer, err error) bool {
		v.blame(p, err)
		return false
	}
	s.Proved = func(p *peer, lb *types.LightBlock) { add(lb.ValidatorSet, p) }
	if err := s.Run(ctx); err != nil {
		v.log.Debug("not all peers answered about proposer priorities", "height", block.Height, "err", err)
	}
	if len(claims) == 0 && sane(block.ValidatorSet) {
		add(block.ValidatorSet, nil)
	}
	most := 0
	for i, c := range claims {
		if len(c.peers) > len(claims[most].peers) {
			most = i
		}
	}
	if most > 0 {
		claims[0], claims[most] = claims[most], claims[0]
	}
	return claims
}

// judge orders claims by the number of recent proposers that they predict, best first. Each claim
// is replayed from an older set of a peer that made the claim, up to the height of the claim.
func (v *Verifier) judge(ctx context.Context, blocks [3]*types.LightBlock, claims []*claim, initial int64) []*claim {
	var past []*types.LightBlock // ascending, up to blocks[2]
	past = append(past, blocks[:]...)
	for h := blocks[0].Height - 1; h >= max(initial, blocks[0].Height-window); h-- {
		lb, err := v.known(ctx, h)
		if err != nil {
			break // pruned; the later blocks must suffice
		}
		past = append([]*types.LightBlock{lb}, past...)
	}
	var best *claim
	mark := -1
	for _, c := range claims {
		if right := v.play(ctx, past, c); right > mark {
			best, mark = c, right
		}
	}
	order := []*claim{best}
	for _, c := range claims {
		if c != best {
			order = append(order, c)
		}
	}
	return order
}

// known returns the proved block of a height, which may not have been compared.
func (v *Verifier) known(ctx context.Context, height int64) (*types.LightBlock, error) {
	if height < v.opts.TrustHeight {
		return v.backwards(ctx, height)
	}
	return v.block(ctx, height, false)
}

// askers is the maximum number of a claim's peers that are asked for an older set.
const askers = 3

// play counts the blocks whose proposer a claim predicts. It always counts the blocks after the
// claim's height, and the earlier blocks if one of the claim's peers has an older set that leads to
// the claim.
func (v *Verifier) play(ctx context.Context, past []*types.LightBlock, c *claim) int {
	at := len(past) - 3 // the claim's block
	count := func(from int, set *types.ValidatorSet) (right int) {
		err := lightclient.Guard(func() error {
			for i := from + 1; i < len(past); i++ {
				var err error
				if set, err = successor(set, past[i].ValidatorSet); err != nil {
					return err
				}
				if i == at && !bytes.Equal(set.ProposerPriorityHash(), c.set.ProposerPriorityHash()) {
					return errors.New("the older set does not lead to the claim")
				}
				if foretold(set, past[i]) {
					right++
				}
			}
			return nil
		})
		if err != nil {
			return -1
		}
		return right
	}
	best := count(at, c.set)
	if at == 0 {
		return best
	}
	for _, p := range c.peers[:min(askers, len(c.peers))] {
		lb, err := v.fetch(ctx, p, past[0].Height)
		if err != nil || !bytes.Equal(lb.Hash(), past[0].Hash()) || !sane(lb.ValidatorSet) {
			continue
		}
		best = max(best, count(0, lb.ValidatorSet))
	}
	return best
}

// sane reports whether priorities are possible in CometBFT, whose arithmetic keeps them around
// zero, within two total voting powers of each other. It overflows far outside that range.
func sane(set *types.ValidatorSet) bool {
	limit := 4 * set.TotalVotingPower() // at most half of the largest number
	for _, val := range set.Validators {
		if val.ProposerPriority > limit || val.ProposerPriority < -limit {
			return false
		}
	}
	return true
}

// successor returns the set of the next height with priorities; members is that set's keys and
// powers. Changes of members are applied first, then one turn of the rotation (CometBFT,
// state/execution.go, updateState).
func successor(set, members *types.ValidatorSet) (*types.ValidatorSet, error) {
	before := make(map[string]int64, set.Size())
	for _, val := range set.Validators {
		before[string(val.Address)] = val.VotingPower
	}
	var changes []*types.Validator
	for _, val := range members.Validators {
		if power, has := before[string(val.Address)]; !has || power != val.VotingPower {
			changes = append(changes, types.NewValidator(val.PubKey, val.VotingPower))
		}
		delete(before, string(val.Address))
	}
	for _, val := range set.Validators {
		if _, left := before[string(val.Address)]; left {
			changes = append(changes, types.NewValidator(val.PubKey, 0))
		}
	}
	next := set.Copy()
	if len(changes) > 0 {
		if err := next.UpdateWithChangeSet(changes); err != nil {
			return nil, fmt.Errorf("validators of the next height: %w", err)
		}
	}
	next.IncrementProposerPriority(1)
	if !bytes.Equal(next.Hash(), members.Hash()) {
		return nil, errors.New("validators of the next height: computed set differs from the header's")
	}
	return next, nil
}

// foretold reports whether a set predicts the proposer in the header of its block.
func foretold(set *types.ValidatorSet, lb *types.LightBlock) bool {
	proposer := set.GetProposer()
	for round := int32(0); ; round++ {
		if bytes.Equal(proposer.Address, lb.ProposerAddress) {
			return true
		}
		if round == min(lb.Commit.Round, lateRounds) {
			return false
		}
		proposer = set.CopyIncrementProposerPriority(round + 1).GetProposer()
	}
}

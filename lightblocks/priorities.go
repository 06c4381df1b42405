package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cometbft/cometbft/types"
)

// A validator set carries proposer priorities: who proposes when. No header commits to them (the set's hash has keys and powers only), so a peer
// can give true blocks with false priorities; the node that starts from them expects other proposers than everybody else. They are
// what CometBFT's light client calls ErrProposerPrioritiesDiverge and gives up over. Here:
//
//   - only those of one set come from peers; the next ones are computed from it as CometBFT does (state/execution.go, updateState);
//   - where peers differ, their rotation is played over the last blocks, and who foretells the most of the proposers named in the headers wins.
const (
	window     = 64 // heights played back
	lateRounds = 16 // a block that was committed in a later round may be of any earlier round's proposer
)

// claim is the same set as some peers gave it.
type claim struct {
	set   *types.ValidatorSet
	peers []*peer
}

// validators returns the sets of three proved blocks in a row, with priorities. The blocks' own are not used where another claim is better.
func (v *Verifier) validators(ctx context.Context, blocks [3]*types.LightBlock, initial int64) ([3]*types.ValidatorSet, error) {
	claims := v.claims(ctx, blocks[0])
	if len(claims) > 1 {
		v.log.Error("peers differ about proposer priorities, which no header commits to: comparing with who proposed",
			"height", blocks[0].Height, "versions", len(claims))
		claims = v.judge(ctx, blocks, claims, initial)
	}
	because := errors.New("nobody gave possible ones")
	for _, c := range claims { // the best first
		sets := [3]*types.ValidatorSet{c.set.Copy()}
		right := 0
		err := guard(func() error {
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
			v.log.Info("the proposers of the last blocks are not those that the validators' priorities foretell: "+
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

// claims collects the versions of a proved block's validator set, those with most peers first. It waits for the others as for a comparison.
func (v *Verifier) claims(ctx context.Context, block *types.LightBlock) []*claim {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ask := v.newAsker(ctx, block.Height)
	ask.more()
	late := time.NewTimer(v.opts.CompareWait)
	defer late.Stop()
	var claims []*claim
	add := func(set *types.ValidatorSet, p *peer) {
		if !sane(set) {
			return
		}
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
	for v.anyPrompt(ask.silent) || len(claims) == 0 && len(ask.silent) > 0 {
		select {
		case a := <-ask.answers:
			switch {
			case !ask.heard(a):
			case a.err != nil:
				v.blame(a.p, a.err)
			case bytes.Equal(a.lb.Hash(), block.Hash()):
				add(a.lb.ValidatorSet, a.p)
			}
			continue
		case <-late.C:
		case <-ctx.Done():
		case <-v.ctx.Done():
		}
		break
	}
	if len(claims) == 0 {
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

// judge orders claims by how many proposers of the last blocks they foretell, the best first. Each is played from an older set of a peer who
// made it, up to where it must meet the claim.
func (v *Verifier) judge(ctx context.Context, blocks [3]*types.LightBlock, claims []*claim, initial int64) []*claim {
	var past []*types.LightBlock // ascending, up to blocks[2]
	past = append(past, blocks[:]...)
	for h := blocks[0].Height - 1; h >= max(initial, blocks[0].Height-window); h-- {
		lb, err := v.known(ctx, h)
		if err != nil {
			break // pruned; what there is must do
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

// known returns a proved block, compared or not.
func (v *Verifier) known(ctx context.Context, height int64) (*types.LightBlock, error) {
	if height < v.opts.TrustHeight {
		return v.backwards(ctx, height)
	}
	return v.block(ctx, height, false)
}

// askers is how many peers of one claim are asked for an older set.
const askers = 3

// play counts the blocks whose proposer a claim foretells: those after its own height always, those before if one of its peers has an older set
// that leads to it.
func (v *Verifier) play(ctx context.Context, past []*types.LightBlock, c *claim) int {
	at := len(past) - 3 // the claim's block
	count := func(from int, set *types.ValidatorSet) (right int) {
		err := guard(func() error {
			for i := from + 1; i < len(past); i++ {
				var err error
				if set, err = successor(set, past[i].ValidatorSet); err != nil {
					return err
				}
				if i == at && !bytes.Equal(set.ProposerPriorityHash(), c.set.ProposerPriorityHash()) {
					return errors.New("it does not lead to the claim")
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

// sane says whether priorities are such as CometBFT makes: its arithmetic keeps them within two total powers of each other, around zero, and
// fails where they are far outside.
func sane(set *types.ValidatorSet) bool {
	limit := 4 * set.TotalVotingPower() // at most half of the largest number
	for _, val := range set.Validators {
		if val.ProposerPriority > limit || val.ProposerPriority < -limit {
			return false
		}
	}
	return true
}

// successor returns the set of the next height, whose members are known, with priorities: changes first, then one turn (CometBFT
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
		return nil, errors.New("validators of the next height: another set came out")
	}
	return next, nil
}

// foretold says whether a set names the proposer that stands in its block's header.
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

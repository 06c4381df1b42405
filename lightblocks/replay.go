package lightblocks

import (
	"bytes"
	"context"
	"fmt"
	"math/big"
	"slices"
	"sync"

	"github.com/cometbft/cometbft/types"
)

// CometBFT stores a validator set where it changes, and at every 100,000th height. The priorities
// of a height in between are those of the stored set after one rotation for each height since
// (state/store.go, LoadValidators): with 400 validators a quarter of a second of work for a request
// of 22 bytes. Here a replay leaves its priorities at every stepHeights, so the next one begins at
// a step; requests for heights of one span share it; and it takes a place of those who compute for
// peers, which leave one processor to the node.
//
//	stored set            step 1            step 2              height
//	    │── 1,000 rotations ──│── 1,000 rotations ──│── fewer ────► its priorities
const (
	stepHeights = 1000
	// replayBytes is the limit of what is kept, of which a validator has about validatorBytes.
	replayBytes    = 16 << 20
	validatorBytes = 320
)

// Stored is what States may know in addition. With it the Server shares and keeps what it computes;
// without it LoadValidators computes anew each time.
type Stored interface {
	// ValidatorsStoredAt returns the height, at or below the given one, of the stored set from
	// which LoadValidators computes that of the given height.
	ValidatorsStoredAt(height int64) (int64, error)
}

// replays are the spans of heights whose priorities were requested. It is safe for concurrent use.
type replays struct {
	making chan struct{} // see ServerOptions.Making
	mu     struct {
		sync.Mutex
		spans map[int64]*span // by first height
		bytes int             // of what is counted of them
	}
}

// span is the heights from that of a stored set to the next stored one.
type span struct {
	// busy has an element while a goroutine uses the fields below. Whoever waits for it finds what
	// it made.
	busy  chan struct{}
	set   *types.ValidatorSet // as it is stored; nil: not loaded yet
	order []int               // of its validators, by address: of equal ones the first is chosen
	power []int64             // in that order
	total int64
	steps []rotation

	bytes int // as counted; guarded by replays.mu
}

// rotation is the priorities, in a span's order, after some rotations, and who was chosen last.
type rotation struct {
	priorities []int64
	proposer   int
}

func newReplays(making chan struct{}) *replays {
	r := &replays{making: making}
	r.mu.spans = map[int64]*span{}
	return r
}

// validators returns the set of a height, which is the caller's, as LoadValidators does. stored is
// the height, below that, of the set that load returns. It fails with load's error, or with ctx's.
func (r *replays) validators(ctx context.Context, height, stored int64, load func() (*types.ValidatorSet, error)) (*types.ValidatorSet, error) {
	s := r.span(stored)
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.set == nil {
		set, err := load()
		if err == nil && set.IsNilOrEmpty() {
			err = fmt.Errorf("the validators of height %d are stored without any", stored)
		}
		if err != nil {
			r.forget(stored, s)
			return nil, err
		}
		r.keep(stored, s, s.begin(set))
	}
	step := int((height - stored) / stepHeights)
	if step >= len(s.steps) {
		select {
		case r.making <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		added := s.extend(ctx, step)
		<-r.making
		r.keep(stored, s, added)
		if step >= len(s.steps) {
			return nil, ctx.Err()
		}
	}
	return s.after(s.steps[step], int((height-stored)%stepHeights)), nil
}

// span returns the span of a stored set, which may be new.
func (r *replays) span(stored int64) *span {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.mu.spans[stored]
	if s == nil {
		s = &span{busy: make(chan struct{}, 1)}
		r.mu.spans[stored] = s
	}
	return s
}

// keep counts the bytes that a span has grown by. Above the limit, the lowest spans are forgotten:
// joiners need the newest.
func (r *replays) keep(stored int64, s *span, size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.spans[stored] != s {
		return // it was forgotten, or all were, meanwhile
	}
	s.bytes += size
	r.mu.bytes += size
	for r.mu.bytes > replayBytes && len(r.mu.spans) > 1 {
		lowest := stored
		for first := range r.mu.spans {
			lowest = min(lowest, first)
		}
		r.mu.bytes -= r.mu.spans[lowest].bytes
		delete(r.mu.spans, lowest)
	}
}

// forget forgets a span, unless another is in its place.
func (r *replays) forget(stored int64, s *span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.spans[stored] == s {
		r.mu.bytes -= s.bytes
		delete(r.mu.spans, stored)
	}
}

func (r *replays) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.mu.spans)
	r.mu.bytes = 0
}

// begin makes the first step, and returns about how many bytes the span takes with it: the
// priorities before a rotation. As in CometBFT (types/validator_set.go, IncrementProposerPriority)
// their differences are scaled down if they are too large, and their sum is moved to 0, once before
// all rotations.
func (s *span) begin(set *types.ValidatorSet) (size int) {
	s.set, s.total = set, set.TotalVotingPower()
	scaled := set.Copy()
	scaled.RescalePriorities(types.PriorityWindowSizeFactor * s.total)
	sum := new(big.Int)
	for i, v := range scaled.Validators {
		sum.Add(sum, big.NewInt(v.ProposerPriority))
		s.order = append(s.order, i)
	}
	average := sum.Div(sum, big.NewInt(int64(len(s.order)))).Int64()
	slices.SortFunc(s.order, func(i, j int) int { return bytes.Compare(set.Validators[i].Address, set.Validators[j].Address) })
	var first rotation
	for _, i := range s.order {
		s.power = append(s.power, set.Validators[i].VotingPower)
		first.priorities = append(first.priorities, scaled.Validators[i].ProposerPriority-average)
	}
	s.steps = []rotation{first}
	return validatorBytes * set.Size()
}

// extend adds steps up to the given one, and returns their bytes. It stops early when ctx ends.
func (s *span) extend(ctx context.Context, step int) (added int) {
	for len(s.steps) <= step && ctx.Err() == nil {
		next := s.rotated(s.steps[len(s.steps)-1], stepHeights)
		s.steps = append(s.steps, next)
		added += 8 * len(next.priorities)
	}
	return added
}

// rotated returns what n more rotations make of r. It is CometBFT's incrementProposerPriority
// without its checks for overflow: begin has brought the priorities near to 0, and the powers are
// at most an eighth of what a number holds.
func (s *span) rotated(r rotation, n int) rotation {
	p := slices.Clone(r.priorities)
	chosen := r.proposer
	power := s.power[:len(p)]
	for range n {
		chosen = 0
		most := p[0] + power[0]
		p[0] = most
		for i := 1; i < len(p); i++ {
			x := p[i] + power[i]
			p[i] = x
			if x > most {
				chosen, most = i, x
			}
		}
		p[chosen] -= s.total
	}
	return rotation{p, chosen}
}

// after returns the set n rotations after a step.
func (s *span) after(step rotation, n int) *types.ValidatorSet {
	r := s.rotated(step, n)
	set := s.set.Copy()
	for at, i := range s.order {
		set.Validators[i].ProposerPriority = r.priorities[at]
	}
	set.Proposer = set.Validators[s.order[r.proposer]]
	return set
}

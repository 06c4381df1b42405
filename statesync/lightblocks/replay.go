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

// CometBFT stores a validator set where it changes, and at every 100,000th height. For a height in
// between it computes the priorities from the stored set, with one rotation per height
// (state/store.go, LoadValidators). With 400 validators, a request of 22 bytes can cost a quarter
// of a second of CPU time. Here a replay saves the priorities at every stepHeights heights, so that
// the next replay starts at such a step. Requests for heights of one span share a replay. Each
// replay takes a slot of ServerOptions.Making, which leaves one processor to the node.
//
//	stored set            step 1            step 2              height
//	    │── 1,000 rotations ──│── 1,000 rotations ──│── fewer ────► its priorities
const (
	stepHeights = 1000
	// replayBytes is the maximum size of the saved sets. A validator takes about validatorBytes.
	replayBytes    = 16 << 20
	validatorBytes = 320
)

// Stored is an optional interface of States. With it, the Server shares and keeps computed sets;
// without it, LoadValidators computes each set again.
type Stored interface {
	// ValidatorsStoredAt returns the height, at or below the given height, of the stored set from
	// which LoadValidators computes the set of the given height.
	ValidatorsStoredAt(height int64) (int64, error)
}

// replays holds the spans of heights whose priorities were requested. It is safe for concurrent
// use.
type replays struct {
	making chan struct{} // see ServerOptions.Making
	mu     struct {
		sync.Mutex
		spans map[int64]*span // by first height
		bytes int             // sum of span.bytes
	}
}

// span covers the heights from a stored set up to the next stored set.
type span struct {
	// busy is a lock for the fields up to steps: it holds an element while a goroutine uses them. A
	// goroutine that waits for it then finds the steps of its predecessor.
	busy  chan struct{}
	set   *types.ValidatorSet // as stored; nil: not loaded yet
	order []int               // indexes of its validators by address, which breaks ties
	power []int64             // voting powers in that order
	total int64
	steps []rotation

	bytes int // this span's share of replays.mu.bytes; guarded by replays.mu
}

// rotation holds the priorities after some rotations, in the span's order, and the validator chosen
// last.
type rotation struct {
	priorities []int64
	proposer   int
}

func newReplays(making chan struct{}) *replays {
	r := &replays{making: making}
	r.mu.spans = map[int64]*span{}
	return r
}

// validators returns the set of a height as LoadValidators does; the caller owns it. stored is the
// lower height of the set that load returns. The error is that of load or of ctx.
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
			err = fmt.Errorf("the stored validator set of height %d is empty", stored)
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

// span returns the span of a stored set, and creates it if necessary.
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

// keep adds size to the bytes of a span. Above the limit, the lowest spans are forgotten, because
// joining nodes need the newest.
func (r *replays) keep(stored int64, s *span, size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.spans[stored] != s {
		return // forgotten meanwhile
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

// forget forgets a span, unless another span has replaced it.
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

// begin makes the first step, which holds the priorities before any rotation, and returns the
// approximate size of the span. As in CometBFT (types/validator_set.go, IncrementProposerPriority),
// differences of priorities that are too large are scaled down, and the sum is moved to 0. Both
// happen once, before all rotations.
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

// extend adds steps up to the given one, and returns their size in bytes. It stops early when ctx
// ends.
func (s *span) extend(ctx context.Context, step int) (added int) {
	for len(s.steps) <= step && ctx.Err() == nil {
		next := s.rotated(s.steps[len(s.steps)-1], stepHeights)
		s.steps = append(s.steps, next)
		added += 8 * len(next.priorities)
	}
	return added
}

// rotated returns r after n more rotations. It is CometBFT's incrementProposerPriority without the
// checks for overflow. Overflow is impossible, because begin has moved the priorities near 0 and
// powers are at most an eighth of the largest int64.
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

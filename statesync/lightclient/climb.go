package lightclient

import (
	"errors"
	"fmt"
	"time"

	"github.com/cometbft/cometbft/types"
)

// Climb proves target from base, a trusted block below it, by skipping verification. If the
// validators have changed too much in between, it first proves a block halfway.
//
//	base ──────────── gap ────────────► target
//	base ── gap ──► pivot ────────────► target       get fetches the block of the missing height
//	base ─► pivot ─► …
//
// get returns a block to be proved, or a block that is already proved, from which the climb
// continues. Target and the blocks to be proved must have been accepted by CheckBasic or NewBlock.
// Climb calls keep for each block that it proves, in ascending order and with target last; from is
// the height of the block from which it was verified. now returns the local time. The error is
// ErrExpired, ErrFuture or ErrInvalid, or wraps the error of get.
//
// Every missing height halves a gap, so Climb requests at most 63 blocks between two proved ones.
// Every proved block is a true block of the chain, or an attack. So a Byzantine peer cannot make a
// climb long.
func (r Rules) Climb(base, target *types.LightBlock, now func() time.Time,
	get func(height int64) (lb *types.LightBlock, proved bool, err error), keep func(from int64, lb *types.LightBlock),
) error {
	wanted := []*types.LightBlock{target} // not yet proved; descending, so the next one is last
	for len(wanted) > 0 {
		next := wanted[len(wanted)-1]
		err := r.Follows(base, next, now())
		switch {
		case err == nil:
			keep(base.Height, next)
			base, wanted = next, wanted[:len(wanted)-1]
			continue
		case !errors.Is(err, ErrGap):
			return err
		}
		missing := base.Height + (next.Height-base.Height)/2
		lb, proved, err := get(missing)
		switch {
		case err != nil:
			return fmt.Errorf("block %d is needed because validators changed between %d and %d: %w", missing, base.Height, next.Height, err)
		case lb.Height != missing:
			panic(fmt.Sprintf("lightclient: block %d was given, %d is missing", lb.Height, missing))
		case proved:
			base = lb
		default:
			wanted = append(wanted, lb)
		}
	}
	return nil
}

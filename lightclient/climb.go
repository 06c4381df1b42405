package lightclient

import (
	"errors"
	"fmt"
	"time"

	"github.com/cometbft/cometbft/types"
)

// Climb proves a target block from a trusted block below it, the base, by skipping verification:
// where the validators have changed too much in between, a block halfway is proved first.
//
//	base ──────────── gap ────────────► target
//	base ── gap ──► pivot ────────────► target       Step names the missing height, Give brings its block
//	base ─► pivot ─► …
//
// Every missing height halves a gap, so at most 63 are requested between two steps that succeed,
// and every block that is proved is a true block of the chain, or an attack. A lying peer cannot
// make a climb long.
type Climb struct {
	rules  Rules
	base   *types.LightBlock   // proved
	wanted []*types.LightBlock // not yet proved; descending, so the next one is last
	// height that Give or Trust must bring before the next Step; 0: none
	missing int64
}

// Climb starts a climb. base is trusted. target must be above it, and accepted by CheckBasic or
// NewBlock.
func (r Rules) Climb(base, target *types.LightBlock) *Climb {
	return &Climb{rules: r, base: base, wanted: []*types.LightBlock{target}}
}

// Done reports whether the target is proved.
func (c *Climb) Done() bool { return len(c.wanted) == 0 }

// From returns the height of the block from which the next one is verified.
func (c *Climb) From() int64 { return c.base.Height }

// Step verifies one block at the local time now. It returns one of three things: a block that is
// now proved (blocks come in ascending order, the target last); the height of a missing block,
// which the caller must bring by Give or Trust before the next Step; or an error, ErrExpired,
// ErrFuture or ErrInvalid, which ends the climb. It must not be called after Done.
func (c *Climb) Step(now time.Time) (proved *types.LightBlock, missing int64, err error) {
	if c.missing != 0 {
		return nil, 0, fmt.Errorf("block %d was not given", c.missing) // a mistake of the caller
	}
	next := c.wanted[len(c.wanted)-1]
	err = c.rules.Follows(c.base, next, now)
	switch {
	case err == nil:
		c.base, c.wanted = next, c.wanted[:len(c.wanted)-1]
		return next, 0, nil
	case !errors.Is(err, ErrGap):
		return nil, 0, err
	}
	c.missing = c.base.Height + (next.Height-c.base.Height)/2
	return nil, c.missing, nil
}

// Gap returns the heights between which the missing block lies.
func (c *Climb) Gap() (below, above int64) { return c.base.Height, c.wanted[len(c.wanted)-1].Height }

// Give brings the missing block, not yet proved. It must have been accepted by CheckBasic or
// NewBlock for the missing height.
func (c *Climb) Give(lb *types.LightBlock) {
	c.check(lb)
	c.wanted = append(c.wanted, lb)
}

// Trust brings the missing block, proved by other means. The climb continues from it.
func (c *Climb) Trust(lb *types.LightBlock) {
	c.check(lb)
	c.base = lb
}

func (c *Climb) check(lb *types.LightBlock) {
	if lb.Height != c.missing {
		panic(fmt.Sprintf("lightclient: block %d was given, %d is missing", lb.Height, c.missing))
	}
	c.missing = 0
}

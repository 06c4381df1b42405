package lightclient

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	cmtmath "github.com/cometbft/cometbft/libs/math"
	"github.com/cometbft/cometbft/light"
	"github.com/cometbft/cometbft/types"
)

// DefaultTrustPeriod is one third of the three weeks for which validators can commonly be punished.
// It is also CometBFT's default for statesync.trust_period.
const DefaultTrustPeriod = 7 * 24 * time.Hour

// DefaultClockDrift is how far ahead of the local clock a header may be, as in CometBFT's light
// client.
const DefaultClockDrift = 10 * time.Second

// Errors of the checks. ErrGap, ErrExpired and ErrFuture do not prove a peer Byzantine.
var (
	// ErrGap means that too few of the trusted validators signed: a block in between is needed.
	ErrGap = errors.New("too few of the trusted validators signed")
	// ErrExpired means that the trusted header is too old. Its validators may have left since then,
	// and could sign anything without being punished.
	ErrExpired = errors.New("the trust period has expired")
	// ErrFuture means that a header is later than the local clock allows. Either the peer or the
	// clock is wrong.
	ErrFuture = errors.New("the header is from the future")
	// ErrInvalid means that the block is not on the chain of the trusted one: no honest node has
	// such a block.
	ErrInvalid = errors.New("the block is not of this chain")
)

// invalid wraps an error that is also ErrInvalid, and keeps the text.
type invalid struct{ error }

func (e invalid) Is(target error) bool { return target == ErrInvalid }
func (e invalid) Unwrap() error        { return e.error }

// Rules define when one block vouches for another.
type Rules struct {
	// TrustPeriod is the maximum age of a header that vouches for later ones. It must be shorter
	// than the time for which validators can be punished. Default: DefaultTrustPeriod.
	TrustPeriod time.Duration
	// TrustLevel is the share of a trusted validator set that must have signed a later block, from
	// 1/3 to 1. Default: 1/3.
	TrustLevel cmtmath.Fraction
	// ClockDrift is how far ahead of the local clock a header may be. Default: DefaultClockDrift.
	ClockDrift time.Duration
	// WholeCommits refuses a commit with any invalid signature, even if enough signatures are
	// valid. CometBFT panics when a node starts from such a commit. No honest node has one, because
	// it checks every vote.
	WholeCommits bool
}

// WithDefaults returns the rules with defaults for zero values, or an error that names the invalid
// rule.
func (r Rules) WithDefaults() (Rules, error) {
	if r.TrustPeriod == 0 {
		r.TrustPeriod = DefaultTrustPeriod
	}
	if r.ClockDrift == 0 {
		r.ClockDrift = DefaultClockDrift
	}
	if r.TrustLevel == (cmtmath.Fraction{}) {
		r.TrustLevel = light.DefaultTrustLevel
	}
	if r.TrustPeriod < 0 {
		return r, fmt.Errorf("trust period %v is negative", r.TrustPeriod)
	}
	if r.ClockDrift < 0 {
		return r, fmt.Errorf("clock drift %v is negative", r.ClockDrift)
	}
	return r, light.ValidateTrustLevel(r.TrustLevel)
}

// Fresh returns nil if a trusted block can vouch for later ones, else ErrExpired. now is the local
// time.
func (r Rules) Fresh(base *types.LightBlock, now time.Time) error {
	if light.HeaderExpired(base.SignedHeader, r.TrustPeriod, now) {
		return fmt.Errorf("%w: block %d has time %v, the trust period is %v: use a newer trusted height and hash",
			ErrExpired, base.Height, base.Time, r.TrustPeriod)
	}
	return nil
}

// Follows checks next against base, a trusted block below it. now is the local time. The error is
// ErrGap, ErrExpired, ErrFuture or ErrInvalid.
func (r Rules) Follows(base, next *types.LightBlock, now time.Time) error {
	if err := r.Fresh(base, now); err != nil {
		return err
	}
	if latest := now.Add(r.ClockDrift); !next.Time.Before(latest) {
		return fmt.Errorf("%w: block %d has time %v, the local clock %v", ErrFuture, next.Height, next.Time, now)
	}
	err := Guard(func() error {
		return light.Verify(base.SignedHeader, base.ValidatorSet, next.SignedHeader, next.ValidatorSet,
			r.TrustPeriod, now, r.ClockDrift, r.TrustLevel)
	})
	var gap light.ErrNewValSetCantBeTrusted
	if errors.As(err, &gap) {
		return fmt.Errorf("from %d to %d: %w", base.Height, next.Height, ErrGap)
	}
	if err != nil {
		return invalid{fmt.Errorf("block %d (%X) does not follow from block %d (%X): %w",
			next.Height, next.Hash(), base.Height, base.Hash(), err)}
	}
	if r.WholeCommits {
		return CheckCommit(next)
	}
	return nil
}

// Root checks a block that is trusted by its hash: validators with more than 2/3 of the power of
// the set that its header names must have signed it. The error is ErrInvalid.
func (r Rules) Root(lb *types.LightBlock, hash []byte) error {
	if !bytes.Equal(lb.Hash(), hash) {
		return invalid{fmt.Errorf("block %d has hash %X, not %X", lb.Height, lb.Hash(), hash)}
	}
	if r.WholeCommits {
		return CheckCommit(lb)
	}
	err := Guard(func() error {
		return lb.ValidatorSet.VerifyCommitLight(lb.ChainID, lb.Commit.BlockID, lb.Height, lb.Commit)
	})
	if err != nil {
		return invalid{fmt.Errorf("signatures of block %d: %w", lb.Height, err)}
	}
	return nil
}

// CheckCommit checks every signature of a block's commit. The error is ErrInvalid.
func CheckCommit(lb *types.LightBlock) error {
	err := Guard(func() error {
		return types.VerifyCommit(lb.ChainID, lb.ValidatorSet, lb.Commit.BlockID, lb.Height, lb.Commit)
	})
	if err != nil {
		return invalid{fmt.Errorf("commit of block %d: %w", lb.Height, err)}
	}
	return nil
}

// Guard turns a panic of f into an error. Some methods of CometBFT's types panic over hostile
// input: over a sum of voting powers above the maximum, or a time that has no encoding.
func Guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("cannot be processed: %v", r)
		}
	}()
	return f()
}

package storagenode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync/lightblocks"
)

const (
	// hungryPoll is the interval of requests for the newest height while an update waits for its
	// header, idlePoll otherwise.
	hungryPoll = 100 * time.Millisecond
	idlePoll   = time.Second
	// asked is the number of peers asked at a time.
	asked = 3
	// claimTimeout limits the time for a block at a height that a peer claims: the claim may be
	// false. Then claims are ignored for doubtClaims.
	claimTimeout = 2 * time.Second
	doubtClaims  = time.Minute
	// proveEvery is the interval of asking for the newest proved block while peers claim none:
	// none of the peers that were asked may report it.
	proveEvery = 5 * time.Second
	// headerBatch is the number of headers fetched by their hashes below one proved by signatures.
	headerBatch = 256
	// stepTimeout limits proving a batch.
	stepTimeout = 30 * time.Second
	// repeatAfter is the time until the log repeats why headers are missing.
	repeatAfter = 30 * time.Second
	// saveEvery is the interval of saving the newest header.
	saveEvery = 10 * time.Second
)

// verifier is the part of lightblocks.Verifier that the follower uses.
type verifier interface {
	LightBlock(ctx context.Context, height int64) (*cmttypes.LightBlock, error)
	Newest(ctx context.Context) (int64, error)
	Ancestors(ctx context.Context, from int64, last func(*cmttypes.Header) bool) ([]lightblocks.Ancestor, error)
}

// follow fetches and proves headers, and fetches missing ranges, until ctx ends. It returns only
// errors that waiting does not resolve.
func (n *Process) follow(ctx context.Context) error {
	network, err := n.join(ctx)
	if err != nil {
		return err
	}
	defer network.Close()
	claimed := func(ctx context.Context) int64 { return network.Peers().Newest(ctx, asked, idlePoll) }
	return n.followWith(ctx, &target{verifier: network.Verifier(), claimed: claimed})
}

// followWith is follow with headers from v.
func (n *Process) followWith(ctx context.Context, v *target) error {
	err := n.proveAndTend(ctx, v)
	if errors.Is(err, lightblocks.ErrConflict) {
		// The last header may be of the chain that is wrong. Forked refuses the next start.
		if failed := os.Remove(n.trustedPath()); !errors.Is(failed, os.ErrNotExist) {
			err = errors.Join(err, failed)
		}
		return join.ForkError(n.config, err)
	}
	n.saveTrust()
	return err
}

// proveAndTend proves headers and tends the ranges until ctx ends.
func (n *Process) proveAndTend(ctx context.Context, v *target) error {
	ctx, cancel := context.WithCancel(ctx)
	defer n.taking.Wait()
	defer cancel()
	var warned, saved time.Time
	for ctx.Err() == nil {
		if err := n.changeMap(ctx); err != nil {
			return err
		}
		more, err := n.step(ctx, v)
		// Also without new headers, for example when the headers that one range needs are pruned
		// everywhere.
		if tended := n.tend(ctx, v); err == nil || isFinal(tended) {
			err = tended
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, lightblocks.ErrTrustExpired):
			return config.Invalid(fmt.Errorf("the headers since the last proved one cannot be proved: %w: set a recent header from a trusted source with --statesync.trust_height and --statesync.trust_hash", err))
		case errors.Is(err, lightblocks.ErrConflict), isFinal(err):
			return err
		case err != nil && time.Since(warned) >= repeatAfter:
			warned = time.Now()
			n.log.Error("Cannot follow the chain now", "newest_header", n.headers.newestProved().height, "err", err)
		}
		if time.Since(saved) >= saveEvery {
			saved = time.Now()
			n.saveTrust()
		}
		if more && err == nil {
			continue
		}
		pause := idlePoll
		if _, hungry, some := n.position(); hungry || !some {
			pause = hungryPoll
		}
		select {
		case <-n.mapSet:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// position returns the height of the slowest range, and whether an update waits for a header; some
// is false if no range has a state.
func (n *Process) position() (lowest int64, hungry, some bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.mu.places {
		if p.replica == nil || p.role == retired {
			continue
		}
		height, waits := p.replica.Newest()
		hungry = hungry || waits
		if !some || height < lowest {
			lowest, some = height, true
		}
	}
	return lowest, hungry, some
}

// step proves the next headers that the ranges need. more reports whether there are further ones.
func (n *Process) step(ctx context.Context, v *target) (more bool, err error) {
	lowest, _, some := n.position()
	if !some {
		return false, nil
	}
	next, ok := n.headers.next(lowest)
	if !ok {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	block, more, err := v.next(ctx, next)
	if block == nil {
		return false, err
	}
	to := block.Height
	found := []proved{{block.Height, block.AppHash, block.Hash(), block.Time}}
	if to > next {
		below, err := v.Ancestors(ctx, to-1, func(h *cmttypes.Header) bool { return h.Height <= next })
		if err != nil {
			return false, fmt.Errorf("headers %d to %d: %w", next, to-1, err)
		}
		for _, a := range below {
			found = append(found, proved{a.Height, a.AppHash, a.Hash(), a.Time})
		}
	}
	n.headers.add(found...)
	n.proved()
	return more, nil
}

// target chooses the blocks that the follower proves. Peers' claims of their newest height only
// save time: strangers among them can make any claim.
type target struct {
	verifier
	claimed func(ctx context.Context) int64 // greatest height that peers claim; 0: no peer answered
	doubted time.Time                       // when a claimed block was last missing
	proved  time.Time                       // when a block was last proved, or asked for
}

// next returns the last proved block of the next batch, which begins at a height, and whether there
// are further batches; nil: the chain has no such block yet.
func (v *target) next(ctx context.Context, height int64) (block *cmttypes.LightBlock, more bool, err error) {
	last := height + headerBatch - 1
	if v.doubted.IsZero() || time.Since(v.doubted) >= doubtClaims {
		claimed := v.claimed(ctx)
		if claimed < height {
			if time.Since(v.proved) < proveEvery {
				return nil, false, nil
			}
			return v.newest(ctx, height, last)
		}
		limited, cancel := context.WithTimeout(ctx, claimTimeout)
		block, err = v.LightBlock(limited, min(claimed, last))
		cancel()
		if err == nil || errors.Is(err, lightblocks.ErrConflict) || ctx.Err() != nil {
			v.proved = time.Now()
			return block, claimed > last, err
		}
		v.doubted = time.Now()
	}
	return v.newest(ctx, height, last)
}

// newest is next without claims.
func (v *target) newest(ctx context.Context, height, last int64) (block *cmttypes.LightBlock, more bool, err error) {
	v.proved = time.Now()
	newest, err := v.Newest(ctx)
	if err != nil || newest < height {
		return nil, false, err
	}
	block, err = v.LightBlock(ctx, min(newest, last))
	return block, newest > last, err
}

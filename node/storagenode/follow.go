package storagenode

import (
	"context"
	"errors"
	"fmt"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/lightblocks"
)

const (
	// hungryPoll is the interval of requests for the newest height while an update waits for its
	// header, idlePoll otherwise.
	hungryPoll = 100 * time.Millisecond
	idlePoll   = time.Second
	// asked is the number of peers asked at a time.
	asked = 3
	// headerBatch is the number of headers fetched by their hashes below one proved by signatures.
	headerBatch = 256
	// stepTimeout limits proving a batch.
	stepTimeout = 30 * time.Second
	// repeatAfter is the time until the log repeats why headers are missing.
	repeatAfter = 30 * time.Second
	// saveEvery is the interval of saving the newest header.
	saveEvery = 10 * time.Second
)

// newest returns the greatest block height that peers report; 0: no peer answered.
func (n *Process) newest(ctx context.Context) int64 {
	return n.peers.Load().Newest(ctx, asked, idlePoll)
}

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
	defer n.saveTrust()
	ctx, cancel := context.WithCancel(ctx)
	defer n.taking.Wait()
	defer cancel()
	var warned, saved time.Time
	for ctx.Err() == nil {
		more, err := n.step(ctx, network.Verifier())
		// Also without new headers, for example when the headers that one range needs are pruned
		// everywhere.
		if tended := n.tend(ctx, network.Verifier()); err == nil || isFinal(tended) {
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
		_ = sleep.For(ctx, pause)
	}
	return ctx.Err()
}

// position returns the height of the slowest range, and whether an update waits for a header; some
// is false if no range has a state.
func (n *Process) position() (lowest int64, hungry, some bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.places {
		if p.replica == nil {
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
func (n *Process) step(ctx context.Context, v verifier) (more bool, err error) {
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
	claimed := n.newest(ctx)
	if claimed < next {
		return false, nil
	}
	to := min(claimed, next+headerBatch-1)
	block, err := v.LightBlock(ctx, to)
	if err != nil { // the reported height may be false
		newest, other := v.Newest(ctx)
		if other != nil {
			return false, errors.Join(err, other)
		}
		if newest < next {
			return false, nil
		}
		to = min(newest, next+headerBatch-1)
		if block, err = v.LightBlock(ctx, to); err != nil {
			return false, err
		}
	}
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
	return claimed > to, nil
}

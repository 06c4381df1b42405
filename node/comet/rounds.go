package comet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cometbft/cometbft/consensus/types"
	cmtpubsub "github.com/cometbft/cometbft/libs/pubsub"
	cmttypes "github.com/cometbft/cometbft/types"
)

// Rounds follows the steps of CometBFT's consensus and records since when a block has been pending.
// It does not call consensus, whose lock is held while a block is executed.
type Rounds struct {
	mu struct {
		sync.Mutex
		pending Pending
	}
}

// Pending is a block that consensus is working on.
type Pending struct {
	Height int64
	Round  int32
	// Since is the time since which consensus has been waiting for its first proposal. Zero:
	// nothing is pending, for example while consensus pauses between blocks or waits for the first
	// transaction.
	Since time.Time
}

// Pending returns the block that consensus is working on.
func (r *Rounds) Pending() Pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.pending
}

// step handles a step of consensus.
func (r *Rounds) step(e cmttypes.EventDataRoundState, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.mu.pending
	if p.Height != e.Height {
		*p = Pending{Height: e.Height}
	}
	p.Round = e.Round
	waits := e.Step == types.RoundStepNewHeight.String() || e.Step == types.RoundStepNewRound.String()
	if p.Since.IsZero() && !waits {
		p.Since = now
	}
}

const (
	roundsSubscriber = "starling-rounds"
	// roundsBacklog limits the steps queued for this process's scheduler. CometBFT ends a
	// subscription that lags further, and follow then subscribes again.
	roundsBacklog = 1000
)

// follow handles the published steps until stop is called or the bus ends. stop may be called more
// than once; step is not called after it.
func (r *Rounds) follow(bus *cmttypes.EventBus) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	subscribe := func() (cmttypes.Subscription, error) {
		return bus.Subscribe(ctx, roundsSubscriber, cmttypes.EventQueryNewRoundStep, roundsBacklog)
	}
	steps, err := subscribe()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("steps of consensus: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case message := <-steps.Out():
				if e, ok := message.Data().(cmttypes.EventDataRoundState); ok {
					r.step(e, time.Now())
				}
			case <-steps.Canceled():
				if !errors.Is(steps.Err(), cmtpubsub.ErrOutOfCapacity) {
					return
				}
				// Drain the ended subscription.
				_ = bus.UnsubscribeAll(ctx, roundsSubscriber)
				if steps, err = subscribe(); err != nil {
					return
				}
			}
		}
	}()
	return func() {
		cancel()
		<-done
		// The error means that the bus has ended.
		_ = bus.UnsubscribeAll(context.Background(), roundsSubscriber)
	}, nil
}

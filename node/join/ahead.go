package join

import (
	"context"

	sm "github.com/cometbft/cometbft/state"
	cmttypes "github.com/cometbft/cometbft/types"
)

// This file fetches CometBFT's state of a height while the chunks of the application's state
// arrive. Over a slow network, its headers take several round trips.

// chainState is CometBFT's state after a height, with the commit, or the reason why it is missing.
type chainState struct {
	state  sm.State
	commit *cmttypes.Commit
	err    error
}

// stateAt fetches CometBFT's state. It may run in another goroutine than joining's own.
func (j *joining) stateAt(ctx context.Context, height int64) *chainState {
	limited, cancel := context.WithTimeout(ctx, BootstrapTimeout)
	defer cancel()
	c, verifier := new(chainState), j.network.verifier
	if c.state, c.err = verifier.State(limited, height, j.Genesis); c.err == nil {
		c.commit, c.err = verifier.Commit(limited, height)
	}
	return c
}

// ahead is a fetch in the background.
type ahead struct {
	height int64
	cancel context.CancelFunc
	result chan *chainState // receives one element
}

// fetchAhead fetches the state of a height in the background, in place of that of another one.
func (j *joining) fetchAhead(ctx context.Context, height int64) {
	j.takeAhead(0)
	ctx, cancel := context.WithCancel(ctx) //nolint:gosec // takeAhead calls cancel
	a := &ahead{height, cancel, make(chan *chainState, 1)}
	j.ahead = a
	go func() { a.result <- j.stateAt(ctx, height) }()
}

// takeAhead ends the fetch in the background, which no longer runs when it returns. It returns the
// state of a height once it has been fetched; nil if another one was fetched, or none.
func (j *joining) takeAhead(height int64) *chainState {
	a := j.ahead
	if a == nil {
		return nil
	}
	j.ahead = nil
	defer a.cancel()
	if a.height != height {
		a.cancel()
		<-a.result
		return nil
	}
	return <-a.result
}

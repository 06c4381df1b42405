package join

import (
	"context"

	sm "github.com/cometbft/cometbft/state"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/statesync/lightblocks"
)

// This file fetches what CometBFT has to know about the height of a state while the chunks of the
// state arrive. Over a slow network, these headers take several round trips.

// headersOf has what CometBFT has to know about a height, or the reason why that is missing.
type headersOf struct {
	state  sm.State
	commit *cmttypes.Commit
	before []lightblocks.Ancestor
	gap    comet.Gap
	err    error
}

func (j *joining) headersOf(ctx context.Context, height int64) *headersOf {
	h := &headersOf{}
	limited, cancel := context.WithTimeout(ctx, BootstrapTimeout)
	defer cancel()
	verifier := j.network.verifier
	if h.state, h.err = verifier.State(limited, height, j.Genesis); h.err != nil {
		return h
	}
	if h.commit, h.err = verifier.Commit(limited, height); h.err != nil {
		return h
	}
	h.before, h.gap = comet.Ancestors(ctx, verifier, h.state, j.Config.App.Join.EvidenceHeaders, j.log)
	h.err = ctx.Err()
	return h
}

// ahead is a fetch of headers in progress.
type ahead struct {
	height int64
	cancel context.CancelFunc
	fetch  chan *headersOf // receives one element
}

// fetchAhead fetches the headers of a height in the background, in place of those of another one.
func (j *joining) fetchAhead(ctx context.Context, height int64) {
	j.takeAhead(0)
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{height, cancel, make(chan *headersOf, 1)}
	j.ahead = a
	go func() { a.fetch <- j.headersOf(ctx, height) }()
}

// takeAhead ends the fetch in the background, which no longer runs when it returns. It returns the
// headers of a height once they have been fetched; nil if others were fetched, or none.
func (j *joining) takeAhead(height int64) *headersOf {
	a := j.ahead
	if a == nil {
		return nil
	}
	j.ahead = nil
	defer a.cancel()
	if a.height != height {
		a.cancel()
		<-a.fetch
		return nil
	}
	return <-a.fetch
}

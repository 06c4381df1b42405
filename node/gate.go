package node

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/storage"
)

// A node can have a last block: the one at halt_height, or the last one of the newest app version that it knows. It is executed, committed and
// becomes durable; the next one is not begun:
//
//	Commit of the last block ──► stop(cause) ──► Failed ──► Stop: everything is written and closed
//	        │
//	        └── the gate is shut: what CometBFT asks about a later block, before it has heard, ends the goroutine that asked
//
// Returning an error there would not do: CometBFT's block sync ends the process, without closing anything, when a block cannot be executed.

// ErrHalted: the block at halt_height is committed, as was asked for.
var ErrHalted = errors.New("halted")

// ErrPastHalt: halt_height asks for a node to stop before where it is.
var ErrPastHalt = errors.New("the node is past its halt_height")

// IsTooOld tells whether an error asks for a newer program: the chain is of an app version, or the data on disk of a format, that this one
// does not know.
func IsTooOld(err error) bool {
	return errors.As(err, new(*app.UpgradeError)) || errors.Is(err, storage.ErrNewerFormat)
}

// checkHalt refuses to start where there is nothing to do before the halt.
func checkHalt(halt, height int64) error {
	if halt <= 0 || height < halt {
		return nil
	}
	return fmt.Errorf("%w: halt_height is %d, and block %d is committed already: set a higher one, or 0 to go on without end", ErrPastHalt, halt, height)
}

// gate is the application, up to a last block.
type gate struct {
	abci.Application
	halt     int64             // 0: none
	canGoOn  func() error      // of the real application, after a commit
	stop     func(cause error) // told once
	leave    func(cause error) // ends the goroutine that asks about a later block; nil, or where it returns: the cause is the answer
	finished struct {
		sync.Mutex
		height int64 // of the block that is being executed
		cause  error // not nil: it was the last one
	}
}

// cause is what shut the gate, nil: it is open.
func (g *gate) cause() error {
	g.finished.Lock()
	defer g.finished.Unlock()
	return g.finished.cause
}

// pass returns the cause if the gate is shut and the caller is to have it as an answer.
func (g *gate) pass() error {
	cause := g.cause()
	if cause != nil && g.leave != nil {
		g.leave(cause)
	}
	return cause
}

func (g *gate) PrepareProposal(ctx context.Context, req *abci.RequestPrepareProposal) (*abci.ResponsePrepareProposal, error) {
	if err := g.pass(); err != nil {
		return nil, err
	}
	return g.Application.PrepareProposal(ctx, req)
}

func (g *gate) ProcessProposal(ctx context.Context, req *abci.RequestProcessProposal) (*abci.ResponseProcessProposal, error) {
	if err := g.pass(); err != nil {
		return nil, err
	}
	return g.Application.ProcessProposal(ctx, req)
}

func (g *gate) FinalizeBlock(ctx context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	if err := g.pass(); err != nil {
		return nil, err
	}
	g.finished.Lock()
	g.finished.height = req.Height
	g.finished.Unlock()
	return g.Application.FinalizeBlock(ctx, req)
}

func (g *gate) Commit(ctx context.Context, req *abci.RequestCommit) (*abci.ResponseCommit, error) {
	res, err := g.Application.Commit(ctx, req)
	if err != nil {
		return nil, err
	}
	g.finished.Lock()
	cause := g.canGoOn()
	if cause == nil && g.halt > 0 && g.finished.height >= g.halt {
		cause = fmt.Errorf("%w at height %d, as halt_height asks for", ErrHalted, g.finished.height)
	}
	g.finished.cause = cause
	g.finished.Unlock()
	if cause != nil {
		g.stop(cause)
	}
	return res, nil
}

// shut is the panic of a goroutine of CometBFT's consensus that the gate ends: consensus catches it, closes what it writes and ends.
type shut struct{ error }

// leaveComet ends the goroutine of CometBFT that calls the application about a block after the last one. Blocks that are replayed while
// CometBFT is being made are its caller's: that one gets the error.
func (n *Node) leaveComet(cause error) {
	n.mu.Lock()
	comet, making := n.mu.comet, n.mu.making
	n.mu.Unlock()
	switch {
	case making || comet == nil:
	case comet.ConsensusReactor().WaitSync():
		runtime.Goexit() // block sync, which nobody waits for but to end
	default:
		panic(shut{cause})
	}
}

// isShut tells whether CometBFT logs what leaveComet did.
func isShut(keyvals []any) bool {
	for _, v := range keyvals {
		if _, is := v.(shut); is {
			return true
		}
	}
	return false
}

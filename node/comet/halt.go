package comet

import (
	"context"
	"errors"
	"fmt"
	"sync"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/storage"
)

// A node can have a last block: the one at halt_height, or the last one of the newest app version
// that it knows. That block is executed and committed, and becomes durable. The next one is not
// begun:
//
//	Commit of the last block ──► stop(cause) ──► Failed ──► Stop: everything is written and closed
//	        │
//	        └── the Halter is shut: a call of CometBFT about a later block, before it stops, ends the goroutine that called
//
// Returning an error would not be enough: CometBFT's block sync ends the process, without closing
// anything, if a block cannot be executed, and its consensus ends alone, while the rest runs on.
// So a block that cannot be executed or committed shuts the Halter, too.

// ErrHalted: the block at halt_height is committed, as configured.
var ErrHalted = errors.New("halted")

// ErrPastHalt: the node is already at or past its halt_height.
var ErrPastHalt = errors.New("the node is past its halt_height")

// CheckHalt returns ErrPastHalt if a node at height has nothing to do before it halts. halt 0: it
// never halts.
func CheckHalt(halt, height int64) error {
	if halt <= 0 || height < halt {
		return nil
	}
	return fmt.Errorf("%w: halt_height is %d, and block %d is committed already: set a higher one, or 0 to run without end", ErrPastHalt, halt, height)
}

// Halter is the application up to a last block. It may be called by several goroutines, as the
// application.
type Halter struct {
	abci.Application
	halt    int64             // height of the last block; 0: none
	mayGoOn func() error      // called after a commit: the real application's answer
	stop    func(cause error) // called after the last block
	// leave ends the goroutine that calls about a later block. If it is nil, or returns, the cause
	// is the answer. It is set before CometBFT is made.
	leave func(cause error)

	finished struct {
		sync.Mutex
		height int64 // of the block that is being executed
		cause  error // not nil: it was the last one
	}
}

// NewHalter ends an application's blocks at height halt (0: at none), or at the one after whose
// commit mayGoOn returns an error. stop is called with that error, or with ErrHalted.
func NewHalter(application abci.Application, halt int64, mayGoOn func() error, stop func(cause error)) *Halter {
	return &Halter{Application: application, halt: halt, mayGoOn: mayGoOn, stop: stop}
}

// cause returns what ended the blocks; nil: there are more.
func (h *Halter) cause() error {
	h.finished.Lock()
	defer h.finished.Unlock()
	return h.finished.cause
}

// pass returns the cause if the Halter is shut, unless leave ends the goroutine.
func (h *Halter) pass() error {
	cause := h.cause()
	if cause != nil && h.leave != nil {
		h.leave(cause)
	}
	return cause
}

func (h *Halter) PrepareProposal(ctx context.Context, req *abci.RequestPrepareProposal) (*abci.ResponsePrepareProposal, error) {
	if err := h.pass(); err != nil {
		return nil, err
	}
	return h.Application.PrepareProposal(ctx, req)
}

func (h *Halter) ProcessProposal(ctx context.Context, req *abci.RequestProcessProposal) (*abci.ResponseProcessProposal, error) {
	if err := h.pass(); err != nil {
		return nil, err
	}
	return h.Application.ProcessProposal(ctx, req)
}

func (h *Halter) FinalizeBlock(ctx context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	if err := h.pass(); err != nil {
		return nil, err
	}
	h.finished.Lock()
	h.finished.height = req.Height
	h.finished.Unlock()
	res, err := h.Application.FinalizeBlock(ctx, req)
	if err != nil {
		return nil, h.failed(err)
	}
	return res, nil
}

// failed ends the blocks with the error of one that could not be executed or committed. Another
// process that asked ends by itself; but what only this one knows, that the newest state lacks a
// page, is damage, whoever asks.
func (h *Halter) failed(err error) error {
	if errors.Is(err, storage.ErrNoPage) {
		err = fmt.Errorf("the state is %w: %w: remove it with `starlingd unsafe-reset-all` and join again by state sync", storage.ErrCorrupt, err)
	} else if h.leave == nil {
		return err
	}
	h.finished.Lock()
	first := h.finished.cause == nil
	if first {
		h.finished.cause = err
	}
	h.finished.Unlock()
	if first {
		h.stop(err)
	}
	return h.pass()
}

func (h *Halter) Commit(ctx context.Context, req *abci.RequestCommit) (*abci.ResponseCommit, error) {
	res, err := h.Application.Commit(ctx, req)
	if err != nil {
		return nil, h.failed(err)
	}
	h.finished.Lock()
	cause := h.mayGoOn()
	if cause == nil && h.halt > 0 && h.finished.height >= h.halt {
		cause = fmt.Errorf("%w at height %d, as halt_height asks for", ErrHalted, h.finished.height)
	}
	h.finished.cause = cause
	h.finished.Unlock()
	if cause != nil {
		h.stop(cause)
	}
	return res, nil
}

// shut is the panic with which Instance.leave ends a goroutine of CometBFT's consensus, which
// catches it, closes what it writes and ends.
type shut struct{ error }

// isShut reports whether CometBFT logs what Instance.leave did.
func isShut(keyvals []any) bool {
	for _, v := range keyvals {
		if _, is := v.(shut); is {
			return true
		}
	}
	return false
}

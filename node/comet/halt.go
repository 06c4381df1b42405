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
// that it supports. That block is executed and committed, and becomes durable. The next block is
// not started:
//
//	Commit of the last block ──► stop(cause) ──► Failed ──► Stop: everything is written and closed
//	        │
//	        └── the Halter is shut: a call of CometBFT about a later block, before it stops, ends the goroutine that called
//
// Returning an error would not be enough: if a block cannot be executed, CometBFT's block sync ends
// the process without closing anything, and its consensus ends alone while the rest keeps running.
// A block that cannot be executed or committed therefore also shuts the Halter.

// ErrHalted: the block at halt_height is committed, as configured.
var ErrHalted = errors.New("halted")

// ErrPastHalt: the node is already at or past its halt_height.
var ErrPastHalt = errors.New("the node is past its halt_height")

// CheckHalt returns ErrPastHalt if a node at height has reached its halt height already. halt 0: it
// never halts.
func CheckHalt(halt, height int64) error {
	if halt <= 0 || height < halt {
		return nil
	}
	return fmt.Errorf("%w: halt_height is %d, and block %d is already committed: set a higher one, or 0 to run without a limit", ErrPastHalt, halt, height)
}

// Halter passes calls to the application up to its last block. It may be called by several
// goroutines, like the application.
type Halter struct {
	abci.Application
	halt    int64             // height of the last block; 0: none
	mayGoOn func() error      // called after a commit: the real application's answer
	stop    func(cause error) // called after the last block
	// leave ends the goroutine that makes a call about a later block. If it is nil, or returns, the
	// call returns the cause. It is set before CometBFT is made.
	leave func(cause error)

	finished struct {
		sync.Mutex
		height int64 // height of the block being executed
		cause  error // not nil: the last block was reached
	}
}

// NewHalter ends an application's blocks at height halt (0: never), or after the first commit for
// which mayGoOn returns an error. stop is called with that error, or with ErrHalted.
func NewHalter(application abci.Application, halt int64, mayGoOn func() error, stop func(cause error)) *Halter {
	return &Halter{Application: application, halt: halt, mayGoOn: mayGoOn, stop: stop}
}

// cause returns the reason why the blocks ended; nil: they continue.
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

// failed ends the blocks with the error of a block that could not be executed or committed. In
// another process, CometBFT ends itself on an error; but damage that only this process can detect,
// a page missing from the newest state, is reported to every caller.
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

// shut is the panic with which Instance.leave ends a goroutine of CometBFT's consensus. Consensus
// catches it, closes its files and ends.
type shut struct{ error }

// isShut reports whether a log line of CometBFT is about a panic raised by Instance.leave.
func isShut(keyvals []any) bool {
	for _, v := range keyvals {
		if _, is := v.(shut); is {
			return true
		}
	}
	return false
}

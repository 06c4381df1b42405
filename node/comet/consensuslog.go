package comet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/libs/service"

	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/signer"
)

// consensusLog is CometBFT's logger. It detects the end of consensus: CometBFT only logs the panic
// and keeps running without consensus (consensus/state.go, receiveRoutine). It suppresses errors
// that the node itself caused.
type consensusLog struct {
	log.Logger
	full  func(error) // called if consensus ended because the disk is full
	ended func(error) // called for every cause; may be nil
	// missing is called with a height if evidence in a decided block refers to that height's header
	// and this node does not have it.
	missing func(height int64)
}

const (
	consensusEnded = "CONSENSUS FAILURE!!!"
	// For a block that the validators have signed (blocksync/reactor.go, handleValidationFailure).
	blockRefused   = "Error in validation"
	reactorStopped = "error while stopped reactor" // p2p/switch.go, OnStop
	// consensus/state.go: a validator that cannot write the WAL signs nothing and waits forever.
	logFailed = "failed writing to WAL"
)

func (l consensusLog) With(keyvals ...any) log.Logger {
	return consensusLog{l.Logger.With(keyvals...), l.full, l.ended, l.missing}
}

func (l consensusLog) Error(message string, keyvals ...any) {
	if message == consensusEnded && isShut(keyvals) {
		return // the node ended it and reports the reason
	}
	if message == reactorStopped && slices.Contains(keyvals, any(service.ErrAlreadyStopped)) {
		return // stopBlockSync stopped it first
	}
	if slices.ContainsFunc(keyvals, func(v any) bool { err, _ := v.(error); return errors.Is(err, signer.ErrClosed) }) {
		return // the node stops, and closed it before consensus
	}
	l.Logger.Error(message, keyvals...)
	if message != consensusEnded && message != blockRefused && message != logFailed {
		return
	}
	// The cause is the argument of a panic, usually a text.
	for i := 0; i+1 < len(keyvals); i += 2 {
		if keyvals[i] != "err" {
			continue
		}
		cause := fmt.Sprint(keyvals[i+1])
		if message == logFailed {
			if err, _ := keyvals[i+1].(error); disk.IsFull(err) {
				l.full(fmt.Errorf("%w: the consensus WAL cannot be written: %w", disk.ErrFull, err))
			}
			return
		}
		if height, is := headerMissing(lastLine(cause)); is && l.missing != nil {
			l.missing(height)
		}
		if message == blockRefused {
			return
		}
		err, _ := keyvals[i+1].(error)
		if disk.IsFull(err) || strings.Contains(cause, syscall.ENOSPC.Error()) || strings.Contains(cause, syscall.EDQUOT.Error()) {
			l.full(fmt.Errorf("%w: consensus has ended: %s", disk.ErrFull, lastLine(cause)))
		}
		if l.ended != nil {
			l.ended(errors.New(lastLine(cause)))
		}
	}
}

// lastLine returns the line in which a panic of CometBFT names its cause. The text begins with the
// message that could not be written, which may be a whole block.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimLeft(text[strings.LastIndexByte(text, '\n')+1:], "}] ")
}

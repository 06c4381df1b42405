package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cometbft/cometbft/libs/log"
)

// ErrJoin: CometBFT gave its state sync up.
var ErrJoin = errors.New("the state sync failed")

// joinPoll is how often a joining node looks whether CometBFT is done with its state sync.
const joinPoll = 100 * time.Millisecond

// joinAdvice is what to look at when a state sync does not begin, or ends without a state.
const joinAdvice = "to join, all of statesync.rpc_servers must answer, for this chain, and still have the header that statesync.trust_height and trust_hash name"

// joinFailures are what CometBFT logs when a state sync is over for good without a state (node/setup.go, startStateSync). It tells
// nobody else: the node would wait at height 0 until somebody reads its log. (What comes after the last of them, the switch to block
// sync, may fail: CometBFT is made again then anyway.)
var joinFailures = []string{"State sync failed", "Failed to bootstrap node with new state", "Failed to store last seen commit"}

// joinLog is the log of a CometBFT instance that joins. It hears of such a failure.
type joinLog struct {
	log.Logger
	failed func(error)
}

func (l joinLog) With(keyvals ...any) log.Logger { return joinLog{l.Logger.With(keyvals...), l.failed} }

func (l joinLog) Error(message string, keyvals ...any) {
	l.Logger.Error(message, keyvals...)
	if !slices.Contains(joinFailures, message) {
		return
	}
	err := ErrJoin
	for i := 0; i+1 < len(keyvals); i += 2 {
		if cause, ok := keyvals[i+1].(error); ok {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	l.failed(fmt.Errorf("%w: start the node again: %s", err, joinAdvice))
}

// startComet starts CometBFT. One that joins is watched, and replaced when its state sync is over.
func (n *Node) startComet() error {
	n.mu.Lock()
	joining := n.mu.joining
	n.mu.Unlock()
	if err := n.Comet().Start(); err != nil {
		if joining {
			err = fmt.Errorf("%w: %s", err, joinAdvice)
		}
		return err
	}
	if !joining {
		return nil
	}
	rpc, err := n.serveJoining(n.Comet())
	if err != nil {
		return err
	}
	n.wg.Go(func() { n.finishJoin(rpc) })
	return nil
}

// finishJoin restarts CometBFT once its state sync is over, so that it fetches the blocks since by block sync.
//
//	state sync ──► state and commit of H are stored ──► CometBFT stopped and made again ──► block sync from H+1 ──► consensus
//
// Without that, v0.40.0 takes itself for caught up as soon as block sync begins: blocksync.Reactor.Enable leaves the pool's start
// height where it was, so that the pool's way out for a stalled sync (IsCaughtUp, sync_tracker.go) is open from the start. It
// then leaves the blocks since H to the gossip of consensus, some seven a second, which a busy network outruns. A node that
// starts with the state of H, as after an offline state sync, is not affected. RPC and peers are gone for about a second; the
// application and its storage stay.
func (n *Node) finishJoin(rpc *joiningRPC) {
	defer rpc.Close()
	if !n.awaitJoin(n.ctx) {
		return
	}
	height := n.application.Height()
	n.log.Info("State sync is done: restarting CometBFT, to fetch the blocks since", "height", height)
	rpc.Close()
	if err := n.restartComet(n.ctx); err != nil && n.ctx.Err() == nil {
		n.fail(fmt.Errorf("after the state sync: %w (the state is there: start the node again)", err))
	}
}

// awaitJoin returns true when CometBFT has stored everything that belongs to the restored state, or blocks come without a state
// sync; false when ctx ended.
func (n *Node) awaitJoin(ctx context.Context) bool {
	ticker := time.NewTicker(joinPoll)
	defer ticker.Stop()
	blocks := n.Comet().BlockStore()
	for stored := false; ; {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
		switch height := n.application.joined.Load(); {
		case height == 0 && blocks.Height() > 0:
			return true
		case height == 0 || blocks.LoadSeenCommit(height) == nil:
		case stored: // one round later: CometBFT has switched to block sync, the last step of its own
			return true
		default:
			stored = true
		}
	}
}

// restartComet stops CometBFT and makes it again over the same application.
func (n *Node) restartComet(ctx context.Context) error {
	if err := n.stopComet(); err != nil {
		return err
	}
	n.mu.Lock()
	n.mu.joining = false
	n.mu.Unlock()
	if err := n.makeComet(ctx); err != nil {
		return err
	}
	return n.startComet()
}

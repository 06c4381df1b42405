package comet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	cometnode "github.com/cometbft/cometbft/node"
)

// ErrStateSync: CometBFT's own state sync ended without a state.
var ErrStateSync = errors.New("the state sync failed")

// statesyncPoll is the interval of checks whether CometBFT's state sync is done.
const statesyncPoll = 100 * time.Millisecond

// joinAdvice is the hint if a state sync does not begin, or ends without a state.
const joinAdvice = "to join, all statesync.rpc_servers must answer, be on this chain, and have the header at statesync.trust_height and trust_hash"

// joinFailures are the messages that CometBFT logs when a state sync has failed permanently
// (node/setup.go, startStateSync). It does not report this otherwise: the node would stay at height
// 0. (The step after the last of them, the switch to block sync, may fail: CometBFT is then made
// again anyway.)
var joinFailures = []string{"State sync failed", "Failed to bootstrap node with new state", "Failed to store last seen commit"}

// joinLog is the logger of a joining CometBFT. It detects these messages.
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
	err := ErrStateSync
	for i := 0; i+1 < len(keyvals); i += 2 {
		if cause, ok := keyvals[i+1].(error); ok {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	l.failed(fmt.Errorf("%w: restart the node: %s", err, joinAdvice))
}

// finishStateSync restarts CometBFT once its state sync is over, so that it fetches the later
// blocks by block sync.
//
//	state sync ──► state and commit of H are stored ──► CometBFT stopped and made again ──► block sync from H+1 ──► consensus
//
// Without the restart, v0.40.0 considers itself caught up as soon as block sync begins:
// blocksync.Reactor.Enable leaves the pool's start height unchanged, so that the pool's exit for a
// stalled sync (IsCaughtUp, sync_tracker.go) is open from the start. The blocks since H would then
// come by consensus gossip, about seven per second, and a busy network makes them faster. A node
// that starts with the state of H, as after an offline state sync, is not affected. RPC and peers
// are unavailable for about a second; application and storage stay open.
func (i *Instance) finishStateSync(ctx context.Context, comet *cometnode.Node, rpc *joiningRPC) {
	defer rpc.Close()
	if !i.awaitStateSync(ctx, comet) {
		return
	}
	i.o.Logger.Info("State sync is done: restarting CometBFT to fetch the later blocks", "height", i.o.Height())
	rpc.Close()
	if err := i.replace(ctx); err != nil && ctx.Err() == nil {
		i.o.Failed(fmt.Errorf("after the state sync: %w (the state is restored: restart the node)", err))
	}
}

// awaitStateSync returns true once CometBFT has stored everything for the restored state, or if
// blocks arrive without a state sync; false if ctx ended first.
func (i *Instance) awaitStateSync(ctx context.Context, comet *cometnode.Node) bool {
	ticker := time.NewTicker(statesyncPoll)
	defer ticker.Stop()
	blocks := comet.BlockStore()
	for stored := false; ; {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
		switch height := i.o.Restored(); {
		case height == 0 && blocks.Height() > 0:
			return true
		case height == 0 || blocks.LoadSeenCommit(height) == nil:
		case stored: // one poll later CometBFT has switched to block sync, its last step
			return true
		default:
			stored = true
		}
	}
}

// replace stops CometBFT, and makes and starts another one without state sync.
func (i *Instance) replace(ctx context.Context) error {
	if err := i.Stop(); err != nil {
		return err
	}
	i.mu.Lock()
	i.mu.syncing = false
	i.mu.Unlock()
	if _, err := i.o.Databases.Open(); err != nil {
		return err
	}
	if err := i.Make(ctx); err != nil {
		return err
	}
	return i.start(i.Comet())
}

// stopAll stops a CometBFT (nil: there is none) and closes its databases.
func stopAll(comet *cometnode.Node, databases *Databases) error {
	var errs []error
	if comet != nil && comet.IsRunning() {
		stopBlockSync(comet)
		errs = append(errs, comet.Stop())
		comet.Wait()
	}
	if comet != nil && comet.ProxyApp().IsRunning() {
		errs = append(errs, comet.ProxyApp().Stop())
	}
	return errors.Join(append(errs, databases.Close())...)
}

// stopBlockSync ends block sync while its peers are still connected. CometBFT's Stop removes the
// peers first, and v0.40.0 ends the process if that happens between the check of a block and its
// use (blocksync/pool.go, PopRequest).
func stopBlockSync(comet *cometnode.Node) {
	if reactor, ok := comet.Switch().Reactor("BLOCKSYNC"); ok && reactor.IsRunning() {
		_ = reactor.Stop() // the error means that it was already stopped
	}
}

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync/lightblocks"
)

// A block may hold evidence about a height from before this node joined. CometBFT looks up that
// height's header, and without it rejects a block that the network has decided. Headers that a join
// could not fetch are therefore requested until they have arrived, or evidence about them has
// expired:
//
//	join: all peers, up to 2 minutes ──► start ──► while blocks are executed, once a minute
//	                                       ▲                  │ a block with such evidence
//	       the same again, at once ─────────┴── exit status ◄──┘ (the height is recorded)
//
// The missing headers are recorded in the evidence database, so that a restart continues.

const (
	// headersPause is the time between two rounds while blocks are executed.
	headersPause = time.Minute
	// headersAtOnce limits the headers held in memory before they are written.
	headersAtOnce = 1024
)

// headerMissing stops the node at a block that it cannot verify.
func (n *Node) headerMissing(height int64) {
	err := n.databases.Want(height)
	n.fail(errors.Join(fmt.Errorf("%w: height %d: restart the node: it then fetches that header first", comet.ErrHeaderMissing, height), err))
}

// askHeaders fetches missing headers, if there are any, before CometBFT needs them. Those that it
// cannot fetch are requested later, while blocks are executed. The error is that of ctx, or of a
// database.
func (n *Node) askHeaders(ctx context.Context) error {
	gap, err := n.readGap()
	if err != nil || gap.Headers() == 0 {
		return err
	}
	if n.way == join.None || n.way == join.Blocks { // otherwise a join has just fetched them
		limited, cancel := context.WithTimeout(ctx, comet.AncestorsTimeout)
		err := n.fillGap(limited)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if gap = n.missing(); gap.Headers() == 0 {
			return nil
		}
		n.log.Error("Headers are still missing: a block with evidence about one of them would stop this node",
			"wanted", gap.Wanted, "first", gap.First, "err", err)
	}
	n.wg.Go(n.keepAskingHeaders)
	return nil
}

// keepAskingHeaders fetches headers until none is missing, or the node stops.
func (n *Node) keepAskingHeaders() {
	pause := time.NewTicker(headersPause)
	defer pause.Stop()
	for n.missing().Headers() > 0 {
		select {
		case <-n.ctx.Done():
			return
		case <-pause.C:
		}
		if err := n.fillGap(n.ctx); err != nil && n.ctx.Err() == nil {
			n.log.Info("Headers that evidence may refer to are missing", "missing", n.missing().Headers(), "err", err)
		}
	}
	n.log.Info("No header that evidence may refer to is missing")
}

// missing returns the gap read last.
func (n *Node) missing() comet.Gap {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.gap
}

func (n *Node) setMissing(gap comet.Gap) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.gap = gap
}

func (n *Node) readGap() (comet.Gap, error) {
	gap, err := n.databases.Gap()
	if err == nil {
		n.setMissing(gap)
	}
	return gap, err
}

// fillGap fetches missing headers from peers, and stores them piece by piece.
func (n *Node) fillGap(ctx context.Context) error {
	gap, err := n.readGap()
	if err != nil || gap.Headers() == 0 {
		return err
	}
	child, set, err := n.databases.Above(gap)
	if err != nil {
		return err
	}
	if child == nil {
		return fmt.Errorf("block %d has not arrived yet", gap.First)
	}
	expired, err := n.databases.Expired()
	if err != nil {
		return err
	}
	addresses, err := config.JoinAddresses(n.config)
	if err != nil {
		return err
	}
	if r := n.serving.reactor; r != nil {
		addresses = append(addresses, r.Known()...)
	}
	if len(addresses) == 0 {
		return join.ErrNoTransport
	}
	network, err := join.Connect(join.NetworkOptions{
		Config: n.config, Logger: n.log.With("module", "join"), Genesis: n.genesis, NodeKey: n.nodeKey, Addresses: addresses,
		Trust: &lightblocks.Options{TrustHeight: child.Height, TrustHash: child.Hash()}, Dialled: n.dialled.Store,
	})
	if err != nil {
		return err
	}
	defer network.Close()
	if err := network.Reach(ctx, n.config.App.Join.ReachTimeout); err != nil {
		return err
	}
	for gap.Headers() > 0 && !expired(child) {
		lowest := max(gap.Wanted, gap.First-headersAtOnce)
		found, err := network.Verifier().AncestorsBelow(ctx, child, set, func(h *cmttypes.Header) bool { return h.Height <= lowest || expired(h) })
		if len(found) > 0 {
			var failed error
			if gap, failed = n.databases.Fill(gap, found); failed != nil {
				return failed
			}
			n.setMissing(gap)
			n.log.Info("Fetched headers that evidence may refer to", "first", gap.First, "wanted", gap.Wanted)
			child, set = found[len(found)-1].Header, found[len(found)-1].Validators
		}
		if err != nil {
			return err
		}
	}
	n.setMissing(comet.Gap{})
	return n.databases.SetGap(comet.Gap{})
}

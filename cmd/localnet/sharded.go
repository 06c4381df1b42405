package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/e2e/runner"
)

// With --shards, storage nodes have the state, one range of keys each, and all validators but the
// first have only what they used lately:
//
//	storage-0 … storage-S      keep a range each, answer witnesses, replay updates
//	     ▲ updates   │ witnesses
//	     │           ▼
//	validator-1 … validator-N  sharded: execute on witnesses
//	validator-0                has the whole state: the app hashes are the same
//	     joiner                sharded: takes the upper tree, and follows
//
// What the joiner takes does not grow with the state, so there are no chunks and no liars.

// shardEnv makes a node a sharded one.
const shardEnv = "STARLINGD_STATE_MODE=sharded"

// storageNames are the homes of the storage nodes.
func (o options) storageNames() []string {
	var names []string
	for i := range o.Shards {
		names = append(names, fmt.Sprintf("storage-%d", i))
	}
	return names
}

// isSharded reports whether a home is of a node that has only what it used lately.
func (n *network) isSharded(h *runner.Home) bool {
	return n.Shards > 0 && h != n.validators[0] && !slices.Contains(n.storage, h)
}

// divide writes into all homes who keeps what. The keys of the demonstration are hex digits behind
// a prefix, so their first bytes divide them evenly.
func (n *network) divide() error {
	ranges, err := runner.Divide(n.storage, n.Shards, func(i int) string { return fmt.Sprintf("%s%02x", prefix, i*256/n.Shards) })
	if err != nil {
		return err
	}
	for _, h := range slices.Concat([]*runner.Home{n.joiner}, n.validators, n.storage) {
		if err := h.SetRanges(ranges); err != nil {
			return err
		}
	}
	for _, h := range n.storage {
		if err := h.Configure(func(c *cfg.Config) { c.P2P.PersistentPeers = runner.Peers(n.validators...) }); err != nil {
			return err
		}
	}
	return nil
}

func (n *network) startStorage() error {
	for _, h := range n.storage {
		if _, err := n.start(h, n.programs.starlingd, "storage", "start", "--home", h.Dir); err != nil {
			return err
		}
	}
	return nil
}

// joinSharded lets the joiner join without a state, and returns when it is at the network's height.
func (n *network) joinSharded(ctx context.Context, sum *summary, det *details) error {
	// The trusted header may be any that the light client can begin from: the storage nodes choose.
	trusted, err := n.validators[0].Header(ctx, n.height(ctx)-1)
	if err != nil {
		return err
	}
	err = n.joiner.Configure(func(c *cfg.Config) {
		c.P2P.PersistentPeers = runner.Peers(n.validators...)
		c.StateSync.Enable = true
		c.StateSync.TrustHeight = trusted.Height
		c.StateSync.TrustHash = fmt.Sprintf("%X", trusted.Hash)
	})
	if err != nil {
		return err
	}
	n.screen.say("a new node joins: it trusts header %d, and takes only the upper tree", trusted.Height)
	started := time.Now()
	if _, err := n.start(n.joiner, n.programs.starlingd, "start", "--home", n.joiner.Dir); err != nil {
		return err
	}
	err = runner.Poll(ctx, "the joiner to have a state", func() bool {
		at, err := n.joiner.AppInfo(ctx)
		return err == nil && at.Height > 0
	})
	if err != nil {
		return err
	}
	if err := n.watchCatchUp(ctx, sum); err != nil {
		return err
	}
	sum.JoinSeconds = float64(time.Since(started).Milliseconds()) / 1000
	status, err := n.joiner.Status(ctx)
	if err != nil {
		return err
	}
	det.SnapshotHeight = status.Earliest - 1
	n.screen.say("the joiner is at the network's height, %d", sum.JoinerHeight)
	return nil
}

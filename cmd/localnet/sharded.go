package main

import (
	"context"

	"github.com/starling-kv/starling/e2e/runner"
)

// With --shards, storage nodes keep the state, one range of keys each. All validators except the
// first cache only recently used keys:
//
//	storage-0 … storage-S      keep one range each, serve witnesses, replay updates
//	     ▲ updates   │ witnesses
//	     │           ▼
//	validator-1 … validator-N  sharded: execute on witnesses
//	validator-0                full state: its app hashes must be equal
//	     joiner                sharded: fetches the upper tree, then follows
//
// The amount of data that the joiner fetches does not depend on the size of the state. There are no
// chunks that a Byzantine peer could damage.

// joinSharded lets the joiner join without a state, and returns when it has reached the network's
// height.
func (n *network) joinSharded(ctx context.Context, sum *summary, det *details) error {
	height := n.height(ctx) - 1
	n.screen.say("a new node joins: it trusts header %d, and fetches only the upper tree", height)
	started, err := n.launch(ctx, height)
	if err != nil {
		return err
	}
	err = runner.Poll(ctx, "the joiner to have a state", func() bool {
		at, err := n.joiner.Home.AppInfo(ctx)
		return err == nil && at.Height > 0
	})
	if err != nil {
		return err
	}
	return n.arrived(ctx, started, sum, det)
}

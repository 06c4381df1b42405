package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/starling-kv/starling/e2e/testnet"
)

// demonstrate runs the program after the command line is parsed. It stops every node that it
// started before it returns.
func demonstrate(ctx context.Context, o options) (err error) {
	s := newScreen(os.Stdout)
	beside := count(o.Liars, "Byzantine peer", "Byzantine peers")
	if o.Shards > 0 {
		beside = count(o.Shards, "storage node", "storage nodes")
	}
	s.plain("Starling: %s, %s, %s (seed %d)", count(o.Validators, "validator", "validators"), beside, count(o.Keys, "key", "keys"), o.Seed)
	dir, temporary, err := folder(o)
	if err != nil {
		return err
	}
	s.restartClock()
	n := &network{options: o, screen: s, provider: testnet.NewProcesses(ctx, ""), dir: dir}
	limited, cancel := context.WithTimeoutCause(n.provider.Context(), o.Timeout,
		fmt.Errorf("not done within %v: raise --timeout, or read the logs", o.Timeout))
	defer cancel()
	defer func() {
		panicked := recover()
		if stopErr := n.provider.Close(); err == nil {
			err = stopErr
		}
		switch {
		case os.Remove(dir) == nil: // nothing was put into it
		case panicked != nil || err != nil && !errors.Is(err, errInterrupted):
			s.plain("The nodes have been stopped. Their homes and logs (*.log) are in %s", dir)
		case temporary:
			err = errors.Join(err, os.RemoveAll(dir))
		default:
			s.plain("The nodes have been stopped. Their homes are in %s", dir)
		}
		if panicked != nil {
			panic(panicked)
		}
	}()

	sum := summary{Validators: o.Validators, Liars: o.Liars, Shards: o.Shards, Keys: o.Keys, Way: o.way()}
	var det details
	err = n.run(limited, &sum, &det)
	if o.JSON != "" {
		err = errors.Join(err, sum.write(o.JSON))
	}
	if err != nil {
		return interrupted(ctx, err)
	}
	s.plain("")
	sum.table(s.out, det)
	if err := sum.verdict(o.provable()); err != nil {
		return err
	}
	if o.Exit {
		return nil
	}
	return n.stay(ctx, det)
}

// run is the demonstration itself.
func (n *network) run(ctx context.Context, sum *summary, det *details) error {
	if err := n.setUp(ctx); err != nil {
		return err
	}
	if err := n.Start(ctx); err != nil {
		return err
	}
	n.screen.say("%s up, making blocks", count(n.Validators, "validator is", "validators are"))
	if n.Liars > 0 {
		n.screen.say("%s the chain like honest nodes, so far", count(n.Liars, "Byzantine peer follows", "Byzantine peers follow"))
	}
	n.loading = n.screen.meter("keys written", int64(n.Keys))
	err := n.Load(ctx)
	n.loading.end()
	if err != nil {
		return err
	}
	n.screen.say("%s written, the last at height %d", count(n.Keys, "key", "keys"), n.Loaded)
	if n.Shards > 0 {
		err = n.joinSharded(ctx, sum, det)
	} else {
		err = n.joinWhole(ctx, sum, det)
	}
	if err != nil {
		return err
	}
	if err := n.compare(ctx, sum, det); err != nil {
		return err
	}
	n.screen.say("same app hash as the validators")
	if err := n.provedRead(ctx, det); err != nil {
		return err
	}
	n.screen.say("a key read from the joiner was verified against a light client's header")
	return nil
}

// joinWhole lets the joiner fetch the whole state from a snapshot that contains all written keys.
func (n *network) joinWhole(ctx context.Context, sum *summary, det *details) error {
	snapshot, err := n.awaitSnapshot(ctx)
	if err != nil {
		return err
	}
	too := ""
	if n.Liars > 0 {
		too = ", the Byzantine peers too"
	}
	n.screen.say("every node offers the snapshot at height %d%s", snapshot, too)
	return n.joinAndMeet(ctx, snapshot, sum, det)
}

// stay keeps the network up until Ctrl-C, or until a node dies.
func (n *network) stay(ctx context.Context, det details) error {
	n.screen.plain("\nThe network stays up until Ctrl-C. RPC addresses:")
	for _, node := range n.Nodes() {
		if !node.Stores() {
			n.screen.plain("  %-12s %s", node.Name, node.Home.RPC())
		}
	}
	n.screen.plain("\nTry:")
	validator := n.validators()[0].Home
	n.screen.plain("  %s get %s --prove --verify --node %s --home %s", relative(filepath.Join(n.dir, "bin", nameStarlingd)), det.VerifiedKey,
		n.joiner.Home.RPC(), validator.Dir)
	n.screen.plain("  curl '%s/broadcast_tx_commit?tx=\"name=starling\"'", validator.RPC())
	n.screen.plain("Homes and logs are in %s", n.dir)
	<-n.provider.Context().Done()
	if ctx.Err() == nil {
		return context.Cause(n.provider.Context()) // a node died
	}
	n.screen.plain("\nStopping …")
	return nil
}

// interrupted replaces err if Ctrl-C caused it.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// relative shortens a path for display: relative to the current folder.
func relative(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	short, err := filepath.Rel(here, path)
	if err != nil || strings.HasPrefix(short, "..") {
		return path
	}
	return short
}

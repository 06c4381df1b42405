package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/starling-kv/starling/e2e/runner"
)

// demonstrate is the whole program after the command line. However it ends, no node that it started
// stays behind.
func demonstrate(ctx context.Context, o options) (err error) {
	s := newScreen(os.Stdout)
	data := dataset{seed: o.Seed, n: o.Keys}
	beside := count(o.Liars, "lying peer", "lying peers")
	if o.Shards > 0 {
		beside = count(o.Shards, "storage node", "storage nodes")
	}
	s.plain("Starling: %s, %s, %s (seed %d)", count(o.Validators, "validator", "validators"), beside, count(o.Keys, "key", "keys"), o.Seed)
	programs, err := build(ctx, o, s)
	if err != nil {
		return interrupted(ctx, err)
	}
	dir, temporary, err := folder(o)
	if err != nil {
		return err
	}
	s.restartClock()
	n := &network{options: o, screen: s, programs: programs, dir: dir}

	n.processes = runner.NewProcesses(ctx)
	limited, cancel := context.WithTimeoutCause(n.processes.Context(), o.Timeout,
		fmt.Errorf("not done within %v: give --timeout more, or look at the logs", o.Timeout))
	defer cancel()
	defer func() {
		panicked := recover()
		if stopErr := n.processes.Stop(stopGrace); err == nil {
			err = stopErr
		}
		switch {
		case os.Remove(dir) == nil: // nothing was put into it
		case panicked != nil || err != nil && !errors.Is(err, errInterrupted):
			s.plain("The nodes have been stopped. Their homes and logs (*/node.log) are in %s", dir)
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
	err = n.run(limited, data, &sum, &det)
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
func (n *network) run(ctx context.Context, data dataset, sum *summary, det *details) error {
	if err := n.make(ctx, data); err != nil {
		return err
	}
	if err := n.startValidators(ctx); err != nil {
		return err
	}
	n.screen.say("%s up, making blocks", count(n.Validators, "validator is", "validators are"))
	if err := n.startLiars(); err != nil {
		return err
	}
	if n.Liars > 0 {
		n.screen.say("%s: so far they follow the chain like honest nodes", count(n.Liars, "lying peer started", "lying peers started"))
	}
	written, err := n.write(ctx, data)
	if err != nil {
		return err
	}
	n.screen.say("%s written, the last at height %d", count(n.Keys, "key", "keys"), written)
	if n.Shards > 0 {
		err = n.joinSharded(ctx, sum, det)
	} else {
		err = n.joinWhole(ctx, written, sum, det)
	}
	if err != nil {
		return err
	}
	if err := n.compare(ctx, sum, det); err != nil {
		return err
	}
	n.screen.say("same app hash as the validators")
	if err := n.provedRead(ctx, data, det); err != nil {
		return err
	}
	n.screen.say("a key read from the joiner is proved against a light client's header")
	return nil
}

// joinWhole lets the joiner fetch the whole state, by a snapshot with everything up to height
// written.
func (n *network) joinWhole(ctx context.Context, written int64, sum *summary, det *details) error {
	snapshot, err := n.awaitSnapshot(ctx, written)
	if err != nil {
		return err
	}
	too := ""
	if n.Liars > 0 {
		too = ", the liars too"
	}
	n.screen.say("every node offers the snapshot at height %d%s", snapshot, too)
	return n.joinAndMeet(ctx, snapshot, sum, det)
}

// stay keeps the network up until Ctrl-C, or until a node dies.
func (n *network) stay(ctx context.Context, det details) error {
	n.screen.plain("\nThe network stays up until Ctrl-C. RPC addresses:")
	for _, h := range n.validators {
		n.screen.plain("  %-12s %s", h.Name, h.RPC())
	}
	for _, h := range n.liars {
		n.screen.plain("  %-12s %s", h.Name, h.RPC())
	}
	n.screen.plain("  %-12s %s", n.joiner.Name, n.joiner.RPC())
	n.screen.plain("\nTry:")
	n.screen.plain("  %s get %s --prove --verify --node %s --home %s", relative(n.programs.starlingd), det.VerifiedKey, n.joiner.RPC(), n.validators[0].Dir)
	n.screen.plain("  curl '%s/broadcast_tx_commit?tx=\"name=starling\"'", n.validators[0].RPC())
	n.screen.plain("Homes and logs are in %s", n.dir)
	<-n.processes.Context().Done()
	if ctx.Err() == nil {
		return context.Cause(n.processes.Context()) // a node died
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

// relative shortens a path for the reader, who is in the current folder.
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

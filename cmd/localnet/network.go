package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/e2e/runner"
)

const (
	chainID = "localnet"

	// A snapshot every 15 blocks of somewhat more than half a second. CometBFT (--in-band) dials
	// its peers in the first three seconds and asks each for its snapshots at that moment; the
	// interval is long enough that a joiner started right after a snapshot hears of the same newest
	// one from all of them, liars and honest.
	snapshotInterval = 15
	blockPause       = 400 * time.Millisecond

	// keepSnapshots is how many snapshots a node serves: one must outlive the download, even on a
	// slow machine.
	keepSnapshots = 5

	// stopGrace is how long a node may take to stop cleanly.
	stopGrace = 10 * time.Second
)

// network is the nodes of the demonstration. validators, liars, storage and joiner are all homes
// that there are.
type network struct {
	options
	screen    *screen
	processes *runner.Processes
	programs  programs
	dir       string

	validators, liars, storage []*runner.Home
	joiner                     *runner.Home
	chunkBytes                 uint64
}

// programs are the paths of what is started.
type programs struct{ starlingd, byzantine string }

// build builds what the command line does not name.
func build(ctx context.Context, o options, s *screen) (p programs, err error) {
	p = programs{o.Starlingd, o.Byzantine}
	if p.starlingd != "" && p.byzantine != "" {
		return p, nil
	}
	s.plain("Building starlingd and the lying node (a minute or two the first time; not counted below) …")
	start := time.Now()
	for pkg, path := range map[string]*string{"./cmd/starlingd": &p.starlingd, "./e2e/byzantine": &p.byzantine} {
		if *path == "" {
			if *path, err = runner.Program(ctx, pkg); err != nil {
				return p, err
			}
		}
	}
	s.plain("Built in %.1f s.", time.Since(start).Seconds())
	return p, nil
}

// make makes all homes and one genesis file.
func (n *network) make(ctx context.Context, data dataset) error {
	names := []string{"joiner"}
	for i := range n.Liars {
		names = append(names, fmt.Sprintf("liar-%d", i))
	}
	names = append(names, n.storageNames()...)
	for i := range n.Validators {
		names = append(names, fmt.Sprintf("validator-%d", i))
	}
	homes := make([]*runner.Home, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			dir := filepath.Join(n.dir, name)
			homes[i], errs[i] = runner.NewHome(ctx, name, dir, n.programs.starlingd,
				"init", name, "--chain-id", chainID, "--home", dir)
		})
	}
	wg.Wait()
	others := 1 + n.Liars + n.Shards
	n.joiner, n.liars, n.storage, n.validators = homes[0], homes[1:1+n.Liars], homes[1+n.Liars:others], homes[others:]
	if err := errors.Join(errs...); err != nil {
		return err
	}
	n.chunkBytes = data.chunkBytes()
	_, err := runner.Genesis(n.validators, homes[:others], chainID, app.Genesis{
		ChunkBytes:       n.chunkBytes,
		SnapshotInterval: snapshotInterval,
		// so that the newcomer can try `curl …/broadcast_tx_commit?tx="name=value"`
		Open:   true,
		Admins: []string{},
		Grants: []app.GenesisGrant{{Grantee: app.Everyone, Prefix: prefix}},
	})
	if err != nil {
		return err
	}
	for i, h := range n.validators {
		if err := h.Configure(func(c *cfg.Config) {
			c.Consensus.TimeoutCommit = blockPause
			// One of two dials the other: two that dial each other at once may both fail, and then
			// wait for seconds.
			c.P2P.PersistentPeers = runner.Peers(n.validators[:i]...)
		}); err != nil {
			return err
		}
	}
	for _, h := range n.liars {
		if err := h.Configure(func(c *cfg.Config) { c.P2P.PersistentPeers = runner.Peers(n.validators...) }); err != nil {
			return err
		}
	}
	if n.Shards > 0 {
		return n.divide()
	}
	return nil
}

// start starts one node.
func (n *network) start(h *runner.Home, program string, args ...string) (*runner.Process, error) {
	h.Release()
	env := []string{fmt.Sprintf("STARLINGD_SNAPSHOTS_KEEP=%d", keepSnapshots), fmt.Sprintf("STARLINGD_JOIN_FAST=%t", !n.InBand)}
	if n.isSharded(h) {
		env = append(env, shardEnv)
	}
	return n.processes.Start(runner.Spec{Name: h.Name, Path: program, Args: args, Log: h.Log(), Env: env})
}

func (n *network) startValidators(ctx context.Context) error {
	if err := n.startStorage(); err != nil {
		return err
	}
	for _, h := range n.validators {
		if _, err := n.start(h, n.programs.starlingd, "start", "--home", h.Dir); err != nil {
			return err
		}
	}
	if err := n.reach(ctx, n.validators, 1); err != nil {
		return err
	}
	for _, h := range n.validators { // one that is still looking for blocks takes no transaction
		err := runner.Poll(ctx, h.Name+" to take part", func() bool {
			status, err := h.Status(ctx)
			return err == nil && !status.CatchingUp
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (n *network) startLiars() error {
	for i, h := range n.liars {
		if _, err := n.start(h, n.programs.byzantine, "--home", h.Dir, "--lie", n.lie(i), "--seed", fmt.Sprint(n.Seed+uint64(i))); err != nil {
			return err
		}
	}
	return nil
}

// reach waits until the applications of all homes have executed the block at height.
func (n *network) reach(ctx context.Context, homes []*runner.Home, height int64) error {
	for _, h := range homes {
		err := runner.Poll(ctx, fmt.Sprintf("%s to reach height %d", h.Name, height), func() bool {
			at, err := h.AppInfo(ctx)
			return err == nil && at.Height >= height
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// height is that of the most advanced validator.
func (n *network) height(ctx context.Context) int64 {
	var height int64
	for _, h := range n.validators {
		if at, err := h.AppInfo(ctx); err == nil {
			height = max(height, at.Height)
		}
	}
	return height
}

// folder makes the folder for the homes; temporary reports whether it is to be removed at the end.
func folder(o options) (dir string, temporary bool, err error) {
	if o.Dir == "" {
		dir, err = os.MkdirTemp("", "starling-localnet-")
		return dir, !o.Keep, err
	}
	if dir, err = filepath.Abs(o.Dir); err != nil {
		return "", false, err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return "", false, fmt.Errorf("--dir %s is not empty: name a new folder, or remove it", o.Dir)
	}
	return dir, false, os.MkdirAll(dir, 0o755)
}

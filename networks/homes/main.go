// Command homes creates the homes of the networks in this folder, for containers that reach each
// other by name.
//
//	homes/validator-0 … ◄─┐
//	homes/liar            ├── one genesis file, persistent_peers = ID@validator-0:26656, …
//	homes/joiner        ◄─┘   (or ID@relay:port if the network has a relay: networks/wan)
//	.env                      the user who runs the containers and owns the homes
//	homes/relay.json, homes/delays.json      with --relay: the relay's listening addresses and its delays
//
// Run it in the folder of a compose file. Existing homes are kept, so a network resumes where it
// stopped.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/e2e/testnet"
)

const (
	snapshotInterval = 20
	chunkBytes       = 16 << 10

	// containerUser, the image's user, owns the homes if root runs this command: a node does not
	// need root.
	containerUser = 65532

	relayHost = "relay"
)

type options struct {
	dir, starlingd, chainID string
	validators              int
	relay                   bool
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", ".", "folder of the compose file")
	flag.StringVar(&o.starlingd, "starlingd", "", "starlingd that creates the homes (default: build it)")
	flag.StringVar(&o.chainID, "chain-id", "local-1", "chain id")
	flag.IntVar(&o.validators, "validators", 4, "number of validators")
	flag.BoolVar(&o.relay, "relay", false, "connect the nodes through a relay with the delays of networks/wan")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "homes: %v\n", err)
		os.Exit(1) //nolint:gocritic // stop only restores the default of the signals
	}
}

func (o options) run(ctx context.Context) error {
	homesDir := filepath.Join(o.dir, "homes")
	if _, err := os.Stat(homesDir); err == nil {
		fmt.Printf("%q exists and is kept (`make clean` removes it)\n", homesDir)
		return nil
	}
	if o.starlingd == "" {
		var err error
		if o.starlingd, err = runner.Program(ctx, "./cmd/starlingd"); err != nil {
			return err
		}
	}
	// Renamed once complete, so that an incomplete network is never taken for a complete one.
	unfinished, err := os.MkdirTemp(o.dir, "homes-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(unfinished) }()
	if err := o.make(ctx, unfinished); err != nil {
		return err
	}
	if err := os.Chmod(unfinished, 0o755); err != nil {
		return err
	}
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = containerUser, containerUser
		if err := runner.Own(unfinished, uid, gid); err != nil {
			return err
		}
	}
	env := fmt.Sprintf("# Made by networks/homes: the user that owns the homes and runs the nodes.\nSTARLING_UID=%d\nSTARLING_GID=%d\n", uid, gid)
	if err := os.WriteFile(filepath.Join(o.dir, ".env"), []byte(env), 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished, homesDir)
}

// make creates the homes in dir.
func (o options) make(ctx context.Context, dir string) error {
	m := &manifest.Manifest{ChunkBytes: chunkBytes, SnapshotInterval: snapshotInterval, BlockPause: manifest.Duration(time.Second),
		Nodes: map[string]manifest.Node{"liar": {Mode: manifest.Full}, "joiner": {Mode: manifest.Full, StartAt: 1}}}
	for i := range o.validators {
		m.Nodes[fmt.Sprintf("validator-%d", i)] = manifest.Node{}
	}
	if o.relay {
		m.Link.Delay = manifest.Duration(farthest)
	}
	m.Complete()
	n, err := testnet.Make(ctx, testnet.Options{
		Manifest: m, Programs: testnet.Programs{Starlingd: o.starlingd}, Dir: dir, ChainID: o.chainID,
		Open: true, // so that `curl …/broadcast_tx_commit?tx="name=value"` works
	})
	if err != nil {
		return err
	}
	for _, node := range n.Nodes() {
		// No port of this machine is reserved: the compose file publishes the ports.
		if err := node.Home.ServeAt(testnet.ListenInContainer); err != nil {
			return err
		}
	}
	if !o.relay {
		return testnet.NameContainers(n.Nodes())
	}
	links, err := testnet.RelayContainers(n.Nodes(), relayHost)
	if err != nil {
		return err
	}
	return writeRelay(dir, links)
}

// Command homes creates the homes of the networks in this folder, for containers that know each
// other by name.
//
//	homes/validator-0 … ◄─┐
//	homes/liar            ├── one genesis file, persistent_peers = ID@validator-0:26656, …
//	homes/joiner        ◄─┘   (or ID@relay:port if the network has a relay: networks/wan)
//	.env                      the user that the containers run as, who owns the homes
//	homes/relay.json, homes/delays.json      with --relay: where the relay listens, and its delays
//
// It is run in the folder of a compose file. Homes that exist are kept, so a network resumes where
// it was.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/e2e/runner"
)

// listen is where every node listens inside its container.
var listen = runner.Listen{P2P: "0.0.0.0" + p2pPort, RPC: "0.0.0.0:26657", Metrics: "0.0.0.0:26660"}

const (
	p2pPort = ":26656"

	snapshotInterval = 20
	chunkBytes       = 16 << 10

	// containerUser, the image's own user, owns the homes if root runs this: a node need not be
	// root.
	containerUser = 65532
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
	flag.BoolVar(&o.relay, "relay", false, "let nodes reach each other through a relay, at the distances of networks/wan")
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
	// so that half a network is never mistaken for a whole one
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
	names := []string{"liar", "joiner"}
	for i := range o.validators {
		names = append(names, fmt.Sprintf("validator-%d", i))
	}
	var homes []*runner.Home
	for _, name := range names {
		home := filepath.Join(dir, name)
		h, err := runner.InitHome(ctx, name, home, o.starlingd, "init", name, "--chain-id", o.chainID, "--home", home)
		if err != nil {
			return err
		}
		homes = append(homes, h)
	}
	liar, joiner, validators := homes[0], homes[1], homes[2:]
	_, err := runner.Genesis(validators, homes[:2], o.chainID, app.Genesis{
		ChunkBytes: chunkBytes, SnapshotInterval: snapshotInterval,
		Open:   true, // so that `curl …/broadcast_tx_commit?tx="name=value"` works
		Admins: []string{}, Grants: []app.GenesisGrant{},
	})
	if err != nil {
		return err
	}
	reach := func(_, to *runner.Home) string { return to.Name + p2pPort }
	var r relay
	if o.relay {
		reach = r.link
	}
	for i, h := range validators {
		// Of two validators only one dials the other: if both dial at once, both can fail, and then
		// wait for seconds.
		if err := configure(h, validators[:i], reach); err != nil {
			return err
		}
	}
	if err := configure(liar, validators, reach); err != nil {
		return err
	}
	if err := configure(joiner, append([]*runner.Home{liar}, validators...), reach); err != nil {
		return err
	}
	if o.relay {
		return r.write(dir)
	}
	return nil
}

// configure makes a node listen inside its container, and dial its peers at the addresses that
// reach returns.
func configure(h *runner.Home, peers []*runner.Home, reach func(from, to *runner.Home) (address string)) error {
	// no port of this machine is reserved: the compose file names the ports
	if err := h.ServeAt(listen); err != nil {
		return err
	}
	names := make([]string, 0, len(peers))
	for _, peer := range peers {
		names = append(names, peer.PeerAt(reach(h, peer)))
	}
	return h.Configure(func(c *cfg.Config) { c.P2P.PersistentPeers = strings.Join(names, ",") })
}

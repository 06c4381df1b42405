// Command localnet demonstrates Starling: it runs a network on this machine with some Byzantine
// peers, and a node that joins it.
//
//	validator-0 … validator-N       make blocks, hold the keys, serve headers and snapshots
//	     │    ▲                │
//	     │    │ follow         │ headers, chunks
//	liar-0 … liar-L            ▼
//	     └─ damaged chunks ─► joiner    verifies each chunk on arrival, bans Byzantine peers, reaches the validators' state
//
// Every node is a separate process, and nothing is simulated. This program contains starlingd and
// the Byzantine peer (e2e/byzantine/peer), and starts itself again under their names, so that one
// build is enough. All nodes listen on loopback only, and end with this program.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/cmd/starlingd/cli"
	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/e2e/byzantine/peer"
)

// options holds the command line's flags.
type options struct {
	Validators int
	Liars      int
	Keys       int
	Exit       bool
	JSON       string
	Seed       uint64
	Dir        string
	Keep       bool
	Lie        string
	Timeout    time.Duration
	InBand     bool
	Shards     int
}

// With more processes than this, a laptop spends its time switching between them; with fewer keys,
// there is nothing to join.
const (
	maxValidators = 32
	maxLiars      = 16
	minKeys       = 100
	maxKeys       = 2_000_000
	maxShards     = 16
)

func (o options) check() error {
	switch {
	case o.Validators < 1 || o.Validators > maxValidators:
		return fmt.Errorf("--validators is %d, it must be from 1 to %d", o.Validators, maxValidators)
	case o.Liars < 0 || o.Liars > maxLiars:
		return fmt.Errorf("--liars is %d, it must be from 0 to %d", o.Liars, maxLiars)
	case o.Keys < minKeys || o.Keys > maxKeys:
		return fmt.Errorf("--keys is %d, it must be from %d to %d", o.Keys, minKeys, maxKeys)
	case o.Shards < 0 || o.Shards > maxShards:
		return fmt.Errorf("--shards is %d, it must be from 0 (each node has the whole state) to %d", o.Shards, maxShards)
	case o.Shards > 0 && o.Liars > 0:
		return errors.New("--liars needs chunks to damage, and --shards fetches none: use only one of the two")
	case o.Shards > 0 && o.InBand:
		return errors.New("--in-band uses CometBFT's state sync, which transfers full states: omit it with --shards")
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout is %v, it must be above 0", o.Timeout)
	}
	for _, lie := range o.lies() {
		if _, err := liar.ParseMode(lie); err != nil {
			return fmt.Errorf("--lie: %w", err)
		}
	}
	return nil
}

// lies are the misbehaviours, assigned to the Byzantine peers in turn.
func (o options) lies() []string { return strings.Split(o.Lie, ",") }

// lie is the misbehaviour of Byzantine peer i.
func (o options) lie(i int) string { return o.lies()[i%len(o.lies())] }

// way names the method by which the node joins.
func (o options) way() string {
	switch {
	case o.InBand:
		return "in-band"
	case o.Shards > 0:
		return "sharded"
	}
	return "transport"
}

// provable reports whether a Byzantine peer misbehaves in a way that a joiner can prove.
func (o options) provable() bool {
	for i := range o.Liars {
		mode := liar.Mode(o.lie(i))
		// In-band, these two behave as mix does.
		if mode.Provable() || o.InBand && (mode == liar.Drip || mode == liar.Last) {
			return true
		}
	}
	return false
}

func command(run func(ctx context.Context, o options) error) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "localnet",
		Short: "A Starling network on this machine, with Byzantine peers and a node that joins",
		Long: `Starts validators and Byzantine peers on this machine, writes keys, and lets one
node join: it knows its peers and one header, fetches chunks from all of them,
verifies each on arrival and rejects the peers that sent a damaged one. The
network stays up until Ctrl-C.

With --shards, that many storage nodes keep the state, one range of keys each. All
validators except one, and the node that joins, cache only recently used keys.

Exit status: 0 the node joined and has the validators' app hash; 1 otherwise.`,
		Example: `  go run ./cmd/localnet
  go run ./cmd/localnet --validators 4 --liars 2 --keys 20000 --exit --json out.json
  go run ./cmd/localnet --shards 4`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Shards > 0 && !cmd.Flags().Changed("liars") {
				o.Liars = 0
			}
			if err := o.check(); err != nil {
				return err
			}
			return run(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Validators, "validators", 4, "number of validators")
	flags.IntVar(&o.Liars, "liars", 2, "number of Byzantine peers")
	flags.IntVar(&o.Shards, "shards", 0, "number of storage nodes that keep the state, one range each; excludes --liars")
	flags.IntVar(&o.Keys, "keys", 20_000, "number of keys written before the node joins")
	flags.BoolVar(&o.Exit, "exit", false, "exit when the node has joined")
	flags.StringVar(&o.JSON, "json", "", "write the summary to this file")
	flags.Uint64Var(&o.Seed, "seed", 1, "random seed for keys, values and misbehaviour")
	flags.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "maximum time until the node has joined (without the build)")
	flags.StringVar(&o.Dir, "dir", "", "folder for the nodes' homes, new or empty; it is kept (default: a temporary folder)")
	flags.BoolVar(&o.Keep, "keep", false, "keep the temporary folder")
	flags.StringVar(&o.Lie, "lie", string(liar.Mix), "misbehaviours, comma-separated, assigned to the Byzantine peers in turn:  "+liar.Names())
	flags.BoolVar(&o.InBand, "in-band", false, "join through CometBFT's own state sync and RPC servers")
	cmd.CompletionOptions.HiddenDefaultCmd = true
	return cmd
}

// errInterrupted reports that Ctrl-C ended the program before there was a result.
var errInterrupted = errors.New("interrupted")

// The names under which this program starts itself again (see programs).
const (
	nameStarlingd = "starlingd"
	nameByzantine = "byzantine"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case nameStarlingd:
		os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr))
	case nameByzantine:
		os.Exit(peer.Main())
	}
	// After the first signal the default handling is restored: a second Ctrl-C ends the program at
	// once (and, on Linux, the nodes with it).
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := command(demonstrate).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "localnet: %v\n", err)
		os.Exit(1)
	}
}

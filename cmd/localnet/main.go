// Command localnet shows in a minute what Starling is for: a network on this machine, some peers
// that lie, and a node that joins.
//
//	validator-0 … validator-N       make blocks, hold the keys, serve headers and snapshots
//	     │    ▲                │
//	     │    │ follow         │ headers, chunks
//	liar-0 … liar-L            ▼
//	     └─ damaged chunks ─► joiner    verifies each chunk on arrival, rejects the liars, arrives at the validators' state
//
// Every node is a process of its own (starlingd; the liars are e2e/byzantine), nothing is
// simulated. All of them listen on loopback only, and end with this program.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/e2e/byzantine/liar"
)

// options are the command line.
type options struct {
	Validators int
	Liars      int
	Keys       int
	Exit       bool
	JSON       string
	Seed       uint64
	Dir        string
	Keep       bool
	Starlingd  string
	Byzantine  string
	Lie        string
	Timeout    time.Duration
	InBand     bool
	Shards     int
}

// Bounds: more processes than this and a laptop spends its time switching between them; fewer keys
// and there is nothing to join.
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
		return errors.New("--liars damage chunks, and with --shards nobody fetches any: leave one of the two out")
	case o.Shards > 0 && o.InBand:
		return errors.New("--in-band is CometBFT's state sync, which brings whole states: leave it out with --shards")
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

// lies are the ways to lie, dealt to the liars in turn.
func (o options) lies() []string { return strings.Split(o.Lie, ",") }

// lie is how liar i lies.
func (o options) lie(i int) string { return o.lies()[i%len(o.lies())] }

// way is how the node joins.
func (o options) way() string {
	switch {
	case o.InBand:
		return "in-band"
	case o.Shards > 0:
		return "sharded"
	}
	return "transport"
}

// provable reports whether one of the liars does what a joiner can prove.
func (o options) provable() bool {
	for i := range o.Liars {
		mode := liar.Mode(o.lie(i))
		// in-band, these two serve as mix does
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
		Short: "A Starling network on this machine, with peers that lie and a node that joins",
		Long: `Starts validators on this machine, writes keys, starts lying peers, and lets one
node join: it knows its peers and one header, fetches chunks from all of them,
verifies each on arrival and rejects the liars. The network stays up until Ctrl-C.

With --shards, that many storage nodes keep the state, a range of keys each. All
validators but one, and the node that joins, have only what they used lately.

Exit status: 0 the node joined, with the validators' app hash, in spite of the
liars; 1 otherwise.`,
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
	flags.IntVar(&o.Validators, "validators", 4, "validators")
	flags.IntVar(&o.Liars, "liars", 2, "peers that serve damaged chunks")
	flags.IntVar(&o.Shards, "shards", 0, "storage nodes that keep the state, a range each; no liars then")
	flags.IntVar(&o.Keys, "keys", 20_000, "keys written before the node joins")
	flags.BoolVar(&o.Exit, "exit", false, "end when the node has joined")
	flags.StringVar(&o.JSON, "json", "", "write the summary to this file")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of keys, values and lies")
	flags.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "give up when the node has not joined by then (the build is not counted)")
	flags.StringVar(&o.Dir, "dir", "", "folder for the nodes' homes, new or empty, which is kept (default: a temporary one)")
	flags.BoolVar(&o.Keep, "keep", false, "keep the temporary folder")
	flags.StringVar(&o.Lie, "lie", string(liar.Mix), "how the liars lie, in turn if there is a comma: "+liar.Names())
	flags.BoolVar(&o.InBand, "in-band", false, "join by CometBFT's own state sync and RPC servers")
	flags.StringVar(&o.Starlingd, "starlingd", "", "starlingd to use (default: build it)")
	flags.StringVar(&o.Byzantine, "byzantine", "", "lying node to use (default: build it)")
	cmd.CompletionOptions.HiddenDefaultCmd = true
	return cmd
}

// errInterrupted is the end by Ctrl-C before there was a result.
var errInterrupted = errors.New("interrupted")

func main() {
	// After the first signal the default is back: a second Ctrl-C ends the program at once (and, on
	// Linux, the nodes with it).
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := command(demonstrate).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "localnet: %v\n", err)
		os.Exit(1)
	}
}

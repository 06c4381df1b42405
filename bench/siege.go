package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/syncbench"
)

func newSiege() *cobra.Command {
	var (
		o           syncbench.SiegeOptions
		kinds, file string
	)
	cmd := &cobra.Command{
		Use:   "siege",
		Short: "A join, and a validator, among attackers of each kind",
		Long: `Measures joins among attackers: 40 peers that send the true manifest at 64 bytes a
second (dawdle), 40 that lie (garbage), 128 that give one true chunk each (sybils), a
slow proxy under the honest peer's id (proxy). Then a validator that commits blocks
and serves an honest joiner, besieged by silent connections (pending), idle ones
(idle), requests for single bytes (bytes), bodies that never come (bodies), and answers
that nobody reads (unread); all of a side at once (mixed). The attackers are a process
of their own, at loopback addresses 127.0.0.x of their own, which Linux has. Last, a
network of four validators whose state does not fit their memory takes transactions of
10,000 deletes of absent keys each (transactions).`,
		Example: `  go run . siege --json siege.json
  go run . siege --kinds pending,mixed
  go run . siege --keys 100000 --repeat 1 --blocks 30`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Kinds = list(kinds)
			if err := o.Check(); err != nil {
				return fmt.Errorf("%w; 'starling-bench siege --help' shows examples", err)
			}
			return measure(cmd, file, func(ctx context.Context, p *harness.Progress) (*syncbench.SiegeResult, error) {
				return syncbench.RunSiege(ctx, o, p)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Keys, "keys", 1_000_000, "keys of the state")
	flags.StringVar(&kinds, "kinds", strings.Join(syncbench.Kinds(), ","), "attackers, one row each")
	flags.IntVar(&o.Repeat, "repeat", 3, "joins of each row, whose median counts, and rounds of blocks")
	flags.IntVar(&o.Blocks, "blocks", 100, "blocks of a besieged validator in each round")
	flags.Float64Var(&o.Limit, "limit", 120, "seconds after which a join counts as one that does not end")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the keys and values, and of the order in which peers are told")
	flags.StringVar(&file, "json", "", "write the result to this file, too")
	flags.StringVar(&o.Dir, "dir", "", "folder for databases, which are removed afterwards (default: the system's temporary folder)")
	return cmd
}

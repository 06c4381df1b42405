package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/fabric"
)

func newRDMACmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rdma",
		Short:   "Check what this machine lacks for answers past TLS, by RDMA",
		Example: `  starlingd-rdma rdma check`,
		RunE:    group,
	}
	cmd.AddCommand(newRDMACheckCmd(env))
	return cmd
}

// rdmaReport is the result of `rdma check`.
type rdmaReport struct {
	Findings []fabric.Finding `json:"findings"`
	Peer     string           `json:"peer,omitempty"` // that was given
	From     string           `json:"from,omitempty"` // the address that the path to it was from
	// MTU and PeerMTU are the largest packets of the ports here and at the peer, in bytes.
	MTU     int    `json:"mtu,omitempty"`
	PeerMTU int    `json:"peer_mtu,omitempty"`
	Error   string `json:"error,omitempty"` // why there is no path
}

func newRDMACheckCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "check [ID@HOST:PORT]",
		Short: "Say what is there, what lacks, and what to do",
		Long: `Looks at what paths by RDMA need on this machine: the program, the library, devices, one
that has an address of the transport, memory that may be locked, huge pages. With the
transport of a peer it also makes a path to that, with the node key and the chain of this
home. Nothing that runs is disturbed. Exit status 1: no path can be made.`,
		Example: `  starlingd-rdma rdma check
  starlingd-rdma rdma check ID@10.7.0.2:26666`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			conf, err := config.Load(env.Home, env.V)
			if err != nil {
				return err
			}
			var r rdmaReport
			found, failed := fabric.Check(conf)
			r.Findings = found
			if failed == nil && len(args) > 0 {
				genesis, err := config.LoadGenesis(conf.CometBFT.GenesisFile())
				if err != nil {
					return err
				}
				r.Peer = args[0]
				var way fabric.Way
				way, failed = fabric.Probe(cmd.Context(), conf, genesis.ChainID, r.Peer)
				r.From, r.MTU, r.PeerMTU = way.From, way.MTU, way.PeerMTU
				if errors.Is(failed, fabric.ErrAddress) {
					return usageError{failed}
				}
			}
			if failed != nil {
				r.Error = failed.Error()
			}
			if err := writeRDMA(env, r); err != nil {
				return err
			}
			return failed
		},
	}
}

func writeRDMA(env *cliEnv, r rdmaReport) error {
	if env.JSON() {
		return writeJSON(env.Out, r)
	}
	table := tabwriter.NewWriter(env.Out, 0, 8, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Verdict, f.What, f.Text)
		if f.Mend != "" {
			fmt.Fprintf(table, "\t\tto mend it: %s\n", f.Mend)
		}
	}
	if r.From != "" {
		fmt.Fprintf(table, "ok\tpath to %s\tit is up, from %s, %s\n", harmless(r.Peer), r.From, packets(r.MTU, r.PeerMTU))
	}
	return table.Flush()
}

// packets says how large those of a path are, and which side's port limits them.
func packets(here, peer int) string {
	switch {
	case here < peer:
		return fmt.Sprintf("with packets of %d bytes: the MTU here limits them, the peer takes %d", here, peer)
	case peer < here:
		return fmt.Sprintf("with packets of %d bytes: the peer's MTU limits them, %d would do here", peer, here)
	}
	return fmt.Sprintf("with packets of %d bytes, which is what both ports take", here)
}

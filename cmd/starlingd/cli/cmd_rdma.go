package cli

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
		Short:   "Check the prerequisites of RDMA on this machine",
		Example: `  starlingd-rdma rdma check`,
		RunE:    group,
	}
	cmd.AddCommand(newRDMACheckCmd(env))
	return cmd
}

// rdmaReport is the result of `rdma check`.
type rdmaReport struct {
	Findings []fabric.Finding `json:"findings"`
	Peer     string           `json:"peer,omitempty"` // as given on the command line
	From     string           `json:"from,omitempty"` // local address of the channel to the peer
	// MTU and PeerMTU are the maximum packet sizes of the local port and the peer's, in bytes.
	MTU     int    `json:"mtu,omitempty"`
	PeerMTU int    `json:"peer_mtu,omitempty"`
	Error   string `json:"error,omitempty"` // why no channel could be established
}

func newRDMACheckCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "check [ID@HOST:PORT]",
		Short: "Report what is present, what is missing, and how to fix it",
		Long: `Checks the prerequisites of RDMA on this machine: the program, the library, devices, a
device with the transport's address, the limit of locked memory, and huge pages. Given a
peer's transport, it also establishes an RDMA channel to that peer, with the node key and
the chain id of this home. Running nodes are not disturbed. Exit status 1: RDMA is not
possible.`,
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
		if f.Fix != "" {
			fmt.Fprintf(table, "\t\tfix: %s\n", f.Fix)
		}
	}
	if r.From != "" {
		fmt.Fprintf(table, "ok\tchannel to %s\testablished from %s, %s\n", harmless(r.Peer), r.From, packets(r.MTU, r.PeerMTU))
	}
	return table.Flush()
}

// packets describes the packet size of a channel, and the side whose port limits it.
func packets(here, peer int) string {
	switch {
	case here < peer:
		return fmt.Sprintf("packets of %d bytes: limited by the local MTU, the peer supports %d", here, peer)
	case peer < here:
		return fmt.Sprintf("packets of %d bytes: limited by the peer's MTU, the local port supports %d", peer, here)
	}
	return fmt.Sprintf("packets of %d bytes, the MTU of both ports", here)
}

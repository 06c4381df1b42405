// Command starling-bench measures Starling side by side with its peers.
//
//	starling-bench
//	├── tree       the tree alone, against memiavl and IAVL v1               treebench
//	├── storage    the storage zones, against one mixed Pebble and goleveldb storagebench
//	├── sync       a new node's state, against the SDK's store and memiavl   syncbench
//	├── cosmos     an SDK node's home by verified chunks, against its snapshots syncbench
//	│              operations of IAVL's, memiavl's and our store under the SDK opsbench
//	├── byzantine  a join from many peers, of which some lie                 syncbench
//	├── hiccup     the commits of a validator while nodes join from it       syncbench
//	├── siege      a join and a validator among attackers of each kind        syncbench
//	├── relay      a large block's way to the validators, by p2p and past it  relaybench
//	├── dsm        a state sharded over storage nodes, against local mode      dsmbench
//	├── e2e        a network of validators, against CometBFT's kvstore       e2ebench
//	├── joiners    the blocks of a network while many nodes join at once     e2ebench
//	├── join       the blocks of a chain, over the transport and by block sync  joinbench
//	├── client     the operations of a client, against etcd                   clientbench
//	├── watch      the blocks of a node while a thousand clients watch        clientbench
//	├── tables     the table writer of a restore, against Pebble's           tablebench
//	├── transport  answers by plain sockets, TLS and RDMA                    transportbench
//	├── frames     the frames of transport/tcp, against yamux and QUIC       framebench
//	└── compare    the CPU time of two programs, two checkouts of this one   comparebench
//
// It is a module of its own, so that the peers' dependencies never reach the node's. Run it with
// "cd bench && go run . tree".
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// usage is shorter than cobra's, and ends in commands that can be run as they are.
const usage = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{- if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}
{{- end}}
{{- if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
{{- end}}

Examples (in the folder bench):
{{.Example}}
`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "starling-bench",
		Short:         "Measures Starling side by side with its peers",
		Long:          "Measures Starling side by side with its peers, on the same seeded workload in one run.",
		Example:       "  go run . tree --keys 100000 --versions 200 --against memiavl",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRelay())
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetUsageTemplate(usage)
	root.AddCommand(newTree(), newTreeContestant(), newStorage(), newStorageContestant(), newSync(), newCosmos(), newOps(), newByzantine(), newHiccup(), newSiege(), newSyncContestant(), newE2E(), newJoiners(), newJoin(), newDSM(), newDSMContestant(),
		newClient(), newWatch(), newTables(), newFrames(), newTransport(), newTransportSide(), newCompare())
	return root
}

func main() {
	// After the first signal the default handling is back: a second Ctrl-C ends the program at once
	// (and, on Linux, its children with it).
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "starling-bench: %v\n", err)
		os.Exit(1)
	}
}

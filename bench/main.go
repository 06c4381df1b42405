// Command starling-bench measures Starling and comparable systems on the same workloads.
//
//	starling-bench
//	├── tree                                  treebench       the tree alone, against memiavl and IAVL v1
//	├── storage                               storagebench    the stores on disk, against mixed databases and geth's schemes
//	├── sync, byzantine, hiccup, siege        syncbench       joins, against the SDK and memiavl; Byzantine peers
//	├── cosmos                                syncbench       joins of SDK nodes by verified chunks; stores below the SDK
//	├── e2e, joiners                          e2ebench        a network of validators, against CometBFT's kvstore
//	├── snapshots, newcomer                   e2ebench        snapshots in a network, and joins by them, against an application on IAVL
//	├── client, watch, latency, timeline      clientbench     clients, against etcd and kvstore
//	├── faults                                clientbench     a faulty validator, against CometBFT's kvstore
//	├── dsm                                   dsmbench        a state sharded over storage nodes, against full-state nodes
//	├── programs                              programsbench   transfers of a token by contracts, alone and in a sharded network
//	├── join                                  joinbench       fetching a chain's blocks, by transport and by block sync
//	├── relay                                 relaybench      the propagation of large blocks to validators
//	├── papers                                papersbench     the figures of the four papers, as pictures
//	├── transport                             transportbench  responses over sockets, TLS and RDMA
//	└── draw                                  pictures        pictures of recorded runs, for docs
//
// The package harness has the shared code, workload the keys and values, network the nodes, guest
// the VM with RDMA. The other systems run as child processes: this program itself (contestant), or
// the programs etcdstore, iavlnode and sdk, which is a module of its own.
//
// This is a module of its own, so that the other systems' dependencies never become the node's. Run
// it with "cd bench && go run . tree".
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/clientbench"
	"github.com/starling-kv/starling/bench/dsmbench"
	"github.com/starling-kv/starling/bench/e2ebench"
	"github.com/starling-kv/starling/bench/joinbench"
	"github.com/starling-kv/starling/bench/papersbench"
	"github.com/starling-kv/starling/bench/programsbench"
	"github.com/starling-kv/starling/bench/relaybench"
	"github.com/starling-kv/starling/bench/storagebench"
	"github.com/starling-kv/starling/bench/syncbench"
	"github.com/starling-kv/starling/bench/transportbench"
	"github.com/starling-kv/starling/bench/treebench"
)

// usage is shorter than cobra's, and ends with commands that run as printed.
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

Example (in the folder bench):
{{.Example}}
`

// children maps the argument after harness.ChildCommand to the function that the child process
// runs.
var children = map[string]func(in io.Reader, out io.Writer) error{
	dsmbench.ChildName: dsmbench.Serve, joinbench.ChildName: joinbench.Serve, storagebench.ChildName: storagebench.Serve, syncbench.ChildName: syncbench.Serve,
	transportbench.ChildName: transportbench.Serve, treebench.ChildName: treebench.Serve,
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "starling-bench",
		Short:         "Measures Starling and comparable systems",
		Long:          "Measures Starling and comparable systems on the same seeded workload, in one run.",
		Example:       "  go run . tree --keys 100000 --versions 200 --against memiavl",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetUsageTemplate(usage)
	root.AddCommand(newChild(), newDraw(),
		benchmark("tree", "Measures load, commits, gets, proofs and memory of the tree, against memiavl and IAVL v1",
			"tree --keys 100000 --versions 200 --iavl-versions 20", treebench.Run),
		benchmark("storage", "Measures replays of a chain and reads, with Starling's stores and with databases of IAVL nodes",
			"storage --quick --only write,reads", storagebench.Run),
		benchmark("start", "Measures how long a node takes to start after a crash, with its state in memory and paged",
			"start --keys 100000", storagebench.RunStart),
		benchmark("sync", "Measures how long a new node takes to get its state, against the SDK's snapshots and memiavl",
			"sync --keys 100000 --against memiavl", syncbench.Run),
		benchmark("byzantine", "Measures joins from many peers, some of which send invalid chunks",
			"byzantine --keys 100000 --peers 20 --lying 0,6,19", syncbench.RunByzantine),
		benchmark("hiccup", "Measures a validator's commits while nodes join from it, against the SDK's store",
			"hiccup --keys 100000 --blocks 100 --sdk-blocks 30", syncbench.RunHiccup),
		benchmark("siege", "Measures a join and a validator under each kind of attack, or a sharded network",
			"siege --keys 100000 --repeat 1 --blocks 30", syncbench.RunSiege),
		benchmark("cosmos", "Measures joins of an SDK node by verified chunks, against the SDK's snapshots, and stores below the SDK",
			"cosmos --keys 100000 --engines goleveldb", syncbench.RunCosmos),
		benchmark("e2e", "Measures the throughput and latency of a network, against CometBFT's kvstore",
			"e2e --rounds 1 --seconds 5", e2ebench.Run),
		benchmark("joiners", "Measures a network's block times while many nodes join it at the same time",
			"joiners --joiners 4 --keys 2000", e2ebench.RunJoiners),
		benchmark("snapshots", "Measures a network's throughput and latency with and without snapshots, against an application on IAVL",
			"snapshots --keys 10000 --rounds 1 --seconds 10 --timeout-commit 100ms", e2ebench.RunSnapshots),
		benchmark("newcomer", "Measures how long a new node takes to join a network by snapshots, against an application on IAVL",
			"newcomer --keys 10000 --rounds 1 --timeout-commit 100ms", e2ebench.RunNewcomer),
		benchmark("client", "Measures client operations on a network, against etcd",
			"client --rounds 1 --seconds 2", clientbench.Run),
		benchmark("latency", "Measures how long writes and newest reads take, against CometBFT's kvstore and etcd",
			"latency --rounds 1 --seconds 2", clientbench.RunLatency),
		benchmark("faults", "Measures what a faulty validator costs, against CometBFT's kvstore",
			"faults --rounds 1 --seconds 2", clientbench.RunFaults),
		benchmark("timeline", "Measures where the time of a put goes, step by step",
			"timeline --seconds 3 --validators 4 --delays 0,20", clientbench.RunTimeline),
		benchmark("watch", "Measures what watchers cost a node, and how fast a watcher catches up",
			"watch --rounds 1 --seconds 5 --watchers 100 --heights 100", clientbench.RunWatch),
		benchmark("dsm", "Measures a state sharded over storage nodes, against full-state nodes",
			"dsm --quick", dsmbench.Run),
		benchmark("programs", "Measures programs: transfers of a token, by an application alone and in networks",
			"programs --quick", programsbench.Run),
		benchmark("join", "Measures how fast a new node fetches a chain's blocks: over the transport (TCP, RDMA) and by block sync",
			"join --blocks 40", joinbench.Run),
		benchmark("relay", "Measures the propagation of large blocks to validators: over p2p, and by transport.relay (TCP, RDMA)",
			"relay --rounds 1 --blocks 2 --block-bytes 256KiB,1MiB", relaybench.Run),
		benchmark("papers", "Measures the figures of the four papers, and draws them",
			"papers --quick --only avlstar/space", papersbench.Run),
		benchmark("transport", "Measures rates and CPU time of responses over plain sockets, TLS and RDMA",
			"transport --sizes 64KiB,1MiB --peers 1,4 --rounds 1", transportbench.Run))
	return root
}

func main() {
	// After the first signal, the default handling is restored: a second Ctrl-C ends the program at
	// once (and, on Linux, its children).
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "starling-bench: %v\n", err)
		os.Exit(1)
	}
}

// Command starling-iavl serves the state of a stopped node of a Cosmos SDK chain, and creates the
// databases of a new node from such servers, which need not be trusted.
//
//	stopped node or a copy of it                               new node
//	  data/application.db ─ serve ─▶ manifest, chunks ─ join ─▶ data/application.db ─▶ simd start
//	  data/blockstore.db  ─ serve ─▶ headers, commits ─ join ─▶ the app hash that proves them;
//	                                                            data/state.db, data/blockstore.db
//
// It cannot run as a sidecar, because only one process can open the databases. See
// docs/how-to/cosmos-join.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/starling-kv/starling/cosmos/join"
	"github.com/starling-kv/starling/statesync/lightblocks"
)

const usage = `usage:
  starling-iavl serve --home DIR [--laddr HOST:PORT]
      serve the newest states of a stopped node, or of a copy of its home
  starling-iavl join --home DIR --chain-id ID --peers ID@HOST:PORT,… --trust-height N --trust-hash HEX
      create the databases of a new node from servers; a killed join resumes

"starling-iavl serve --help" and "starling-iavl join --help" list all flags.

example:
  starling-iavl join --home ~/.simapp --chain-id demo-1 --peers 10.0.0.1:26666 \
    --trust-height 1200 --trust-hash 5D3C…
`

// errUsage reports invalid arguments. The message has been written already.
var errUsage = errors.New("invalid arguments")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	status := exitStatus(err)
	if status != 0 && !errors.Is(err, errUsage) {
		fmt.Fprintf(os.Stderr, "starling-iavl: %v\n", err)
	}
	os.Exit(status)
}

// Exit statuses, as those of starlingd (docs/reference/errors.md).
const (
	exitFailed  = 1
	exitUsage   = 2
	exitRefused = 3 // peers have answered, and none can prove a state
	exitFull    = 5
)

// exitStatus returns the exit status for the error of run.
func exitStatus(err error) int {
	var end *join.PeersError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, lightblocks.ErrConflict):
		return exitRefused
	case errors.Is(err, errUsage), errors.Is(err, lightblocks.ErrTrustMismatch), errors.Is(err, lightblocks.ErrTrustExpired):
		return exitUsage
	case full(err):
		return exitFull
	case !errors.As(err, &end), errors.Is(err, join.ErrStalled):
		return exitFailed
	case allStrangers(end):
		return exitUsage
	case slices.ContainsFunc(end.Peers, func(p join.Peer) bool { return p.ID != "" }):
		return exitRefused
	}
	return exitFailed
}

// allStrangers reports whether no peer is the node that the command line names.
func allStrangers(end *join.PeersError) bool {
	return errors.Is(end, join.ErrNoPeers) && !slices.ContainsFunc(end.Peers, func(p join.Peer) bool { return p.ID != "" })
}

// run runs a command until it is done or ctx ends. A server then returns nil.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "serve":
		return runServe(ctx, args, stdout, stderr)
	case "join":
		return runJoin(ctx, args, stdout, stderr)
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
		return nil
	}
	fmt.Fprint(stderr, usage)
	return errUsage
}

// help formats a command's flags as in the documentation, with two dashes.
func help(flags *flag.FlagSet) string {
	var b strings.Builder
	fmt.Fprintf(&b, "flags of starling-iavl %s:\n", flags.Name())
	flags.VisitAll(func(f *flag.Flag) {
		kind, text := flag.UnquoteUsage(f)
		fmt.Fprintf(&b, "  %s\n      %s", strings.TrimSpace("--"+f.Name+" "+kind), text)
		if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "false" {
			fmt.Fprintf(&b, " (default: %s)", f.DefValue)
		}
		b.WriteString("\n")
	})
	return b.String()
}

// parse parses flags, and fails if a required one is empty. It returns flag.ErrHelp after writing
// the help; the caller then has nothing left to do.
func parse(flags *flag.FlagSet, args []string, stdout, stderr io.Writer, needed ...string) error {
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, help(flags))
		return flag.ErrHelp
	} else if err != nil {
		fmt.Fprintf(stderr, "starling-iavl %s: %v\n\n%s", flags.Name(), err, help(flags))
		return errUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "starling-iavl %s: unexpected argument %q\n", flags.Name(), flags.Arg(0))
		return errUsage
	}
	for _, name := range needed {
		if v := flags.Lookup(name).Value.String(); v == "" || v == "0" {
			fmt.Fprintf(stderr, "starling-iavl %s: --%s is required (\"starling-iavl %s --help\" lists all flags)\n", flags.Name(), name, flags.Name())
			return errUsage
		}
	}
	return nil
}

// Command joining prepares and sums up a join in the networks of this folder: it fills the state,
// and summarises the joining node's log.
//
//	joining fill http://127.0.0.1:26657 …     writes keys through these nodes, and waits for a snapshot that has them
//	docker compose logs -f joiner | joining seen     waits until the join ends
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"

	"github.com/starling-kv/starling/e2e/runner"
)

// timeout limits each of the two commands.
const timeout = 10 * time.Minute

// snapshotInterval is the one of networks/homes.
const snapshotInterval = 20

func main() {
	var f filling
	flag.IntVar(&f.keys, "keys", 4000, "number of keys that fill writes")
	flag.IntVar(&f.valueBytes, "value-bytes", 1000, "length of each value, in bytes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not done within %s", timeout))
	defer cancel()
	var err error
	switch {
	case flag.Arg(0) == "fill" && flag.NArg() > 1:
		err = f.run(ctx, flag.Args()[1:])
	case flag.Arg(0) == "seen" && flag.NArg() == 1:
		err = seen(ctx, os.Stdin, os.Stdout)
	default:
		err = errors.New("usage: joining [flags] fill RPC… | joining seen")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "joining: %v\n", err)
		os.Exit(1) //nolint:gocritic // what is deferred ends with the process
	}
}

// filling describes the keys that fill writes.
type filling struct{ keys, valueBytes int }

// pair returns the i-th key and value.
func (f filling) pair(i int) (key, value string) {
	return fmt.Sprintf("fill/%06d", i), fmt.Sprintf("%0*d", f.valueBytes, i)
}

// run writes the keys, unless the last one exists, and returns once a snapshot contains them.
func (f filling) run(ctx context.Context, addresses []string) error {
	nodes := make([]*rpchttp.HTTP, len(addresses))
	for i, address := range addresses {
		var err error
		if nodes[i], err = rpchttp.New(address, "/websocket"); err != nil {
			return err
		}
	}
	there := func(i int) bool {
		key, _ := f.pair(i)
		answer, err := nodes[0].ABCIQuery(ctx, "/key", []byte(key))
		return err == nil && len(answer.Response.Value) > 0
	}
	for _, n := range nodes {
		if err := runner.Poll(ctx, "a node to make blocks", func() bool {
			status, err := n.Status(ctx)
			return err == nil && !status.SyncInfo.CatchingUp && status.SyncInfo.LatestBlockHeight > 0
		}); err != nil {
			return err
		}
	}
	for i := range f.keys {
		if there(f.keys - 1) {
			break
		}
		key, value := f.pair(i)
		send := func() bool {
			answer, err := nodes[i%len(nodes)].BroadcastTxSync(ctx, []byte(key+"="+value))
			return err == nil && answer.Code == 0 || err != nil && strings.Contains(err.Error(), "already exists in cache")
		}
		// its mempool may be full
		if err := runner.Poll(ctx, "a node to take "+key, send); err != nil {
			return err
		}
	}
	for i := range f.keys {
		if err := runner.Poll(ctx, "the keys to be in blocks", func() bool { return there(i) }); err != nil {
			return err
		}
	}
	status, err := nodes[0].Status(ctx)
	if err != nil {
		return err
	}
	written := status.SyncInfo.LatestBlockHeight
	snapshot := (written + snapshotInterval - 1) / snapshotInterval * snapshotInterval
	fmt.Printf("%d keys with %.1f MB are written; waiting for the snapshot at height %d\n", f.keys, float64(f.keys*f.valueBytes)/1e6, snapshot)
	return runner.Poll(ctx, "the snapshot", func() bool {
		status, err := nodes[0].Status(ctx)
		return err == nil && status.SyncInfo.LatestBlockHeight > snapshot+2
	})
}

// seen summarises a joining node's log, and returns once the state is restored. Lines may have a
// prefix that ends with "| ".
func seen(ctx context.Context, log io.Reader, to io.Writer) error {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(log); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case text, more := <-lines:
			if !more {
				return errors.New("the log has ended before the join did")
			}
			if _, line, found := strings.Cut(text, "| "); found {
				text = line
			}
			l, ok := runner.ParseLine(text)
			switch {
			case !ok:
			case strings.HasPrefix(l.Message, runner.LogRestoring):
				fmt.Fprintf(to, "the joiner restores the snapshot at height %s: %s chunks\n", l.Fields["height"], l.Fields["chunks"])
			case strings.HasPrefix(l.Message, runner.LogBanned):
				fmt.Fprintf(to, "the joiner bans the peer %s: %s\n", l.Fields["peer"], l.Fields["reason"])
			case strings.HasPrefix(l.Message, runner.LogRestored):
				fmt.Fprintf(to, "restored in %s s: %d chunks with %.1f MB verified, %d rejected, peers banned: %d\n",
					l.Fields["seconds"], l.Int("chunks"), float64(l.Int("bytes"))/1e6, l.Int("rejected"), l.Int("banned"))
				if l.Int("banned") == 0 {
					fmt.Fprintln(to, "no invalid chunk was received: the join ended before the Byzantine peer answered (`make rejoin` tries again)")
				}
				return nil
			}
		}
	}
}

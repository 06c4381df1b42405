// Command relay forwards the connections between the nodes of a test network, and delays, throttles
// or cuts them as a test requires.
//
//	relay --config relay.json ──► listeners of all links (e2e/relay/link), and the control endpoint that changes them
//
// It exits on SIGTERM or SIGINT.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/starling-kv/starling/e2e/relay/link"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "relay: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("relay", flag.ContinueOnError)
	path := flags.String("config", "", "JSON file with control address and links")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *path == "" || flags.NArg() > 0 {
		return errors.New("usage: relay --config FILE")
	}
	config, err := link.ReadConfig(*path)
	if err != nil {
		return err
	}
	relay, err := link.New(config)
	if err != nil {
		return err
	}
	defer relay.Close()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", config.Control)
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	const patience = 10 * time.Second
	server := &http.Server{Handler: relay.Handler(), ReadTimeout: patience, WriteTimeout: patience}
	stopped := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = server.Close()
	})
	fmt.Fprintf(os.Stderr, "relay: %d links, control at http://%s\n", len(config.Links), listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-stopped
	return nil
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/cometbft/cometbft/p2p"

	cmted25519 "github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/cosmos/codefiles"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/serve"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

func runServe(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	home := flags.String("home", "", "home folder of a stopped node, or of a copy of it")
	laddr := flags.String("laddr", ":26666", "listen address")
	chainID := flags.String("chain-id", "", "chain ID (default: that of the home's blocks)")
	heights := flags.Int("heights", 3, "number of newest states to serve; pruned states are skipped")
	rate := flags.Int64("rate", 0, "rate limit in bytes per second, over all joiners; 0: no limit")
	keyFile := flags.String("key", "", "file with the server's key, created if it does not exist (default: a new key at each start)")
	if err := parse(flags, args, stdout, stderr, "home", "heights"); err != nil {
		return err
	}
	app, err := openApplication(*home)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.Close()) }()
	mux := &transport.Mux{}
	c, err := openChain(*home)
	if err != nil {
		return err
	}
	if c == nil {
		fmt.Fprintln(stderr, "no headers are served, because the home has no readable blocks: joiners need --rpc")
		if *chainID == "" {
			return errors.New("the chain ID is unknown: set --chain-id")
		}
	} else {
		defer func() { err = errors.Join(err, c.Close()) }()
		if *chainID == "" {
			*chainID = c.id
		}
		lightblocks.NewServer(lightblocks.ServerOptions{ChainID: c.id, Blocks: c.blocks, States: c.states}).Register(mux)
	}
	s := serve.New()
	s.Failed = func(err error) { fmt.Fprintf(stderr, "a request failed: %v\n", err) }
	s.Register(mux)
	codefiles.NewServer(*home).Register(mux)
	if err := addStates(s, reads(app), *heights, stderr); err != nil {
		return err
	}
	key, err := serverKey(*keyFile)
	if err != nil {
		return err
	}
	server, err := tcp.Listen(*laddr, tcp.Options{Key: key, ChainID: *chainID, Handler: mux, Rate: *rate, Lanes: serve.Lanes()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	id := p2p.PubKeyToID(cmted25519.PrivKey(key).PubKey())
	fmt.Fprintf(stdout, "serving chain %s, heights %v, at %s@%s\n", *chainID, s.Offers(), id, server.Addr())
	<-ctx.Done()
	return nil
}

// addStates adds the latest state, which is required, and the earlier ones that are not pruned.
func addStates(s *serve.Server, db nodedb.DB, heights int, stderr io.Writer) error {
	latest, err := nodedb.Latest(db)
	if err != nil {
		return err
	}
	for h := latest; h > 0 && h > latest-int64(heights); h-- {
		state, err := nodedb.Open(db, h)
		if err == nil {
			err = s.Add(state)
		}
		switch {
		case err != nil && h == latest:
			return err
		case err != nil:
			fmt.Fprintf(stderr, "height %d is not served: %v\n", h, err)
		}
	}
	return nil
}

// Package peer is the Byzantine peer: a node that follows the chain like any other but misbehaves
// in one or more modes.
//
//	home of `starlingd init` ──► node.New(WithApp(liar.Wrap), WithTransport(liar.Over), WithPrivValidator(voter.Wrap)) ──► attack.Run
//
// or, with --storage, a storage node:
//
//	home of `starlingd storage init` ──► storagenode.New(Wrap: liar.Over)
//
// Its misbehaviours, the defence against each, and whether a joining node can prove it
// (Mode.Provable):
//
//	serves nodes that join from it (package liar)                                             stopped by
//	  mix, corrupt, truncate, swap, oversize, junk, empty   damaged chunks                    the chunk's proof           provable
//	  equivocate     another damage for each peer                                             the chunk's proof           provable
//	  stale          chunks, manifests, commitments of another height                         the height's proof          provable
//	  manifest       damaged manifests                                                        the app hash                provable
//	  commitment     a damaged commitment                                                     the app hash                provable
//	  header         damaged, cut, or other headers                                           light client verification   provable
//	  status         a status that cannot be decoded                                          strict decoding             provable
//	  alias          in-band offers that count as the honest ones                             the offer read as one string (its chunks are)
//	  lone, future   offers at heights that nobody else has, or that are years away           the newest proved header    (its chunks are)
//	  withhold, gone, last   no answer, "I do not have it", all but the last chunk            asking other peers          no
//	  slow, drip     correct data, late or at a few bytes a second                            asking a second peer        no
//
//	serves parts of a sharded state (package liar)
//	  the same modes damaged multiproofs, upper trees, outlines                               the app hash                provable
//
//	signs, if it is a validator (package voter)
//	  double-vote    two votes in one round                                                   evidence in a block         on the chain
//	  double-propose two proposals in one round, to different peers                           the round's majority        no
//	  mute           no signatures, ten of twenty heights                                     more than two thirds sign   no
//
//	answers clients (package liar)
//	  simulate       false codes, gas and keys of simulated calls                             bounds in client.Fit        no
//
//	attacks the nodes in p2p.persistent_peers (package attack)
//	  babble         meaningless p2p messages, and some that cannot be decoded                CometBFT drops it           no
//	  spam           invalid transactions                                                     CheckTx                     no
//	  flood          transport requests, as many at a time as allowed                         windows, workers            no
//	  connect        a thousand connections held, half open, closed                           limits of each host         no
//	  garbage        bytes that are not a handshake                                           limits before the handshake no
//
// cmd/localnet and the end-to-end tests start it. It is never linked into starlingd.
package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/e2e/byzantine/attack"
	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/e2e/byzantine/voter"
	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/storagenode"
)

// Main runs the command line of the process, and returns the exit status.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	err := command(os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "byzantine: %v\n", err)
		return 1
	}
	return 0
}

// options are the flags of the command line.
type options struct {
	home string
	lie  string
	seed uint64
	rpc  []string
	from string
	// a storage node, which serves a sharded state
	storage bool
	// CometBFT's node and its kvstore, instead of Starling's
	kvstore bool
}

func command(logs io.Writer) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "byzantine",
		Short: "A Starling node that serves invalid data to nodes that join, or attacks its peers",
		Example: "  starlingd init liar --chain-id demo-1 --home /tmp/liar\n  byzantine --home /tmp/liar --lie truncate\n" +
			"  byzantine --home /tmp/liar --lie mix,flood,double-vote",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := liar.ParseSet(o.lie)
			if err != nil {
				return fmt.Errorf("--lie: %w", err)
			}
			if o.storage && o.kvstore {
				return errors.New("--storage and --kvstore exclude each other")
			}
			if o.home == "" {
				return errors.New("no home folder: give --home one that `starlingd init` made, or with --kvstore one of `cometbft init`")
			}
			if o.storage {
				return runStorage(cmd.Context(), o, set, logs)
			}
			if o.kvstore {
				return runKVStore(cmd.Context(), o, set, logs)
			}
			return run(cmd.Context(), o, set, logs)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.home, "home", "", "home folder")
	flags.StringVar(&o.lie, "lie", string(liar.Mix), "modes of misbehaviour, comma-separated: "+liar.Names())
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the misbehaviour")
	flags.BoolVar(&o.storage, "storage", false, "the home is a storage node's")
	flags.BoolVar(&o.kvstore, "kvstore", false, "run CometBFT's node with its kvstore; the home is one of `cometbft init`, as for proxy_app = \"persistent_kvstore\"")
	flags.StringSliceVar(&o.rpc, "attack-rpc", nil, "RPC servers, host:port, for connect and garbage, in addition to the peers' p2p and transport")
	flags.StringVar(&o.from, "attack-from", "", "source address of the attack's sockets, such as 127.0.0.66 (Linux)")
	cmd.CompletionOptions.HiddenDefaultCmd = true
	return cmd
}

// load reads the configuration of a home.
func load(home string, logs io.Writer) (*config.Config, log.Logger, error) {
	v := viper.New()
	config.BindEnvironment(v)
	conf, err := config.Load(home, v)
	if err != nil {
		return nil, nil, err
	}
	logger, err := config.NewLogger(logs, conf.CometBFT.LogLevel, conf.CometBFT.LogFormat)
	return conf, logger, err
}

// runStorage runs a storage node until ctx ends.
func runStorage(ctx context.Context, o options, set liar.Set, logs io.Writer) error {
	mode := set.Serves()
	if mode == "" || len(set) != 1 || len(o.rpc) != 0 || o.from != "" {
		return fmt.Errorf("--lie: a storage node has one of %v, and starts no attacks", liar.Serving())
	}
	conf, logger, err := load(o.home, logs)
	if err != nil {
		return err
	}
	if mode == liar.Drip {
		conf.App.Transport.SendRatePerPeer = liar.DripRate
	}
	n, err := storagenode.New(ctx, storagenode.Options{
		Config: conf, Logger: logger, Metrics: prometheus.DefaultRegisterer, Wrap: liar.Over(mode, o.seed, report(logger)),
	})
	if err != nil {
		return err
	}
	n.Start()
	select {
	case <-ctx.Done():
	case err = <-n.Failed():
	}
	return errors.Join(err, n.Stop())
}

// report returns a function that logs an invalid response.
func report(logger log.Logger) func(liar.Lie) {
	return func(lie liar.Lie) {
		logger.Info("Misbehaving: "+lie.About, "how", string(lie.How), "height", lie.Height, "chunk", lie.Chunk, "to", string(lie.To))
	}
}

// run runs the node until ctx ends.
func run(ctx context.Context, o options, set liar.Set, logs io.Writer) error {
	conf, logger, err := load(o.home, logs)
	if err != nil {
		return err
	}
	genesis, err := config.LoadGenesis(conf.CometBFT.GenesisFile())
	if err != nil {
		return err
	}
	onto, err := attackOf(ctx, o, set, genesis.ChainID, conf.CometBFT.P2P.PersistentPeers)
	if err != nil {
		return err
	}
	if set.Has(liar.Drip) {
		conf.App.Transport.SendRatePerPeer = liar.DripRate
	}
	member := new(member)
	n, err := node.New(ctx, conf, logger, member.options(set, o.seed, logger)...)
	if err != nil {
		return err
	}
	member.set(n.Comet)
	if err := n.Start(ctx); err != nil {
		return errors.Join(err, n.Stop())
	}
	err = member.attack(ctx, onto, logger, n.Failed())
	return errors.Join(err, n.Stop())
}

// attack attacks the peers until ctx ends or the node fails.
func (m *member) attack(ctx context.Context, onto attack.Options, logger log.Logger, failed <-chan error) (err error) {
	attacking, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	onto.Peers = m.peers
	onto.Report = func(counts string) { logger.Info("Attacking", "done", counts) }
	wg.Go(func() {
		if m.follows(attacking) {
			attack.New(onto).Run(attacking)
		}
	})
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cancel()
	wg.Wait()
	return err
}

// attackOf returns the options of an attack on persistent peers.
func attackOf(ctx context.Context, o options, set liar.Set, chainID, peers string) (onto attack.Options, err error) {
	onto = attack.Options{Set: set, Seed: o.seed, ChainID: chainID, RPC: o.rpc}
	if onto.Targets, err = attack.ParseTargets(ctx, peers); err != nil {
		return onto, fmt.Errorf("p2p.persistent_peers: %w", err)
	}
	for _, server := range o.rpc {
		host, _, err := net.SplitHostPort(server)
		if err == nil {
			err = attack.CheckHost(ctx, host)
		}
		if err != nil {
			return onto, fmt.Errorf("--attack-rpc: %w", err)
		}
	}
	if o.from != "" {
		if onto.From = net.ParseIP(o.from); onto.From == nil {
			return onto, fmt.Errorf("--attack-from: %q is not an IP address", o.from)
		}
	}
	return onto, nil
}

// member holds CometBFT's node. The misbehaving parts need a reference before the node is made. mu
// guards comet.
type member struct {
	mu    sync.Mutex
	comet func() *cometnode.Node // after a state sync it returns another node
}

func (m *member) set(comet func() *cometnode.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.comet = comet
}

// instance returns CometBFT's node; nil: none yet.
func (m *member) instance() *cometnode.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.comet == nil {
		return nil
	}
	return m.comet()
}

// peers returns the peers that the node is connected to.
func (m *member) peers() []p2p.Peer {
	comet := m.instance()
	if comet == nil {
		return nil
	}
	return comet.Switch().Peers().Copy()
}

// follows waits until the node has its peers' blocks and takes part in consensus. An earlier attack
// would only harm the attacker: the peers from which it fetches blocks would drop it.
func (m *member) follows(ctx context.Context) bool {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if !m.instance().ConsensusReactor().WaitSync() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// options replaces honest parts of a node with misbehaving ones.
func (m *member) options(set liar.Set, seed uint64, logger log.Logger) []node.Option {
	report := report(logger)
	options := []node.Option{node.WithPrivValidator(func(honest types.PrivValidator) types.PrivValidator {
		return voter.Wrap(honest, set, seed, m.peers, report)
	})}
	mode := set.Serves()
	if mode != "" {
		options = append(options, node.WithTransport(liar.Over(mode, seed, report)))
	}
	return append(options, node.WithApp(func(honest abci.Application) abci.Application {
		if mode != "" {
			honest = liar.Wrap(honest, mode, seed, report)
		}
		if set.Has(liar.Simulate) {
			honest = liar.WrapSimulations(honest, seed, report)
		}
		return honest
	}))
}

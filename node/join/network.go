package join

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/restore"
	"github.com/starling-kv/starling/statesync/snapshot"
	"github.com/starling-kv/starling/statesync/view"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// ErrNoTransport: no peer's transport can be reached. Nothing was changed.
var ErrNoTransport = errors.New("no transport of a peer can be reached")

// rpcTimeout limits a call to one of statesync.rpc_servers.
const rpcTimeout = 10 * time.Second

// Own are the node's own blocks.
type Own interface {
	Blocks() (*store.BlockStore, error)
	States() (sm.Store, error)
}

// NetworkOptions configures the peers to query and the trusted header.
type NetworkOptions struct {
	Config  *config.Config
	Logger  log.Logger
	Genesis *cmttypes.GenesisDoc
	NodeKey *p2p.NodeKey
	// Addresses are the transports to begin with. Transports that they advertise are dialled as
	// well.
	Addresses []transport.Address
	// Skip is peers.Options.Skip.
	Skip func(transport.ID) bool
	// Sides makes RDMA channels, which bypass TLS; nil: none.
	Sides tcp.Sides
	// Trust is the header to begin with; nil: see Own.
	Trust *lightblocks.Options
	// Own blocks provide headers as if the node were a peer of itself, and the last header is
	// trusted if it is not too old. nil: no own blocks; the header of the [statesync] section is
	// trusted.
	Own  Own
	View *view.Join // receives the state of the peers; may be nil
	// Dialled is called with the peers, also with those that View does not receive. After they were
	// closed, it is called with nil. It may be nil.
	Dialled func(*peers.Peers)
	// Banned is called for each banned peer; may be nil.
	Banned func(id transport.ID, why statesync.BanReason)
}

// Network connects to the other nodes, over their transports and RPC servers, and verifies the
// headers that they send. Close releases it.
type Network struct {
	o        NetworkOptions
	peers    *peers.Peers
	verifier *lightblocks.Verifier
	own      *lightblocks.Server // serves the node's own headers; nil: none
	rpc      []transport.ID      // of statesync.rpc_servers, in the verifier
}

// Connect begins to dial peers and to fetch headers from all of them. It does not wait for them:
// see Reach.
func Connect(o NetworkOptions) (_ *Network, err error) {
	n := &Network{o: o}
	trust, err := n.trust()
	if err != nil {
		return nil, err
	}
	trust.ChainID, trust.Logger, trust.EvidenceDir = o.Genesis.ChainID, o.Logger, evidenceDir(o.Config)
	trust.Lied = func(id transport.ID, err error) {
		if n.peers != nil && id.Validate() == nil { // RPC servers are not peers
			n.peers.Ban(id, statesync.BanHeader, err.Error())
		}
	}
	if n.peers, err = connectPeers(o); err != nil {
		return nil, err
	}
	if n.verifier, err = lightblocks.NewVerifier(trust); err != nil {
		o.disconnect(n.peers)
		return nil, err
	}
	if err := n.addProviders(); err != nil {
		n.Close()
		return nil, err
	}
	n.peers.Watch(peers.Watcher{
		Up:   func(c transport.Conn) { n.verifier.Add(lightblocks.NewProvider(o.Genesis.ChainID, c)) },
		Down: n.verifier.Remove,
	})
	return n, nil
}

// connectPeers begins to dial peers, without fetching headers from them.
func connectPeers(o NetworkOptions) (*peers.Peers, error) {
	key, err := config.TransportKey(o.NodeKey)
	if err != nil {
		return nil, err
	}
	peers := peers.New(peers.Options{
		Logger: o.Logger, Dialer: tcp.NewDialer(tcp.Options{Key: key, ChainID: o.Genesis.ChainID, Sides: o.Sides}), Addresses: o.Addresses,
		Self: transport.ID(o.NodeKey.ID()), Banned: o.Banned, Skip: o.Skip, Strict: o.Config.CometBFT.P2P.AddrBookStrict,
	})
	if o.View != nil {
		o.View.Connecting(peers)
	}
	if o.Dialled != nil {
		o.Dialled(peers)
	}
	return peers, nil
}

// addProviders adds the sources of headers other than connected peers.
func (n *Network) addProviders() error {
	chainID := n.o.Genesis.ChainID
	for _, address := range n.o.Config.CometBFT.StateSync.RPCServers {
		p, err := lightblocks.NewRPC(chainID, address, rpcTimeout)
		if err != nil {
			return config.Invalid(fmt.Errorf("statesync.rpc_servers: %w", err))
		}
		n.verifier.Add(p)
		n.rpc = append(n.rpc, p.ID())
	}
	if n.o.Own == nil {
		return nil
	}
	// The peers may have pruned the trusted header.
	states, err := n.o.Own.States()
	if err != nil {
		return err
	}
	blocks, err := n.o.Own.Blocks()
	if err != nil {
		return err
	}
	n.own = lightblocks.NewServer(lightblocks.ServerOptions{ChainID: chainID, Blocks: blocks, States: states, Logger: n.o.Logger})
	mux := new(transport.Mux)
	n.own.Register(mux)
	n.verifier.Add(lightblocks.NewProvider(chainID, &selfConn{id: n.id(), chainID: chainID, handler: mux, done: make(chan struct{})}))
	return nil
}

// id is the node's own id.
func (n *Network) id() transport.ID { return transport.ID(n.o.NodeKey.ID()) }

// named returns the transports and RPC servers that the operator named.
func (n *Network) named() []transport.Address {
	named := slices.Clone(n.o.Addresses)
	for _, id := range n.rpc {
		named = append(named, transport.Address{ID: id})
	}
	return named
}

// evidenceDir is the folder where conflicting headers are kept.
func evidenceDir(conf *config.Config) string {
	return filepath.Join(conf.CometBFT.DBDir(), "conflicts")
}

// Forked returns an error if the home has evidence of two blocks of one height that are both
// proved: no start decides by itself which of the two chains is right. The error matches
// config.ErrInvalid and lightblocks.ErrConflict.
func Forked(conf *config.Config) error {
	err := lightblocks.Evidence(evidenceDir(conf))
	if err == nil {
		return nil
	}
	return ForkError(conf, err)
}

// ForkError adds to a lightblocks.ErrConflict what the operator has to do.
func ForkError(conf *config.Config, err error) error {
	return config.Invalid(fmt.Errorf("%w: ask the validators which chain is right, set statesync.trust_height and statesync.trust_hash to a header of it, "+
		"reset this home if it followed the other chain, and move the evidence in %q away", err, evidenceDir(conf)))
}

// trust returns the header to begin with: the last one of the node's own blocks if it is not too
// old, otherwise the configured one.
func (n *Network) trust() (lightblocks.Options, error) {
	c := n.o.Config.CometBFT.StateSync
	if n.o.Trust != nil {
		return *n.o.Trust, nil
	}
	if n.o.Own != nil {
		blocks, err := n.o.Own.Blocks()
		if err != nil {
			return lightblocks.Options{}, err
		}
		if meta := blocks.LoadBlockMeta(blocks.Height()); meta != nil && time.Since(meta.Header.Time) < c.TrustPeriod {
			return lightblocks.Options{TrustHeight: meta.Header.Height, TrustHash: meta.BlockID.Hash, TrustPeriod: c.TrustPeriod}, nil
		}
	}
	hash, err := hex.DecodeString(c.TrustHash)
	if err != nil {
		return lightblocks.Options{}, config.Invalid(fmt.Errorf("statesync.trust_hash: %w", err))
	}
	return lightblocks.Options{TrustHeight: c.TrustHeight, TrustHash: hash, TrustPeriod: c.TrustPeriod}, nil
}

// Verifier proves headers that peers and RPC servers send.
func (n *Network) Verifier() *lightblocks.Verifier { return n.verifier }

// Peers are the connected or dialled peers.
func (n *Network) Peers() *peers.Peers { return n.peers }

// Reach waits for the first peer. After timeout it returns ErrNoTransport with a list of the
// attempts.
func (n *Network) Reach(ctx context.Context, timeout time.Duration) error {
	up := make(chan struct{}, 1)
	stop := n.peers.Watch(peers.Watcher{
		Up: func(transport.Conn) { wake.Up(up) },
	})
	defer stop()
	select {
	case <-up:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(timeout):
		return fmt.Errorf("%w within %s: %s", ErrNoTransport, timeout, strings.Join(n.peers.Failures(), "; "))
	}
}

// Restore waits for the trusted header, and restores the newest usable snapshot to a target.
// interval is the chain's snapshot interval, in blocks; progress may be nil. The caller releases
// the version of the result. Errors: ErrTrust, and those of restore.Run.
func (n *Network) Restore(ctx context.Context, target restore.Target, interval int64, progress func(Progress)) (*restore.Result, error) {
	j := &joining{Options: Options{Config: n.o.Config, Logger: n.o.Logger}, log: n.o.Logger, network: n}
	if err := j.trusted(ctx); err != nil {
		return nil, err
	}
	return restore.Run(ctx, restore.Options{
		Logger: n.o.Logger, Peers: n.peers, Headers: headers{Verifier: n.verifier}, Target: target, Interval: interval,
		MinHeight: n.o.Config.CometBFT.StateSync.TrustHeight - oldSnapshots*interval, MemoryBytes: n.o.Config.App.Join.MemoryBytes, Progress: progress,
	})
}

// releaseOwn stops reading the node's own blocks, before they are removed.
func (n *Network) releaseOwn() {
	if n.own != nil {
		n.verifier.Remove(n.id())
		n.own.SetStores(nil, nil, nil)
	}
}

// Close ends the connections.
func (n *Network) Close() {
	n.verifier.Close() // first: it may have evidence to report to peers
	n.o.disconnect(n.peers)
}

// disconnect closes what connectPeers returned.
func (o NetworkOptions) disconnect(p *peers.Peers) {
	p.Close()
	if o.Dialled != nil {
		o.Dialled(nil)
	}
}

// selfConn is a connection of a node to itself.
type selfConn struct {
	id      transport.ID
	chainID string
	handler transport.Handler
	done    chan struct{} // never closed
}

func (c *selfConn) Remote() transport.Address { return transport.Address{ID: c.id, HostPort: "self"} }
func (c *selfConn) ChainID() string           { return c.chainID }
func (c *selfConn) Done() <-chan struct{}     { return c.done }
func (c *selfConn) Err() error                { return nil }
func (c *selfConn) Close() error              { return nil }

func (c *selfConn) Call(ctx context.Context, call transport.Call) ([]byte, error) {
	return c.handler.Serve(ctx, transport.Request{Peer: c.id, Host: "self", Method: call.Method, Body: call.Body})
}

// headers is the verifier. It turns errors that waiting cannot resolve into the end of the join.
type headers struct {
	*lightblocks.Verifier
	proved provedHeight // if it is recent, Newest returns it without asking peers
}

// provedHeight is the newest proved height at a time.
type provedHeight struct {
	height int64
	at     time.Time
}

var _ snapshot.Headers = headers{}

// hopeless marks an error that waiting cannot resolve.
func hopeless(err error) error {
	if errors.Is(err, lightblocks.ErrConflict) || errors.Is(err, lightblocks.ErrTrustExpired) {
		return fmt.Errorf("%w: %w", snapshot.ErrHopeless, err)
	}
	return err
}

func (h headers) Newest(ctx context.Context) (int64, error) {
	if h.proved.height > 0 && time.Since(h.proved.at) < newestAge {
		return h.proved.height, nil
	}
	height, err := h.Verifier.Newest(ctx)
	return height, hopeless(err)
}

func (h headers) AppHash(ctx context.Context, height int64) ([]byte, error) {
	hash, err := h.Verifier.AppHash(ctx, height)
	if err == nil {
		err = h.mayExecute(ctx, height+1)
	}
	return hash, hopeless(err)
}

// mayExecute refuses a state, before any of it is fetched, if the block after it needs a newer
// program.
func (h headers) mayExecute(ctx context.Context, height int64) error {
	newest, err := buildinfo.NewestAppVersion()
	if err != nil {
		return err
	}
	block, err := h.Verifier.LightBlock(ctx, height)
	if err != nil {
		return err
	}
	if version := block.Version.App; version > newest {
		return fmt.Errorf("%w: block %d: %w", snapshot.ErrHopeless, height, &app.UpgradeError{Version: version, Newest: newest})
	}
	return nil
}

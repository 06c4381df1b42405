package node

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// A join over the transport happens between the opening of the home and CometBFT:
//
//	peers ──► headers, proved from the trusted one ──► state of H, durable ──► CometBFT told of H ──► CometBFT made, block sync from H+1
//
// Killed anywhere it goes on where it was: a state zone that is half restored is resumed, one that is whole but that no block belongs to
// is kept, and only the rest is done. A node that catches up has blocks from before, which are put aside when the new state is whole.

// JoinProgress is how far a join is.
type JoinProgress = fastsync.Progress

// errNoTransport: the fast way in is closed.
var errNoTransport = errors.New("no transport of a peer can be reached")

// How a node finds out whether it is worth catching up. Tests change it.
var (
	// catchUpAge is how old the last block must be before a node asks how far the others are.
	catchUpAge = 5 * time.Minute
	// catchUpAsk is how long it waits for a peer, and catchUpNewest how long those that are there may take to show how far the chain is.
	catchUpAsk    = 10 * time.Second
	catchUpNewest = 3 * time.Second
)

const (
	// bootstrapTimeout is for the few headers that belong to a height.
	bootstrapTimeout = time.Minute
	// oldSnapshots is how many snapshots before the trusted header one may be that a new node joins at: they may lie somewhat below it.
	oldSnapshots = 4
	// bootstrapTries is how often the headers that belong to a state are asked for, and bootstrapPause the time between.
	bootstrapTries = 10
	bootstrapPause = 2 * time.Second
	// rpcTimeout is for a call to one of statesync.rpc_servers.
	rpcTimeout = 10 * time.Second
)

// fastWay is what a start has to do over the transport.
type fastWay int

const (
	noJoin   fastWay = iota
	joinNew          // there is nothing, or a state that a join has left
	catchUp          // there are blocks, but maybe few of those that there are
	mustJoin         // a catch-up was interrupted: there is no state any more that the blocks belong to
)

// fastWayOf decides what to do, before the application is made.
func (n *Node) fastWayOf(have progress) fastWay {
	c := n.config
	switch {
	case !c.CometBFT.StateSync.Enable || !c.App.Join.Fast || n.onlyValidator():
		return noJoin
	case have.none():
		return joinNew
	case c.App.Join.CatchUpBlocks > 0 && c.App.HaltHeight == 0: // else it would give up a state for one beyond its last block
		return catchUp
	}
	return noJoin
}

// fastJoin is a join over the transport under way.
type fastJoin struct {
	n        *Node
	log      log.Logger
	peers    *fastsync.Peers
	verifier *lightblocks.Verifier
	own      *lightblocks.Server // nil: there are no blocks to go on from
}

// headers is the verifier, whose errors that waiting does not mend end the join.
type headers struct{ *lightblocks.Verifier }

func hopeless(err error) error {
	if errors.Is(err, lightblocks.ErrConflict) || errors.Is(err, lightblocks.ErrTrustExpired) {
		return fmt.Errorf("%w: %w", fastsync.ErrHopeless, err)
	}
	return err
}

func (h headers) Newest(ctx context.Context) (int64, error) {
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

// mayExecute refuses a state before any of it is fetched, if the block after it is for a newer program than this one.
func (h headers) mayExecute(ctx context.Context, height int64) error {
	newest, err := newestAppVersion()
	if err != nil {
		return err
	}
	block, err := h.Verifier.LightBlock(ctx, height)
	if err != nil {
		return err
	}
	if version := block.Version.App; version > newest {
		return fmt.Errorf("%w: block %d: %w", fastsync.ErrHopeless, height, &app.UpgradeError{Version: version, Newest: newest})
	}
	return nil
}

// joinFast brings the node to a height that CometBFT goes on from. errNoTransport: nothing was changed.
func (n *Node) joinFast(ctx context.Context) error {
	addresses, err := joinAddresses(n.config)
	if err != nil {
		return err
	}
	if n.way == catchUp {
		behind, err := n.mayBeBehind()
		if err != nil || !behind {
			return err
		}
	}
	if len(addresses) == 0 {
		if n.way == catchUp {
			return nil
		}
		return fmt.Errorf("%w: none is known: name some in p2p.persistent_peers, p2p.seeds or join.peers", errNoTransport)
	}
	stop, err := n.metricsWhileJoining(ctx)
	if err != nil {
		return err
	}
	defer stop()
	j := &fastJoin{n: n, log: n.log.With("module", "join")}
	if err := j.connect(addresses); err != nil {
		return err
	}
	defer j.close()
	switch n.way {
	case catchUp:
		err = j.catchUp(ctx)
	default:
		err = j.join(ctx)
	}
	if p, _ := n.joinView.Progress(); p.Phase != fastsync.PhaseDone {
		n.joinView.Over() // it goes on by blocks, or not at all
	}
	var conflict error
	if errors.Is(err, lightblocks.ErrConflict) {
		conflict = fmt.Errorf("evidence is in %s: find out from the validators which chain is theirs before you join", j.evidenceDir())
	}
	return errors.Join(err, conflict)
}

func (j *fastJoin) evidenceDir() string {
	return filepath.Join(j.n.config.CometBFT.DBDir(), "conflicts")
}

// connect begins to look for peers, and to learn headers from all of them.
func (j *fastJoin) connect(addresses []transport.Address) error {
	n := j.n
	key, err := transportKey(n.nodeKey)
	if err != nil {
		return err
	}
	trust, err := j.trust()
	if err != nil {
		return err
	}
	trust.ChainID, trust.Logger, trust.EvidenceDir = n.genesis.ChainID, j.log, j.evidenceDir()
	trust.Lied = func(id transport.ID, err error) {
		if j.peers != nil && id.Validate() == nil { // an RPC server is no peer
			j.peers.Ban(id, statesync.BanHeader, err.Error())
		}
	}
	dialer := tcp.NewDialer(tcp.Options{Key: key, ChainID: n.genesis.ChainID})
	peers := fastsync.NewPeers(fastsync.PeersOptions{Logger: j.log, Dialer: dialer, Addresses: addresses, Self: transport.ID(n.ID()),
		Banned: func(_ transport.ID, about statesync.BanReason) {
			if n.application != nil {
				n.application.metrics.PeerBanned(about)
			}
		},
	})
	j.peers = peers
	n.joinView.Connecting(peers)
	if j.verifier, err = lightblocks.NewVerifier(trust); err != nil {
		peers.Close()
		return err
	}
	for _, address := range n.config.CometBFT.StateSync.RPCServers {
		p, err := lightblocks.NewRPC(n.genesis.ChainID, address, rpcTimeout)
		if err != nil {
			j.close()
			return fmt.Errorf("statesync.rpc_servers: %w", err)
		}
		j.verifier.Add(p)
	}
	if n.way != joinNew { // others may have pruned the header that we begin from
		own, err := j.ownHeaders()
		if err != nil {
			j.close()
			return err
		}
		j.verifier.Add(own)
	}
	peers.Watch(fastsync.Watcher{
		Up:   func(c transport.Conn) { j.verifier.Add(lightblocks.NewProvider(n.genesis.ChainID, c)) },
		Down: j.verifier.Remove,
	})
	return nil
}

// trust is the header to begin from: the node's own last one, where it has blocks and that is not too old, else the configured one.
func (j *fastJoin) trust() (lightblocks.Options, error) {
	c := j.n.config.CometBFT.StateSync
	if j.n.way != joinNew {
		blocks, err := j.n.ownBlocks()
		if err != nil {
			return lightblocks.Options{}, err
		}
		if meta := blocks.LoadBlockMeta(blocks.Height()); meta != nil && time.Since(meta.Header.Time) < c.TrustPeriod {
			return lightblocks.Options{TrustHeight: meta.Header.Height, TrustHash: meta.BlockID.Hash, TrustPeriod: c.TrustPeriod}, nil
		}
	}
	hash, err := hex.DecodeString(c.TrustHash)
	if err != nil {
		return lightblocks.Options{}, fmt.Errorf("statesync.trust_hash: %w", err)
	}
	return lightblocks.Options{TrustHeight: c.TrustHeight, TrustHash: hash, TrustPeriod: c.TrustPeriod}, nil
}

// ownHeaders are those of this node's own blocks, as if it was a peer of itself, until they are put aside.
func (j *fastJoin) ownHeaders() (lightblocks.Peer, error) {
	n := j.n
	n.mu.Lock()
	databases := n.mu.databases
	n.mu.Unlock()
	stateDB, err := databases.provide(&cfg.DBContext{ID: "state", Config: n.config.CometBFT})
	if err != nil {
		return nil, err
	}
	blocks, err := n.ownBlocks()
	if err != nil {
		return nil, err
	}
	j.own = lightblocks.NewServer(lightblocks.ServerOptions{
		ChainID: n.genesis.ChainID, Blocks: blocks, States: sm.NewStore(stateDB, sm.StoreOptions{}), Logger: j.log,
	})
	mux := new(transport.Mux)
	j.own.Register(mux)
	return lightblocks.NewProvider(n.genesis.ChainID, &selfConn{id: transport.ID(n.ID()), handler: mux, done: make(chan struct{})}), nil
}

// selfConn is a connection of a node to itself.
type selfConn struct {
	id      transport.ID
	handler transport.Handler
	done    chan struct{}
}

func (c *selfConn) Remote() transport.Address { return transport.Address{ID: c.id, HostPort: "self"} }
func (c *selfConn) Done() <-chan struct{}     { return c.done }
func (c *selfConn) Err() error                { return nil }
func (c *selfConn) Close() error              { return nil }

func (c *selfConn) Call(ctx context.Context, call transport.Call) ([]byte, error) {
	return c.handler.Serve(ctx, transport.Request{Peer: c.id, Host: "self", Method: call.Method, Body: call.Body})
}

func (n *Node) ownBlocks() (*store.BlockStore, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	db, err := n.mu.databases.provide(&cfg.DBContext{ID: "blockstore", Config: n.config.CometBFT})
	if err != nil {
		return nil, err
	}
	return store.NewBlockStore(db), nil
}

func (j *fastJoin) close() {
	j.peers.Close()
	j.verifier.Close()
}

// reach waits for the first peer.
func (j *fastJoin) reach(ctx context.Context, timeout time.Duration) error {
	up := make(chan struct{}, 1)
	stop := j.peers.Watch(fastsync.Watcher{
		Up: func(transport.Conn) {
			select {
			case up <- struct{}{}:
			default:
			}
		},
	})
	defer stop()
	select {
	case <-up:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(timeout):
		return fmt.Errorf("%w within %s: %s", errNoTransport, timeout, strings.Join(j.peers.Failures(), "; "))
	}
}

// join is the way of a node without blocks.
func (j *fastJoin) join(ctx context.Context) error {
	n := j.n
	if err := j.reach(ctx, n.config.App.Join.ReachTimeout); err != nil {
		return err
	}
	if height := n.application.Height(); height > 0 { // whole, but CometBFT does not know of it
		err := j.bootstrap(ctx, height)
		if err == nil || ctx.Err() != nil || errors.Is(err, lightblocks.ErrConflict) {
			return err
		}
		j.log.Info("The state that an interrupted join has left cannot be gone on from: fetching what differs from a newer one", "height", height, "err", err)
	}
	return j.fetch(ctx)
}

// fetch fetches a state, or what differs from the one that is there, and tells CometBFT.
func (j *fastJoin) fetch(ctx context.Context) error {
	n := j.n
	o := fastsync.Options{
		Logger: j.log, Peers: j.peers, Headers: headers{j.verifier}, Target: n.application.target, Interval: n.application.interval,
		MemoryBytes: n.config.App.Join.MemoryBytes, Metrics: n.application.metrics, Progress: n.joinProgress,
		View: &n.joinView,
	}
	switch n.way {
	case joinNew:
		o.MinHeight = n.config.CometBFT.StateSync.TrustHeight - oldSnapshots*max(o.Interval, 1)
	case mustJoin: // not at a snapshot from before the blocks that the node had: there was a newer one when it began
		o.MinHeight = n.have.block + 1
	case catchUp: // blocks are a way, too
		o.ChooseTimeout = n.config.App.Join.ReachTimeout
	}
	if height, v := n.application.Latest(); v != nil {
		defer v.Release()
		o.Local, o.LocalHeight = v, height
		if n.application.paged() { // it is read from the zone, which the restore empties
			o.Local = nil
		}
	}
	result, err := fastsync.Join(ctx, o)
	if err != nil {
		return err
	}
	result.Version.Release()
	for try := 1; ; try++ {
		err := j.bootstrap(ctx, result.Height)
		if err == nil || ctx.Err() != nil || try == bootstrapTries || errors.Is(hopeless(err), fastsync.ErrHopeless) {
			return err
		}
		j.log.Error("The headers that belong to the state are missing, trying again", "height", result.Height, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(bootstrapPause):
		}
	}
}

// bootstrap tells CometBFT of the state that is there. What it had before is put aside when all that takes its place is at hand.
func (j *fastJoin) bootstrap(ctx context.Context, height int64) error {
	n := j.n
	limited, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()
	state, err := j.verifier.State(limited, height, n.genesis)
	if err != nil {
		return err
	}
	commit, err := j.verifier.Commit(limited, height)
	if err != nil {
		return err
	}
	if err := n.sameAppHash(height, state); err != nil {
		return err
	}
	before := ancestors(ctx, j.verifier, state, n.config.App.Join.EvidenceHeaders, j.log)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if j.own != nil {
		j.verifier.Remove(transport.ID(n.ID()))
		j.own.SetStores(nil, nil, nil)
	}
	if err := n.putBlocksAside(n.way != joinNew); err != nil {
		return err
	}
	n.mu.Lock()
	databases := n.mu.databases
	n.mu.Unlock()
	return databases.bootstrap(state, commit, before)
}

// sameAppHash compares what the headers say with what is there.
func (n *Node) sameAppHash(height int64, state sm.State) error {
	at, v := n.application.Latest()
	if v == nil {
		return fmt.Errorf("there is no state, it should be of height %d", height)
	}
	defer v.Release()
	if hash := v.AppHash(); at != height || !bytes.Equal(hash[:], state.AppHash) {
		return fmt.Errorf("the state is of height %d with app hash %s, the headers say %X at height %d", at, hash, state.AppHash, height)
	}
	return nil
}

// mayBeBehind says whether it is worth asking others: the last block is old, or the state that belongs to the blocks is gone.
func (n *Node) mayBeBehind() (bool, error) {
	if n.interrupted() {
		n.way = mustJoin
		return true, nil
	}
	blocks, err := n.ownBlocks()
	if err != nil {
		return false, err
	}
	meta := blocks.LoadBlockMeta(blocks.Height())
	return meta != nil && time.Since(meta.Header.Time) > catchUpAge, nil
}

// interrupted: a catch-up ended after the old state was given up and before CometBFT was told of the new one.
func (n *Node) interrupted() bool {
	if _, _, unfinished := n.application.target.Unfinished(); unfinished {
		return true
	}
	meta, ok := n.application.state.Meta()
	if !ok {
		return n.have.base > 1 // no block leads to a state from nothing
	}
	return meta.Restored && meta.Height > n.have.block && meta.Height != n.have.state
}

// catchUp fetches what differs of the state, if the others are far ahead. Whether they are is only asked for a moment: blocks are a way, too.
func (j *fastJoin) catchUp(ctx context.Context) error {
	n := j.n
	asked, cancel := context.WithTimeout(ctx, catchUpAsk)
	defer cancel()
	if err := j.reach(asked, catchUpAsk); err != nil {
		return ctx.Err()
	}
	height, newest := n.application.Height(), int64(0)
	for deadline := time.Now().Add(catchUpNewest); newest-height <= n.config.App.Join.CatchUpBlocks; {
		var err error
		if newest, err = j.verifier.Newest(asked); errors.Is(err, lightblocks.ErrConflict) {
			return err
		} else if err != nil || time.Now().After(deadline) {
			j.log.Info("The chain is not far ahead, as far as is known: fetching blocks", "height", height, "newest", newest, "err", err)
			return ctx.Err()
		}
		select { // our own header is the first that is proved
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(joinPoll):
		}
	}
	j.log.Info("The chain is far ahead: fetching what differs of the state", "height", height, "newest", newest)
	n.application.restoring.replace()
	err := j.fetch(ctx)
	if errors.Is(err, fastsync.ErrNothing) {
		j.log.Info("No snapshot is of use: fetching blocks", "err", err)
		return nil
	}
	return err
}

// putBlocksAside empties CometBFT's databases and its write-ahead log, which belong to a state that is gone. The validator's signing state
// stays: whatever was signed is not signed again. Killed half-way, the home is one that a join has just left. If there are none, only what a
// kill has left of that is removed.
func (n *Node) putBlocksAside(any bool) error {
	if any {
		n.mu.Lock()
		old := n.mu.databases
		n.mu.databases = nil
		n.mu.Unlock()
		if err := old.closeAll(); err != nil {
			return err
		}
	}
	c := n.config.CometBFT
	dir := c.DBDir()
	keep := []string{c.PrivValidatorStateFile(), c.PrivValidatorKeyFile(), c.NodeKeyFile(), c.GenesisFile(), StateDir(dir), SnapshotsDir(dir)}
	for _, path := range []string{
		filepath.Dir(c.Consensus.WalFile()), BlocksDir(dir), filepath.Join(dir, "blockstore.db"), filepath.Join(dir, "evidence.db"),
		filepath.Join(dir, "tx_index.db"), filepath.Join(dir, "state.db"),
	} {
		aside := path + ".old"
		if err := os.RemoveAll(aside); err != nil {
			return err
		}
		if !any {
			continue
		}
		if keeps, err := holds(path, keep...); err == nil && keeps != "" {
			return fmt.Errorf("%s is not removed: %s lies in it", path, keeps)
		}
		if err := os.Rename(path, aside); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.RemoveAll(aside); err != nil {
			return err
		}
	}
	if !any {
		return nil
	}
	n.log.Info("Removed the blocks from before: the node goes on from the new state")
	_, err := n.openDatabases()
	return err
}

// metricsWhileJoining serves them until CometBFT does.
func (n *Node) metricsWhileJoining(ctx context.Context) (stop func(), err error) {
	c := n.config.CometBFT.Instrumentation
	if !c.IsPrometheusEnabled() {
		return func() {}, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.PrometheusListenAddr)
	if err != nil {
		return nil, addressError("instrumentation.prometheus_listen_addr", c.PrometheusListenAddr, err)
	}
	server := &http.Server{Handler: promhttp.Handler(), ReadHeaderTimeout: 10 * time.Second}
	n.wg.Go(func() { _ = server.Serve(listener) }) // ends with Close
	return func() { _ = server.Close() }, nil
}

var _ fastsync.Headers = headers{}

package home

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/p2p"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"

	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// maxGenesisBytes limits a genesis file received from the network.
const maxGenesisBytes = 64 << 20

// newcomerTimeout limits all requests to the address together.
const newcomerTimeout = time.Minute

// NewcomerOptions configures the home of a node that joins a network.
type NewcomerOptions struct {
	Home, Moniker string
	// From is an address of one node of the network: its RPC server (http://host:26657) or its
	// transport (host:26666, id@host:26666).
	From string
	// TrustHeight and TrustHash identify the trusted header. 0 and "": the newest header of From,
	// which is then trusted for everything.
	TrustHeight int64
	TrustHash   string
	// StorageNodes is the content of the storage nodes file, if storage nodes keep the new node's
	// state; empty: the node keeps the state itself.
	StorageNodes []byte
	// Edit changes the configuration before it is written; may be nil.
	Edit func(*cfg.Config, *config.App)
	// OtherPeers: p2p peers are configured outside of the files, for example in the environment.
	OtherPeers bool
}

// Newcomer is a home that is ready to join.
type Newcomer struct {
	InitResult
	TrustHeight int64
	TrustHash   string
	TrustsFrom  bool // From is the only source of the trusted header
	Peer        string

	storageNodes bool // InitFrom wrote the storage nodes file
}

// source is the response of the node at an address.
type source struct {
	genesis []byte
	chainID string
	height  int64 // of its newest header
	hash    []byte
	peer    string // for p2p.persistent_peers; "": unknown
	joins   string // for join.peers; "": unknown
}

// InitFrom creates the home of a node that joins a network, from the address of one of its nodes.
// That node is trusted for the genesis file, whose chain id and state the trusted header later
// confirms. If TrustHeight and TrustHash are set, it is not trusted for anything else.
func InitFrom(ctx context.Context, o NewcomerOptions) (Newcomer, error) {
	if (o.TrustHeight > 0) != (o.TrustHash != "") {
		return Newcomer{}, config.Invalid(errors.New("use --trust-height and --trust-hash together"))
	}
	if raw, err := hex.DecodeString(o.TrustHash); o.TrustHash != "" && (err != nil || len(raw) != 32) {
		return Newcomer{}, config.Invalid(fmt.Errorf("--trust-hash is %q, it must be 64 hex digits", o.TrustHash))
	}
	if len(o.StorageNodes) > 0 {
		if _, err := config.ParseStorageNodes(o.StorageNodes); err != nil {
			return Newcomer{}, config.Invalid(fmt.Errorf("--storage-nodes: %w", err))
		}
	}
	if _, err := os.Lstat(config.CometFile(o.Home)); err == nil {
		return Newcomer{}, fmt.Errorf("%w: %q exists: continue with `starlingd start --home %q`, or use another folder for --home", ErrInitialised, config.CometFile(o.Home), o.Home)
	}
	ctx, cancel := context.WithTimeout(ctx, newcomerTimeout)
	defer cancel()
	ask := fromTransport
	if strings.Contains(o.From, "://") {
		ask = fromRPC
	}
	s, err := ask(ctx, o.From, o.TrustHeight == 0)
	if err != nil {
		return Newcomer{}, fmt.Errorf("%s: %w", o.From, wrongPort(ctx, o.From, err))
	}
	if err := o.checkPeer(ctx, s); err != nil {
		return Newcomer{}, fmt.Errorf("%s: %w", o.From, err)
	}
	made := Newcomer{TrustHeight: o.TrustHeight, TrustHash: strings.ToUpper(o.TrustHash), TrustsFrom: o.TrustHeight == 0, Peer: s.peer}
	if made.TrustsFrom {
		made.TrustHeight, made.TrustHash = s.height, fmt.Sprintf("%X", s.hash)
	}
	dir, err := os.MkdirTemp("", "starlingd-join-")
	if err != nil {
		return Newcomer{}, err
	}
	// The temporary copy of the genesis file.
	defer func() { _ = os.RemoveAll(dir) }()
	genesis := filepath.Join(dir, "genesis.json")
	if err := os.WriteFile(genesis, s.genesis, 0o600); err != nil {
		return Newcomer{}, err
	}
	made.InitResult, err = Init(InitOptions{Home: o.Home, Moniker: o.Moniker, GenesisFile: genesis, Edit: func(c *cfg.Config, a *config.App) {
		c.StateSync.Enable, c.StateSync.TrustHeight, c.StateSync.TrustHash = true, made.TrustHeight, made.TrustHash
		c.P2P.PersistentPeers, a.Join.Peers = s.peer, s.joins
		if len(o.StorageNodes) > 0 {
			a.State.Mode = config.ModeSharded
		}
		if o.Edit != nil {
			o.Edit(c, a)
		}
	}})
	if err == nil && len(o.StorageNodes) > 0 {
		if made.storageNodes, err = writeStorageNodes(storageNodesFile(o.Home), o.StorageNodes); err != nil {
			err = errors.Join(err, removeMade(initFiles(o.Home, config.DefaultCometBFT().SetRoot(o.Home)), initFolders(o.Home)))
		}
	}
	return made, err
}

// checkPeer refuses a source whose p2p is not where fromTransport assumes it: the new node would
// join, but never receive a block. The check is skipped if the operator configured other peers.
func (o NewcomerOptions) checkPeer(ctx context.Context, s source) error {
	if s.joins == "" { // the node itself reported its p2p address
		return nil
	}
	conf, appConfig := config.DefaultCometBFT(), config.DefaultApp()
	if o.Edit != nil {
		o.Edit(conf, &appConfig)
	}
	if conf.P2P.PersistentPeers != "" || conf.P2P.Seeds != "" || o.OtherPeers {
		return nil
	}
	id, _, _ := strings.Cut(s.joins, "@")
	if s.peer == "" {
		return config.Invalid(fmt.Errorf("the p2p of this node is not at its transport's port - %d: %s", config.PortOffset, otherPeer(id)))
	}
	_, address, _ := strings.Cut(s.peer, "@")
	switch found, err := p2pID(ctx, address); {
	case err != nil:
		return config.Invalid(fmt.Errorf("the p2p of this node does not answer at its transport's port - %d, %s (%w): %s", config.PortOffset, address, err, otherPeer(id)))
	case string(found) != id:
		return config.Invalid(fmt.Errorf("its transport's port - %d, %s, is the p2p of another node, %s: %s", config.PortOffset, address, found, otherPeer(id)))
	}
	return nil
}

// otherPeer returns the hint for configuring a node's p2p address.
func otherPeer(id string) string {
	return fmt.Sprintf("use --p2p.persistent_peers %s@HOST:PORT", id)
}

// writeStorageNodes writes the file unless it exists with the same content.
func writeStorageNodes(path string, content []byte) (wrote bool, err error) {
	there, err := os.ReadFile(path)
	switch {
	case err == nil && bytes.Equal(there, content):
		return false, nil
	case err == nil:
		return false, config.Invalid(fmt.Errorf("%s already exists with different content: remove it, or pass the same file", path))
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	if err := durable.Write(path, content, 0o600); err != nil {
		return false, err
	}
	return true, nil
}

// storageNodesFile is the path to which InitFrom writes NewcomerOptions.StorageNodes.
func storageNodesFile(home string) string {
	return filepath.Join(home, config.DefaultStorageNodesFile)
}

// Undo removes the files of InitFrom, and those of a start that ended before it fetched anything.
// Folders with other content stay.
func (n Newcomer) Undo(c *cfg.Config) error {
	if _, err := Reset(c); err != nil {
		return err
	}
	files := initFiles(n.Home, c)
	if n.storageNodes {
		files = append(files, storageNodesFile(n.Home))
	}
	return removeMade(files, initFolders(n.Home))
}

// fromTransport queries a node's transport. Its p2p is assumed to listen at PortOffset below: see
// checkPeer.
func fromTransport(ctx context.Context, from string, newest bool) (s source, err error) {
	address, err := transport.ParseAddress(from)
	if err != nil {
		return s, config.Invalid(fmt.Errorf("%w, or http://host:port of an RPC server", err))
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return s, err
	}
	conn, err := tcp.NewDialer(tcp.Options{Key: key}).Dial(ctx, address)
	if err != nil {
		return s, err
	}
	defer conn.Close()
	s.genesis, err = conn.Call(ctx, transport.Call{Method: protocol.MethodGenesis, Max: maxGenesisBytes})
	if err != nil {
		return s, fmt.Errorf("genesis file: %w", err)
	}
	doc, err := config.DecodeGenesis(s.genesis)
	if err != nil {
		return s, fmt.Errorf("genesis file: %w", err)
	}
	s.chainID = doc.ChainID
	address.ID = conn.Remote().ID
	s.joins = address.String()
	if host, port, err := net.SplitHostPort(address.HostPort); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > config.PortOffset {
			s.peer = p2p.IDAddressString(p2p.ID(address.ID), net.JoinHostPort(host, strconv.FormatUint(n-config.PortOffset, 10)))
		}
	}
	if !newest {
		return s, nil
	}
	member, err := tcp.NewDialer(tcp.Options{Key: key, ChainID: s.chainID}).Dial(ctx, address)
	if err != nil {
		return s, err
	}
	defer member.Close()
	block, err := lightblocks.NewProvider(s.chainID, member).LightBlock(ctx, 0)
	if err != nil {
		return s, fmt.Errorf("its newest header: %w", err)
	}
	s.height, s.hash = block.Height, block.Hash()
	return s, nil
}

// fromRPC queries a node's RPC server.
func fromRPC(ctx context.Context, from string, newest bool) (s source, err error) {
	u, err := url.Parse(from)
	if err != nil || u.Hostname() == "" {
		return s, config.Invalid(errors.New("an RPC address has the form http://host:port"))
	}
	client, err := rpchttp.New(from, "/websocket")
	if err != nil {
		return s, err
	}
	for next := uint(0); ; {
		part, err := client.GenesisChunked(ctx, next)
		if err != nil {
			return s, fmt.Errorf("genesis file: %w", err)
		}
		raw, err := base64.StdEncoding.DecodeString(part.Data)
		if err != nil || len(s.genesis)+len(raw) > maxGenesisBytes {
			return s, fmt.Errorf("genesis file: part %d of %d is invalid", next, part.TotalChunks)
		}
		s.genesis = append(s.genesis, raw...)
		if next++; next >= uint(max(part.TotalChunks, 0)) {
			break
		}
	}
	doc, err := config.DecodeGenesis(bytes.TrimSpace(s.genesis))
	if err != nil {
		return s, fmt.Errorf("genesis file: %w", err)
	}
	s.chainID = doc.ChainID
	status, err := client.Status(ctx)
	if err != nil {
		return s, fmt.Errorf("status: %w", err)
	}
	listen := status.NodeInfo.ListenAddr
	if _, after, found := strings.Cut(listen, "://"); found {
		listen = after
	}
	if _, port, err := net.SplitHostPort(listen); err == nil {
		s.peer = p2p.IDAddressString(status.NodeInfo.ID(), net.JoinHostPort(u.Hostname(), port))
	}
	if !newest {
		return s, nil
	}
	commit, err := client.Commit(ctx, nil)
	if err != nil {
		return s, fmt.Errorf("its newest header: %w", err)
	}
	if err := commit.ValidateBasic(s.chainID); err != nil {
		return s, fmt.Errorf("its newest header: %w", err)
	}
	s.height, s.hash = commit.Height, commit.Header.Hash()
	return s, nil
}

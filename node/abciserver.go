package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cometbft/cometbft/abci/server"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/libs/service"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
)

// ErrTransport: the transport does not exist, or cannot carry this chain's messages.
var ErrTransport = errors.New("transport")

const (
	// grpcMessageBytes is the largest message that gRPC receives where nothing else is set, as in CometBFT's client and server.
	grpcMessageBytes = 4 << 20
	// grpcEnvelope is what a message has beside a chunk, or a block's transactions: header, votes of the last commit,
	// misbehaviour, tags and lengths of many small transactions.
	grpcEnvelope = 256 << 10
)

// ABCIOptions say how to serve the application to another process.
type ABCIOptions struct {
	Address     string // unix:///path or tcp://host:port
	Transport   string // socket or grpc
	Home        string
	GenesisFile string // "": parameters come with InitChain, or with the state
	Config      AppConfig
	Logger      log.Logger
}

// ABCIServer is the application, served to a CometBFT process.
type ABCIServer struct {
	application *Application
	gate        *gate // what is served
	server      service.Service
	log         log.Logger
	failed      chan error
	unwatch     context.CancelFunc // ends the look at the free disk space
}

// NewABCIServer opens the state, listens, and serves until Stop.
func NewABCIServer(ctx context.Context, o ABCIOptions) (*ABCIServer, error) {
	var genesis *cmttypes.GenesisDoc
	if o.GenesisFile != "" {
		var err error
		if genesis, err = LoadGenesis(o.GenesisFile); err != nil {
			return nil, err
		}
	}
	if err := checkTransport(o.Transport, genesis); err != nil {
		return nil, err
	}
	network, address, ok := strings.Cut(o.Address, "://")
	if !ok || network != "unix" && network != "tcp" {
		return nil, fmt.Errorf("%w: address %q must be unix:///PATH or tcp://HOST:PORT", ErrTransport, o.Address)
	}
	dataDir := filepath.Join(o.Home, "data")
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, err
	}
	disk := newDiskWatch(o.Config.Storage.MinFreeBytes, dataDir, StateDir(dataDir), SnapshotsDir(dataDir))
	err := disk.check()
	if err != nil {
		return nil, err
	}
	s := &ABCIServer{log: o.Logger, failed: make(chan error, 1)}
	fail := func(err error) {
		select {
		case s.failed <- err:
		default: // the first one counts
		}
	}
	s.application, err = NewApplication(ApplicationOptions{
		DataDir: dataDir, Config: o.Config, Logger: o.Logger, Genesis: genesis, Failed: fail,
	})
	if err != nil {
		return nil, err
	}
	s.gate = &gate{Application: s.application, halt: o.Config.HaltHeight, canGoOn: s.application.CanGoOn, stop: fail}
	err = checkHalt(s.gate.halt, s.application.Height())
	if err == nil {
		err = s.listen(ctx, o, network, address)
	}
	if err != nil {
		return nil, errors.Join(err, s.application.Close())
	}
	watched, cancel := context.WithCancel(context.Background())
	s.unwatch = cancel
	go disk.run(watched, fail)
	height := s.application.Height()
	o.Logger.Info("Starling application started", "address", o.Address, "transport", o.Transport, "height", height,
		"version", BuildVersions().Starling, "home", o.Home)
	return s, nil
}

// grpcApplication keeps the answer to FinalizeBlock within a gRPC message: events and logs of many small transactions can be
// longer than the block. No validator hashes them (types.NewResults takes code, data and gas), so a node may do without.
type grpcApplication struct {
	abci.Application
	log log.Logger
}

func (a grpcApplication) FinalizeBlock(ctx context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	res, err := a.Application.FinalizeBlock(ctx, req)
	if err != nil || res.Size() <= grpcMessageBytes-grpcEnvelope {
		return res, err
	}
	a.log.Error("The results of a block do not fit a gRPC message: this node leaves out its events, logs and codespaces, so that its index and its subscribers miss them. "+
		"Use the socket transport.", "height", req.Height, "bytes", res.Size())
	res.Events = nil
	for _, r := range res.TxResults {
		r.Events, r.Log, r.Info, r.Codespace = nil, "", "", ""
	}
	return res, nil
}

// ListSnapshots leaves out the oldest snapshots where their manifests together do not fit.
func (a grpcApplication) ListSnapshots(ctx context.Context, req *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	res, err := a.Application.ListSnapshots(ctx, req)
	for err == nil && res.Size() > grpcMessageBytes-grpcEnvelope && len(res.Snapshots) > 0 {
		res.Snapshots = res.Snapshots[:len(res.Snapshots)-1] // newest first
	}
	return res, err
}

// Failed delivers the failure after which the server must be stopped.
func (s *ABCIServer) Failed() <-chan error { return s.failed }

// Stop ends the connections and releases the state.
func (s *ABCIServer) Stop() error {
	s.unwatch()
	err := errors.Join(s.application.StopJoining(), s.server.Stop())
	err = errors.Join(err, s.application.Close())
	s.log.Info("Starling application stopped")
	return err
}

// checkTransport refuses gRPC for a chain whose messages it cannot carry.
func checkTransport(transport string, genesis *cmttypes.GenesisDoc) error {
	const remedy = "use --transport socket (and abci = \"socket\" in cometbft's config.toml), which has no such limit"
	switch transport {
	case "socket":
		return nil
	case "grpc":
	default:
		return fmt.Errorf("%w %q does not exist: it is socket or grpc", ErrTransport, transport)
	}
	if genesis == nil {
		return fmt.Errorf("%w grpc needs the genesis file, to know whether this chain's messages fit its %d bytes: give --genesis, or %s", ErrTransport, grpcMessageBytes, remedy)
	}
	state, err := app.ParseGenesis(genesis.AppState)
	if err != nil {
		return err
	}
	// A chunk is at most B long, or one leaf.
	if chunk := max(state.ChunkBytes, avlstar.RecordBytes(avlstar.MaxKeyBytes, avlstar.MaxValueBytes)); chunk > grpcMessageBytes-grpcEnvelope {
		return fmt.Errorf("%w grpc carries messages of %d bytes, chunks of this chain have up to %d (chunk_bytes): %s", ErrTransport, grpcMessageBytes, chunk, remedy)
	}
	block := genesis.ConsensusParams.Block.MaxBytes
	if block == -1 || block > grpcMessageBytes-grpcEnvelope {
		return fmt.Errorf("%w grpc carries messages of %d bytes, blocks of this chain have up to %d (consensus_params.block.max_bytes; %d would fit): %s",
			ErrTransport, grpcMessageBytes, block, grpcMessageBytes-grpcEnvelope, remedy)
	}
	return nil
}

// listen starts the server. A unix socket that nobody listens on any more (its process was killed) is removed first.
func (s *ABCIServer) listen(ctx context.Context, o ABCIOptions, network, address string) (err error) {
	if network == "unix" {
		if err := removeStale(ctx, address); err != nil {
			return err
		}
	}
	var served abci.Application = s.gate
	if o.Transport == "grpc" {
		served = grpcApplication{s.gate, o.Logger}
	}
	if s.server, err = server.NewServer(o.Address, o.Transport, served); err != nil {
		return err
	}
	s.server.SetLogger(o.Logger.With("module", "abci"))
	if err := s.server.Start(); err != nil {
		return addressError("address", o.Address, err)
	}
	return nil
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w on unix://%s: %w", ErrAddress, path, err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%w on unix://%s: it is no socket: give --address another path", ErrAddress, path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%w on unix://%s: another program listens there: stop it, or give --address another path", ErrAddress, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w on unix://%s: %w", ErrAddress, path, err)
	}
	return os.Remove(path)
}

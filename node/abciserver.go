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
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
)

// ErrTransport: the ABCI transport does not exist, or cannot carry this chain's messages.
var ErrTransport = errors.New("transport")

// ABCIOptions configures serving the application to another process.
type ABCIOptions struct {
	Address     string // unix:///path or tcp://host:port
	Transport   string // socket or grpc
	Home        string
	GenesisFile string // "": parameters come with InitChain or with the state
	Config      config.App
	Logger      log.Logger
}

// ABCIServer is the application served to a CometBFT process.
type ABCIServer struct {
	application *Application
	served      *comet.Halter // the application up to its last block
	server      service.Service
	log         log.Logger
	failed      chan error
	unwatch     context.CancelFunc // ends the checks of free disk space
}

// NewABCIServer opens the state, listens, and serves until Stop.
func NewABCIServer(ctx context.Context, o ABCIOptions) (*ABCIServer, error) {
	var genesis *cmttypes.GenesisDoc
	if o.GenesisFile != "" {
		var err error
		if genesis, err = config.LoadGenesis(o.GenesisFile); err != nil {
			return nil, err
		}
	}
	if err := checkTransport(o.Transport, genesis); err != nil {
		return nil, err
	}
	if o.Transport == "socket" && o.Config.State.Sharded() {
		return nil, fmt.Errorf("%w socket serves one call at a time, so a block that waits for storage nodes would block all of CometBFT: "+
			"state.mode = %q is for starlingd start", ErrTransport, config.ModeSharded)
	}
	network, address, ok := strings.Cut(o.Address, "://")
	if !ok || network != "unix" && network != "tcp" {
		return nil, fmt.Errorf("%w: address %q must be unix:///PATH or tcp://HOST:PORT", ErrTransport, o.Address)
	}
	dataDir := filepath.Join(o.Home, "data")
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, err
	}
	watch := disk.NewWatch(o.Config.Disk.MinFreeBytes, dataDir, config.StateDir(dataDir), config.SnapshotsDir(dataDir), config.EventsDir(dataDir))
	err := watch.Check()
	if err != nil {
		return nil, err
	}
	s := &ABCIServer{log: o.Logger, failed: make(chan error, 1)}
	fail := func(err error) {
		select {
		case s.failed <- err:
		default: // the first failure counts
		}
	}
	s.application, err = NewApplication(ApplicationOptions{
		DataDir: dataDir, Config: o.Config, Logger: o.Logger, Genesis: genesis, Failed: fail, SerialQueries: true,
	})
	if err != nil {
		return nil, err
	}
	s.served = comet.NewHalter(s.application, o.Config.HaltHeight, s.application.CanGoOn, fail)
	err = comet.CheckHalt(o.Config.HaltHeight, s.application.Height())
	if err == nil {
		err = s.listen(ctx, o, network, address)
	}
	if err != nil {
		return nil, errors.Join(err, s.application.Close())
	}
	watched, cancel := context.WithCancel(context.Background())
	s.unwatch = cancel
	go watch.Run(watched, fail)
	height := s.application.Height()
	o.Logger.Info("Starling application started", "address", o.Address, "transport", o.Transport, "height", height,
		"version", buildinfo.Read().Starling, "home", o.Home)
	return s, nil
}

// grpcApplication keeps responses within a gRPC message: events and logs of many small transactions
// can be longer than their block. They may be omitted, because validators do not hash them
// (types.NewResults covers code, data and gas).
type grpcApplication struct {
	abci.Application
	log log.Logger
}

func (a grpcApplication) FinalizeBlock(ctx context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	res, err := a.Application.FinalizeBlock(ctx, req)
	if err != nil || res.Size() <= config.GRPCMessageBytes-config.GRPCEnvelope {
		return res, err
	}
	a.log.Error("The results of a block do not fit into a gRPC message: omitting their events, logs and codespaces, which this node's index and subscribers will miss. "+
		"Use the socket transport.", "height", req.Height, "bytes", res.Size())
	res.Events = nil
	for _, r := range res.TxResults {
		r.Events, r.Log, r.Info, r.Codespace = nil, "", "", ""
	}
	return res, nil
}

// ListSnapshots omits the oldest snapshots if the manifests do not fit into one message.
func (a grpcApplication) ListSnapshots(ctx context.Context, req *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	res, err := a.Application.ListSnapshots(ctx, req)
	for err == nil && res.Size() > config.GRPCMessageBytes-config.GRPCEnvelope && len(res.Snapshots) > 0 {
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
		return fmt.Errorf("%w %q is unknown: use socket or grpc", ErrTransport, transport)
	}
	if genesis == nil {
		return fmt.Errorf("%w grpc needs the genesis file to check that this chain's messages fit into %d bytes: use --genesis, or %s", ErrTransport, config.GRPCMessageBytes, remedy)
	}
	state, err := app.ParseGenesis(genesis.AppState)
	if err != nil {
		return err
	}
	// A chunk has at most chunk_bytes, or is one leaf.
	if chunk := max(state.ChunkBytes, avlstar.RecordBytes(avlstar.MaxKeyBytes, avlstar.MaxValueBytes)); chunk > config.GRPCMessageBytes-config.GRPCEnvelope {
		return fmt.Errorf("%w grpc carries messages of %d bytes, chunks of this chain have up to %d (chunk_bytes): %s", ErrTransport, config.GRPCMessageBytes, chunk, remedy)
	}
	block := genesis.ConsensusParams.Block.MaxBytes
	if block == -1 || block > config.GRPCMessageBytes-config.GRPCEnvelope {
		return fmt.Errorf("%w grpc carries messages of %d bytes, blocks of this chain have up to %d (consensus_params.block.max_bytes; %d would fit): %s",
			ErrTransport, config.GRPCMessageBytes, block, config.GRPCMessageBytes-config.GRPCEnvelope, remedy)
	}
	return nil
}

// listen starts the server. It first removes a unix socket without a listener, which a killed
// process leaves.
func (s *ABCIServer) listen(ctx context.Context, o ABCIOptions, network, address string) (err error) {
	if network == "unix" {
		if err := removeStale(ctx, address); err != nil {
			return err
		}
	}
	var served abci.Application = s.served
	if o.Transport == "grpc" {
		served = grpcApplication{s.served, o.Logger}
	}
	if s.server, err = server.NewServer(o.Address, o.Transport, served); err != nil {
		return err
	}
	s.server.SetLogger(o.Logger.With("module", "abci"))
	if err := s.server.Start(); err != nil {
		return config.AddressError("address", o.Address, err)
	}
	return nil
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w on unix://%s: %w", config.ErrAddress, path, err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%w on unix://%s: not a socket: use another path for --address", config.ErrAddress, path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%w on unix://%s: another program listens there: stop it, or use another path for --address", config.ErrAddress, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w on unix://%s: %w", config.ErrAddress, path, err)
	}
	return os.Remove(path)
}

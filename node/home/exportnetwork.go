package home

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync/archive"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/treestore"
	"github.com/starling-kv/starling/transport"
)

// stateSuffix is the suffix of the folder for the state that an export fetches from the network.
const stateSuffix = ".state"

// NetworkExportOptions configures an export from the network.
type NetworkExportOptions struct {
	File      string
	Overwrite bool       // replace an existing File
	Logger    log.Logger // of the connections and the light client
	// Fetching is called with the progress of the transfer, never concurrently. May be nil.
	Fetching func(join.Progress)
	// Writing is called with the bytes of chunks written to File. May be nil.
	Writing func(done, total uint64)
}

// ExportFromNetwork writes the newest snapshot of the network to a file, while all nodes run.
//
//	validators: headers ──► app hash ──┐
//	storage nodes, full nodes: chunks ─┴─► FILE.state ─► FILE.partial ─► FILE
//
// It uses only the home's configuration and genesis file: a node may run in it. Nodes are found as
// by a join, and everything is verified as by a join, beginning with the header of the
// [statesync] section. After an interruption, the next call continues with FILE.state.
func ExportFromNetwork(ctx context.Context, conf *config.Config, o NetworkExportOptions) (SnapshotFile, error) {
	if _, err := os.Lstat(o.File); err == nil && !o.Overwrite {
		return SnapshotFile{}, fmt.Errorf("%w: %q", ErrFileExists, o.File)
	}
	e := &networkExport{conf: conf, o: o, started: time.Now()}
	if err := e.check(); err != nil {
		return SnapshotFile{}, err
	}
	dir := o.File + stateSuffix
	result, err := e.run(ctx, dir)
	if err != nil {
		return SnapshotFile{}, err
	}
	return result, os.RemoveAll(dir)
}

// networkExport is a running export from the network.
type networkExport struct {
	conf      *config.Config
	o         NetworkExportOptions
	started   time.Time
	genesis   *cmttypes.GenesisDoc
	interval  int64 // of snapshots, in blocks
	addresses []transport.Address
}

// check reads the genesis file and checks the settings.
func (e *networkExport) check() (err error) {
	if e.genesis, err = config.LoadGenesis(e.conf.CometBFT.GenesisFile()); err != nil {
		return err
	}
	state, err := app.ParseGenesis(e.genesis.AppState)
	if err != nil {
		return config.Invalid(err)
	}
	e.interval = state.SnapshotInterval
	if e.addresses, err = config.JoinAddresses(e.conf); err != nil {
		return err
	}
	if len(e.addresses) == 0 {
		return config.Invalid(fmt.Errorf("%w: none is configured: use --join.peers with the transport of a validator, as ID@HOST:26666", join.ErrNoTransport))
	}
	if err := checkTrust(e.conf.CometBFT.StateSync); err != nil {
		return config.Invalid(fmt.Errorf("%w: %w", ErrNoTrust, err))
	}
	return nil
}

// run fetches the state into a folder, or reads it there, and writes the file.
func (e *networkExport) run(ctx context.Context, dir string) (result SnapshotFile, err error) {
	zone, err := storage.Open(dir, storage.Options{CacheBytes: 32 << 20, Fatal: disk.EndProcess})
	if err != nil {
		return result, stopTheNode(err, "export to another file")
	}
	defer func() { err = errors.Join(err, zone.Close()) }()
	store := treestore.New(treestore.Options{Zone: zone, ChainID: e.genesis.ChainID, Cache: sgc.New(e.conf.App.Disk.SharedCache())})
	meta, complete := zone.Meta()
	height := meta.Height
	var v *avlstar.Version
	if complete { // an earlier call has proved it, and was interrupted later
		v, err = store.Read(ctx, func(uint64) {})
	} else {
		height, v, err = e.fetch(ctx, store)
	}
	if err != nil {
		return result, err
	}
	defer v.Release()
	<-zone.Settled()
	stats, err := archive.WriteFile(ctx, e.o.File, e.o.Overwrite, versionSource{v, height}, archive.Options{ChainID: e.genesis.ChainID, Progress: e.o.Writing})
	if err != nil {
		return result, err
	}
	return snapshotFile(e.o.File, e.genesis.ChainID, height, v.AppHash(), stats, e.started), nil
}

// fetch restores the newest snapshot of the network, or continues with an earlier one. The caller
// releases the version.
func (e *networkExport) fetch(ctx context.Context, store *treestore.Store) (int64, *avlstar.Version, error) {
	network, err := join.Connect(join.NetworkOptions{
		Config: e.conf, Logger: e.o.Logger, Genesis: e.genesis, Addresses: e.addresses,
		NodeKey: &p2p.NodeKey{PrivKey: ed25519.GenPrivKey()}, // the home's node may be running
	})
	if err != nil {
		return 0, nil, err
	}
	defer network.Close()
	if err := network.Reach(ctx, e.conf.App.Join.ReachTimeout); err != nil {
		return 0, nil, err
	}
	restored, err := network.Restore(ctx, store.JoinTarget(treestore.JoinOptions{}), e.interval, e.o.Fetching)
	if err != nil {
		return 0, nil, err
	}
	return restored.Height, restored.Version, nil
}

//go:build !sdk053

package generation

import (
	"cosmossdk.io/log/v2"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/baseapp"
	"github.com/cosmos/cosmos-sdk/runtime"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/cosmos/cosmos-sdk/store/v2"
	pruningtypes "github.com/cosmos/cosmos-sdk/store/v2/pruning/types"
	"github.com/cosmos/cosmos-sdk/store/v2/rootmulti"
	"github.com/cosmos/cosmos-sdk/store/v2/snapshots"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"
)

// Names of log.
type Logger = log.Logger

var (
	NewLogger    = log.NewLogger
	NewNopLogger = log.NewNopLogger
)

// Names of store, store/types and store/pruning/types.
type (
	KVStoreKey                = types.KVStoreKey
	MultiStorePersistentCache = types.MultiStorePersistentCache
)

const StoreTypeIAVL = types.StoreTypeIAVL

var (
	NewCommitKVStoreCacheManager = store.NewCommitKVStoreCacheManager
	NewKVStoreKey                = types.NewKVStoreKey
	NewPruningOptions            = pruningtypes.NewCustomPruningOptions
)

// Names of store/snapshots and store/snapshots/types.
type (
	Manager                       = snapshots.Manager
	Snapshot                      = snapshottypes.Snapshot
	Metadata                      = snapshottypes.Metadata
	SnapshotItem                  = snapshottypes.SnapshotItem
	SnapshotItem_Store            = snapshottypes.SnapshotItem_Store
	SnapshotItem_IAVL             = snapshottypes.SnapshotItem_IAVL
	SnapshotItem_Extension        = snapshottypes.SnapshotItem_Extension
	SnapshotItem_ExtensionPayload = snapshottypes.SnapshotItem_ExtensionPayload
	SnapshotStoreItem             = snapshottypes.SnapshotStoreItem
	SnapshotIAVLItem              = snapshottypes.SnapshotIAVLItem
	SnapshotExtensionMeta         = snapshottypes.SnapshotExtensionMeta
	SnapshotExtensionPayload      = snapshottypes.SnapshotExtensionPayload
	ExtensionPayloadWriter        = snapshottypes.ExtensionPayloadWriter
	ExtensionPayloadReader        = snapshottypes.ExtensionPayloadReader
)

const CurrentFormat = snapshottypes.CurrentFormat

var (
	NewSnapshotOptions = snapshottypes.NewSnapshotOptions
	NewSnapshotStore   = snapshots.NewStore
	NewStreamReader    = snapshots.NewStreamReader
	NewStreamWriter    = snapshots.NewStreamWriter
)

// BuildFlags are those with which the go command compiles this generation, in a folder of this
// module.
var BuildFlags []string

// Creator returns f as the SDK's type.
func Creator(f NewApp) servertypes.AppCreator {
	return f
}

// Create calls an application's creator.
func Create(f servertypes.AppCreator, logger Logger, db dbm.DB, options servertypes.AppOptions) servertypes.Application {
	return f(logger, db, options)
}

// Wrap returns a creator whose applications are those of f, wrapped.
func Wrap(f servertypes.AppCreator, wrap func(servertypes.Application, Logger, dbm.DB, servertypes.AppOptions) servertypes.Application) servertypes.AppCreator {
	return func(logger log.Logger, db dbm.DB, options servertypes.AppOptions) servertypes.Application {
		return wrap(f(logger, db, options), logger, db, options)
	}
}

// Build builds an application that depinject has put together.
func Build(b *runtime.AppBuilder, db dbm.DB, options ...func(*baseapp.BaseApp)) *runtime.App {
	return b.Build(db, options...)
}

// RefuseExport returns an exporter that fails with err.
func RefuseExport(err error) servertypes.AppExporter {
	return func(log.Logger, dbm.DB, int64, bool, []string, servertypes.AppOptions, []string) (servertypes.ExportedApp, error) {
		return servertypes.ExportedApp{}, err
	}
}

// NewMultiStore returns a multi-store of the SDK.
func NewMultiStore(db dbm.DB) *rootmulti.Store { return rootmulti.NewStore(db, log.NewNopLogger()) }

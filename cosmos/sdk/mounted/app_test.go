package mounted

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cosmossdk.io/log/v2"
	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/baseapp"
	codectypes "github.com/cosmos/cosmos-sdk/codec/types"
	"github.com/cosmos/cosmos-sdk/store/v2/snapshots"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	storetypes "github.com/cosmos/cosmos-sdk/store/v2/types"
	"github.com/cosmos/cosmos-sdk/testutil/testdata"
	sdk "github.com/cosmos/cosmos-sdk/types"
	ics23 "github.com/cosmos/ics23/go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/starling-kv/starling/cosmos/store"
	"github.com/starling-kv/starling/cosmos/store/rootmulti"
)

const chainID = "demo-1"

// stores are the stores at genesis, of our type and of IAVL's.
var stores = map[string]storetypes.StoreType{
	"bank": store.Type, "fees": store.Type, "gov": storetypes.StoreTypeIAVL, "still": storetypes.StoreTypeIAVL,
}

// app is a chain whose blocks write data derived from their height, and the data of their
// transactions. Its database is in dir.
type app struct {
	*baseapp.BaseApp
	t     *testing.T
	dir   string
	db    dbm.DB
	ms    *rootmulti.Store
	close func()
}

// open opens the application in dir with the given stores.
func open(t *testing.T, dir string, types map[string]storetypes.StoreType, upgrades *storetypes.StoreUpgrades) *app {
	t.Helper()
	db, err := dbm.NewGoLevelDB("application", dir, nil)
	require.NoError(t, err)
	a := &app{t: t, dir: dir, db: db}
	a.BaseApp = baseapp.NewBaseApp("demo", log.NewNopLogger(), db, decodeTx, baseapp.SetChainID(chainID))
	registry := codectypes.NewInterfaceRegistry()
	testdata.RegisterInterfaces(registry)
	a.SetInterfaceRegistry(registry)
	testdata.RegisterMsgServer(a.MsgServiceRouter(), messages{})
	a.ms = rootmulti.NewStore(db, log.NewNopLogger(), rootmulti.Options{Dir: filepath.Join(dir, "starling"), PinEvery: 4})
	a.SetCMS(a.ms)
	meta, err := dbm.NewGoLevelDB("metadata", filepath.Join(dir, "snapshots"), nil)
	if errors.Is(err, os.ErrNotExist) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "snapshots"), 0o750))
		meta, err = dbm.NewGoLevelDB("metadata", filepath.Join(dir, "snapshots"), nil)
	}
	require.NoError(t, err)
	files, err := snapshots.NewStore(meta, filepath.Join(dir, "snapshots"))
	require.NoError(t, err)
	a.SetSnapshot(files, snapshottypes.NewSnapshotOptions(0, 2))
	keys := map[string]storetypes.StoreKey{}
	for name, typ := range types {
		keys[name] = storetypes.NewKVStoreKey(name)
		a.MountStore(keys[name], typ)
	}
	a.SetInitChainer(func(ctx sdk.Context, _ *abci.RequestInitChain) (*abci.ResponseInitChain, error) {
		for name := range types {
			ctx.KVStore(keys[name]).Set([]byte("genesis"), []byte(name))
		}
		return &abci.ResponseInitChain{}, nil
	})
	a.SetBeginBlocker(func(ctx sdk.Context) (sdk.BeginBlock, error) {
		writeBlock(ctx, keys)
		return sdk.BeginBlock{}, nil
	})
	a.SetAnteHandler(func(ctx sdk.Context, tx sdk.Tx, _ bool) (sdk.Context, error) {
		// The transaction's number must be the count of earlier ones. CheckTx and blocks count
		// separately.
		kv := ctx.KVStore(keys["fees"])
		n := append([]byte{0}, kv.Get([]byte("number"))...) // values may begin with 0
		if len(n) != int(tx.(*transaction).number)+1 {
			return ctx, fmt.Errorf("number %d, expected %d", tx.(*transaction).number, len(n)-1)
		}
		kv.Set([]byte("number"), n)
		kv.Set([]byte("value"), make([]byte, tx.(*transaction).length))
		return ctx, nil
	})
	if upgrades != nil {
		a.SetStoreLoader(func(ms storetypes.CommitMultiStore) error { return ms.LoadLatestVersionAndUpgrade(upgrades) })
	}
	require.NoError(t, a.LoadLatestVersion())
	closed := false
	a.close = func() {
		if !closed {
			closed = true
			require.NoError(t, a.ms.Close())
			require.NoError(t, a.Close()) // closes the snapshots' database and db
		}
	}
	t.Cleanup(a.close)
	return a
}

// writeBlock writes data that depends on the height only. It skips stores that are not mounted.
func writeBlock(ctx sdk.Context, keys map[string]storetypes.StoreKey) {
	h := uint64(ctx.BlockHeight())
	for i, name := range []string{"bank", "coins", "gov", "new"} {
		key := keys[name]
		if key == nil {
			continue
		}
		rnd := rand.New(rand.NewPCG(h, uint64(i)))
		kv := ctx.KVStore(key)
		for range 200 {
			key := binary.BigEndian.AppendUint64(nil, rnd.Uint64N(2000))
			switch n := rnd.IntN(6); {
			case n == 0:
				kv.Delete(key)
			// ICS-23 can prove neither an empty value nor the absence of a key next to one.
			case n == 1 && name != "gov":
				kv.Set(key, []byte{})
			default:
				kv.Set(key, fmt.Appendf(nil, "%d/%d", h, rnd.Uint64()))
			}
		}
	}
}

// messages always fails. The ante handler does all the work, and its writes stay.
type messages struct{ testdata.MsgServerImpl }

func (messages) CreateDog(context.Context, *testdata.MsgCreateDog) (*testdata.MsgCreateDogResponse, error) {
	return nil, errors.New("the ante handler has done all the work")
}

// transaction is encoded as number ‖ length of a value, 4 bytes each.
type transaction struct{ number, length uint32 }

func (tx *transaction) GetMsgs() []sdk.Msg                  { return []sdk.Msg{&testdata.MsgCreateDog{}} }
func (tx *transaction) GetMsgsV2() ([]proto.Message, error) { return nil, nil }

func (tx *transaction) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, tx.number), tx.length)
}

func decodeTx(b []byte) (sdk.Tx, error) {
	if len(b) != 8 {
		return nil, errors.New("a transaction must have 8 bytes")
	}
	return &transaction{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}, nil
}

func begin(t *testing.T, apps ...*app) {
	t.Helper()
	for _, a := range apps {
		_, err := a.InitChain(&abci.RequestInitChain{ChainId: chainID, InitialHeight: 1, Time: time.Unix(1, 0)})
		require.NoError(t, err)
	}
}

// blocks executes blocks on all applications, and returns the app hash on which they agree.
func blocks(t *testing.T, from, to int64, apps ...*app) (hash []byte) {
	t.Helper()
	for h := from; h <= to; h++ {
		hash = block(t, h, nil, apps...)
	}
	return hash
}

func block(t *testing.T, height int64, txs [][]byte, apps ...*app) (hash []byte) {
	t.Helper()
	for i, a := range apps {
		r, err := a.FinalizeBlock(&abci.RequestFinalizeBlock{Height: height, Time: time.Unix(height, 0), Txs: txs})
		require.NoError(t, err)
		_, err = a.Commit()
		require.NoError(t, err)
		require.Equal(t, r.AppHash, a.LastCommitID().Hash, "application %d at height %d", i, height)
		if i > 0 {
			require.Equal(t, hash, r.AppHash, "application %d at height %d", i, height)
		}
		hash = r.AppHash
	}
	return hash
}

// TestRestarts checks that an application that restarts after each block has the same app hashes as
// one that keeps running.
func TestRestarts(t *testing.T) {
	a, dir := open(t, t.TempDir(), stores, nil), t.TempDir()
	b := open(t, dir, stores, nil)
	begin(t, a, b)
	for h := int64(1); h <= 10; h++ {
		hash := block(t, h, nil, a, b)
		b.close()
		b = open(t, dir, stores, nil)
		info, err := b.Info(&abci.RequestInfo{})
		require.NoError(t, err)
		require.Equal(t, hash, info.LastBlockAppHash)
		require.Equal(t, h, info.LastBlockHeight)
	}
}

// TestCheckTx checks that writes of CheckTx are not in any block, and are discarded at the next
// block. A value that is too large for the store fails only its own transaction.
func TestCheckTx(t *testing.T) {
	a := open(t, t.TempDir(), stores, nil)
	begin(t, a)
	blocks(t, 1, 2, a)
	check := func(tx transaction) uint32 {
		r, err := a.CheckTx(&abci.RequestCheckTx{Tx: tx.encode()})
		require.NoError(t, err)
		return r.Code
	}
	require.Zero(t, check(transaction{0, 10}))
	require.NotZero(t, check(transaction{0, 10}), "CheckTx has seen number 0")
	require.NotZero(t, check(transaction{1, store.MaxValueBytes}), "the store adds a byte, so the value exceeds the limit")
	require.Zero(t, check(transaction{1, store.MaxValueBytes - 1}))
	require.Equal(t, []byte(nil), a.ms.GetKVStore(a.key("fees")).Get([]byte("number")))

	b := open(t, t.TempDir(), stores, nil)
	begin(t, b)
	blocks(t, 1, 2, b)
	huge, last := transaction{0, store.MaxValueBytes}, transaction{0, 5}
	block(t, 3, [][]byte{huge.encode(), last.encode()}, a, b)
	require.Equal(t, []byte{0}, a.ms.GetKVStore(a.key("fees")).Get([]byte("number")), "only the second transaction counts")
	require.Equal(t, make([]byte, 5), a.ms.GetKVStore(a.key("fees")).Get([]byte("value")))
	require.NotZero(t, check(transaction{2, 1}), "CheckTx continues from the block")
	require.Zero(t, check(transaction{1, 1}))
}

// TestProofs checks that a client with only cosmos/ics23 and our spec can verify query results from
// both kinds of stores against the app hash.
func TestProofs(t *testing.T) {
	a := open(t, t.TempDir(), stores, nil)
	begin(t, a)
	hash := blocks(t, 1, 6, a)
	ours := []*ics23.ProofSpec{store.StateSpec, ics23.TendermintSpec, ics23.TendermintSpec}
	for name, specs := range map[string][]*ics23.ProofSpec{"bank": ours, "gov": {ics23.IavlSpec, ics23.TendermintSpec}} {
		path := [][]byte{nil, []byte(store.MapKey), []byte(name)}
		if name == "gov" {
			path = [][]byte{nil, []byte(name)}
		}
		present, absent := 0, 0
		for k := range uint64(60) {
			path[0] = binary.BigEndian.AppendUint64(nil, k*31)
			r, err := a.Query(context.Background(), &abci.RequestQuery{Path: "/store/" + name + "/key", Data: path[0], Height: 6, Prove: true})
			require.NoError(t, err)
			require.Zero(t, r.Code, r.Log)
			require.Equal(t, a.ms.GetKVStore(a.key(name)).Get(path[0]), r.Value)
			value := r.Value
			if r.Value != nil && name == "bank" {
				value = store.Escape(r.Value)
			}
			if r.Value == nil {
				absent++
			} else {
				present++
			}
			require.NoError(t, verify(hash, path, value, specs, r.ProofOps.Ops))
			require.Error(t, verify(hash, path, append([]byte("x"), value...), specs, r.ProofOps.Ops))
			wrong := append([]byte{hash[0] ^ 1}, hash[1:]...)
			require.Error(t, verify(wrong, path, value, specs, r.ProofOps.Ops))
		}
		require.Positive(t, present, name)
		require.Positive(t, absent, name)
	}
}

// TestSnapshots checks that an application restored from a snapshot of the SDK's manager continues
// with the same app hashes as the original.
func TestSnapshots(t *testing.T) {
	a, dir := open(t, t.TempDir(), stores, nil), t.TempDir()
	b := open(t, dir, stores, nil)
	begin(t, a)
	hash := blocks(t, 1, 7, a)
	s, err := a.SnapshotManager().Create(7)
	require.NoError(t, err)
	list, err := a.ListSnapshots(&abci.RequestListSnapshots{})
	require.NoError(t, err)
	require.Len(t, list.Snapshots, 1)
	offer, err := b.OfferSnapshot(&abci.RequestOfferSnapshot{Snapshot: list.Snapshots[0], AppHash: hash})
	require.NoError(t, err)
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offer.Result)
	for i := range s.Chunks {
		chunk, err := a.LoadSnapshotChunk(&abci.RequestLoadSnapshotChunk{Height: s.Height, Format: s.Format, Chunk: i})
		require.NoError(t, err)
		r, err := b.ApplySnapshotChunk(&abci.RequestApplySnapshotChunk{Index: i, Chunk: chunk.Chunk})
		require.NoError(t, err)
		require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, r.Result)
	}
	require.Equal(t, a.LastCommitID(), b.LastCommitID())
	blocks(t, 8, 9, a, b)
	b.close()
	b = open(t, dir, stores, nil)
	blocks(t, 10, 12, a, b)
}

// TestRollback checks that blocks that are executed again after a rollback have the same app
// hashes.
func TestRollback(t *testing.T) {
	a, dir := open(t, t.TempDir(), stores, nil), t.TempDir()
	b := open(t, dir, stores, nil)
	begin(t, a, b)
	blocks(t, 1, 11, a, b)
	for _, back := range []int64{10, 6, 3} {
		require.NoError(t, b.CommitMultiStore().RollbackToVersion(back))
		b.close()
		b = open(t, dir, stores, nil)
		require.Equal(t, back, b.LastBlockHeight())
		blocks(t, back+1, 11, b)
		require.Equal(t, a.LastCommitID(), b.LastCommitID())
	}
}

// TestUpgrade adds, renames and deletes stores of both kinds. All nodes have the same app hash,
// also a node that restarts before the first block after the upgrade.
func TestUpgrade(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	a, b := open(t, dirs[0], stores, nil), open(t, dirs[1], stores, nil)
	begin(t, a, b)
	blocks(t, 1, 5, a, b)
	before := read(a.ms.GetKVStore(a.key("bank")))
	a.close()
	b.close()
	upgrades := &storetypes.StoreUpgrades{Added: []string{"new", "plain"}, Renamed: []storetypes.StoreRename{{OldKey: "bank", NewKey: "coins"}}, Deleted: []string{"fees", "still"}}
	// The SDK requires deleted stores to be mounted in the first block.
	during := map[string]storetypes.StoreType{"coins": store.Type, "gov": storetypes.StoreTypeIAVL, "new": store.Type, "plain": storetypes.StoreTypeIAVL, "fees": store.Type, "still": storetypes.StoreTypeIAVL}
	after := map[string]storetypes.StoreType{"coins": store.Type, "gov": storetypes.StoreTypeIAVL, "new": store.Type, "plain": storetypes.StoreTypeIAVL}
	a, b = open(t, dirs[0], during, upgrades), open(t, dirs[1], during, upgrades)
	require.Equal(t, before, read(a.ms.GetKVStore(a.key("coins"))))
	b.close() // the upgrade is not committed yet
	b = open(t, dirs[1], during, upgrades)
	blocks(t, 6, 6, a, b)
	b.close()
	b = open(t, dirs[1], after, nil)
	blocks(t, 7, 9, a, b)
	info, err := b.ms.GetCommitInfo(9)
	require.NoError(t, err)
	var names []string
	for _, s := range info.StoreInfos {
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"coins", "gov", "new", "plain"}, names)
}

func read(kv storetypes.KVStore) map[string]string {
	all := map[string]string{}
	it := kv.Iterator(nil, nil)
	defer it.Close()
	for ; it.Valid(); it.Next() {
		all[string(it.Key())] = string(it.Value())
	}
	return all
}

// key returns the store key with which a store was mounted.
func (a *app) key(name string) storetypes.StoreKey { return a.ms.StoreKeysByName()[name] }

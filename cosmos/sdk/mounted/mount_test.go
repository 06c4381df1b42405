package mounted

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cosmossdk.io/log/v2"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/baseapp"
	pruning "github.com/cosmos/cosmos-sdk/store/v2/pruning/types"
	"github.com/cosmos/cosmos-sdk/store/v2/snapshots"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	storetypes "github.com/cosmos/cosmos-sdk/store/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/store"
	"github.com/starling-kv/starling/cosmos/store/rootmulti"
)

// TestMountAsDocumented runs the code in docs/how-to/cosmos-mount.md: options such as those of the
// SDK's server.DefaultBaseappOptions apply to our multi-store.
func TestMountAsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/how-to/cosmos-mount.md")
	require.NoError(t, err)
	source, err := os.ReadFile("mount_test.go")
	require.NoError(t, err)
	_, lines, _ := strings.Cut(string(doc), "```go\n")
	lines, _, _ = strings.Cut(lines, "```")
	require.NotEmpty(t, lines)
	for line := range strings.Lines(lines) {
		require.Contains(t, string(source), "\t"+line)
	}

	name, decoder, logger, db, home := "demo", decodeTx, log.NewNopLogger(), dbm.NewMemDB(), t.TempDir()
	keys := storetypes.NewKVStoreKeys("bank", "gov")
	files, err := snapshots.NewStore(dbm.NewMemDB(), filepath.Join(home, "snapshots"))
	require.NoError(t, err)
	options := []func(*baseapp.BaseApp){
		baseapp.SetChainID(chainID), baseapp.SetPruning(pruning.NewCustomPruningOptions(5, 10)),
		baseapp.SetSnapshot(files, snapshottypes.NewSnapshotOptions(0, 2)),
	}

	cms := rootmulti.NewStore(db, logger, rootmulti.Options{Dir: filepath.Join(home, "data", "starling")})
	setCMS := func(b *baseapp.BaseApp) { b.SetCMS(cms) }
	app := baseapp.NewBaseApp(name, logger, db, decoder, append([]func(*baseapp.BaseApp){setCMS}, options...)...)
	app.MountStore(keys["bank"], store.Type)

	app.MountStore(keys["gov"], storetypes.StoreTypeIAVL)
	require.Equal(t, pruning.NewCustomPruningOptions(5, 10), cms.GetPruning())
	require.NoError(t, app.LoadLatestVersion())
	cms.GetKVStore(keys["bank"]).Set([]byte("k"), []byte("v"))
	require.Equal(t, int64(1), cms.Commit().Version)

	// The snapshot manager has the stores of our multi-store.
	made, err := app.SnapshotManager().Create(1)
	require.NoError(t, err)
	require.NotZero(t, made.Chunks)
	require.NoError(t, cms.Close())
}

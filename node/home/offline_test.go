package home_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage"
)

// offlineHome creates a home with blocks, and snapshots if interval is set, and stops its node. It
// returns its configuration.
func offlineHome(t *testing.T, interval int64, edit func(*config.App)) *config.Config {
	t.Helper()
	home, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.App = app.Genesis{Open: true, ChunkBytes: 512, SnapshotInterval: interval}
	})
	conf := nodetest.Load(t, home)
	conf.App.Disk.FlushBlocks = 1 // so that each snapshot is stored
	if edit != nil {
		edit(&conf.App)
	}
	run(t, conf, func(n *node.Node) {
		client := nodetest.RPC(t, home)
		for i := range 12 {
			nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), fmt.Sprintf("%0100d", i))
		}
	})
	if interval > 0 {
		storeTwo(t, conf)
	}
	return conf
}

// storeTwo runs a node until two snapshots are stored when it has stopped. If snapshots come faster
// than the disk, not all of them are stored.
func storeTwo(t *testing.T, conf *config.Config) {
	t.Helper()
	for range 20 {
		run(t, conf, func(n *node.Node) {
			nodetest.Until(t, "two stored snapshots", func() bool { return len(storedSnapshots(conf)) > 1 })
			next := n.Application().Height() + 1
			nodetest.Until(t, "a block after them", func() bool { return n.Application().Height() > next })
		})
		if len(storedSnapshots(conf)) > 1 {
			return
		}
	}
	t.Fatal("no two snapshots were stored at a stop")
}

// run starts a node, and stops it when work is done. The node must have all keys that offlineHome
// wrote.
func run(t *testing.T, config *config.Config, work func(n *node.Node)) {
	t.Helper()
	n, err := node.New(t.Context(), config, log.NewNopLogger())
	require.NoError(t, err)
	require.NoError(t, n.Start(t.Context()))
	defer func() { require.NoError(t, n.Stop()) }()
	work(n)
}

// goesOn starts a rolled-back node: its state matches the headers and has every key, and it makes
// blocks.
func goesOn(t *testing.T, config *config.Config) {
	t.Helper()
	run(t, config, func(n *node.Node) {
		client := nodetest.RPC(t, config.Home)
		for i := range 12 {
			require.Equal(t, fmt.Sprintf("%0100d", i), nodetest.Get(t, client, fmt.Sprintf("key-%02d", i)))
		}
		nodetest.SameHashes(t, n.Application(), n.Comet)
		nodetest.Put(t, client, "another", strconv.FormatInt(n.Application().Height(), 10))
		nodetest.SameHashes(t, n.Application(), n.Comet)
	})
}

func agree(home.RollbackPlan) error { return nil }

// heights returns the heights of the state on disk and of the last block.
func heights(t *testing.T, config *config.Config) (state, last int64) {
	t.Helper()
	seen, err := home.Inspect(t.Context(), config, true, func(uint64, uint64) {})
	require.NoError(t, err)
	require.NotNil(t, seen.Blocks)
	return seen.State.Height, seen.Blocks.Height
}

func TestVerify(t *testing.T) {
	config := offlineHome(t, 3, nil)
	told := uint64(0)
	result, err := home.Verify(t.Context(), config, home.VerifyOptions{Snapshots: true, Progress: func(_ string, done, total uint64) {
		require.LessOrEqual(t, done, total)
		told = done
	}})
	require.NoError(t, err)
	require.NotNil(t, result.State)
	require.Equal(t, result.State.Height+1, result.State.Header)
	require.Equal(t, "test-chain", result.State.ChainID)
	require.Greater(t, len(result.Snapshots), 1)
	for _, s := range result.Snapshots {
		require.Equal(t, s.Height+1, s.Header)
	}
	require.Equal(t, result.Snapshots[len(result.Snapshots)-1].Keys, told)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = home.Verify(ctx, config, home.VerifyOptions{})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, home.ErrDamaged)
	goesOn(t, config) // nothing was changed, and no lock is held
}

func TestVerifyFindsWhatIsDamaged(t *testing.T) {
	conf := offlineHome(t, 3, nil)
	// Blocks are then in tables, and not only in the log.
	_, err := home.Compact(t.Context(), conf, func(string, uint64, uint64) {})
	require.NoError(t, err)
	good, err := home.Verify(t.Context(), conf, home.VerifyOptions{Snapshots: true})
	require.NoError(t, err)

	// A damaged snapshot: the state is still intact.
	pin := good.Snapshots[0].Folder
	damage(t, pin)
	result, err := home.Verify(t.Context(), conf, home.VerifyOptions{Snapshots: true})
	require.ErrorIs(t, err, home.ErrDamaged)
	require.ErrorContains(t, err, pin)
	require.ErrorContains(t, err, "remove that folder")
	require.Equal(t, good.State, result.State)
	require.Len(t, result.Snapshots, len(good.Snapshots)-1)

	// A damaged bit in its description: the state and the other snapshots are intact.
	description := filepath.Join(good.Snapshots[1].Folder, "PIN")
	flipBit(t, description, 0)
	result, err = home.Verify(t.Context(), conf, home.VerifyOptions{Snapshots: true})
	require.ErrorIs(t, err, home.ErrDamaged)
	require.ErrorContains(t, err, description)
	require.Equal(t, 2, strings.Count(err.Error(), "remove that folder"))
	require.Equal(t, good.State, result.State)
	require.Len(t, result.Snapshots, len(good.Snapshots)-2)
	_, err = home.Verify(t.Context(), conf, home.VerifyOptions{})
	require.NoError(t, err)

	// Damaged blocks: the error also names their file.
	tables, err := filepath.Glob(filepath.Join(good.Blocks.Folder, "*.sst"))
	require.NoError(t, err)
	require.NotEmpty(t, tables)
	require.Equal(t, len(tables), good.Blocks.Tables)
	told := uint64(0)
	at := flipBit(t, tables[0], -1)
	_, err = home.Verify(t.Context(), conf, home.VerifyOptions{BlocksProgress: func(_ string, done, _ uint64) { told = done }})
	require.ErrorIs(t, err, home.ErrDamaged)
	require.ErrorContains(t, err, tables[0])
	require.NotZero(t, told)
	require.Equal(t, at, flipBit(t, tables[0], -1))

	// A damaged state: the error names its file.
	file := damage(t, config.StateDir(conf.CometBFT.DBDir()))
	_, err = home.Verify(t.Context(), conf, home.VerifyOptions{})
	require.ErrorIs(t, err, home.ErrDamaged)
	require.ErrorContains(t, err, filepath.Base(file))
	require.ErrorContains(t, err, "unsafe-reset-all")
}

// flipBit changes a bit of a file, in the middle if at is negative. It returns where.
func flipBit(t *testing.T, path string, at int) int {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	if at < 0 {
		at = len(content) / 2
	}
	content[at] ^= 1
	require.NoError(t, os.Remove(path)) // another link to it may exist
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return at
}

// damage changes a byte in the first data block of every table in a folder, in a copy of each file,
// and returns the last one.
func damage(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.sst"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		content[10] ^= 0x40
		require.NoError(t, os.Remove(file)) // another link to it may exist
		require.NoError(t, os.WriteFile(file, content, 0o600))
	}
	return files[len(files)-1]
}

// Complete files with wrong content: the root differs.
func TestVerifyFindsAStateThatIsNotTheNetworks(t *testing.T) {
	conf := offlineHome(t, 0, nil)
	dir := conf.CometBFT.DBDir()
	change := func(block storage.Block) {
		zone, err := storage.Open(config.StateDir(dir), storage.Options{})
		require.NoError(t, err)
		block.Meta, _ = zone.Meta()
		block.Meta.Height++
		require.NoError(t, zone.Write(block))
		require.NoError(t, zone.Close())
	}
	state, last := heights(t, conf)
	change(storage.Block{Puts: []avlstar.Leaf{{Key: []byte("key-03"), Value: []byte("changed")}}})
	_, err := home.Verify(t.Context(), conf, home.VerifyOptions{})
	require.ErrorIs(t, err, home.ErrDamaged)
	require.ErrorContains(t, err, "when it was stored")
	require.ErrorContains(t, err, config.StateDir(dir))

	// The right content, but of a height other than the last block's.
	change(storage.Block{Puts: []avlstar.Leaf{{Key: []byte("key-03"), Value: fmt.Appendf(nil, "%0100d", 3)}}})
	require.Greater(t, state+2, last)
	_, err = home.Verify(t.Context(), conf, home.VerifyOptions{})
	require.ErrorIs(t, err, home.ErrDamaged)
	require.ErrorContains(t, err, fmt.Sprintf("the blocks end at %d", last))
}

func TestCompact(t *testing.T) {
	for _, backend := range []string{config.BlockZoneBackend, "goleveldb"} {
		t.Run(backend, func(t *testing.T) {
			dir, _ := nodetest.Home(t, nil)
			config := nodetest.Load(t, dir)
			config.CometBFT.DBBackend = backend
			run(t, config, func(*node.Node) { nodetest.Put(t, nodetest.RPC(t, dir), "key", "value") })
			var told []string
			zones, err := home.Compact(t.Context(), config, func(zone string, done, total uint64) {
				require.LessOrEqual(t, done, total)
				if len(told) == 0 || told[len(told)-1] != zone {
					told = append(told, zone)
				}
			})
			require.NoError(t, err)
			require.Equal(t, "state", told[0])
			require.Len(t, zones, len(told))
			for _, z := range zones {
				require.Positive(t, z.After, z.Zone)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = home.Compact(ctx, config, func(string, uint64, uint64) {})
			require.ErrorIs(t, err, context.Canceled)
			_, err = home.Verify(t.Context(), config, home.VerifyOptions{})
			require.NoError(t, err)
			run(t, config, func(n *node.Node) {
				require.Equal(t, "value", nodetest.Get(t, nodetest.RPC(t, dir), "key"))
				nodetest.SameHashes(t, n.Application(), n.Comet)
			})
		})
	}
}

func TestInspect(t *testing.T) {
	conf := offlineHome(t, 3, nil)
	estimated, err := home.Inspect(t.Context(), conf, false, nil)
	require.NoError(t, err)
	counted, err := home.Inspect(t.Context(), conf, true, func(uint64, uint64) {})
	require.NoError(t, err)
	require.False(t, estimated.State.Exact)
	require.True(t, counted.State.Exact)
	require.EqualValues(t, 12+2, counted.State.Keys, "with the application's own")
	require.NotZero(t, estimated.State.Keys)
	require.NotEmpty(t, counted.State.Levels)
	require.NotEmpty(t, counted.State.Snapshots)
	require.EqualValues(t, 1, counted.Blocks.Base)
	require.Equal(t, counted.Blocks.Height-counted.State.Height, counted.Lag)
	require.Equal(t, config.BlockZoneBackend, counted.Blocks.Backend)
	var ids []string
	for _, d := range counted.Blocks.Databases {
		ids = append(ids, d.ID)
	}
	require.Subset(t, ids, []string{"state", "blockstore"})
}

func TestRollbackToASnapshot(t *testing.T) {
	config := offlineHome(t, 3, nil)
	for range 3 {
		state, last := heights(t, config)
		plan, err := home.Rollback(config, false, agree)
		require.NoError(t, err)
		require.Equal(t, last-1, plan.Height)
		require.Equal(t, state, plan.StateBefore)
		require.Positive(t, plan.State)
		require.Less(t, plan.State, last)
		require.Zero(t, plan.State%3)
		require.Equal(t, last-plan.State, plan.Replayed)
		require.Zero(t, plan.RemovedBlock)

		now, blocks := heights(t, config)
		require.Equal(t, plan.State, now)
		require.Equal(t, last, blocks, "the block stays")
		_, err = home.Verify(t.Context(), config, home.VerifyOptions{Snapshots: true})
		require.NoError(t, err)
		goesOn(t, config)
		storeTwo(t, config)
	}
}

// A validator cannot make a block again that it has signed, so this network of one halts
// afterwards; but its data on disk are consistent.
func TestRollbackHard(t *testing.T) {
	config := offlineHome(t, 3, nil)
	_, last := heights(t, config)
	for i := range int64(2) { // it can be repeated
		plan, err := home.Rollback(config, true, agree)
		require.NoError(t, err)
		require.Equal(t, last-i, plan.RemovedBlock)
		require.Equal(t, last-i-1, plan.Height)
		_, blocks := heights(t, config)
		require.Equal(t, last-i-1, blocks)
	}
	n, err := node.New(t.Context(), config, log.NewNopLogger())
	require.NoError(t, err)
	require.Equal(t, last-2, n.Application().Height())
	require.NoError(t, n.Stop())
	_, err = home.Verify(t.Context(), config, home.VerifyOptions{})
	require.NoError(t, err)
}

func TestRollbackToGenesis(t *testing.T) {
	config := offlineHome(t, 0, nil)
	state, last := heights(t, config)
	refused := fmt.Errorf("no")
	plan, err := home.Rollback(config, false, func(plan home.RollbackPlan) error {
		require.True(t, plan.Empties())
		return refused
	})
	require.ErrorIs(t, err, refused)
	require.Equal(t, last, plan.Replayed)
	now, _ := heights(t, config)
	require.Equal(t, state, now, "nothing was changed")

	_, err = home.Rollback(config, false, agree)
	require.NoError(t, err)
	now, _ = heights(t, config)
	require.Zero(t, now)
	goesOn(t, config)
}

func TestRollbackOfAStateThatIsBehind(t *testing.T) {
	conf := offlineHome(t, 3, nil)
	before, last := heights(t, conf)
	seen, err := home.Inspect(t.Context(), conf, false, nil)
	require.NoError(t, err)
	behind := seen.State.Snapshots[0].Height
	require.Less(t, behind, before)
	require.NoError(t, storage.RollbackToPin(config.StateDir(conf.CometBFT.DBDir()), behind, home.StateOptions(conf.CometBFT.DBDir(), false)))
	plan, err := home.Rollback(conf, false, agree)
	require.NoError(t, err)
	require.Equal(t, behind, plan.StateBefore)
	require.Equal(t, behind, plan.State)
	require.Equal(t, last-behind, plan.Replayed)
	goesOn(t, conf)
}

// After a kill between the two databases, a start works as without the rollback, and another
// rollback completes it.
func TestRollbackIsKilledHalfWay(t *testing.T) {
	for name, again := range map[string]bool{"start": false, "rollback": true} {
		t.Run(name, func(t *testing.T) {
			config := offlineHome(t, 3, nil)
			_, last := heights(t, config)
			d, err := home.OpenOffline(config, false)
			require.NoError(t, err)
			plan, err := d.PlanRollback(false)
			require.NoError(t, err)
			require.NoError(t, d.RollbackState(plan))
			require.NoError(t, d.Close())
			if again {
				second, err := home.Rollback(config, false, agree)
				require.NoError(t, err)
				require.Equal(t, last-1, second.Height, "and not one more")
				require.Equal(t, plan.State, second.State)
			}
			goesOn(t, config)
		})
	}
}

// Blocks are pruned, except those that a stored snapshot needs.
func TestRollbackOfAPrunedNode(t *testing.T) {
	conf := offlineHome(t, 3, func(c *config.App) { c.State.RetainBlocks = 2 })
	seen, err := home.Inspect(t.Context(), conf, false, nil)
	require.NoError(t, err)
	require.Greater(t, seen.Blocks.Base, int64(1))
	// The oldest snapshot.
	for _, s := range seen.State.Snapshots[1:] {
		require.NoError(t, os.RemoveAll(filepath.Join(config.SnapshotsDir(conf.CometBFT.DBDir()), strconv.FormatInt(s.Height, 10))))
	}
	plan, err := home.Rollback(conf, false, agree)
	require.NoError(t, err)
	require.Equal(t, seen.State.Snapshots[0].Height, plan.State)
	goesOn(t, conf)
}

func TestRollbackThatIsImpossible(t *testing.T) {
	conf := offlineHome(t, 3, func(c *config.App) { c.State.RetainBlocks = 2 })
	seen, err := home.Inspect(t.Context(), conf, false, nil)
	require.NoError(t, err)
	require.Greater(t, seen.Blocks.Base, int64(1))
	require.NoError(t, os.RemoveAll(config.SnapshotsDir(conf.CometBFT.DBDir())))
	_, err = home.Rollback(conf, false, agree)
	require.ErrorIs(t, err, home.ErrCannotRollBack)
	require.ErrorContains(t, err, "unsafe-reset-all")
	state, last := heights(t, conf)
	require.Equal(t, seen.State.Height, state)
	require.Equal(t, seen.Blocks.Height, last)
	goesOn(t, conf)
}

func TestOfflineCommandsKeepOffARunningNode(t *testing.T) {
	dir, _ := nodetest.Home(t, nil)
	config := nodetest.Load(t, dir)
	n, err := node.New(t.Context(), config, log.NewNopLogger())
	require.NoError(t, err)
	require.NoError(t, n.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, n.Stop()) })
	nodetest.Put(t, nodetest.RPC(t, dir), "a", "1")
	_, err = home.Verify(t.Context(), config, home.VerifyOptions{})
	require.ErrorIs(t, err, storage.ErrLocked)
	_, err = home.Inspect(t.Context(), config, false, nil)
	require.ErrorIs(t, err, storage.ErrLocked)
	_, err = home.Compact(t.Context(), config, func(string, uint64, uint64) {})
	require.ErrorIs(t, err, storage.ErrLocked)
	_, err = home.Rollback(config, false, agree)
	require.ErrorIs(t, err, storage.ErrLocked)
	nodetest.Put(t, nodetest.RPC(t, dir), "b", "2")
}

// storedSnapshots returns the snapshots on the disk of a node, which may be running.
func storedSnapshots(conf *config.Config) []os.DirEntry {
	stored, err := os.ReadDir(config.SnapshotsDir(conf.CometBFT.DBDir()))
	if err != nil {
		return nil
	}
	return stored
}

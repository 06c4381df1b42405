package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync/archive"
)

// A file with the whole state is made while a network without any full-state node runs, in the home
// of its validator. An interrupted export continues.
func TestExportFromNetwork(t *testing.T) {
	t.Parallel() // it waits for blocks
	w := newShardedNetworkOf(t, app.Genesis{Open: true, ChunkBytes: 300, SnapshotInterval: 5}, []string{"key-10", "key-20"}, [][]int{{0}, {0, 1}, {1}})
	w.start(0)
	w.start(1)
	n := start(t, w.validator, log.NewNopLogger())
	client := nodetest.RPC(t, w.validator)
	for i := range 30 {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), fmt.Sprint("value ", i))
	}
	first := int64(1)
	header, err := client.Commit(t.Context(), &first)
	require.NoError(t, err)
	conf := nodetest.Load(t, w.validator)
	file := filepath.Join(t.TempDir(), "state.snapshot")
	o := home.NetworkExportOptions{File: file, Logger: log.NewNopLogger()}
	_, err = home.ExportFromNetwork(t.Context(), conf, o)
	require.ErrorContains(t, err, "use --join.peers")
	conf.App.Join.Peers = fmt.Sprintf("%s@%s", w.id, w.transport)
	_, err = home.ExportFromNetwork(t.Context(), conf, o)
	require.ErrorIs(t, err, home.ErrNoTrust)
	conf.CometBFT.StateSync.TrustHeight, conf.CometBFT.StateSync.TrustHash = 1, header.Header.Hash().String()

	// The state is complete, and the file is not.
	interrupted, cancel := context.WithCancel(t.Context())
	o.Writing = func(uint64, uint64) { cancel() }
	_, err = home.ExportFromNetwork(interrupted, conf, o)
	require.ErrorIs(t, err, context.Canceled)
	require.NoFileExists(t, file)
	before := n.Application().Height()
	w.stop(0)
	w.stop(1)
	o.Writing = nil
	result, err := home.ExportFromNetwork(t.Context(), conf, o)
	require.NoError(t, err)
	require.LessOrEqual(t, result.Height, before)
	require.Zero(t, result.Height%5)
	require.NoDirExists(t, file+".state")
	_, err = home.ExportFromNetwork(t.Context(), conf, o)
	require.ErrorIs(t, err, home.ErrFileExists)
	w.start(0)
	w.start(1)

	next := result.Height + 1
	after, err := client.Commit(t.Context(), &next)
	require.NoError(t, err)
	require.Equal(t, after.Header.AppHash.String(), result.AppHash)
	opened, err := archive.OpenFile(file)
	require.NoError(t, err)
	t.Cleanup(func() { opened.Close() })
	contents, err := opened.Verify([32]byte(after.Header.AppHash))
	require.NoError(t, err)
	for chunk, err := range contents.Chunks() {
		require.NoError(t, err)
		_, err = chunk.Data()
		require.NoError(t, err)
	}

	// A wrong header is refused, and the folder can be removed.
	conf.CometBFT.StateSync.TrustHash = header.Header.AppHash.String()
	o.Overwrite = true
	_, err = home.ExportFromNetwork(t.Context(), conf, o)
	require.ErrorContains(t, err, "trusted header")
	require.NoError(t, os.RemoveAll(file+".state"))
	require.FileExists(t, file, "the old one stays")
	require.NoError(t, n.Stop())
}

package liar_test

import (
	"context"
	"fmt"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/e2e/byzantine/liar"
)

// honest serves one snapshot of a tree, at height 10.
type honest struct {
	abci.BaseApplication
	version *avlstar.Version
}

func (h *honest) ListSnapshots(context.Context, *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	hash := h.version.AppHash()
	return &abci.ResponseListSnapshots{Snapshots: []*abci.Snapshot{{
		Height: 10, Format: 1, Chunks: h.version.NumChunks(), Hash: hash[:], Metadata: h.version.Manifest().Encode(),
	}}}, nil
}

func (h *honest) LoadSnapshotChunk(_ context.Context, req *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	chunk, err := h.version.Chunk(req.Chunk)
	if err != nil {
		return &abci.ResponseLoadSnapshotChunk{}, nil //nolint:nilerr // as an honest node answers for what it does not have
	}
	return &abci.ResponseLoadSnapshotChunk{Chunk: chunk}, nil
}

func tree(t *testing.T, leaves int) *honest {
	t.Helper()
	return treeOf(t, leaves, 300)
}

func treeOf(t *testing.T, leaves int, chunkBytes uint64) *honest {
	t.Helper()
	version, err := avlstar.Empty(chunkBytes)
	require.NoError(t, err)
	var changes []avlstar.Change
	for i := range leaves {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key-%04d", i), Value: fmt.Appendf(nil, "value-%d", i)})
	}
	version, err = version.Apply(changes)
	require.NoError(t, err)
	return &honest{version: version}
}

// Whatever the mode and the seed, no chunk that the liar serves may pass.
func TestEveryChunkServedIsRefused(t *testing.T) {
	for _, leaves := range []int{1, 2, 400} {
		app := tree(t, leaves)
		manifest := app.version.Manifest()
		for _, mode := range liar.Modes() {
			for seed := range uint64(7) {
				lying := liar.Wrap(app, mode, seed, nil)
				for k := range app.version.NumChunks() {
					resp, err := lying.LoadSnapshotChunk(t.Context(), &abci.RequestLoadSnapshotChunk{Height: 10, Format: 1, Chunk: k})
					require.NoError(t, err)
					_, err = manifest.VerifyChunk(k, resp.Chunk)
					require.ErrorIs(t, err, avlstar.ErrInvalidChunk, "%s, seed %d, chunk %d of %d", mode, seed, k, app.version.NumChunks())
				}
				require.EqualValues(t, app.version.NumChunks(), lying.Lies())
			}
		}
		for k := range app.version.NumChunks() { // the lies left the honest application's bytes alone
			chunk, err := app.version.Chunk(k)
			require.NoError(t, err)
			_, err = manifest.VerifyChunk(k, chunk)
			require.NoError(t, err)
		}
	}
}

func TestWithheldAndEmptyChunks(t *testing.T) {
	app := tree(t, 40)
	ask := &abci.RequestLoadSnapshotChunk{Height: 10, Format: 1, Chunk: 0}
	resp, err := liar.Wrap(app, liar.Withhold, 1, nil).LoadSnapshotChunk(t.Context(), ask)
	require.NoError(t, err)
	require.Nil(t, resp.Chunk)
	resp, err = liar.Wrap(app, liar.Empty, 1, nil).LoadSnapshotChunk(t.Context(), ask)
	require.NoError(t, err)
	require.NotNil(t, resp.Chunk)
	require.Empty(t, resp.Chunk)
}

func TestOffers(t *testing.T) {
	app := tree(t, 40)
	list := func(mode liar.Mode) []*abci.Snapshot {
		resp, err := liar.Wrap(app, mode, 1, nil).ListSnapshots(t.Context(), &abci.RequestListSnapshots{})
		require.NoError(t, err)
		return resp.Snapshots
	}
	truth := list(liar.Mix) // honest offers: else no joiner would ask this peer for chunks
	require.Len(t, truth, 1)

	moved := list(liar.Alias)
	require.Len(t, moved, 1)
	require.Len(t, moved[0].Hash, 33)
	require.Equal(t, string(truth[0].Hash)+string(truth[0].Metadata), string(moved[0].Hash)+string(moved[0].Metadata))

	lone := list(liar.Lone)
	require.Len(t, lone, 2)
	require.EqualValues(t, 11, lone[1].Height)
	require.Equal(t, truth[0], lone[0])
}

func TestParseMode(t *testing.T) {
	for _, mode := range liar.Modes() {
		parsed, err := liar.ParseMode(string(mode))
		require.NoError(t, err)
		require.Equal(t, mode, parsed)
	}
	_, err := liar.ParseMode("gossip")
	require.ErrorContains(t, err, "corrupt, truncate")
}

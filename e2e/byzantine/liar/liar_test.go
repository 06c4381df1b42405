package liar_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/e2e/byzantine/liar"
)

// honest serves one snapshot of a tree, at height 10, and possibly an older one at height 5.
type honest struct {
	abci.BaseApplication
	version, older *avlstar.Version
}

func (h *honest) ListSnapshots(context.Context, *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	list := new(abci.ResponseListSnapshots)
	for height, version := range map[uint64]*avlstar.Version{5: h.older, 10: h.version} {
		if version != nil {
			hash := version.AppHash()
			list.Snapshots = append(list.Snapshots, &abci.Snapshot{
				Height: height, Format: 1, Chunks: version.NumChunks(), Hash: hash[:], Metadata: version.Manifest().Encode(),
			})
		}
	}
	return list, nil
}

func (h *honest) LoadSnapshotChunk(_ context.Context, req *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	version := h.version
	if req.Height == 5 && h.older != nil {
		version = h.older
	}
	chunk, err := version.Chunk(req.Chunk)
	if err != nil {
		return &abci.ResponseLoadSnapshotChunk{}, nil //nolint:nilerr // as an honest node answers for a missing chunk
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

// No chunk that the Byzantine node serves may pass, whatever the mode and the seed.
func TestEveryChunkServedIsRefused(t *testing.T) {
	for _, leaves := range []int{1, 2, 400} {
		app := tree(t, leaves)
		manifest := app.version.Manifest()
		for _, mode := range liar.Serving() {
			if mode == liar.Slow {
				continue // correct data, see TestLateInBand
			}
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
		// the honest application's bytes are unchanged
		for k := range app.version.NumChunks() {
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
	truth := list(liar.Mix) // honest offers: otherwise no joiner would ask this peer for chunks
	require.Len(t, truth, 1)

	moved := list(liar.Alias)
	require.Len(t, moved, 1)
	require.Len(t, moved[0].Hash, 33)
	require.Equal(t, string(truth[0].Hash)+string(truth[0].Metadata), string(moved[0].Hash)+string(moved[0].Metadata))

	for mode, height := range map[liar.Mode]int{liar.Lone: 11, liar.Future: 1_000_000_010} {
		more := list(mode)
		require.Len(t, more, 2)
		require.EqualValues(t, height, more[1].Height)
		require.Equal(t, truth[0], more[0])
	}
}

func TestDamagedManifestsInBand(t *testing.T) {
	app := tree(t, 40)
	hash := app.version.AppHash()
	for seed := range uint64(20) {
		resp, err := liar.Wrap(app, liar.Manifest, seed, nil).ListSnapshots(t.Context(), &abci.RequestListSnapshots{})
		require.NoError(t, err)
		require.Equal(t, hash[:], resp.Snapshots[0].Hash)
		_, err = avlstar.VerifyManifest(resp.Snapshots[0].Metadata, hash)
		require.Error(t, err, "seed %d", seed)
	}
}

func TestStaleInBand(t *testing.T) {
	app := tree(t, 40)
	app.older = app.version
	var changes []avlstar.Change
	for i := range 400 {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key-%04d", i), Value: fmt.Appendf(nil, "new value %d", i)})
	}
	var err error
	app.version, err = app.older.Apply(changes)
	require.NoError(t, err)
	ask := func(chunk uint32) []byte {
		resp, err := liar.Wrap(app, liar.Stale, 1, nil).LoadSnapshotChunk(t.Context(), &abci.RequestLoadSnapshotChunk{Height: 10, Format: 1, Chunk: chunk})
		require.NoError(t, err)
		_, err = app.version.Manifest().VerifyChunk(chunk, resp.Chunk)
		require.ErrorIs(t, err, avlstar.ErrInvalidChunk)
		return resp.Chunk
	}
	last := app.older.NumChunks() - 1
	truth, err := app.older.Chunk(last)
	require.NoError(t, err)
	require.Equal(t, truth, ask(last))
	ask(last + 1) // the older snapshot has no such chunk: then the answer is damaged
}

func TestLateInBand(t *testing.T) {
	app := tree(t, 40)
	synctest.Test(t, func(t *testing.T) {
		slow := liar.Wrap(app, liar.Slow, 1, nil)
		ask := &abci.RequestLoadSnapshotChunk{Height: 10, Format: 1, Chunk: 0}
		began := time.Now()
		resp, err := slow.LoadSnapshotChunk(t.Context(), ask)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
		_, err = app.version.Manifest().VerifyChunk(0, resp.Chunk)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = slow.LoadSnapshotChunk(ctx, ask)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
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

func TestParseSet(t *testing.T) {
	set, err := liar.ParseSet("flood, mix,double-vote")
	require.NoError(t, err)
	require.Equal(t, liar.Set{liar.Flood, liar.Mix, liar.DoubleVote}, set)
	require.Equal(t, liar.Mix, set.Serves())
	require.True(t, set.Has(liar.Flood))
	require.True(t, set.Provable())
	set, err = liar.ParseSet("flood,withhold")
	require.NoError(t, err)
	require.False(t, set.Provable())
	set, err = liar.ParseSet("connect,mute")
	require.NoError(t, err)
	require.Empty(t, set.Serves(), "it serves correct data")
	for list, want := range map[string]string{
		"": `"" is not a mode`, "mix,": `"" is not a mode`, "mix,gossip": `"gossip"`, "flood,flood": "named twice", "mix,slow": "mix and slow",
	} {
		_, err := liar.ParseSet(list)
		require.ErrorContains(t, err, want)
	}
}

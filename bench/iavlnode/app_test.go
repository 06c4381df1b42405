package main

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"
)

// small is a state of some chunks.
var small = genesis{Keys: 2000, Seed: 3, Interval: 2, ChunkBytes: 20_000}

func newApp(t *testing.T, g genesis) *app {
	t.Helper()
	a, err := open(g, t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.close()) })
	return a
}

// block makes a block, and returns the app hash.
func block(t *testing.T, a *app, height int64, txs ...string) []byte {
	t.Helper()
	r := &abci.RequestFinalizeBlock{Height: height}
	for _, tx := range txs {
		r.Txs = append(r.Txs, []byte(tx))
	}
	done, err := a.FinalizeBlock(t.Context(), r)
	require.NoError(t, err)
	_, err = a.Commit(t.Context(), &abci.RequestCommit{})
	require.NoError(t, err)
	return done.AppHash
}

// chain returns an application with four blocks, and their app hashes.
func chain(t *testing.T, g genesis) (a *app, hashes [][]byte) {
	t.Helper()
	a = newApp(t, g)
	return a, fill(t, a)
}

func fill(t *testing.T, a *app) (hashes [][]byte) {
	t.Helper()
	_, err := a.InitChain(t.Context(), &abci.RequestInitChain{})
	require.NoError(t, err)
	for height := range int64(4) {
		hashes = append(hashes, block(t, a, height+1, fmt.Sprintf("key-%d=value", height)))
	}
	a.underway.Wait()
	return hashes
}

func snapshots(t *testing.T, a *app) []*abci.Snapshot {
	t.Helper()
	list, err := a.ListSnapshots(t.Context(), &abci.RequestListSnapshots{})
	require.NoError(t, err)
	return list.Snapshots
}

func chunkOf(t *testing.T, a *app, s *abci.Snapshot, i uint32) []byte {
	t.Helper()
	r, err := a.LoadSnapshotChunk(t.Context(), &abci.RequestLoadSnapshotChunk{Height: s.Height, Format: s.Format, Chunk: i})
	require.NoError(t, err)
	return r.Chunk
}

// A joiner restores the newest snapshot, and makes the same next block; a false chunk is refused.
func TestRestore(t *testing.T) {
	server, hashes := chain(t, small)
	all := snapshots(t, server)
	require.Len(t, all, 2)
	s := all[1]
	require.EqualValues(t, 4, s.Height)
	require.Greater(t, s.Chunks, uint32(5))

	joiner := newApp(t, small)
	offered, err := joiner.OfferSnapshot(t.Context(), &abci.RequestOfferSnapshot{Snapshot: s, AppHash: hashes[3]})
	require.NoError(t, err)
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offered.Result)
	for i := range s.Chunks {
		chunk := chunkOf(t, server, s, i)
		bad := slices.Clone(chunk)
		bad[len(bad)-1] ^= 1
		for _, bad := range [][]byte{bad, nil, chunk[:len(chunk)-1]} {
			r, err := joiner.ApplySnapshotChunk(t.Context(), &abci.RequestApplySnapshotChunk{Index: i, Chunk: bad, Sender: "byzantine"})
			require.NoError(t, err)
			require.Equal(t, abci.ResponseApplySnapshotChunk_RETRY, r.Result)
			require.Equal(t, []string{"byzantine"}, r.RejectSenders)
			require.Equal(t, []uint32{i}, r.RefetchChunks)
		}
		info, err := joiner.Info(t.Context(), &abci.RequestInfo{})
		require.NoError(t, err)
		require.Zero(t, info.LastBlockHeight, "before the last chunk")
		r, err := joiner.ApplySnapshotChunk(t.Context(), &abci.RequestApplySnapshotChunk{Index: i, Chunk: chunk})
		require.NoError(t, err)
		require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, r.Result)
	}
	info, err := joiner.Info(t.Context(), &abci.RequestInfo{})
	require.NoError(t, err)
	require.EqualValues(t, 4, info.LastBlockHeight)
	require.Equal(t, hashes[3], info.LastBlockAppHash)
	require.Equal(t, block(t, server, 5, "a=b"), block(t, joiner, 5, "a=b"))
}

// restore offers a snapshot of a server, applies its chunks, and returns the last result.
func restore(t *testing.T, joiner, server *app, s *abci.Snapshot, appHash []byte) abci.ResponseApplySnapshotChunk_Result {
	t.Helper()
	offered, err := joiner.OfferSnapshot(t.Context(), &abci.RequestOfferSnapshot{Snapshot: s, AppHash: appHash})
	require.NoError(t, err)
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offered.Result)
	for i := range s.Chunks {
		r, err := joiner.ApplySnapshotChunk(t.Context(), &abci.RequestApplySnapshotChunk{Index: i, Chunk: chunkOf(t, server, s, i)})
		require.NoError(t, err)
		if i+1 == s.Chunks {
			return r.Result
		}
		require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, r.Result, "the chunks fit the metadata")
	}
	return abci.ResponseApplySnapshotChunk_UNKNOWN
}

// Only the whole tree shows that a snapshot is false. The joiner then restores another one.
func TestByzantineNode(t *testing.T) {
	server, hashes := chain(t, small)
	liar := newApp(t, small)
	liar.lies = true
	fill(t, liar)
	joiner := newApp(t, small)
	lie := snapshots(t, liar)[0]
	require.EqualValues(t, 3, lie.Height, "one more than the snapshot's height")
	require.Equal(t, abci.ResponseApplySnapshotChunk_REJECT_SNAPSHOT, restore(t, joiner, liar, lie, hashes[1]), "a false value")
	info, err := joiner.Info(t.Context(), &abci.RequestInfo{})
	require.NoError(t, err)
	require.Zero(t, info.LastBlockHeight)
	require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, restore(t, joiner, server, snapshots(t, server)[1], hashes[3]))
	want := block(t, server, 5, "a=b")
	require.Equal(t, want, block(t, joiner, 5, "a=b"))
	require.Equal(t, want, block(t, liar, 5, "a=b"), "its own state is right")
}

func TestOfferRejected(t *testing.T) {
	server, _ := chain(t, small)
	joiner := newApp(t, small)
	for name, change := range map[string]func(s *abci.Snapshot){
		"format": func(s *abci.Snapshot) { s.Format++ },
		"chunks": func(s *abci.Snapshot) { s.Chunks++ },
		"hash":   func(s *abci.Snapshot) { s.Hash = bytes.Repeat([]byte{1}, 32) },
	} {
		s := *snapshots(t, server)[0]
		change(&s)
		r, err := joiner.OfferSnapshot(t.Context(), &abci.RequestOfferSnapshot{Snapshot: &s})
		require.NoError(t, err)
		require.Equal(t, abci.ResponseOfferSnapshot_REJECT, r.Result, name)
	}
}

// Both ways to make a snapshot give the same chunks, and the oldest snapshots are removed.
func TestBackground(t *testing.T) {
	paused, _ := chain(t, small)
	g := small
	g.Background = true
	background, _ := chain(t, g)
	want, got := snapshots(t, paused), snapshots(t, background)
	require.NotEmpty(t, got) // one is left out while the last is being made
	for _, s := range got {
		require.Contains(t, want, s)
	}
	block(t, paused, 5)
	block(t, paused, 6)
	require.NoDirExists(t, paused.folder(2))
	require.Len(t, snapshots(t, paused), kept)
}

// A node that starts again has its height and hash.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	a, err := open(small, dir)
	require.NoError(t, err)
	_, err = a.InitChain(t.Context(), &abci.RequestInitChain{})
	require.NoError(t, err)
	hash := block(t, a, 1, "a=b", "not a transaction")
	require.NoError(t, a.close())
	a, err = open(small, dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, a.close()) }()
	info, err := a.Info(t.Context(), &abci.RequestInfo{})
	require.NoError(t, err)
	require.EqualValues(t, 1, info.LastBlockHeight)
	require.Equal(t, hash, info.LastBlockAppHash)
	value, err := a.tree.Get([]byte("a"))
	require.NoError(t, err)
	require.Equal(t, "b", string(value))
}

func TestCheckTx(t *testing.T) {
	a := newApp(t, genesis{})
	for tx, code := range map[string]uint32{"a=b": 0, "a=": 0, "a=b=c": 0, "\x01\x00\xff=x": 0, "=b": codeInvalid, "a": codeInvalid, "": codeInvalid} {
		r, err := a.CheckTx(t.Context(), &abci.RequestCheckTx{Tx: []byte(tx)})
		require.NoError(t, err)
		require.Equal(t, code, r.Code, tx)
	}
}

package serve_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
)

// fullDB is a database that fails with ENOSPC after room batches.
type fullDB struct {
	dbm.DB
	room int
}

func (d *fullDB) NewBatch() dbm.Batch { return &fullBatch{d.DB.NewBatch(), d} }

type fullBatch struct {
	dbm.Batch
	db *fullDB
}

func (b *fullBatch) WriteSync() error {
	if b.db.room--; b.db.room < 0 {
		return fmt.Errorf("write application.db: %w", syscall.ENOSPC)
	}
	return b.Batch.WriteSync()
}

// TestFullDiskInBand fills the disk at each write of a join in turn. The join reports the full
// disk, does not start as a new chain, and resumes once there is space.
func TestFullDiskInBand(t *testing.T) {
	from := wrapped(newApp, generation.NewNopLogger(), open(t, dbm.GoLevelDBBackend, t.TempDir()), serving())
	begin(t, from)
	var hash []byte
	for h := int64(1); h <= interval; h++ {
		hash = block(t, h, from)
	}
	require.Eventually(t, func() bool { return len(list(t, from)) == 1 }, time.Minute, 10*time.Millisecond)
	s := list(t, from)[0]
	// fetch joins as CometBFT does. It returns false if the offer or a chunk is not accepted.
	fetch := func(to servertypes.Application) bool {
		r, err := to.OfferSnapshot(&abci.RequestOfferSnapshot{Snapshot: s, AppHash: hash})
		require.NoError(t, err)
		if r.Result != abci.ResponseOfferSnapshot_ACCEPT {
			require.Equal(t, abci.ResponseOfferSnapshot_ABORT, r.Result)
			return false
		}
		for k := range s.Chunks {
			chunk, err := from.LoadSnapshotChunk(&abci.RequestLoadSnapshotChunk{Height: s.Height, Format: s.Format, Chunk: k})
			require.NoError(t, err)
			r, err := to.ApplySnapshotChunk(&abci.RequestApplySnapshotChunk{Index: k, Chunk: chunk.Chunk, Sender: "honest"})
			require.NoError(t, err)
			if r.Result != abci.ResponseApplySnapshotChunk_ACCEPT {
				require.Equal(t, abci.ResponseApplySnapshotChunk_ABORT, r.Result)
				return false
			}
		}
		return true
	}
	forEngines(t, func(t *testing.T, engine dbm.BackendType) {
		for room, done := 0, false; !done; room++ {
			dir := filepath.Join(t.TempDir(), fmt.Sprint(room))
			db := &fullDB{open(t, engine, dir), room}
			var lines bytes.Buffer
			to := wrapped(newApp, generation.NewLogger(&lines), db, options{})
			if done = fetch(to); !done {
				require.Contains(t, lines.String(), "no space left on device")
				if room > 0 { // restart
					require.NoError(t, to.Close())
					require.Contains(t, lines.String(), "free disk space; restart to resume")
					db = &fullDB{open(t, engine, dir), 1000}
					to = wrapped(newApp, generation.NewNopLogger(), db, options{})
					_, err := to.InitChain(&abci.RequestInitChain{ChainId: chainID, InitialHeight: 1, Time: time.Unix(1, 0)})
					require.ErrorContains(t, err, "an unfinished join")
					require.True(t, fetch(to))
				} else {
					db.room = 1000
					require.True(t, fetch(to), "no write succeeded before")
				}
			}
			info, err := to.Info(&abci.RequestInfo{})
			require.NoError(t, err)
			require.Equal(t, hash, info.LastBlockAppHash)
			require.NoError(t, to.Close())
			require.Less(t, room, 20)
		}
	})
	require.NoError(t, from.Close())
}

// TestOtherSnapshotInBand joins from another snapshot than the one that a join has begun with, as
// CometBFT does when peers no longer have the first one: in the same process, and after a restart.
func TestOtherSnapshotInBand(t *testing.T) {
	from := wrapped(newApp, generation.NewNopLogger(), open(t, dbm.GoLevelDBBackend, t.TempDir()), serving())
	begin(t, from)
	hashes := headers{}
	for h := int64(1); h <= 2*interval; h++ {
		hashes[h] = block(t, h, from)
		if h%interval == 0 {
			require.Eventually(t, func() bool { return len(list(t, from)) == int(h/interval) }, time.Minute, 10*time.Millisecond)
		}
	}
	apply := func(to servertypes.Application, s *abci.Snapshot, chunks uint32) {
		t.Helper()
		r, err := to.OfferSnapshot(&abci.RequestOfferSnapshot{Snapshot: s, AppHash: hashes[int64(s.Height)]})
		require.NoError(t, err)
		require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, r.Result)
		for k := range chunks {
			chunk, err := from.LoadSnapshotChunk(&abci.RequestLoadSnapshotChunk{Height: s.Height, Format: s.Format, Chunk: k})
			require.NoError(t, err)
			r, err := to.ApplySnapshotChunk(&abci.RequestApplySnapshotChunk{Index: k, Chunk: chunk.Chunk, Sender: "honest"})
			require.NoError(t, err)
			require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, r.Result)
		}
	}
	forEngines(t, func(t *testing.T, engine dbm.BackendType) {
		for _, restart := range []bool{false, true} {
			db := open(t, engine, t.TempDir())
			to := wrapped(newApp, generation.NewNopLogger(), db, options{})
			first, then := list(t, from)[0], list(t, from)[1]
			require.NotEqual(t, first.Height, then.Height)
			require.Greater(t, first.Chunks, uint32(1))
			apply(to, first, first.Chunks-1)
			if restart { // the process dies
				to = wrapped(newApp, generation.NewNopLogger(), db, options{})
			}
			apply(to, then, then.Chunks)
			info, err := to.Info(&abci.RequestInfo{})
			require.NoError(t, err)
			require.EqualValues(t, then.Height, info.LastBlockHeight)
			require.Equal(t, hashes[int64(then.Height)], info.LastBlockAppHash)
			if h := info.LastBlockHeight + 1; hashes[h] != nil {
				require.Equal(t, hashes[h], block(t, h, to))
			}
			require.NoError(t, to.Close())
		}
	})
	require.NoError(t, from.Close())
}

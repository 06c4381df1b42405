package nodedb_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
	"github.com/starling-kv/starling/internal/seeds"
)

const (
	height   = 12
	interval = 5 // between the snapshots of the joined node
)

func randomState(rnd *rand.Rand, keys int) iavlsynctest.State {
	return iavlsynctest.RandomState(rnd, keys, height)
}

// install installs the missing chunks in random order.
func install(rnd *rand.Rand, db *nodedbtest.Mem, m *iavlsync.Manifest, chunks []*iavlsync.Chunk) (installed int, err error) {
	in, err := nodedb.NewInstaller(db, m)
	if err != nil {
		return 0, err
	}
	in.SnapshotInterval = interval
	missing := in.Missing()
	rnd.Shuffle(len(missing), func(i, j int) { missing[i], missing[j] = missing[j], missing[i] })
	for _, k := range missing {
		if err := in.Install(k, chunks[k], nil); err != nil {
			return installed, err
		}
		installed++
		if n := db.Unsynced(); n > 0 {
			return installed, fmt.Errorf("a power loss could lose %d batches", n)
		}
	}
	return installed, in.Finish()
}

// same fails unless the state in db equals the naive state, down to every response.
func same(t *testing.T, db nodedb.DB, f iavlsync.Format, naive iavlsynctest.State) {
	t.Helper()
	latest, err := nodedb.Latest(db)
	require.NoError(t, err)
	require.EqualValues(t, height, latest)
	s, err := nodedb.Open(db, height)
	require.NoError(t, err)
	m, err := s.Manifest(f)
	require.NoError(t, err)
	limit, _ := f.Leaves()
	require.Equal(t, naive.Manifest(height, limit), m.Encode())
	for i, name := range naive.Names() {
		u, err := m.Upper(i)
		require.NoError(t, err)
		for k, n := range naive[name].Chunks(limit) {
			answer, err := s.Answer(&iavlsync.Request{Height: height, Store: name, First: u.First[k], Leaves: n.Size()})
			require.NoError(t, err)
			require.True(t, bytes.Equal(append([]byte{0}, n.Chunk()...), answer), "chunk %d of %s", k, name)
		}
	}
	_, err = s.Answer(&iavlsync.Request{Height: height, Store: "nothing", Leaves: 1})
	require.ErrorIs(t, err, iavlsync.ErrNoSubtree)
}

func TestInstalled(t *testing.T) {
	rnd := seeds.Rand(t)
	for _, f := range []iavlsync.Format{iavlsync.Format32, iavlsync.Format512, iavlsync.Format8192} {
		for _, keys := range []int{1, 40, 1500} {
			t.Run(fmt.Sprintf("%x/%d", uint32(f), keys), func(t *testing.T) {
				naive := randomState(rnd, keys)
				m := nodedbtest.Manifest(t, f, height, naive)
				db := nodedbtest.NewMem()
				_, err := install(rnd, db, m, nodedbtest.Chunks(t, m, naive))
				require.NoError(t, err)
				same(t, db, f, naive)
				last, err := db.Get([]byte("s/prunesnapshotheights"))
				require.NoError(t, err)
				require.Equal(t, []byte{0, 0, 0, 0, 0, 0, 0, 10}, last)
				for _, key := range db.Keys() {
					require.NotContains(t, key, "starling", "the marks of the join are removed")
				}
				_, err = nodedb.NewInstaller(db, m)
				require.ErrorIs(t, err, nodedb.ErrNotEmpty)
			})
		}
	}
}

func TestSnapshotRecord(t *testing.T) {
	for _, test := range []struct{ height, interval, want int64 }{
		{12, 5, 10}, {10, 5, 10}, {5, 5, 5}, {12, 1, 12}, {12, 0, 0}, {4, 5, 0}, {12, -1, 0},
	} {
		r, ok := nodedb.SnapshotRecord(test.height, test.interval)
		require.Equal(t, test.want > 0, ok, "%+v", test)
		if ok {
			require.Equal(t, binary.BigEndian.AppendUint64(nil, uint64(test.want)), r.Value, "%+v", test)
		}
	}
}

// TestKilledAtEveryWrite: the next start resumes, and there is no state before the last write.
func TestKilledAtEveryWrite(t *testing.T) {
	rnd := seeds.Rand(t)
	naive := randomState(rnd, 300)
	m := nodedbtest.Manifest(t, iavlsync.Format32, height, naive)
	chunks := nodedbtest.Chunks(t, m, naive)
	whole := nodedbtest.NewMem()
	_, err := install(rnd, whole, m, chunks)
	require.NoError(t, err)
	require.Equal(t, len(chunks)+3, whole.Writes())
	for n := range whole.Writes() {
		db := nodedbtest.NewMem()
		db.KillAfter(n)
		before, err := install(rnd, db, m, chunks)
		require.ErrorIs(t, err, nodedbtest.ErrKilled, "write %d", n)
		require.Zero(t, db.Unsynced(), "a later write need not make an earlier one durable")
		db = db.Crash(0)
		_, err = nodedb.Latest(db)
		require.ErrorIs(t, err, nodedb.ErrNoState)
		after, err := install(rnd, db, m, chunks)
		require.NoError(t, err)
		require.Equal(t, len(chunks), before+after, "installed chunks are not written again")
		require.Equal(t, whole.Crash(0), db.Crash(0))
	}
	same(t, whole, iavlsync.Format32, naive)
}

func TestDatabasesThatAreNotEmpty(t *testing.T) {
	rnd := seeds.Rand(t)
	naive, other := randomState(rnd, 40), randomState(rnd, 41)
	m := nodedbtest.Manifest(t, iavlsync.Format32, height, naive)
	db := nodedbtest.NewMem()
	db.Set([]byte("any"), []byte("thing"))
	_, err := nodedb.NewInstaller(db, m)
	require.ErrorIs(t, err, nodedb.ErrNotEmpty)

	db = nodedbtest.NewMem()
	in, err := nodedb.NewInstaller(db, m)
	require.NoError(t, err)
	require.Error(t, in.Finish(), "chunks are missing")
	for _, otherState := range []*iavlsync.Manifest{
		nodedbtest.Manifest(t, iavlsync.Format32, height, other), nodedbtest.Manifest(t, iavlsync.Format512, height, naive)} {
		_, err = nodedb.NewInstaller(db, otherState)
		require.ErrorIs(t, err, nodedb.ErrOtherJoin)
	}
}

// TestDiscard stops a join at a random chunk, and discards it for a join of another state. It kills
// the program at every write: both the old state and the new one can be installed afterwards.
func TestDiscard(t *testing.T) {
	nodedb.SetDiscardedKeys(t, 50)
	rnd := seeds.Rand(t)
	left, naive := randomState(rnd, 300), randomState(rnd, 200)
	old, m := nodedbtest.Manifest(t, iavlsync.Format32, height, left), nodedbtest.Manifest(t, iavlsync.Format32, height, naive)
	oldChunks, chunks := nodedbtest.Chunks(t, old, left), nodedbtest.Chunks(t, m, naive)
	begun := func() *nodedbtest.Mem {
		db := nodedbtest.NewMem()
		db.KillAfter(2 + rnd.IntN(len(oldChunks)))
		_, err := install(rnd, db, old, oldChunks)
		require.ErrorIs(t, err, nodedbtest.ErrKilled)
		return db.Crash(0)
	}
	for n, killed := 0, true; killed; n++ {
		db := begun()
		db.KillAfter(n)
		err := nodedb.Discard(db)
		if killed = err != nil; killed {
			require.ErrorIs(t, err, nodedbtest.ErrKilled)
		}
		db = db.Crash(db.Unsynced())
		_, unfinished, err := nodedb.Unfinished(db)
		require.NoError(t, err)
		require.Equal(t, killed, unfinished != nil)
		if killed && rnd.IntN(2) == 0 {
			_, err = install(rnd, db, old, oldChunks)
			require.NoError(t, err)
			same(t, db, iavlsync.Format32, left)
			continue
		}
		require.NoError(t, nodedb.Discard(db))
		require.Empty(t, db.Keys())
		_, err = install(rnd, db, m, chunks)
		require.NoError(t, err)
		same(t, db, iavlsync.Format32, naive)
	}
	// A database without an unfinished join stays as it is.
	db := nodedbtest.NewMem()
	db.Set([]byte("any"), []byte("thing"))
	require.NoError(t, nodedb.Discard(db))
	require.Len(t, db.Keys(), 1)
}

// TestHalves: chunks that arrive in parts of any shape result in the same records.
func TestHalves(t *testing.T) {
	rnd := seeds.Rand(t)
	naive := randomState(rnd, 700)
	m := nodedbtest.Manifest(t, iavlsync.Format512, height, naive)
	chunks := nodedbtest.Chunks(t, m, naive)
	whole, parts := nodedbtest.NewMem(), nodedbtest.NewMem()
	_, err := install(rnd, whole, m, chunks)
	require.NoError(t, err)
	in, err := nodedb.NewInstaller(parts, m)
	require.NoError(t, err)
	in.SnapshotInterval = interval
	k := 0
	for i, name := range naive.Names() {
		u, err := m.Upper(i)
		require.NoError(t, err)
		for e, n := range naive[name].Chunks(512) {
			var part func(n *iavlsynctest.Node, image *iavlsync.Image, first int64) *nodedb.Placed
			part = func(n *iavlsynctest.Node, image *iavlsync.Image, first int64) *nodedb.Placed {
				if n.Left == nil || rnd.IntN(4) == 0 {
					c, err := iavlsync.VerifyChunk(image, n.Chunk())
					require.NoError(t, err)
					p, err := in.InstallPart(k, first, c, nil)
					require.NoError(t, err)
					return p
				}
				left, right, err := iavlsync.VerifyHalves(image, height, n.Halves(height)[1:])
				require.NoError(t, err)
				p, err := in.Join(k, image, part(n.Left, left, first), part(n.Right, right, first+left.Size), nil)
				require.NoError(t, err)
				return p
			}
			part(n, &m.Stores[i].Entries[e].Root, u.First[e])
			k++
		}
	}
	require.NoError(t, in.Finish())
	require.Equal(t, whole.Crash(0), parts.Crash(0))
}

// TestServed: states are served as written by IAVL, unless iavl before v1 has written some of the
// nodes.
func TestServed(t *testing.T) {
	rnd := seeds.Rand(t)
	naive := randomState(rnd, 500)
	db := nodedbtest.NewMem()
	nodedbtest.WriteState(t, db, height, naive)
	same(t, db, iavlsync.Format32, naive)
	_, err := nodedb.Open(db, height-1)
	require.ErrorIs(t, err, nodedb.ErrNoState)

	root := naive["bank"]
	key := nodedbtest.NewStore("bank").NodeKey(root.Version, 1)
	b, _ := db.Get(key)
	at := bytes.Index(b, root.Hash()) + len(root.Hash())
	for _, mode := range []byte{2, 4, 6} { // the left child, the right child, both
		old := append(bytes.Clone(b[:at]), mode, 32)
		db.Set(key, append(append(old, root.Left.Hash()...), b[at+1:]...))
		s, err := nodedb.Open(db, height)
		require.NoError(t, err)
		_, err = s.Manifest(iavlsync.Format32)
		require.ErrorIs(t, err, nodedb.ErrOldLayout)
		_, err = s.Answer(&iavlsync.Request{Height: height, Store: "bank", Leaves: root.Size()})
		require.ErrorIs(t, err, nodedb.ErrOldLayout)
	}
}

// TestDamagedHomes: damage to any record of a database is an error, or the response does not depend
// on the record.
func TestDamagedHomes(t *testing.T) {
	rnd := seeds.Rand(t)
	naive := randomState(rnd, 100)
	m := nodedbtest.Manifest(t, iavlsync.Format32, height, naive)
	whole := nodedbtest.NewMem()
	_, err := install(rnd, whole, m, nodedbtest.Chunks(t, m, naive))
	require.NoError(t, err)
	for _, key := range whole.Keys() {
		if rnd.IntN(6) > 0 {
			continue
		}
		db := whole.Crash(0)
		value, _ := db.Get([]byte(key))
		switch n := len(value); {
		case n == 0 || rnd.IntN(3) == 0:
			db.Delete([]byte(key))
		case rnd.IntN(2) == 0:
			db.Set([]byte(key), value[:rnd.IntN(n)])
		default:
			damaged := bytes.Clone(value)
			damaged[rnd.IntN(n)] ^= byte(1 + rnd.IntN(255))
			db.Set([]byte(key), damaged)
		}
		s, err := nodedb.Open(db, height)
		if err != nil {
			continue
		}
		for i := range m.Stores {
			u, err := m.Upper(i)
			require.NoError(t, err)
			for k := range m.Stores[i].Entries {
				image := &m.Stores[i].Entries[k].Root
				b, err := s.Answer(&iavlsync.Request{Height: height, Store: m.Stores[i].Name, First: u.First[k], Leaves: image.Size})
				if err != nil {
					continue
				}
				if _, err := iavlsync.VerifyChunk(image, b[1:]); err != nil {
					require.NotContains(t, key, "/f", "a damaged fast index never causes a wrong response")
				}
			}
		}
		_, _ = s.Manifest(iavlsync.Format32)
	}
}

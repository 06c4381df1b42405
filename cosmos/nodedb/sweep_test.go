package nodedb_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
	"github.com/starling-kv/starling/internal/seeds"
)

// blocked is a database in which a sweep cannot begin before free is closed.
type blocked struct {
	*history
	reached, free chan struct{}
}

func (b *blocked) Iterator(start, end []byte) (nodedb.Iterator, error) {
	if string(start) == "s/k:bank/s" { // where a sweep looks for the oldest version
		close(b.reached)
		<-b.free
	}
	return b.history.Iterator(start, end)
}

// history is a database of one store with all its versions, as written by IAVL.
type history struct {
	*reads
	*nodedbtest.Store
	root *iavlsynctest.Node
}

func newHistory() *history {
	return &history{reads: &reads{Mem: nodedbtest.NewMem()}, Store: nodedbtest.NewStore("bank")}
}

// save writes the next version.
func (h *history) save(t *testing.T, tree *iavlsynctest.Tree) {
	h.Store.Write(t, h.Mem, tree.Version, tree.Root)
	h.root = tree.Root
	nodedbtest.WriteCommit(t, h, &nodedb.Commit{Height: tree.Version, Stores: []nodedb.CommitStore{{Name: "bank", Version: tree.Version, Hash: h.root.Hash()}}})
}

// index writes the fast index of the latest version. fn changes the versions of the leaves in it.
func (h *history) index(version int64, fn func(int64) int64) {
	h.Set([]byte("s/k:bank/mstorage_version"), fmt.Appendf(nil, "1.1.0-%d", version))
	h.root.Leaves(func(n *iavlsynctest.Node) {
		h.Set(append([]byte("s/k:bank/f"), n.Key...), nodedb.AppendFast(nil, fn(n.Version), n.Value))
	})
}

// answers requests all chunks in random order. It returns whether a sweep was used, and the number
// of records read by key per chunk.
func (h *history) answers(t *testing.T, version int64) (swept bool, gets int) {
	rnd, room := seeds.Rand(t), nodedb.SweepRoom()
	s, err := nodedb.Open(h, version)
	require.NoError(t, err)
	m, err := s.Manifest(iavlsync.Format8192)
	require.NoError(t, err)
	u, err := m.Upper(0)
	require.NoError(t, err)
	chunks := h.root.Chunks(8192)
	before := h.gets
	for _, k := range rnd.Perm(len(chunks)) {
		q := &iavlsync.Request{Height: version, Store: "bank", First: u.First[k], Leaves: chunks[k].Size()}
		answer, err := s.Answer(q)
		require.NoError(t, err)
		require.True(t, bytes.Equal(append([]byte{0}, chunks[k].Chunk()...), answer), "chunk %d", k)
	}
	swept, kept := s.Swept("bank")
	require.False(t, kept, "all leaves were requested")
	require.Equal(t, room, nodedb.SweepRoom())
	return swept, (h.gets - before) / len(chunks)
}

// TestSweep: a store is served from one pass over its records and the fast index, even with records
// of older versions, of deleted keys, and of keys that were added again. Whatever is wrong in the
// database, no chunk is wrong.
func TestSweep(t *testing.T) {
	rnd := seeds.Rand(t)
	const keys, versions = 20_000, 12
	h := newHistory()
	tree := &iavlsynctest.Tree{}
	for v := int64(1); v <= versions; v++ {
		n := 600
		if v == 1 {
			n = 15_000
		}
		tree.Apply(iavlsynctest.RandomOps(rnd, keys, n, 0.2))
		tree.SaveAs(v)
		h.save(t, tree)
	}
	require.Greater(t, len(tree.Root.Chunks(8192)), 1)
	right := func(v int64) int64 { return v }
	h.index(versions, right)
	swept, gets := h.answers(t, versions)
	require.True(t, swept)
	require.Less(t, gets, 60, "more than the paths to a chunk and to its first leaf")
	h.index(versions, func(int64) int64 { return versions })
	swept, _ = h.answers(t, versions)
	require.True(t, swept, "with wrong versions in the index")
	h.index(versions-1, right)
	swept, _ = h.answers(t, versions)
	require.False(t, swept, "without the index")
	h.index(versions, right)

	// Records that are not in the tree: leaves and inner nodes with newer versions, and records
	// that are not nodes.
	none := uint32(1 << 20)
	for _, n := range tree.Root.Chunks(8192) {
		none++
		h.Set(h.NodeKey(versions, none), nodedb.AppendNode(nil, &iavlsync.Node{Size: 1, Key: n.Right.Least(), Value: []byte("nobody's")}))
	}
	for range 200 {
		none++
		h.Set(h.NodeKey(1+rnd.Int64N(versions), none), [][]byte{{}, {0}, {0, 2, 200}, {'s', 1}, {8, 8, 1, 'k', 0}}[rnd.IntN(5)])
	}
	swept, gets = h.answers(t, versions)
	require.True(t, swept)
	require.Greater(t, gets, 60, "chunks of leaves with two records are walked")
}

// TestNoSweep: if most records belong to older versions, the tree is walked.
func TestNoSweep(t *testing.T) {
	rnd := seeds.Rand(t)
	h := newHistory()
	tree := &iavlsynctest.Tree{}
	const versions = 40
	for v := int64(1); v <= versions; v++ {
		tree.Apply(iavlsynctest.RandomOps(rnd, 4000, 1000, 0.1))
		tree.SaveAs(v)
		h.save(t, tree)
	}
	h.index(versions, func(v int64) int64 { return v })
	swept, _ := h.answers(t, versions)
	require.False(t, swept)
}

// TestSweepOverflows: most keys of a store are deleted but not pruned, so a sweep has too little
// space for them. The sweep stops, on all processors.
func TestSweepOverflows(t *testing.T) {
	h, room := newHistory(), nodedb.SweepRoom()
	tree := &iavlsynctest.Tree{}
	const versions, leaves, replaced = 13, 4500, 500
	next := 0
	for v := int64(1); v <= versions; v++ {
		var ops []iavlsynctest.Op
		n := replaced
		if v == 1 {
			n = leaves
		}
		for range n {
			if v > 1 {
				ops = append(ops, iavlsynctest.Op{Key: fmt.Appendf(nil, "%06d", next-leaves)})
			}
			ops = append(ops, iavlsynctest.Op{Key: fmt.Appendf(nil, "%06d", next), Value: []byte("v")})
			next++
		}
		tree.Apply(ops)
		tree.SaveAs(v)
		h.save(t, tree)
	}
	h.index(versions, func(v int64) int64 { return v })
	s, err := nodedb.Open(h, versions)
	require.NoError(t, err)
	s.LimitProcessors(4)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		answer, err := s.Answer(&iavlsync.Request{Height: versions, Store: "bank", Leaves: leaves})
		if err == nil && !bytes.Equal(append([]byte{0}, h.root.Chunk()...), answer) {
			err = fmt.Errorf("a response of %d bytes is not the store", len(answer))
		}
		done <- err
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-ctx.Done():
		t.Fatal("no response")
	}
	made, _ := s.Swept("bank")
	require.False(t, made)
	require.Equal(t, room, nodedb.SweepRoom())
}

// TestSweepIsKept: a sweep in progress does not block other requests. It is kept until all leaves,
// including walked ones, have been requested, or the state is closed.
func TestSweepIsKept(t *testing.T) {
	h, room := newHistory(), nodedb.SweepRoom()
	tree := &iavlsynctest.Tree{}
	tree.Apply(iavlsynctest.RandomOps(seeds.Rand(t), 20_000, 60_000, 0))
	tree.SaveAs(1)
	h.save(t, tree)
	h.index(1, func(v int64) int64 { return v })
	chunks := h.root.Chunks(8192)
	require.Greater(t, len(chunks), 2)
	for _, c := range chunks {
		require.Greater(t, c.Size(), int64(2048), "too small for a sweep")
	}
	begin := func() (b *blocked, s *nodedb.State, ask func(answer func(*iavlsync.Request) ([]byte, error), most int64, first, last int) error) {
		b = &blocked{h, make(chan struct{}), make(chan struct{})}
		s, err := nodedb.Open(b, 1)
		require.NoError(t, err)
		return b, s, func(answer func(*iavlsync.Request) ([]byte, error), most int64, first, last int) error {
			at := int64(0)
			for k, c := range chunks {
				for _, part := range c.Chunks(most) {
					if k >= first && k < last {
						b, err := answer(&iavlsync.Request{Height: 1, Store: "bank", First: at, Leaves: part.Size()})
						if err != nil || !bytes.Equal(append([]byte{0}, part.Chunk()...), b) {
							return fmt.Errorf("chunk %d: %d bytes: %w", k, len(b), err)
						}
					}
					at += part.Size()
				}
			}
			return nil
		}
	}
	all := len(chunks)

	b, s, ask := begin()
	require.NoError(t, ask(s.AnswerSoon, 8192, 0, all)) // Answer would not return
	made, _ := s.Swept("bank")
	require.False(t, made)
	close(b.free)

	for _, closes := range []bool{false, true} {
		b, s, ask := begin()
		require.NoError(t, ask(s.Answer, 512, 0, 1)) // no chunk is long enough for a sweep
		first := make(chan error, 1)
		go func() { first <- ask(s.Answer, 8192, 1, 2) }()
		<-b.reached
		require.Less(t, nodedb.SweepRoom(), room)
		require.NoError(t, ask(s.Answer, 8192, 2, all-1))
		if closes {
			s.Close()
		}
		close(b.free)
		require.NoError(t, <-first)
		made, kept := s.Swept("bank")
		require.True(t, made)
		require.Equal(t, !closes, kept)
		require.NoError(t, ask(s.Answer, 8192, all-1, all))
		_, kept = s.Swept("bank")
		require.False(t, kept)
		require.Equal(t, room, nodedb.SweepRoom())
	}

	_, s, ask = begin()
	nodedb.LimitSweeps(t, h.root.Size()-1) // the room that other stores have left
	require.NoError(t, ask(s.Answer, 8192, 0, all))
	made, _ = s.Swept("bank")
	require.False(t, made)
}

package oracle

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/internal/seeds"
)

// reads counts reads by key.
type reads struct {
	nodedb.DB
	gets int
}

func (r *reads) Get(key []byte) ([]byte, error) {
	r.gets++
	return r.DB.Get(key)
}

// TestReadsInOrder: IAVL numbers nodes in the order in which they are read, so most reads are steps
// of an iterator, at the newest height, which the fast index is of, and at an older one.
func TestReadsInOrder(t *testing.T) {
	c := newChain()
	for v := range 6 {
		ops := make([]iavlsynctest.Op, 2000)
		for i := range ops {
			ops[i] = iavlsynctest.Op{Key: fmt.Appendf(nil, "%08d", (v*2000+i)*7919%12000), Value: []byte("value")}
		}
		c.Commit(t, map[string][]iavlsynctest.Op{"bank": ops})
	}
	for _, height := range []int64{6, 5} {
		r := &reads{DB: c.DB()}
		s, err := nodedb.Open(r, height)
		require.NoError(t, err)
		m, err := s.Manifest(iavlsync.Format8192)
		require.NoError(t, err)
		u, err := m.Upper(0)
		require.NoError(t, err)
		for k, e := range m.Stores[0].Entries {
			_, err := s.Answer(&iavlsync.Request{Height: height, Store: "bank", First: u.First[k], Leaves: e.Root.Size})
			require.NoError(t, err)
		}
		require.Less(t, r.gets, 2000, "for %d leaves", 2000*height)
	}
}

// TestSweptAfterPruning: what IAVL leaves of its older versions does not keep a server from one
// pass over all records: there are few reads by key, where a walk has one or more for each of the
// many versions that the nodes of a chunk have.
func TestSweptAfterPruning(t *testing.T) {
	c := newChain()
	rnd := seeds.Rand(t)
	const height = 60
	for v := range height {
		ops := make([]iavlsynctest.Op, 400)
		if v == 0 {
			ops = make([]iavlsynctest.Op, 16000)
		}
		for i := range ops {
			ops[i] = iavlsynctest.Op{Key: fmt.Appendf(nil, "%08d", rnd.IntN(20000)), Value: fmt.Appendf(nil, "value %d", v)}
			if v > 0 && i%5 == 0 {
				ops[i].Value = nil
			}
		}
		c.Commit(t, map[string][]iavlsynctest.Op{"bank": ops})
	}
	c.Prune(t, height-3)
	r := &reads{DB: c.DB()}
	s, err := nodedb.Open(r, height)
	require.NoError(t, err)
	m, err := s.Manifest(iavlsync.Format8192)
	require.NoError(t, err)
	u, err := m.Upper(0)
	require.NoError(t, err)
	large := 0
	for k, e := range m.Stores[0].Entries {
		r.gets = 0
		b, err := s.Answer(&iavlsync.Request{Height: height, Store: "bank", First: u.First[k], Leaves: e.Root.Size})
		require.NoError(t, err)
		kind, b, err := iavlsync.SplitAnswer(b)
		require.NoError(t, err)
		require.Equal(t, iavlsync.AnswerWhole, kind)
		_, err = iavlsync.VerifyChunk(&e.Root, b)
		require.NoError(t, err)
		if e.Root.Size >= 2048 { // smaller ones are always walked
			large++
			require.Less(t, r.gets, 60, "chunk %d of %d leaves", k, e.Root.Size)
		}
	}
	require.Positive(t, large)
}

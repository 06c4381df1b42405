package nodedbtest

import (
	"bytes"
	"compress/gzip"
	_ "embed" // OldHome
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/nodedb"
)

// OldHome is the database of a node on iavl v0.20 after RunOld, as Dump writes it. Module
// cosmos/iavlsync/oracle/old makes it.
//
//go:embed testdata/iavl-v0.20.gz
var OldHome []byte

// oldHeight is the height of OldHome, and oldPruned the last one that was pruned.
const (
	oldHeight = 12
	oldPruned = 7
)

// oldNetwork returns the chain whose home is OldHome, at its beginning.
func oldNetwork() *network {
	return newNetwork(rand.New(rand.NewPCG(20, 1))) //nolint:gosec // it is to be repeatable
}

// RunOld has a chain of iavl before v1 execute the blocks of OldHome, and prune some of them.
func RunOld(t *testing.T, c Chain) {
	n := oldNetwork()
	for n.height < oldHeight {
		n.commit(t, c)
		if n.height == oldHeight-2 {
			c.Prune(t, oldPruned)
		}
	}
}

// Dump returns all records of a database: (uvarint(len) ‖ key ‖ uvarint(len) ‖ value)*, compressed.
func Dump(t *testing.T, db nodedb.DB) []byte {
	it, err := db.Iterator(nil, nil)
	require.NoError(t, err)
	var b []byte
	for ; it.Valid(); it.Next() {
		for _, part := range [][]byte{it.Key(), it.Value()} {
			b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
		}
	}
	require.NoError(t, it.Close())
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err = w.Write(b)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

// Records returns the records of a Dump.
func Records(t *testing.T, dump []byte) (records []nodedb.Record) {
	r, err := gzip.NewReader(bytes.NewReader(dump))
	require.NoError(t, err)
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	take := func() []byte {
		n, width := binary.Uvarint(b)
		require.Positive(t, width)
		part := b[width : width+int(n)]
		b = b[width+int(n):]
		return part
	}
	for len(b) > 0 {
		records = append(records, nodedb.Record{Key: take(), Value: take()})
	}
	return records
}

// loadOld writes OldHome into an empty database, and returns its network at that height.
func loadOld(t *testing.T, db nodedb.DB) *network {
	b := db.NewBatch()
	defer b.Close() //nolint:errcheck // it was written
	for _, r := range Records(t, OldHome) {
		require.NoError(t, b.Set(r.Key, r.Value))
	}
	require.NoError(t, b.Write())
	n := oldNetwork()
	for n.height < oldHeight {
		n.block()
	}
	return n
}

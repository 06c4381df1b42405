package app

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// countedRecords serves and counts the records of a state in memory.
type countedRecords struct {
	state *avlstar.Version
	reads atomic.Int64
	fails atomic.Bool
}

func (r *countedRecords) Record(_ avlstar.Subtree, key []byte) ([]byte, bool, error) {
	r.reads.Add(1)
	if r.fails.Load() {
		return nil, false, errDisk
	}
	return r.state.Get(key)
}

func (r *countedRecords) Release() {}

// TestOnlyQueriesAndChecksReadByKey: calls that contribute to a block or to a proof read verified
// pages. The others return the same results either way, and fail if a record cannot be read.
func TestOnlyQueriesAndChecksReadByKey(t *testing.T) {
	state := newPagedState(t)
	for name, read := range readers(t) {
		t.Run(name, func(t *testing.T) {
			a, _ := state.app(t)
			want := read(a)
			a, _ = state.app(t)
			r := &countedRecords{state: state.full}
			a.block.version.SetRecords(r)
			require.Equal(t, want, read(a))
			// The other transactions have neither a nonce record nor an admin record: their lookups
			// search by prefix, in a page.
			signed := strings.HasPrefix(name, "CheckTx") && len(name) == len("CheckTx 7") && name <= "CheckTx 7"
			if signed || name == "Query key" || name == "Query nonce" {
				require.NotZero(t, r.reads.Load())
				r.fails.Store(true)
				a, _ := state.app(t)
				a.block.version.SetRecords(r)
				require.ErrorIs(t, read(a).err, errDisk)
			} else if !strings.HasPrefix(name, "CheckTx") {
				require.Zero(t, r.reads.Load())
			}
		})
	}
}

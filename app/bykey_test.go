package app

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// countedRecords are those of a state in memory.
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

// TestOnlyQueriesAndChecksReadByKey: what takes part in a decision about a block, or in a proof,
// reads verified pages. The others answer the same either way, and fail where a record cannot be
// read.
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
			// The other transactions have neither nonce nor admin: what they look for is found by
			// its prefix, in a page.
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

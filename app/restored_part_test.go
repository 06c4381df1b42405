package app

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// A joiner that restored the upper tree of a state fetches the records that it needs to start, and
// executes the next blocks. If these records do not arrive, it has no state, and can restore
// another.
func TestRestoredPart(t *testing.T) {
	for _, depth := range []int{0, 3} {
		synctest.Test(t, func(t *testing.T) {
			source := newFakeSource(t, nil)
			local := startChain(t, &memoryStore{}, witnessedState)
			runBlock(t, local, prefill(t)...)
			height, full := local.Latest()
			defer full.Release()
			upper := func() *avlstar.Version {
				p, err := avlstar.NewPartial(full.Commitment())
				require.NoError(t, err)
				b, err := full.Upper(depth)
				require.NoError(t, err)
				multiproof, err := avlstar.DecodeMultiproof(b)
				require.NoError(t, err)
				grafted, _, err := p.Graft(multiproof)
				require.NoError(t, err)
				p.Release()
				return grafted.Version()
			}
			store := &shardedStore{t: t}
			a, err := New(Options{Store: store, Source: source, Retention: avlstar.Retention{Depth: depth, Window: 2}, ChainID: testChain})
			require.NoError(t, err)
			defer a.Stop()

			source.silence(true)
			began := time.Now()
			v := upper()
			err = a.Restored(height, v)
			require.ErrorContains(t, err, "parameters")
			require.Equal(t, startTimeout, time.Since(began))
			require.Zero(t, a.Height())
			_, none := a.Latest()
			require.Nil(t, none)
			v.Release()

			source.silence(false)
			source.has(local)
			v = upper()
			require.NoError(t, a.Restored(height, v))
			v.Release()
			require.Equal(t, height, a.Height())
			_, v = a.Latest()
			require.Equal(t, full.AppHash(), v.AppHash())
			_, _, err = v.Get([]byte("a7"))
			var missing *avlstar.MissingNodeError
			require.True(t, errors.As(err, &missing), "it has all of the state")
			v.Release()
			store.height, store.at = height, full.Commitment() // the root that a join reports
			for i := range uint64(4) {
				block := [][]byte{sign(t, "alice", 4+i, put("a7", "new"), read("a14"), del("a21"))}
				require.Equal(t, runBlock(t, local, block...), runBlock(t, a, block...))
				source.has(local)
			}
		})
	}
}

package app

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// A partial-state validator keeps the nodes that each of its blocks needed for Retention.Window
// blocks. It can send them to a validator in which they are missing, even if no other node has
// them.
func TestDecidedBlocksCanBeServed(t *testing.T) {
	const window = 6
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{Window: window})
		defer a.Stop()
		blocks := map[int64][]avlstar.Change{} // without system keys
		for i := range 3 * window {
			value := fmt.Sprint("new ", i)
			changed, deleted := fmt.Sprintf("a%d", 7*i), fmt.Sprintf("abc%d", 7*i)
			raw := sign(t, "alice", uint64(4+i), put(changed, value), del(deleted))
			require.Equal(t, runBlock(t, local, raw), runBlock(t, a, raw))
			source.has(local)
			blocks[a.Height()] = []avlstar.Change{{Key: []byte(changed), Value: []byte(value)}, {Key: []byte(deleted)}}
		}
		for height := a.Height(); height > a.Height()-window; height-- {
			v, ok := a.Version(height - 1)
			require.True(t, ok, "height %d", height-1)
			full, err := source.mu.full[height-1].Prune(func(avlstar.Subtree) bool { return false })
			require.NoError(t, err)
			want, err := full.Apply(blocks[height])
			require.NoError(t, err)
			require.Equal(t, want.AppHash(), applyFrom(t, v, blocks[height]), "block %d", height)
			full.Release()
			want.Release()
			v.Release()
		}
		_, ok := a.Version(0)
		require.False(t, ok)
		_, ok = a.Version(a.Height() + 1)
		require.False(t, ok)
	})
}

// applyFrom makes changes on a tree that has the root's hash and the nodes that v sends.
func applyFrom(t *testing.T, v *avlstar.Version, changes []avlstar.Change) avlstar.Hash {
	t.Helper()
	p, err := avlstar.NewPartial(v.Commitment())
	require.NoError(t, err)
	defer func() { p.Release() }()
	for {
		after, err := p.Apply(changes)
		var missing *avlstar.MissingNodeError
		if !errors.As(err, &missing) {
			require.NoError(t, err)
			defer after.Release()
			return after.AppHash()
		}
		b, err := v.Multiproof(missing.Wants(changes), avlstar.Below{Depth: 1 << 30, Held: missing.Held(), Partly: true})
		require.NoError(t, err)
		multiproof, err := avlstar.DecodeMultiproof(b)
		require.NoError(t, err)
		next, done, err := p.Graft(multiproof)
		require.NoError(t, err)
		require.NotZero(t, done.Inner+done.Leaves, "the nodes that the block needed are gone")
		p.Release()
		p = next
	}
}

package storagebench

import (
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

var tiny = Spec{Seed: 7, Keys: 3000, LoadSteps: 6, Blocks: 40, Txs: 200, Window: 10, NodeShare: 0.5}

func makeTiny(t *testing.T, s Spec) (dir string, m *maker) {
	t.Helper()
	dir = t.TempDir()
	m, err := newMaker(dir, s)
	require.NoError(t, err)
	for range s.LoadSteps + s.Blocks {
		require.NoError(t, m.step())
	}
	require.NoError(t, m.finish())
	return dir, m
}

// The simulated tree has the same root as package avlstar's after the same blocks, so it has the
// same shape.
func TestSimulatedTreeIsTheRealOne(t *testing.T) {
	_, m := makeTiny(t, tiny)
	v, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	require.NoError(t, err)
	c := newChain(tiny)
	for range tiny.LoadSteps + tiny.Blocks {
		var changes []avlstar.Change
		for _, change := range c.next() {
			a := avlstar.Change{Key: c.key(change.id)}
			if !change.delete {
				a.Value = c.appendValue(nil, change.id, c.step)
			}
			changes = append(changes, a)
		}
		next, err := v.Apply(changes)
		require.NoError(t, err)
		v.Release()
		v = next
	}
	hash := v.AppHash()
	require.Equal(t, hash[:], m.model.AppHash)
}

// The replayed nodes are those of the last version and of the window, and every account is
// reachable from the root.
func TestNodesReplayed(t *testing.T) {
	dir, m := makeTiny(t, tiny)
	trace, err := openTrace(filepath.Join(dir, fileNodes))
	require.NoError(t, err)
	disk := map[string][]byte{}
	steps := 0
	for ; ; steps++ {
		step, err := trace.next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		for _, o := range step[0].ops {
			if o.kind == opDelete {
				_, there := disk[string(o.key)]
				require.True(t, there, "an orphan that was never stored")
				delete(disk, string(o.key))
			} else {
				disk[string(o.key)] = o.value
			}
		}
	}
	require.Equal(t, tiny.LoadSteps+tiny.Blocks, steps)
	reached := 0
	var visit func(id nodeID)
	visit = func(id nodeID) {
		n, ok := decodeNode(disk[string(id.diskKey())])
		require.True(t, ok, "node %v", id)
		reached++
		if !n.leaf {
			visit(n.left)
			visit(n.right)
		}
	}
	visit(nodeID{m.model.Root.Version, m.model.Root.Nonce})
	require.Equal(t, 2*len(m.model.Present)-1, reached)
	window := 0
	for _, orphans := range m.waiting {
		window += len(orphans)
	}
	require.Len(t, disk, reached+window)
}

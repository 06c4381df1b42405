package storagenode

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// Edges divide the bytes of a state evenly, whatever the keys are: here most keys have one prefix,
// and a few values are large.
func TestEvenEdges(t *testing.T) {
	rng := seeds.Rand(t)
	empty, err := avlstar.Empty(64 << 10)
	require.NoError(t, err)
	defer empty.Release()
	var changes []avlstar.Change
	for i := range 20_000 {
		size := 20 + rng.IntN(100)
		if rng.IntN(100) == 0 {
			size = 4000
		}
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "accounts/%06d", i), Value: make([]byte, size)})
	}
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	defer v.Release()
	for _, n := range []int{1, 2, 3, 8, 50} {
		deep, err := v.Prune(func(s avlstar.Subtree) bool { return s.Bytes < 2000 })
		require.NoError(t, err)
		edges, err := evenEdges(deep, n)
		deep.Release()
		require.NoError(t, err)
		require.Len(t, edges, n-1)
		sizes := make([]float64, n)
		for l, err := range v.Leaves() {
			require.NoError(t, err)
			at := 0
			for at < len(edges) && string(l.Key) >= string(edges[at]) {
				at++
			}
			sizes[at] += float64(len(record.Append(nil, l)))
		}
		even := float64(v.Root().Bytes) / float64(n)
		for _, size := range sizes {
			require.InDelta(t, even, size, even/16+8000, "%d ranges", n)
		}
	}
	nothing, err := avlstar.Empty(64 << 10)
	require.NoError(t, err)
	defer nothing.Release()
	few, err := nothing.Apply([]avlstar.Change{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: []byte("1")}, {Key: []byte("c"), Value: []byte("1")}})
	require.NoError(t, err)
	defer few.Release()
	p, err := few.Prune(func(avlstar.Subtree) bool { return false })
	require.NoError(t, err)
	defer p.Release()
	edges, err := evenEdges(p, 10)
	require.NoError(t, err)
	require.Len(t, edges, 2, "more ranges than keys")
	p, err = nothing.Prune(func(avlstar.Subtree) bool { return false })
	require.NoError(t, err)
	defer p.Release()
	edges, err = evenEdges(p, 10)
	require.NoError(t, err)
	require.Empty(t, edges)
}

// executing is a node whose status has a block that it has not executed yet.
type executing struct {
	transport.Conn

	height int64 // of the newest state
	mux    *transport.Mux
}

func (e executing) Call(ctx context.Context, c transport.Call) ([]byte, error) {
	if c.Method == protocol.MethodStatus {
		return protocol.Status{Base: 1, Height: e.height + 1}.Encode(), nil
	}
	return e.mux.Serve(ctx, transport.Request{Method: c.Method, Body: c.Body})
}

func (e executing) Version(height int64) (*avlstar.Version, bool) {
	if height != e.height {
		return nil, false
	}
	empty, err := avlstar.Empty(1 << 10)
	if err != nil {
		return nil, false
	}
	defer empty.Release()
	v, err := empty.Apply([]avlstar.Change{{Key: []byte("key"), Value: []byte("value")}})
	return v, err == nil
}

// A node that executes its last block divides the state before it.
func TestUpperTreeWhileExecuting(t *testing.T) {
	node := executing{height: 7, mux: new(transport.Mux)}
	witness.New(witness.Options{Versions: node}).Register(node.mux)
	upper, err := upperTree(t.Context(), node, 6)
	require.NoError(t, err)
	upper.Release()
	node.height = 0
	_, err = upperTree(t.Context(), node, 6)
	require.ErrorIs(t, err, transport.ErrGone)
}

// The edges of a running validator's state divide it.
func TestDataEdges(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	client := nodetest.RPC(t, c.home)
	for i := range 8 {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), strings.Repeat("v", 5000))
	}
	conf := nodetest.Load(t, c.home)
	edges, err := DataEdges(t.Context(), conf, c.transport.String(), 4)
	require.NoError(t, err)
	var got []string
	for _, e := range edges {
		got = append(got, string(e))
	}
	require.Equal(t, []string{"key-02", "key-04", "key-06"}, got)
	_, err = DataEdges(t.Context(), conf, string(c.transport.ID)+"@127.0.0.1:1", 4)
	require.ErrorContains(t, err, "cannot be reached")
}

// Storage nodes of all ranges together divide the state as a node with all of it does.
func TestDataEdgesOfStorageNodes(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	client := nodetest.RPC(t, c.home)
	for i := range 8 {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", 16+i), strings.Repeat("v", 5000))
	}
	var homes []string
	var nodes [][]transport.Address
	for _, port := range nodetest.FreePorts(t, len(c.ranges)) {
		at := fmt.Sprint("127.0.0.1:", port)
		dir, id := c.storageHomeAt(at)
		homes, nodes = append(homes, dir), append(nodes, []transport.Address{{ID: id, HostPort: at}})
	}
	start := func(i int) *validator {
		c.assign(homes[i], nodes...)
		v := c.dial(c.start(homes[i], log.NewNopLogger(), fromGenesis))
		v.feedAll("the state of a range")
		return v
	}
	first := start(0)
	conf := nodetest.Load(t, homes[0])
	_, err := DataEdges(t.Context(), conf, FromStorage, 4)
	require.ErrorIs(t, err, ErrPartialState)
	require.ErrorContains(t, err, "cannot be reached")
	second := start(1)
	// The chain goes on: on a busy machine, the first node may now be far behind.
	height := c.node.Application().Height()
	for _, v := range []*validator{first, second} {
		nodetest.Until(t, "both ranges at one height", func() bool { return v.feed(height) })
	}
	var edges [][]byte
	nodetest.Until(t, "both claim the height", func() bool {
		edges, err = DataEdges(t.Context(), conf, FromStorage, 4)
		return err == nil || !strings.Contains(err.Error(), "no height in common")
	})
	require.NoError(t, err)
	var got []string
	for _, e := range edges {
		got = append(got, string(e))
	}
	require.Equal(t, []string{"key-18", "key-20", "key-22"}, got)
	_, err = DataEdges(t.Context(), conf, nodes[0][0].String(), 4)
	require.ErrorContains(t, err, "use --from storage")
}

// A tree of which a large part is closed near its root is not divided; one that is closed where a
// node ends an upper tree is.
func TestCheckUpper(t *testing.T) {
	empty, err := avlstar.Empty(64 << 10)
	require.NoError(t, err)
	defer empty.Release()
	var changes []avlstar.Change
	for i := range 20_000 {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "%06d", i), Value: make([]byte, 50)})
	}
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	defer v.Release()
	const n, depth = 4, 9
	check := func(stub func(avlstar.Subtree) bool) error {
		p, err := v.Prune(stub)
		require.NoError(t, err)
		defer p.Release()
		return checkUpper(p, depth, n)
	}
	root := v.Root()
	require.NoError(t, check(func(s avlstar.Subtree) bool { return s.Height <= root.Height-depth }))
	require.ErrorIs(t, check(func(s avlstar.Subtree) bool { return s.Height < root.Height && string(s.First) >= "010000" }), ErrPartialState)
}

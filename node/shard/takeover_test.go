package shard

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

func TestHeightsOf(t *testing.T) {
	for name, c := range map[string]struct {
		claims      []int64
		last, above int64
		want        []int64
	}{
		"nobody claims anything": {nil, 50, 0, []int64{50}},
		"the greatest first":     {[]int64{30, 40, 30, 0}, 50, 0, []int64{40, 30, 50}},
		"beyond the chain":       {[]int64{math.MaxInt64, 30}, 50, 0, []int64{50, 30}},
		"not what is here":       {[]int64{30, 40}, 50, 30, []int64{40, 50}},
		"nothing is newer":       {[]int64{30, 40}, 40, 40, nil},
		"claims long past":       {[]int64{4000, 100, 3000}, 5000, 0, []int64{4000, 5000, 3000, 100}},
		"many liars":             {[]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 50, 0, []int64{10, 9, 8, 7, 6, 5, 4, 50}},
	} {
		t.Run(name, func(t *testing.T) {
			var givers []*giver
			for _, newest := range c.claims {
				givers = append(givers, &giver{newest: newest})
			}
			require.Equal(t, c.want, heightsOf(givers, c.last, c.above))
		})
	}
}

// answering is a connection to a node that has the same answer to everything.
type answering struct {
	transport.Conn
	answer []byte
}

func (a answering) Call(context.Context, transport.Call) ([]byte, error) { return a.answer, nil }

func (answering) Remote() transport.Address { return transport.Address{} }

// A node that says that even the way to one key is too long is not asked again, and another one is.
func TestNoRoomForOneKey(t *testing.T) {
	liar, other := &giver{Conn: answering{}}, &giver{Conn: answering{answer: []byte("bag")}}
	over := &takeover{height: 1, n: &Node{log: log.NewNopLogger()}, p: &place{}, givers: []*giver{liar, other}}
	var got []byte
	take := func(b []byte) error {
		got = b
		return nil
	}
	require.ErrorIs(t, over.fetch(t.Context(), 0, []dsm.Want{{Key: []byte("k"), Range: true}}, nil, take), errSplit)
	require.False(t, liar.lied)
	require.NoError(t, over.fetch(t.Context(), 0, []dsm.Want{{Key: []byte("k")}}, nil, take))
	require.Equal(t, []byte("bag"), got)
	require.True(t, liar.lied)
}

// chainHeaders are the headers of a chain whose node is believed.
type chainHeaders struct{ c *chain }

func (h chainHeaders) LightBlock(_ context.Context, height int64) (*cmttypes.LightBlock, error) {
	meta := h.c.node.Comet().BlockStore().LoadBlockMeta(height)
	if meta == nil {
		return nil, fmt.Errorf("block %d is not there", height)
	}
	return &cmttypes.LightBlock{SignedHeader: &cmttypes.SignedHeader{Header: &meta.Header}}, nil
}

func (h chainHeaders) Newest(context.Context) (int64, error) {
	return h.c.node.Comet().BlockStore().Height(), nil
}

func (chainHeaders) Ancestors(context.Context, int64, func(*cmttypes.Header) bool) ([]lightblocks.Ancestor, error) {
	return nil, nil
}

// replicaOf is a node that answers as another one does, as far as a test allows.
type replicaOf struct {
	n *Node // who answers
	// claim, if not 0, is what it claims as its newest height.
	claim int64
	// answers is how many witnesses it gives.
	answers atomic.Int64
	// sent are the bytes of these.
	sent atomic.Int64
}

func (r *replicaOf) Serve(ctx context.Context, request transport.Request) ([]byte, error) {
	switch uint8(request.Method) {
	case dsm.MethodRanges:
		if r.claim > 0 {
			claims := r.n.Claims()
			for i := range claims {
				claims[i].Newest = r.claim
			}
			return dsm.EncodeClaims(claims)
		}
	case dsm.MethodWitness:
		if r.answers.Add(-1) < 0 {
			return nil, transport.ErrRefused
		}
	}
	b, err := r.n.handler.Load().Serve(ctx, request)
	if uint8(request.Method) == dsm.MethodWitness {
		r.sent.Add(int64(len(b)))
	}
	return b, err
}

// listen serves it.
func (r *replicaOf) listen(t *testing.T) transport.Address {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	s, err := tcp.Listen("127.0.0.1:0", tcp.Options{Key: key, ChainID: "test-chain", Handler: r})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return transport.Address{ID: tcp.IDOf(public), HostPort: s.Addr().String()}
}

// lonely makes a storage node that follows nothing, and knows these replicas of all ranges.
func (c *chain) lonely(logs *nodetest.LogBuffer, replicas ...transport.Address) *Node {
	c.t.Helper()
	dir, id := c.storageHome()
	c.divide(dir, append(replicas, transport.Address{ID: id, HostPort: "127.0.0.1:1"})...)
	n, err := New(c.t.Context(), Options{Config: nodetest.Load(c.t, dir), Logger: logs.Logger(c.t)})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { require.NoError(c.t, n.Stop()) })
	peers := fastsync.NewPeers(fastsync.PeersOptions{Logger: log.NewNopLogger(), Dialer: n.dialer, Self: n.ID()})
	c.t.Cleanup(peers.Close)
	n.peers.Store(peers)
	return n
}

// A replica that claims heights which it does not give does not hinder that the range is taken over
// at the height which another one has.
func TestTakesOverAtALowerHeight(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	dir, id := c.storageHome()
	c.divide(dir, transport.Address{ID: id, HostPort: "127.0.0.1:1"})
	a := c.start(dir, log.NewNopLogger(), fromGenesis)
	v := c.dial(a)
	c.put(10, 30)
	nodetest.Until(t, "the first node at the chain's height", func() bool { return v.feed(c.node.Application().Height() - 3) })
	nodetest.Until(t, "more blocks", func() bool { return c.node.Application().Height() > a.Claims()[0].Newest+3 })

	logs := new(nodetest.LogBuffer)
	liar := &replicaOf{n: a, claim: math.MaxInt64}
	near := &replicaOf{n: a, claim: a.Claims()[0].Newest + 1} // of which the header is there
	b := c.lonely(logs, liar.listen(t), near.listen(t), a.Address())
	for _, p := range b.places {
		require.NoError(t, b.takeOver(t.Context(), p, chainHeaders{c}, -1))
	}
	c.requireSame(b)
	for i, claim := range b.Claims() { // lower where an answer came too late on a loaded machine
		require.LessOrEqual(t, claim.Newest, a.Claims()[i].Newest)
	}
}

// Where a range cannot be completed at a height, what came is reused at the next one, as is what
// the range has of an older height.
func TestTakeoverReuses(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, avlstar.KeyRange{})
	dir, id := c.storageHome()
	c.divide(dir, transport.Address{ID: id, HostPort: "127.0.0.1:1"})
	a := c.start(dir, log.NewNopLogger(), fromGenesis)
	v := c.dial(a)
	client := nodetest.RPC(t, c.home)
	const keys, length = 32, 300_000
	for i := range keys {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), strings.Repeat(fmt.Sprint(i%10), length))
	}
	nodetest.Until(t, "the first node at the chain's height", func() bool { return v.feed(c.node.Application().Height() - 1) })

	logs := new(nodetest.LogBuffer)
	giver := &replicaOf{n: a}
	b := c.lonely(logs, giver.listen(t))
	p := b.places[0]
	before := a.Claims()[0].Newest
	headers := chainHeaders{c}
	nodetest.Until(t, "the next header", func() bool { n, _ := headers.Newest(t.Context()); return n > before+1 })
	giver.answers.Store(4) // the ways to the edges, and some pages
	require.ErrorIs(t, b.takeOver(t.Context(), p, headers, -1), errNobody)
	require.NotNil(t, p.left)
	first := giver.sent.Load()

	nodetest.Put(t, client, "key-05", "another")
	height := c.node.Application().Height()
	nodetest.Until(t, "the giver at another height", func() bool { return v.feed(height) })
	giver.answers.Store(math.MaxInt64)
	require.NoError(t, b.takeOver(t.Context(), p, headers, -1))
	require.Nil(t, p.left)
	c.requireSame(b)
	total := giver.sent.Load()
	t.Logf("%d bytes in the first attempt, %d in the second", first, total-first)
	require.Greater(t, first, int64(length))
	require.Less(t, total, int64(keys*length*5/4), "fetched twice")

	// it has stayed behind
	nodetest.Put(t, client, "key-25", "another")
	height = c.node.Application().Height()
	nodetest.Until(t, "the giver at another height", func() bool { return v.feed(height) })
	old := b.Claims()[0].Newest
	require.NoError(t, b.takeOver(t.Context(), p, headers, old))
	require.Greater(t, b.Claims()[0].Newest, old)
	c.requireSame(b)
	t.Logf("%d bytes for what differs", giver.sent.Load()-total)
	require.Less(t, giver.sent.Load()-total, int64(keys*length/2))
	require.False(t, logs.Has("is not of the state"))
}

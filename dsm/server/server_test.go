package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

// newNetwork builds nodes that together keep all ranges: node k keeps the ranges with index k
// modulo nodes.
func newNetwork(t *testing.T, rng *rand.Rand, shards, nodes, blocks int) (*network, []*server.Server, []*server.Replica) {
	t.Helper()
	n := &network{chain: newChain(t, rng, anyRanges(rng, shards), blocks), muxes: map[dsm.NodeID]*transport.Mux{}}
	of := make([][]*server.Replica, nodes)
	var configured []dsm.Placement
	var replicas []*server.Replica
	for i, r := range n.chain.ranges {
		k := i % nodes
		replica := n.newReplica(t, i, nil)
		replicas = append(replicas, replica)
		of[k] = append(of[k], replica)
		configured = append(configured, dsm.Placement{Range: dsmRange(r), Replicas: []dsm.NodeID{nodeName(k)}})
	}
	var all []*server.Server
	for k := range nodes {
		node, err := server.NewServer(server.ServerOptions{}, of[k]...)
		require.NoError(t, err)
		mux := new(transport.Mux)
		node.Register(mux)
		n.muxes[nodeName(k)] = mux
		all = append(all, node)
	}
	var err error
	n.ranges, err = dsm.NewRanges(configured)
	require.NoError(t, err)
	return n, all, replicas
}

func nodeName(k int) dsm.NodeID { return dsm.NodeID(fmt.Sprint("node ", k)) }

// update sends the update of a height to all replicas, in parts of at most bytes bytes.
func (n *network) update(t *testing.T, height int64, bytes int) {
	t.Helper()
	for i, r := range n.chain.ranges {
		update := n.blocks[height-1].updates[i]
		for offset := 0; offset < len(update); {
			b, err := n.call(n.ranges.Shard(i).Replicas[0], "validator", dsm.MethodUpdate, part(height, r, update, offset, bytes).Encode())
			require.NoError(t, err)
			answer, err := dsm.DecodeUpdateAnswer(b)
			require.NoError(t, err)
			require.Greater(t, int(answer.Have), offset)
			offset = int(answer.Have)
		}
	}
}

// validator has a partial tree and fetches missing nodes.
type validator struct {
	*network
	t       *testing.T
	partial *avlstar.Partial
	fetched int // bytes
}

// graft grafts a multiproof into the validator's tree.
func (v *validator) graft(b []byte) {
	v.t.Helper()
	multiproof, err := avlstar.DecodeMultiproof(b)
	require.NoError(v.t, err)
	next, _, err := v.partial.Graft(multiproof)
	require.NoError(v.t, err)
	v.partial.Release()
	v.partial = next
	v.fetched += len(b)
}

// fetch sends wants of a height to the nodes that serve them.
func (v *validator) fetch(height int64, wants []avlstar.Want, held [][32]byte) {
	v.t.Helper()
	all := slices.Clone(wants)
	parts, err := v.ranges.Route(all)
	require.NoError(v.t, err)
	for _, p := range parts {
		depth := uint8(0)
		if held != nil {
			depth = math.MaxUint8
		}
		request, err := dsm.Witness{Height: height, Depth: depth, MaxBytes: 1 << 20, Held: held, Wants: p.Wants}.Encode()
		require.NoError(v.t, err)
		b, err := v.call(v.ranges.Shard(p.Shard).Replicas[0], "validator", dsm.MethodWitness, request)
		require.NoError(v.t, err)
		require.NotEmpty(v.t, b)
		v.graft(b)
	}
}

// execute applies a block and fetches missing nodes. A block with deletions at an edge may take
// several rounds.
func (v *validator) execute(height int64) (rounds int) {
	v.t.Helper()
	changes := v.blocks[height-1].changes
	var known []avlstar.Want
	for _, c := range changes {
		known = append(known, avlstar.Want{Key: c.Key, Deleted: c.Value == nil})
	}
	v.fetch(height-1, known, nil)
	for ; ; rounds++ {
		require.Less(v.t, rounds, 20)
		next, err := v.partial.Apply(changes)
		if err == nil {
			v.partial.Release()
			v.partial = next
			break
		}
		var missing *avlstar.MissingNodeError
		require.ErrorAs(v.t, err, &missing)
		wants := missing.Wants(changes)
		held := [][32]byte{}
		for _, m := range missing.All() {
			held = append(held, m.Node.Hash)
			if m.First != nil { // a deletion's sibling may lie in another range
				wants = append(wants, avlstar.Want{Key: m.First})
			}
		}
		for i := range v.ranges.Len() { // the next key may lie in another range, too
			wants = append(wants, avlstar.Want{Key: v.ranges.Shard(i).Range.First})
		}
		v.fetch(height-1, wants, held)
	}
	require.Equal(v.t, v.blocks[height-1].after.AppHash(), v.partial.AppHash())
	shed, err := v.partial.Shed()
	require.NoError(v.t, err)
	v.partial.Release()
	v.partial = shed
	return rounds
}

// Blocks on a full tree, their updates in 1 to 8 ranges, and a validator that starts with only the
// upper tree all lead to the same root.
func TestNetwork(t *testing.T) {
	for _, shards := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			rng := seeds.Rand(t)
			const blocks = 40
			nodes := 1 + rng.IntN(shards)
			n, all, replicas := newNetwork(t, rng, shards, nodes, blocks)
			const from = 3
			var v *validator
			rounds := 0
			for height := int64(1); height <= blocks; height++ {
				n.update(t, height, 1+rng.IntN(2000))
				n.proved.Store(height)
				for _, r := range replicas {
					_, err := r.Advance()
					require.NoError(t, err)
				}
				for k, node := range all {
					b, err := n.call(nodeName(k), "anybody", dsm.MethodRanges, nil)
					require.NoError(t, err)
					claims, err := dsm.DecodeClaims(b)
					require.NoError(t, err)
					require.Len(t, claims, len(node.Claims()))
					for _, c := range claims {
						require.Equal(t, height, c.Durable)
					}
				}
				switch {
				case height == from:
					v = n.join(t, height, 4)
					defer func() { v.partial.Release() }()
				case height > from:
					rounds += v.execute(height)
				}
			}
			for i, r := range replicas {
				n.requireSame(t, r, i, blocks-7, blocks)
			}
			t.Logf("%d nodes; %d rounds and %d bytes for %d blocks", nodes, rounds, v.fetched, blocks-from)
		})
	}
}

// join returns a validator with the upper tree, which it assembles from all nodes.
func (n *network) join(t *testing.T, height int64, depth uint8) *validator {
	t.Helper()
	p, err := avlstar.NewPartial(n.at(height).Commitment())
	require.NoError(t, err)
	v := &validator{network: n, t: t, partial: p}
	p.EnableRetention(avlstar.Retention{Depth: int(depth), Window: 3})
	for _, name := range n.ranges.Nodes() {
		b, err := n.call(name, "validator", dsm.MethodUpper, dsm.UpperRequest{Height: height, Depth: depth}.Encode())
		require.NoError(t, err)
		u, err := dsm.DecodeUpper(b)
		require.NoError(t, err)
		require.Equal(t, n.at(height).Commitment().Encode(), u.Commitment)
		v.graft(u.Multiproof)
	}
	want, err := n.at(height).Upper(int(depth))
	require.NoError(t, err)
	got, err := v.partial.Upper(int(depth))
	require.NoError(t, err)
	require.Equal(t, want, got)
	return v
}

// Requests for missing parts and forbidden requests get the corresponding errors.
func TestRefusals(t *testing.T) {
	rng := seeds.Rand(t)
	n, _, replicas := newNetwork(t, rng, 3, 3, 12)
	for height := int64(1); height <= 12; height++ {
		n.update(t, height, 0)
		n.proved.Store(height)
		for _, r := range replicas {
			_, err := r.Advance()
			require.NoError(t, err)
		}
	}
	witness := func(change func(*dsm.Witness)) []byte {
		w := dsm.Witness{Height: 12, MaxBytes: 1 << 20, Wants: []avlstar.Want{{Key: n.chain.ranges[1].First}}}
		change(&w)
		b, err := w.Encode()
		require.NoError(t, err)
		return b
	}
	update := func(change func(*dsm.UpdatePart)) []byte {
		p := part(13, n.chain.ranges[1], []byte("update"), 0, 0)
		change(&p)
		return p.Encode()
	}
	for _, test := range []struct {
		name   string
		method uint8
		body   []byte
		want   error // nil: it is answered
	}{
		{"witness", dsm.MethodWitness, witness(func(*dsm.Witness) {}), nil},
		{"old height", dsm.MethodWitness, witness(func(w *dsm.Witness) { w.Height = 4 }), transport.ErrGone},
		{"height to come", dsm.MethodWitness, witness(func(w *dsm.Witness) { w.Height = 13 }), transport.ErrGone},
		{"nothing", dsm.MethodWitness, witness(func(w *dsm.Witness) { w.Wants = nil }), transport.ErrRefused},
		{"another range", dsm.MethodWitness, witness(func(w *dsm.Witness) {
			w.Wants = []avlstar.Want{{Key: append(bytes.Clone(n.chain.ranges[2].First), 0)}}
		}), transport.ErrGone},
		{"another range, too", dsm.MethodWitness, witness(func(w *dsm.Witness) {
			w.Wants = append(w.Wants, avlstar.Want{Key: append(bytes.Clone(n.chain.ranges[2].First), 0)})
		}), transport.ErrGone},
		{"its end", dsm.MethodWitness, witness(func(w *dsm.Witness) { w.Wants = append(w.Wants, avlstar.Want{Key: n.chain.ranges[2].First}) }), nil},
		{"only its end", dsm.MethodWitness, witness(func(w *dsm.Witness) { w.Wants = []avlstar.Want{{Key: n.chain.ranges[2].First}} }), nil},
		{"across the edge", dsm.MethodWitness, witness(func(w *dsm.Witness) { w.Wants[0].Range = true }), transport.ErrRefused},
		{"no witness", dsm.MethodWitness, []byte("?"), transport.ErrRefused},
		{"upper", dsm.MethodUpper, dsm.UpperRequest{Height: 12, Depth: 3}.Encode(), nil},
		{"too deep", dsm.MethodUpper, dsm.UpperRequest{Height: 12, Depth: 17}.Encode(), transport.ErrRefused},
		{"upper of an old height", dsm.MethodUpper, dsm.UpperRequest{Height: 4, Depth: 3}.Encode(), transport.ErrGone},
		{"no request", dsm.MethodUpper, []byte("?"), transport.ErrRefused},
		{"update", dsm.MethodUpdate, update(func(*dsm.UpdatePart) {}), nil},
		{"far ahead", dsm.MethodUpdate, update(func(p *dsm.UpdatePart) { p.Height = 1000 }), nil},
		{"too large", dsm.MethodUpdate, update(func(p *dsm.UpdatePart) { p.Height, p.Total = 14, 65<<10 }), transport.ErrRefused},
		{"unknown range", dsm.MethodUpdate, update(func(p *dsm.UpdatePart) { p.Range = avlstar.KeyRange{} }), transport.ErrGone},
		{"false sum", dsm.MethodUpdate, update(func(p *dsm.UpdatePart) { p.Height, p.Sum = 14, [32]byte{} }), transport.ErrRefused},
		{"refused sender", dsm.MethodUpdate, update(func(p *dsm.UpdatePart) { p.Height = 15 }), transport.ErrRefused},
		{"no update", dsm.MethodUpdate, []byte("?"), transport.ErrRefused},
	} {
		_, err := n.call("node 1", "somebody", test.method, test.body)
		if test.want == nil {
			require.NoError(t, err, test.name)
		} else {
			require.ErrorIs(t, err, test.want, test.name)
		}
	}
	small, err := n.call("node 1", "somebody", dsm.MethodWitness, witness(func(w *dsm.Witness) { w.MaxBytes = 10 }))
	require.NoError(t, err)
	require.Empty(t, small, "the requester must ask for less at once")
	far, err := n.call("node 1", "another", dsm.MethodUpdate, update(func(p *dsm.UpdatePart) { p.Height = 1000 }))
	require.NoError(t, err)
	answer, err := dsm.DecodeUpdateAnswer(far)
	require.NoError(t, err)
	require.Equal(t, dsm.UpdateAnswer{Durable: 12, Needs: 13}, answer)

	// The next key is searched in the range. If there is none, the path to the key itself is
	// opened.
	want := func(w avlstar.Want) []byte {
		b, err := n.call("node 1", "somebody", dsm.MethodWitness, witness(func(r *dsm.Witness) { r.Wants = []avlstar.Want{w} }))
		require.NoError(t, err)
		return b
	}
	p, ok := replicas[1].At(12)
	require.True(t, ok)
	previous := n.chain.ranges[1].First
	for l, err := range p.Leaves(n.chain.ranges[1]) {
		require.NoError(t, err)
		if !bytes.Equal(l.Key, previous) {
			require.Equal(t, want(avlstar.Want{Key: l.Key}), want(avlstar.Want{Key: previous, Next: true}))
		}
		previous = bytes.Clone(l.Key)
	}
	require.Equal(t, want(avlstar.Want{Key: previous}), want(avlstar.Want{Key: previous, Next: true}))
	p.Release()

	strict, err := server.NewServer(server.ServerOptions{Allow: func(id transport.ID) bool { return id == "validator" }}, replicas[1])
	require.NoError(t, err)
	n.muxes["strict"] = new(transport.Mux)
	strict.Register(n.muxes["strict"])
	_, err = n.call("strict", "somebody", dsm.MethodUpdate, update(func(*dsm.UpdatePart) {}))
	require.ErrorIs(t, err, server.ErrRefusedSender)
	_, err = n.call("strict", "validator", dsm.MethodUpdate, update(func(*dsm.UpdatePart) {}))
	require.NoError(t, err)
	_, err = server.NewServer(server.ServerOptions{}, replicas[1], replicas[0], replicas[1])
	require.ErrorContains(t, err, "two replicas")
}

// A node answers wants of all its ranges in one multiproof, which is that of the full tree, and a
// next key from the range that has it. A want that crosses the end of a range is refused.
func TestWitnessOfSeveralRanges(t *testing.T) {
	rng := seeds.Rand(t)
	n, _, replicas := newNetwork(t, rng, 6, 1, 3)
	for height := int64(1); height <= 3; height++ {
		n.update(t, height, 0)
		n.proved.Store(height)
		for _, r := range replicas {
			_, err := r.Advance()
			require.NoError(t, err)
		}
	}
	v := n.at(3)
	ask := func(height int64, depth int, wants []avlstar.Want) ([]byte, error) {
		request, err := dsm.Witness{Height: height, Depth: uint8(depth), MaxBytes: 1 << 20, Wants: wants}.Encode()
		require.NoError(t, err)
		return n.call(nodeName(0), "validator", dsm.MethodWitness, request)
	}
	for range 50 {
		var wants []avlstar.Want
		for range 1 + rng.IntN(30) {
			w := avlstar.Want{Key: chainKey(rng.IntN(chainKeys)), Written: rng.IntN(4) == 0}
			if rng.IntN(6) == 0 {
				w.Range, w.After = true, n.ranges.Shard(n.ranges.Index(w.Key)).Range.After
			}
			wants = append(wants, w)
		}
		depth := rng.IntN(6)
		want, err := v.Multiproof(wants, avlstar.Below{Depth: depth})
		require.NoError(t, err)
		got, err := ask(3, depth, wants)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "below %d: %+v of %v", depth, wants, n.chain.ranges)
	}
	below, next := avlstar.Want{Key: []byte("0")}, avlstar.Want{Next: true}
	of := -1
	for l, err := range v.Leaves() {
		require.NoError(t, err)
		if of == n.ranges.Index(l.Key) {
			break // next.Key is the leaf before, in the same range
		}
		next.Key = bytes.Clone(l.Key)
		if i := n.ranges.Index(l.Key); i > 0 {
			of = i
		}
	}
	want, err := v.Multiproof([]avlstar.Want{below, next}, avlstar.Below{})
	require.NoError(t, err)
	got, err := ask(3, 0, []avlstar.Want{below, next})
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = ask(3, 0, []avlstar.Want{below, {Key: n.ranges.Shard(1).Range.First, Range: true}})
	require.ErrorIs(t, err, transport.ErrRefused)
	_, err = ask(4, 0, []avlstar.Want{below, next})
	require.ErrorIs(t, err, transport.ErrGone)
	reads := uint64(0)
	b, err := n.call(nodeName(0), "operator", dsm.MethodLoads, nil)
	require.NoError(t, err)
	loads, err := dsm.DecodeLoads(b)
	require.NoError(t, err)
	for _, l := range loads {
		reads += l.Reads
	}
	require.Greater(t, reads, uint64(50))
}

// What a stranger sends is charged to the host of its request: other identities of that host get no
// more, another host does.
func TestUpdatesAreChargedToHosts(t *testing.T) {
	c := newChain(t, seeds.Rand(t), rangesAt(nil), 0)
	replica := c.newReplica(t, 0, func(o *server.Options) { o.Strangers = server.NewShares(100) })
	node, err := server.NewServer(server.ServerOptions{}, replica)
	require.NoError(t, err)
	mux := new(transport.Mux)
	node.Register(mux)
	send := func(id transport.ID, host string) error {
		p := dsm.UpdatePart{Height: 1, Total: 1000, Part: make([]byte, 40)}
		_, err := mux.Serve(t.Context(), transport.Request{Peer: id, Host: host, Method: dsm.MethodUpdate, Body: p.Encode()})
		return err
	}
	require.NoError(t, send("a", "10.0.0.1"))
	require.ErrorIs(t, send("b", "10.0.0.1"), transport.ErrBusy)
	require.NoError(t, send("c", "10.0.0.2"))
}

// Run applies updates and stores states until its context ends.
func TestRun(t *testing.T) {
	rng := seeds.Rand(t)
	n, nodes, replicas := newNetwork(t, rng, 3, 1, 22)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- nodes[0].Run(ctx) }()
	for height := int64(1); height <= 22; height++ {
		n.update(t, height, 1500)
		n.proved.Store(height)
		nodes[0].Proved()
	}
	at := func(height int64) func() bool {
		return func() bool {
			return !slices.ContainsFunc(replicas, func(r *server.Replica) bool { return r.Claim().Durable != height })
		}
	}
	require.Eventually(t, at(22), 5*time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	for i, r := range replicas {
		n.requireSame(t, r, i, 15, 22)
	}
}

// Run returns the error of a replica whose log fails.
func TestRunFails(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(1), 2)
	failed := errors.New("the disk is full")
	r := c.newReplica(t, 0, func(o *server.Options) { o.Log = fullLog(t, failed) })
	node, err := server.NewServer(server.ServerOptions{}, r)
	require.NoError(t, err)
	c.send(t, r, 0, 1, "a")
	c.proved.Store(1)
	require.ErrorIs(t, node.Run(context.Background()), failed)
	require.Zero(t, r.Claim().Durable)
}

// The other replicas continue if one fails.
func TestRunContinues(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 2)
	failed := errors.New("the disk is full")
	bad := c.newReplica(t, 0, func(o *server.Options) { o.Log = fullLog(t, failed) })
	good := c.newReplica(t, 1, nil)
	broken := make(chan error, 1)
	node, err := server.NewServer(server.ServerOptions{Broken: func(r *server.Replica, err error) {
		if r != bad {
			err = errors.New("another replica")
		}
		broken <- err
	}}, bad, good)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- node.Run(ctx) }()
	c.send(t, bad, 0, 1, "a")
	c.proved.Store(1)
	node.Proved()
	require.ErrorIs(t, <-broken, failed)
	c.send(t, good, 1, 1, "a")
	c.send(t, good, 1, 2, "a")
	c.proved.Store(2)
	node.Proved()
	require.Eventually(t, func() bool { return good.Claim().Durable == 2 }, 5*time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}

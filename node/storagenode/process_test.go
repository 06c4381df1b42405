package storagenode

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// chain is a full-state validator, and the updates of its blocks.
type chain struct {
	t         *testing.T
	home      string
	node      *node.Node
	transport transport.Address
	ranges    []avlstar.KeyRange
	serves    int // number of heights that storage nodes serve; default: 20

	mu       sync.Mutex
	versions []*avlstar.Version // by height, from 0 on; guarded by mu
	updates  [][][]byte         // by height and range; guarded by mu
}

// local is the application; it records its versions.
type local struct {
	abci.Application
	c      *chain
	latest func() (int64, *avlstar.Version)
}

func (l local) Commit(ctx context.Context, req *abci.RequestCommit) (*abci.ResponseCommit, error) {
	res, err := l.Application.Commit(ctx, req)
	l.c.record(l.latest())
	return res, err
}

// record makes the updates of a block. It runs in the node, where a failed test must not end the
// goroutine.
func (c *chain) record(height int64, v *avlstar.Version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	base := c.versions[height-1]
	if height == 1 {
		base = nil // this genesis state is not the one on which the node executed the block
	}
	changes := difference(c.t, base, v)
	var of [][]byte
	for _, r := range c.ranges {
		u, err := v.UpdateOf(base, r, changes)
		if err != nil {
			panic(err)
		}
		of = append(of, u.Encode())
	}
	if len(c.versions) != int(height) {
		panic(fmt.Sprintf("%d versions at height %d", len(c.versions), height))
	}
	c.versions, c.updates = append(c.versions, v), append(c.updates, of)
}

func leaves(t *testing.T, v *avlstar.Version) map[string]string {
	t.Helper()
	all := map[string]string{}
	for l, err := range v.Leaves() {
		if err != nil {
			panic(err)
		}
		all[string(l.Key)] = string(l.Value)
	}
	return all
}

// difference returns the difference between two versions; base nil: all of v.
func difference(t *testing.T, base, v *avlstar.Version) (changes []avlstar.Change) {
	t.Helper()
	before, after := map[string]string{}, leaves(t, v)
	if base != nil {
		before = leaves(t, base)
	}
	for k, value := range after {
		if old, has := before[k]; !has || old != value {
			changes = append(changes, avlstar.Change{Key: []byte(k), Value: []byte(value)})
		}
	}
	for k := range before {
		if _, has := after[k]; !has {
			changes = append(changes, avlstar.Change{Key: []byte(k)})
		}
	}
	return changes
}

// newChain starts a validator with keys key-00 and so on, some in each range.
func newChain(t *testing.T, ranges ...avlstar.KeyRange) *chain {
	t.Helper()
	return newChainOf(t, app.Genesis{Open: true}, ranges...)
}

// newChainOf is newChain with another genesis state.
func newChainOf(t *testing.T, genesis app.Genesis, ranges ...avlstar.KeyRange) *chain {
	t.Helper()
	c := &chain{t: t, ranges: ranges}
	port := nodetest.FreePorts(t, 1)[0]
	dir, made := nodetest.Home(t, func(o *home.InitOptions) {
		o.App = genesis
		edit := o.Edit
		o.Edit = func(conf *cfg.Config, a *config.App) {
			edit(conf, a)
			a.Transport.ListenAddress = fmt.Sprint("127.0.0.1:", port)
		}
	})
	c.home, c.transport = dir, transport.Address{ID: transport.ID(made.NodeID), HostPort: fmt.Sprint("127.0.0.1:", port)}
	doc, err := config.LoadGenesis(nodetest.Load(t, dir).CometBFT.GenesisFile())
	require.NoError(t, err)
	first, err := genesisState(doc)
	require.NoError(t, err)
	c.versions, c.updates = []*avlstar.Version{first}, [][][]byte{nil}
	n, err := node.New(t.Context(), nodetest.Load(t, dir), log.NewNopLogger(), node.WithApp(func(a abci.Application) abci.Application {
		return local{a, c, a.(interface {
			Latest() (int64, *avlstar.Version)
		}).Latest}
	}))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, n.Stop())
		for _, v := range c.versions {
			v.Release()
		}
	})
	require.NoError(t, n.Start(t.Context()))
	c.node = n
	return c
}

func (c *chain) put(from, to int) {
	c.t.Helper()
	client := nodetest.RPC(c.t, c.home)
	for i := from; i < to; i++ {
		nodetest.Put(c.t, client, fmt.Sprintf("key-%02d", i), fmt.Sprint("value ", i))
	}
}

// storageHome makes the home of a storage node.
func (c *chain) storageHome() (dir string, id transport.ID) {
	c.t.Helper()
	return c.storageHomeAt("127.0.0.1:0")
}

// storageHomeAt is storageHome of a node that listens there.
func (c *chain) storageHomeAt(address string) (dir string, id transport.ID) {
	c.t.Helper()
	dir, made := nodetest.Home(c.t, func(o *home.InitOptions) {
		o.GenesisFile, o.NoValidator = filepath.Join(c.home, "config", "genesis.json"), true
		edit := o.Edit
		o.Edit = func(conf *cfg.Config, a *config.App) {
			edit(conf, a)
			a.Join.Peers, a.Transport.ListenAddress = c.transport.String(), address
			a.StorageNode.ServeHeights = cmp.Or(c.serves, 20)
		}
	})
	return dir, transport.ID(made.NodeID)
}

// replicaHome is storageHome with a storage nodes file: others and this node have all ranges.
func (c *chain) replicaHome(others ...transport.Address) string {
	c.t.Helper()
	dir, id := c.storageHome()
	c.divide(dir, append(others, transport.Address{ID: id, HostPort: "127.0.0.1:1"})...)
	return dir
}

// divide writes the storage nodes file: all nodes have all ranges.
func (c *chain) divide(home string, nodes ...transport.Address) {
	c.t.Helper()
	c.assign(home, slices.Repeat([][]transport.Address{nodes}, len(c.ranges))...)
}

// assign writes the storage nodes file with these nodes for each range.
func (c *chain) assign(home string, nodes ...[]transport.Address) {
	c.t.Helper()
	var text strings.Builder
	for i, r := range c.ranges {
		var names []string
		for _, n := range nodes[i] {
			names = append(names, fmt.Sprintf("%q", n.String()))
		}
		fmt.Fprintf(&text, "[[range]]\nfirst = %q\nnodes = [%s]\n", r.First, strings.Join(names, ", "))
	}
	nodetest.WriteFile(c.t, filepath.Join(home, config.DefaultStorageNodesFile), text.String())
}

// start starts a storage node; it is stopped at the end of the test unless the test has done so.
func (c *chain) start(home string, logger log.Logger, young int64) *Process {
	c.t.Helper()
	n, err := New(c.t.Context(), Options{Config: nodetest.Load(c.t, home), Logger: logger})
	require.NoError(c.t, err)
	n.young, n.retireAfter = young, time.Second
	c.t.Cleanup(func() {
		if n.ctx.Err() == nil {
			require.NoError(c.t, n.Stop())
		}
	})
	n.Start()
	return n
}

// stopped runs a storage node in a home until it has a few blocks, and stops it.
func (c *chain) stopped(home string) *Process {
	c.t.Helper()
	n := c.start(home, log.NewNopLogger(), fromGenesis)
	c.put(10, 12)
	c.dial(n).feedAll("the node's blocks")
	require.NoError(c.t, n.Stop())
	return n
}

// validator is a node that sends updates.
type validator struct {
	c    *chain
	conn transport.Conn
	// ranges is the number of ranges that the storage node should have
	ranges int
	lie    func(height int64, update []byte) []byte // nil: none
}

func (c *chain) dial(n *Process) *validator {
	c.t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	require.NoError(c.t, err)
	conn, err := tcp.NewDialer(tcp.Options{Key: key, ChainID: "test-chain"}).Dial(c.t.Context(), n.Address())
	require.NoError(c.t, err)
	c.t.Cleanup(func() { conn.Close() })
	return &validator{c: c, conn: conn, ranges: len(n.all())}
}

// feed sends each range the updates that it needs, and reports whether all have reached a height.
func (v *validator) feed(to int64) bool {
	v.c.t.Helper()
	b, err := v.conn.Call(v.c.t.Context(), transport.Call{Method: dsm.MethodRanges, Max: dsm.MaxClaimsBytes})
	require.NoError(v.c.t, err)
	claims, err := dsm.DecodeClaims(b)
	require.NoError(v.c.t, err)
	done := len(claims) == v.ranges
	for _, claim := range claims {
		i := slices.IndexFunc(v.c.ranges, func(r avlstar.KeyRange) bool {
			return claim.Range.Equal(avlstar.KeyRange{First: r.First, After: r.After})
		})
		done = done && claim.Durable >= to
		// Several heights: on a busy machine, blocks come faster than calls of feed.
		for next, sent := claim.Needs, claim.Needs > 0; sent && next < claim.Needs+maxFed; {
			next, sent = v.send(claim.Range, i, next)
		}
	}
	return done
}

// feedAll feeds the storage node until it has all blocks that the chain has now. The chain goes on
// meanwhile: on a busy machine, the node may never be at its newest height.
func (v *validator) feedAll(what string) {
	v.c.t.Helper()
	height := v.c.node.Application().Height()
	nodetest.Until(v.c.t, what, func() bool { return v.feed(height) })
}

// maxFed is the number of updates that feed sends each range in one call.
const maxFed = 32

// send sends the update of a range for a height. It returns the height that the range needs next,
// and whether that has advanced.
func (v *validator) send(keys avlstar.KeyRange, i int, height int64) (needs int64, advanced bool) {
	v.c.t.Helper()
	v.c.mu.Lock()
	var update []byte
	if int(height) < len(v.c.updates) {
		update = v.c.updates[height][i]
	}
	v.c.mu.Unlock()
	if update == nil {
		return height, false
	}
	if v.lie != nil {
		update = v.lie(height, update)
	}
	needs = height
	for offset := 0; offset < len(update); {
		part := dsm.PartOf(height, keys, update, sha256.Sum256(update), offset)
		b, err := v.conn.Call(v.c.t.Context(), transport.Call{Method: dsm.MethodUpdate, Body: part.Encode(), Max: dsm.UpdateAnswerBytes})
		if err != nil { // busy or refused
			return height, false
		}
		answer, err := dsm.DecodeUpdateAnswer(b)
		require.NoError(v.c.t, err)
		offset, needs = int(answer.Have), answer.Needs
	}
	return needs, needs > height
}

// requireSame compares the newest height of each range with the validator's state.
func (c *chain) requireSame(n *Process) {
	c.t.Helper()
	for _, p := range n.all() {
		var partial *avlstar.Partial
		var newest int64
		// A range that was not fed for a while is taken over, and has no replica for a moment.
		nodetest.Until(c.t, "a replica of "+p.String(), func() (ok bool) {
			n.mu.Lock()
			r := p.replica
			n.mu.Unlock()
			if r == nil {
				return false
			}
			newest = r.Claim().Newest
			partial, ok = r.At(newest)
			return ok
		})
		c.mu.Lock()
		want := c.versions[newest]
		c.mu.Unlock()
		require.Equal(c.t, want.AppHash(), partial.AppHash())
		all := leaves(c.t, want)
		for l, err := range partial.Leaves(p.keys) {
			require.NoError(c.t, err)
			require.Equal(c.t, all[string(l.Key)], string(l.Value))
			delete(all, string(l.Key))
		}
		for key := range all {
			require.False(c.t, p.keys.Contains([]byte(key)), "%s", key)
		}
		partial.Release()
	}
}

func twoRanges() []avlstar.KeyRange {
	edge := []byte("key-20")
	return []avlstar.KeyRange{{After: edge}, {First: edge}}
}

// A storage node begins with the genesis file, follows a validator's blocks, reports the sender of
// invalid updates, and continues after a restart from its disk.
func TestFollowsAChain(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	dir := c.replicaHome()
	logs := new(nodetest.LogBuffer)
	n := c.start(dir, logs.Logger(t), fromGenesis)
	v := c.dial(n)
	c.put(0, 25)
	v.feedAll("the ranges at the chain's height")
	require.True(t, logs.Has("Created a range from the genesis file"))
	c.requireSame(n)
	require.True(t, n.Health().Live)

	liar := c.dial(n)
	liar.lie = func(_ int64, update []byte) []byte {
		lie := bytes.Clone(update)
		lie[len(lie)-1] ^= 1
		return lie
	}
	nodetest.Until(t, "the lie found", func() bool {
		liar.feed(0)
		return logs.Has("A node sent an invalid update")
	})
	height := c.node.Application().Height()
	nodetest.Until(t, "the ranges after the lie", func() bool { return v.feed(height) })
	c.requireSame(n)
	require.NoError(t, n.Stop())

	logs = new(nodetest.LogBuffer)
	n = c.start(dir, logs.Logger(t), fromGenesis)
	for _, claim := range n.Claims() {
		require.GreaterOrEqual(t, claim.Durable, height)
	}
	v = c.dial(n)
	c.put(40, 45)
	height = c.node.Application().Height()
	nodetest.Until(t, "the ranges after a restart", func() bool { return v.feed(height) })
	c.requireSame(n)
	require.False(t, logs.Has("Created a range"))
	require.False(t, logs.Has("false update"))
	require.Greater(t, n.headers.newestProved().height, height)
}

// A storage node whose ranges are too old for the validators' updates fetches them from another
// one, and follows from there.
func TestTakesOver(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	first := c.replicaHome()
	a := c.start(first, log.NewNopLogger(), fromGenesis)
	v := c.dial(a)
	c.put(10, 30)
	v.feedAll("the first node's blocks")

	second := c.replicaHome(a.Address())
	logs := new(nodetest.LogBuffer)
	b := c.start(second, logs.Logger(t), 0)
	w := c.dial(b)
	height := c.node.Application().Height()
	nodetest.Until(t, "the ranges taken over", func() bool {
		v.feed(height)
		return w.feed(height)
	})
	require.True(t, logs.Has("Took a range over"))
	require.False(t, logs.Has("from the genesis file"))
	c.requireSame(b)
	require.NoError(t, b.Stop())
	b = c.start(second, logs.Logger(t), 0)
	c.requireSame(b)
}

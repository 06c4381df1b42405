package storagenode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/transport"
)

// wholeAndHalves are a range of all keys and the two that divide it.
func wholeAndHalves() (whole, low, high avlstar.KeyRange) {
	two := twoRanges()
	return avlstar.KeyRange{}, two[0], two[1]
}

// ranged writes the storage nodes file of a home: one node for each of ascending ranges.
func (c *chain) ranged(home string, nodes map[string]transport.Address, firsts ...string) {
	c.t.Helper()
	text := ""
	for _, first := range firsts {
		text += fmt.Sprintf("[[range]]\nfirst = %q\nnodes = [%q]\n", first, nodes[first].String())
	}
	nodetest.WriteFile(c.t, filepath.Join(home, config.DefaultStorageNodesFile), text)
}

// wholeHome makes a home whose storage nodes file names only its own node, for all keys.
func (c *chain) wholeHome() (dir string, self transport.Address) {
	c.t.Helper()
	dir, id := c.storageHome()
	self = transport.Address{ID: id, HostPort: "127.0.0.1:1"}
	c.ranged(dir, map[string]transport.Address{"": self}, "")
	return dir, self
}

// placed returns a map of ranges and next ranges, which the same nodes keep.
func placed(t *testing.T, version uint64, ranges, next []dsm.Placement, nodes ...transport.Address) *config.StorageNodes {
	t.Helper()
	all, err := dsm.NewRanges(ranges)
	require.NoError(t, err)
	m := &config.StorageNodes{Version: version, Ranges: all, Next: next, Addresses: map[dsm.NodeID]transport.Address{}}
	for _, a := range nodes {
		m.Addresses[dsm.NodeID(a.ID)] = a
	}
	return m
}

func at(r avlstar.KeyRange, nodes ...transport.Address) dsm.Placement {
	p := dsm.Placement{Range: r}
	for _, a := range nodes {
		p.Replicas = append(p.Replicas, dsm.NodeID(a.ID))
	}
	return p
}

// A node divides its only range while it follows the chain. The old range goes once the new ones
// have replaced it, and not before.
func TestDividesARange(t *testing.T) {
	t.Parallel() // it waits for blocks
	whole, low, high := wholeAndHalves()
	c := newChain(t, whole, low, high)
	dir, self := c.wholeHome()
	a := c.start(dir, log.NewNopLogger(), fromGenesis)
	v := c.dial(a)
	c.put(10, 30)
	v.feedAll("the whole range")
	old := a.all()[0]

	a.SetMap(placed(t, 2, []dsm.Placement{at(whole, self)}, []dsm.Placement{at(low, self), at(high, self)}, self))
	v.ranges = 3
	nodetest.Until(t, "all three ranges", func() bool { return v.feed(1) })
	c.put(30, 40)
	v.feedAll("the whole range and its halves")
	c.requireSame(a)
	require.NoError(t, a.Stop())

	// The next start knows only the old map, and finds the old range. It opens the new ones, and
	// removes them: the old one has their keys.
	logs := new(nodetest.LogBuffer)
	a = c.start(dir, logs.Logger(t), fromGenesis)
	require.True(t, logs.Has("A range on disk is not in the map"))
	v = c.dial(a)
	v.ranges = 1
	nodetest.Until(t, "the whole range alone", func() bool {
		v.feed(1)
		return len(a.all()) == 1
	})
	c.put(40, 45)
	v.feedAll("the whole range again")
	a.SetMap(placed(t, 3, []dsm.Placement{at(low, self), at(high, self)}, nil, self))
	v.ranges = 2
	require.DirExists(t, old.dir)
	c.put(45, 50)
	nodetest.Until(t, "the halves alone", func() bool {
		v.feed(1)
		_, err := os.Lstat(old.dir)
		return len(a.all()) == 2 && len(a.Claims()) == 2 && errors.Is(err, os.ErrNotExist)
	})
	v.feedAll("the halves")
	c.requireSame(a)
}

// A range that replaces two is filled from two nodes, each of which has one of them.
func TestMergesFromTwoNodes(t *testing.T) {
	t.Parallel() // it waits for blocks
	whole, low, high := wholeAndHalves()
	c := newChain(t, low, high, whole)
	// Both sources must have one height in common, although blocks may come faster on a busy
	// machine than they get them.
	c.serves = 10_000
	c.put(10, 30)
	var sources []*Process
	addresses := map[string]transport.Address{}
	homes := map[string]string{}
	for _, r := range []avlstar.KeyRange{low, high} {
		dir, id := c.storageHome()
		addresses[string(r.First)] = transport.Address{ID: id, HostPort: "127.0.0.1:1"}
		homes[string(r.First)] = dir
	}
	for _, r := range []avlstar.KeyRange{low, high} {
		c.ranged(homes[string(r.First)], addresses, "", string(high.First))
		a := c.start(homes[string(r.First)], log.NewNopLogger(), fromGenesis)
		sources = append(sources, a)
		addresses[string(r.First)] = a.Address()
	}
	// They follow the chain all the time: they serve few heights, and need one in common.
	var feeders []*validator
	for _, a := range sources {
		feeders = append(feeders, c.dial(a))
		feeders[len(feeders)-1].feedAll("half of the keys")
	}
	logs := new(nodetest.LogBuffer)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(logs)
			for _, s := range sources {
				t.Log(s.Claims())
			}
		}
	})
	dir, self := c.wholeHome()
	b := c.alone(dir, logs)
	m := placed(t, 2, []dsm.Placement{at(low, sources[0].Address()), at(high, sources[1].Address())}, []dsm.Placement{at(whole, self)},
		self, sources[0].Address(), sources[1].Address())
	b.SetMap(m)
	require.NoError(t, b.changeMap(t.Context()))
	require.Len(t, b.all(), 1)
	nodetest.Until(t, "the merged range", func() bool {
		height := c.node.Application().Height()
		for _, v := range feeders {
			v.feed(height)
		}
		tended := b.tend(t.Context(), chainHeaders{c})
		b.taking.Wait()
		return tended == nil && len(b.Claims()) == 1
	})
	require.True(t, logs.Has("Took a range over"))
	require.False(t, logs.Has("Created a range from the genesis file"))
	c.requireSame(b)
}

// A start opens a range that the map no longer has, fills the new ranges from it, and removes it
// only once they are complete. What an interrupted takeover of such a range left goes at once. A
// folder that was put aside stays.
func TestRemovesFoldersThatTheMapDoesNotHave(t *testing.T) {
	t.Parallel() // it waits for blocks
	whole, low, high := wholeAndHalves()
	c := newChain(t, whole, low, high)
	c.serves = 10_000 // the halves begin at a height of the whole range
	dir, self := c.wholeHome()
	old := c.stopped(dir).all()[0]
	ranges := filepath.Dir(old.dir)
	unfinished, aside := filepath.Join(ranges, "from-61-0011223344556677"), filepath.Join(ranges, "from-62-0011223344556677"+damagedSuffix)
	for _, path := range []string{unfinished + nextSuffix, aside} {
		require.NoError(t, os.MkdirAll(path, 0o700))
	}
	c.ranged(dir, map[string]transport.Address{"": self, string(high.First): self}, "", string(high.First))

	logs := new(nodetest.LogBuffer)
	b := c.alone(dir, logs)
	require.True(t, logs.Has("A range on disk is not in the map"))
	require.Len(t, b.all(), 3)
	require.Len(t, b.Claims(), 1, "the old range serves")
	require.NoDirExists(t, unfinished)
	require.NoDirExists(t, unfinished+nextSuffix)
	require.DirExists(t, aside)
	b.retireAfter = 0
	require.NoError(t, b.tendPlace(t.Context(), placeOf(b, whole), chainHeaders{c}))
	b.taking.Wait()
	require.DirExists(t, old.dir, "no other range has its keys")

	nodetest.Until(t, "the halves alone", func() bool {
		err := b.tend(t.Context(), chainHeaders{c})
		b.taking.Wait()
		_, gone := os.Lstat(old.dir)
		return err == nil && len(b.Claims()) == 2 && errors.Is(gone, os.ErrNotExist)
	})
	require.True(t, logs.Has("Removed a range that is no longer in the map"))
	c.requireSame(b)
}

// placeOf returns the place of a range; nil: there is none.
func placeOf(n *Process, r avlstar.KeyRange) *place {
	for _, p := range n.all() {
		if p.keys.Equal(r) {
			return p
		}
	}
	return nil
}

// A range that is no longer in the map stays while the nodes that should have its keys do not.
func TestKeepsARangeThatNobodyElseHas(t *testing.T) {
	t.Parallel() // it waits for blocks
	whole, low, high := wholeAndHalves()
	c := newChain(t, whole)
	dir, self := c.wholeHome()
	a := c.start(dir, log.NewNopLogger(), fromGenesis)
	v := c.dial(a)
	c.put(10, 20)
	v.feedAll("the whole range")
	other, _ := c.wholeHome()
	b := c.alone(other, new(nodetest.LogBuffer)) // it has no state
	require.NoError(t, a.Stop())
	a = c.alone(dir, new(nodetest.LogBuffer))
	height, _ := a.all()[0].replica.Newest()
	m := placed(t, 2, []dsm.Placement{at(low, self, b.Address()), at(high, b.Address())}, nil, self, b.Address())
	a.SetMap(m)
	require.NoError(t, a.changeMap(t.Context()))
	require.Len(t, a.all(), 2)
	require.False(t, a.isReplaced(t.Context(), whole, height))
	a.retireAfter = 0
	for _, p := range a.all() {
		if p.keys.Equal(whole) {
			a.retire(t.Context(), p)
		}
	}
	a.taking.Wait()
	require.Len(t, a.all(), 2)
	require.Len(t, a.Claims(), 1, "it still serves")

	// A newer map has the range again, just before it is removed.
	a.SetMap(placed(t, 3, []dsm.Placement{at(whole, self)}, nil, self))
	require.NoError(t, a.changeMap(t.Context()))
	kept := placeOf(a, whole)
	require.NoError(t, a.remove(kept))
	require.Same(t, kept, placeOf(a, whole))
	require.DirExists(t, kept.dir)
	require.Len(t, a.Claims(), 1)
}

// A retired range is replaced once enough replicas of each range with its keys have them on disk:
// two, or all if there are fewer, except that files which nobody has signed may differ.
func TestIsReplaced(t *testing.T) {
	_, low, high := wholeAndHalves()
	node := func(durable int64) transport.Conn {
		b, err := dsm.EncodeClaims([]dsm.Claim{{Range: low, Oldest: 1, Newest: durable, Durable: durable, Needs: durable + 1}})
		require.NoError(t, err)
		return answering{answer: b}
	}
	a, b, other := transport.Address{ID: "a"}, transport.Address{ID: "b"}, transport.Address{ID: "other"}
	for name, c := range map[string]struct {
		version  uint64
		replicas []transport.Address
		nodes    dials
		want     bool
	}{
		"both":                         {1, []transport.Address{a, b}, dials{"a": node(70), "b": node(71)}, true},
		"one is a block behind":        {1, []transport.Address{a, b}, dials{"a": node(70), "b": node(69)}, false},
		"one does not answer":          {1, []transport.Address{a, b}, dials{"a": node(70)}, false},
		"the only one":                 {1, []transport.Address{a}, dials{"a": node(70)}, true},
		"both, in an unsigned file":    {0, []transport.Address{a, b}, dials{"a": node(70), "b": node(70)}, true},
		"only one, in an unsigned one": {0, []transport.Address{a}, dials{"a": node(70)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := &Process{nodeKey: &p2p.NodeKey{PrivKey: ed25519.GenPrivKey()}, dialer: c.nodes}
			n.nodes.Store(placed(t, c.version, []dsm.Placement{at(low, c.replicas...), at(high, other)}, nil, append(c.replicas, other)...))
			require.Equal(t, c.want, n.isReplaced(t.Context(), low, 70))
		})
	}
}

// The map names validators for all storage nodes, while they run.
func TestTheMapNamesValidators(t *testing.T) {
	c := newChain(t, avlstar.KeyRange{})
	dir, self := c.wholeHome()
	n := c.alone(dir, new(nodetest.LogBuffer))
	id := transport.ID(strings.Repeat("d", 40))
	require.False(t, n.stays(id))
	m := placed(t, 2, []dsm.Placement{at(avlstar.KeyRange{}, self)}, nil, self)
	require.NoError(t, m.NameValidators([]string{string(id)}))
	n.SetMap(m)
	require.NoError(t, n.changeMap(t.Context()))
	require.True(t, n.stays(id))
	m = placed(t, 3, []dsm.Placement{at(avlstar.KeyRange{}, self)}, nil, self)
	n.SetMap(m)
	require.NoError(t, n.changeMap(t.Context()))
	require.False(t, n.stays(id))
}

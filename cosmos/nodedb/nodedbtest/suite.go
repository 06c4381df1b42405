package nodedbtest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
)

// Home is a database of real IAVL stores.
type Home interface {
	DB() nodedb.DB
	// Load opens the stores of the latest height, which is given; 0: the database is empty.
	Load(t *testing.T, height int64, stores []string) Chain
}

// Chain is a multi-store of real IAVL trees in a Home.
type Chain interface {
	// Commit applies a block, and saves the version and its commit. A store that is new is added.
	Commit(t *testing.T, block map[string][]iavlsynctest.Op)
	// Root returns the root hash of a store.
	Root(t *testing.T, store string) []byte
	// Prune deletes all versions up to a height.
	Prune(t *testing.T, height int64)
	// Prove makes and checks IAVL's own proof that a key is there, or is not.
	Prove(t *testing.T, store string, key []byte, there bool)
}

// network is what all copies of a chain agree upon, as naive trees.
type network struct {
	rnd    *rand.Rand
	height int64
	trees  map[string]*iavlsynctest.Tree
	next   int
}

const upgradeHeight = 13

func newNetwork(rnd *rand.Rand) *network {
	n := &network{rnd: rnd, trees: map[string]*iavlsynctest.Tree{}}
	for _, name := range []string{"bank", "gov", "empty", "still", "single", "emptied"} {
		n.trees[name] = &iavlsynctest.Tree{}
	}
	return n
}

// block makes the next block, and executes it.
func (n *network) block() map[string][]iavlsynctest.Op {
	n.height++
	rnd, keys := n.rnd, 400
	block := map[string][]iavlsynctest.Op{}
	removes := []float64{0.05, 0.3, 0.7, 0.97}[rnd.IntN(4)]
	if n.height < 3 {
		block["bank"] = iavlsynctest.RandomOps(rnd, keys, keys, 0.05)
		block["still"] = iavlsynctest.RandomOps(rnd, 90, 50, 0)
	}
	if rnd.IntN(4) > 0 { // else the root is that of the version before
		block["bank"] = append(block["bank"], iavlsynctest.RandomOps(rnd, keys, rnd.IntN(40), removes)...)
		for range rnd.IntN(9) {
			block["gov"] = append(block["gov"], iavlsynctest.Op{Key: fmt.Appendf(nil, "%06d", n.next), Value: []byte{byte(n.height)}})
			n.next++
		}
	}
	switch n.height {
	case 1:
		block["single"] = []iavlsynctest.Op{{Key: []byte("minter"), Value: []byte{}}}
		block["emptied"] = []iavlsynctest.Op{{Key: []byte("k"), Value: []byte("v")}}
	case 7:
		block["emptied"] = []iavlsynctest.Op{{Key: []byte("k")}}
	case upgradeHeight:
		n.trees["upgrade"] = &iavlsynctest.Tree{}
		block["upgrade"] = iavlsynctest.RandomOps(rnd, 100, 50, 0)
	}
	for name, tree := range n.trees {
		if block[name] == nil {
			block[name] = []iavlsynctest.Op{}
		}
		tree.Apply(block[name])
		tree.SaveAs(n.height)
	}
	return block
}

func (n *network) state() iavlsynctest.State {
	s := iavlsynctest.State{}
	for name, tree := range n.trees {
		s[name] = tree.Root
	}
	return s
}

// commit has chains execute the next block, and compares them.
func (n *network) commit(t *testing.T, chains ...Chain) {
	t.Helper()
	block := n.block()
	for i, c := range chains {
		c.Commit(t, block)
		for name, tree := range n.trees {
			require.Equal(t, tree.Root.Hash(), c.Root(t, name), "chain %d, store %s at height %d", i, name, n.height)
		}
	}
}

// prove has chains prove some keys. ICS-23 has no proofs of empty values.
func (n *network) prove(t *testing.T, chains ...Chain) {
	t.Helper()
	for name, tree := range n.trees {
		var last []byte
		tree.Root.Leaves(func(leaf *iavlsynctest.Node) {
			last = leaf.Value
			if n.rnd.IntN(20) > 0 || len(leaf.Value) == 0 {
				return
			}
			for _, c := range chains {
				c.Prove(t, name, leaf.Key, true)
			}
		})
		if len(last) == 0 {
			continue
		}
		for _, c := range chains {
			c.Prove(t, name, []byte("\xff\xff\xff\xff\xff"), false)
		}
	}
}

// Run installs states of real applications, and runs real applications on what was installed.
func Run(t *testing.T, open func(t *testing.T) Home) {
	for _, test := range []struct {
		name    string
		legacy  bool  // iavl before v1, as naive records
		old     bool  // OldHome
		prune   int64 // of the server, before the cut
		heights int64
		at      int64 // of the cut
	}{
		{name: "latest", heights: 40, at: 40},
		{name: "pruned", prune: 39, heights: 40, at: 40},
		{name: "older", prune: 20, heights: 40, at: 33},
		{name: "moved roots", prune: 30, heights: 40, at: 31},
		{name: "one block", heights: 1, at: 1},
		{name: "iavl before v1", legacy: true, heights: 40, at: 40},
		{name: "home of iavl v0.20", old: true, heights: oldHeight, at: oldHeight},
		{name: "home of iavl v0.20, upgraded", old: true, heights: oldHeight + 1, at: oldHeight + 1},
		{name: "home of iavl v0.20, long ago", old: true, heights: 40, at: 40},
		{name: "home of iavl v0.20, pruned since", old: true, prune: oldHeight + 2, heights: oldHeight + 3, at: oldHeight + 3},
	} {
		for _, f := range []iavlsync.Format{iavlsync.Format8192, iavlsync.Format32} {
			t.Run(fmt.Sprintf("%s/%x", test.name, uint32(f)), func(t *testing.T) {
				n := newNetwork(iavlsynctest.Rand(t))
				server := open(t)
				var chain Chain
				state := iavlsynctest.State{}
				switch {
				case test.old:
					rnd := n.rnd
					n = loadOld(t, server.DB())
					n.rnd = rnd
					state = n.state()
					chain = server.Load(t, n.height, state.Names())
				case test.legacy:
					for n.height < 20 {
						n.block()
					}
					Legacy(t, server.DB(), n.height, n.state())
					chain = server.Load(t, n.height, n.state().Names())
				default:
					chain = server.Load(t, 0, nil)
				}
				for n.height < test.heights {
					n.commit(t, chain)
					if n.height == test.at {
						state = n.state()
					}
				}
				if test.prune > 0 {
					chain.Prune(t, test.prune)
				}
				home := join(t, n.rnd, server.DB(), f, test.at, state, open)
				if test.at < n.height {
					return // the network has newer blocks by now
				}
				joined := home.Load(t, n.height, state.Names())
				run(t, n, chain, joined)
			})
		}
	}
}

// join cuts the state of a server, proves it, and installs it in a new home.
func join(t *testing.T, rnd *rand.Rand, server nodedb.DB, f iavlsync.Format, height int64, naive iavlsynctest.State, open func(t *testing.T) Home) Home {
	t.Helper()
	home := open(t)
	Copy(t, rnd, server, home.DB(), f, height, naive.AppHash())
	return home
}

// Copy cuts the state of a server's database, proves it, and installs it in an empty one.
func Copy(t *testing.T, rnd *rand.Rand, server, into nodedb.DB, f iavlsync.Format, height int64, appHash []byte) {
	t.Helper()
	s, err := nodedb.Open(server, height)
	require.NoError(t, err)
	cut, err := s.Manifest(f)
	require.NoError(t, err)
	m, err := iavlsync.VerifyManifest(f, cut.Encode(), height, iavlsync.Hash(appHash))
	require.NoError(t, err)
	in, err := nodedb.NewInstaller(into, m)
	require.NoError(t, err)
	for _, k := range rnd.Perm(m.Chunks()) {
		i, e := m.At(k)
		u, err := m.Upper(i)
		require.NoError(t, err)
		root := &m.Stores[i].Entries[e].Root
		answer, err := s.Answer(&iavlsync.Request{Height: height, Store: m.Stores[i].Name, First: u.First[e], Leaves: root.Size})
		require.NoError(t, err)
		c, err := iavlsync.VerifyChunk(root, answer[1:])
		require.NoError(t, err)
		require.NoError(t, in.Install(k, c, answer[1:]))
	}
	require.NoError(t, in.Finish())
	// What was installed can be served at once.
	again, err := nodedb.Open(into, height)
	require.NoError(t, err)
	recut, err := again.Manifest(f)
	require.NoError(t, err)
	require.Equal(t, cut.Encode(), recut.Encode())
}

// run has the server and the joiner execute 50 more blocks, pruned in between.
func run(t *testing.T, n *network, server, joined Chain) {
	t.Helper()
	from := n.height
	for name, tree := range n.trees {
		require.Equal(t, tree.Root.Hash(), joined.Root(t, name), "store %s", name)
	}
	n.prove(t, server, joined)
	for n.height < from+50 {
		n.commit(t, server, joined)
		if n.rnd.IntN(8) == 0 {
			to := max(1, n.height-1-int64(n.rnd.IntN(5)))
			server.Prune(t, to)
			joined.Prune(t, to)
			n.prove(t, server, joined)
		}
	}
	server.Prune(t, n.height-1)
	joined.Prune(t, n.height-1)
	n.prove(t, server, joined)
}

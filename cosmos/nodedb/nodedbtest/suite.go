package nodedbtest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/internal/seeds"
)

// Home is a database of real IAVL stores.
type Home interface {
	DB() nodedb.DB
	// Load opens the stores at height, which is the latest; 0: the database is empty.
	Load(t *testing.T, height int64, stores []string) Chain
}

// Chain is a multi-store of real IAVL trees in a Home.
type Chain interface {
	// Commit applies a block, and saves the version and its commit. It adds stores that are new.
	Commit(t *testing.T, block map[string][]iavlsynctest.Op)
	// Root returns the root hash of a store.
	Root(t *testing.T, store string) []byte
	// Prune deletes all versions up to a height.
	Prune(t *testing.T, height int64)
	// Prove makes and checks IAVL's own proof that a key is present or absent.
	Prove(t *testing.T, store string, key []byte, there bool)
}

// network is the chain that several copies execute.
type network struct{ *iavlsynctest.Network }

// commit executes the next block on all chains, and compares them.
func (n network) commit(t *testing.T, chains ...Chain) {
	t.Helper()
	block := n.Block()
	for i, c := range chains {
		c.Commit(t, block)
		for name, tree := range n.Trees {
			require.Equal(t, tree.Root.Hash(), c.Root(t, name), "chain %d, store %s at height %d", i, name, n.Height)
		}
	}
}

// prove makes the chains prove some keys. ICS-23 has no proofs of empty values.
func (n network) prove(t *testing.T, chains ...Chain) {
	t.Helper()
	for name, tree := range n.Trees {
		var last []byte
		tree.Root.Leaves(func(leaf *iavlsynctest.Node) {
			last = leaf.Value
			if n.Rand.IntN(20) > 0 || len(leaf.Value) == 0 {
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

// Run installs states of real applications, and runs real applications on the installed states.
func Run(t *testing.T, open func(t *testing.T) Home) {
	for _, test := range []struct {
		name    string
		prune   int64 // height up to which the server prunes before the cut
		heights int64
		at      int64 // height of the cut
	}{
		{name: "latest", heights: 40, at: 40},
		{name: "pruned", prune: 39, heights: 40, at: 40},
		{name: "older", prune: 20, heights: 40, at: 33},
		{name: "moved roots", prune: 30, heights: 40, at: 31},
		{name: "one block", heights: 1, at: 1},
	} {
		for _, f := range []iavlsync.Format{iavlsync.Format8192, iavlsync.Format32} {
			t.Run(fmt.Sprintf("%s/%x", test.name, uint32(f)), func(t *testing.T) {
				n := network{iavlsynctest.NewNetwork(seeds.Rand(t), 400)}
				server := open(t)
				chain := server.Load(t, 0, nil)
				state := iavlsynctest.State{}
				for n.Height < test.heights {
					n.commit(t, chain)
					if n.Height == test.at {
						state = n.State()
					}
				}
				if test.prune > 0 {
					chain.Prune(t, test.prune)
				}
				home := open(t)
				Copy(t, n.Rand, server.DB(), home.DB(), f, test.at, state.AppHash())
				if test.at < n.Height {
					return // the network has moved on
				}
				joined := home.Load(t, n.Height, state.Names())
				run(t, n, chain, joined)
			})
		}
	}
}

// Copy cuts the state of a server's database, verifies it, and installs it in an empty database.
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
	// The installed state can be served immediately.
	again, err := nodedb.Open(into, height)
	require.NoError(t, err)
	recut, err := again.Manifest(f)
	require.NoError(t, err)
	require.Equal(t, cut.Encode(), recut.Encode())
}

// run executes 50 more blocks on the server and the joiner, with pruning in between.
func run(t *testing.T, n network, server, joined Chain) {
	t.Helper()
	from := n.Height
	for name, tree := range n.Trees {
		require.Equal(t, tree.Root.Hash(), joined.Root(t, name), "store %s", name)
	}
	n.prove(t, server, joined)
	for n.Height < from+50 {
		n.commit(t, server, joined)
		if n.Rand.IntN(8) == 0 {
			to := max(1, n.Height-1-int64(n.Rand.IntN(5)))
			server.Prune(t, to)
			joined.Prune(t, to)
			n.prove(t, server, joined)
		}
	}
	server.Prune(t, n.Height-1)
	joined.Prune(t, n.Height-1)
	n.prove(t, server, joined)
}

package client

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/crypto/secp256k1"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync/lightclient"
)

func trusting(t *testing.T, trust Trust, nodes ...RPC) *Client {
	c, err := New(testContext(t), nodes, WithVerification(trust))
	require.NoError(t, err)
	return c
}

// TestValidatorsChange replaces all validators twice, so that headers in between are needed.
func TestValidatorsChange(t *testing.T) {
	chain := newFakeChain(t)
	chain.change(fakeValidators("b", 3))
	chain.grow(20)
	chain.change(fakeValidators("c", 7))
	chain.grow(20)
	node := &fakeNode{chain: chain, name: "primary"}
	c := trusting(t, Trust{Genesis: chain.genesis()}, node)
	for _, height := range []int64{43, 2, 3, 4, 25, 1} {
		header, err := c.verifier.header(testContext(t), height, nil, nil)
		require.NoError(t, err, height)
		require.Equal(t, chain.blocks[height-1].Hash(), header.Hash())
	}
	// A node that has pruned the early blocks can serve a client that trusts a later header, but
	// not one that starts at genesis.
	pruned := &fakeNode{chain: chain, name: "pruned", lie: func(a any) error {
		if r, ok := a.(*ctypes.ResultCommit); ok && r.Height < 30 {
			return rpcError("height is not available, lowest height is 30")
		}
		return nil
	}}
	c = trusting(t, Trust{Height: 30, Hash: chain.blocks[29].Hash()}, pruned)
	_, err := c.verifier.header(testContext(t), 43, nil, nil)
	require.NoError(t, err)
	_, err = trusting(t, Trust{Genesis: chain.genesis()}, pruned).verifier.header(testContext(t), 43, nil, nil)
	require.ErrorIs(t, err, ErrUntrusted)
}

// TestPrunedFromGenesis checks that the early blocks are not needed while the validators of genesis
// are still active.
func TestPrunedFromGenesis(t *testing.T) {
	chain := newFakeChain(t)
	chain.grow(40)
	pruned := &fakeNode{chain: chain, name: "pruned", lie: func(a any) error {
		if r, ok := a.(*ctypes.ResultCommit); ok && r.Height < 30 {
			return rpcError("height is not available, lowest height is 30")
		}
		return nil
	}}
	header, err := trusting(t, Trust{Genesis: chain.genesis()}, pruned).verifier.header(testContext(t), 35, nil, nil)
	require.NoError(t, err)
	require.Equal(t, chain.blocks[34].Hash(), header.Hash())
}

// TestTrustedHeaderFromAWitness: the primary joined by state sync after the trusted header. Its
// hash is known, so any node may send it.
func TestTrustedHeaderFromAWitness(t *testing.T) {
	chain := newFakeChain(t)
	chain.grow(10)
	trust := Trust{Height: 3, Hash: chain.blocks[2].Hash()}
	joined := &fakeNode{chain: chain, name: "joined", lie: func(a any) error {
		if r, ok := a.(*ctypes.ResultCommit); ok && r.Height <= 5 {
			return rpcError("height 3 is not available, lowest height is 6")
		}
		return nil
	}}
	honest := &fakeNode{chain: chain, name: "honest"}
	header, err := trusting(t, trust, joined, honest).verifier.header(testContext(t), 8, nil, nil)
	require.NoError(t, err)
	require.Equal(t, chain.blocks[7].Hash(), header.Hash())

	liar := &fakeNode{chain: chain, name: "liar", lie: func(a any) error {
		if r, ok := a.(*ctypes.ResultCommit); ok {
			r.Header.AppHash = make([]byte, 32)
			r.Commit.BlockID.Hash = r.Header.Hash()
		}
		return nil
	}}
	_, err = trusting(t, trust, joined, liar).verifier.header(testContext(t), 8, nil, nil)
	require.ErrorIs(t, err, ErrUntrusted)
	require.ErrorContains(t, err, "lowest height is 6")
	require.ErrorContains(t, err, "or a Byzantine node")
}

// TestTrustedHeaderComesLater: the trusted header was read at another node, which is a block ahead.
func TestTrustedHeaderComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := newFakeChain(t)
		chain.grow(4)
		trust := Trust{Height: 6, Hash: chain.blocks[5].Hash()}
		node := &fakeNode{chain: chain, name: "behind", lag: 1}
		time.AfterFunc(3*time.Second, func() { node.change(func() { node.lag = 0 }) })
		header, err := trusting(t, trust, node).verifier.await(testContext(t), 6, nil, nil)
		require.NoError(t, err)
		require.Equal(t, chain.blocks[5].Hash(), header.Hash())

		node = &fakeNode{chain: chain, name: "behind for ever", lag: 1}
		began := time.Now()
		_, err = trusting(t, trust, node).verifier.await(testContext(t), 6, nil, nil)
		require.ErrorIs(t, err, ErrUntrusted)
		require.ErrorContains(t, err, "trusted header 6 was not available in time")
		require.LessOrEqual(t, time.Since(began), headerPatience+time.Second)
	})
}

func TestBackwards(t *testing.T) {
	chain := newFakeChain(t)
	chain.grow(20)
	node := &fakeNode{chain: chain, name: "primary"}
	c := trusting(t, Trust{Height: 15, Hash: chain.blocks[14].Hash()}, node)
	header, err := c.verifier.header(testContext(t), 9, nil, nil)
	require.NoError(t, err)
	require.Equal(t, chain.blocks[8].Hash(), header.Hash())
	node.lies(func(a any) error {
		if r, ok := a.(*ctypes.ResultCommit); ok && r.Height == 12 {
			r.Header.AppHash = make([]byte, 32)
		}
		return nil
	})
	_, err = c.verifier.header(testContext(t), 9, nil, nil)
	require.ErrorIs(t, err, ErrUntrusted)
}

// TestBeforeTheFirstBlock: the first header's LastBlockID is empty, and so is the hash of a header
// without validators. The client must not accept such a header as the block before the first.
func TestBeforeTheFirstBlock(t *testing.T) {
	chain := newFakeChain(t)
	chain.blocks, chain.versions = nil, nil
	for height := int64(100); height < 103; height++ {
		var last types.BlockID
		if n := len(chain.blocks); n > 0 {
			last = chain.blocks[n-1].Commit.BlockID
		}
		chain.blocks = append(chain.blocks, signBlock(t, height, chain.start.Add(time.Duration(height-100)*time.Second), last, make([]byte, 32), noTransactions, chain.validators, chain.validators))
	}
	genesis := chain.genesis()
	genesis.InitialHeight = 100
	forge := func(a any) error {
		if r, ok := a.(*ctypes.ResultCommit); ok {
			r.Header = &types.Header{Version: r.Version, ChainID: fakeChainID, Height: 99, Time: chain.start.Add(-time.Hour), AppHash: []byte("forged"), ProposerAddress: r.ProposerAddress}
		}
		return nil
	}
	node := &fakeNode{chain: chain, name: "primary", lie: forge}
	for name, trust := range map[string]Trust{"genesis": {Genesis: genesis}, "header": {Height: 100, Hash: chain.blocks[0].Hash()}} {
		c := trusting(t, trust, node)
		if trust.Height > 0 {
			c.verifier.root(chain.blocks[0])
		}
		for _, height := range []int64{99, 98, 1, 0, -1, -1 << 63} {
			header, err := c.verifier.header(testContext(t), height, nil, nil)
			require.Error(t, err, "%s %d: %v", name, height, header)
		}
	}
}

func TestTrustRoot(t *testing.T) {
	chain := newFakeChain(t)
	node := &fakeNode{chain: chain, name: "primary"}
	ctx := testContext(t)

	_, err := trusting(t, Trust{Height: 2, Hash: make([]byte, 32)}, node).verifier.header(ctx, 2, nil, nil)
	require.ErrorIs(t, err, ErrUntrusted)

	other := newFakeChain(t)
	other.validators = fakeValidators("other", 4)
	other.blocks, other.versions = nil, other.versions[:1]
	other.grow(5)
	_, err = trusting(t, Trust{Genesis: other.genesis()}, node).verifier.header(ctx, 2, nil, nil)
	require.ErrorIs(t, err, ErrUntrusted, "other validators")

	old := trusting(t, Trust{Genesis: chain.genesis(), Period: time.Minute}, node)
	_, err = old.verifier.header(ctx, 2, nil, nil)
	require.ErrorIs(t, err, ErrUntrusted)
	require.ErrorContains(t, err, "older than the trust period")

	early := trusting(t, Trust{Genesis: chain.genesis()}, node)
	early.verifier.now = func() time.Time { return chain.start.Add(-time.Minute) }
	_, err = early.verifier.header(ctx, 2, nil, nil)
	require.ErrorContains(t, err, "from the future")

	for name, trust := range map[string]Trust{
		"nothing":         {},
		"hash alone":      {Hash: make([]byte, 32)},
		"height alone":    {Height: 3},
		"short hash":      {Height: 3, Hash: make([]byte, 31)},
		"negative height": {Height: -3, Hash: make([]byte, 32)},
		"negative period": {Height: 3, Hash: make([]byte, 32), Period: -1},
		"no validators":   {Genesis: &types.GenesisDoc{ChainID: fakeChainID}},
	} {
		_, err := New(ctx, []RPC{node}, WithVerification(trust))
		require.Error(t, err, name)
	}
}

// TestImpossibleValidators: CometBFT's validator sets panic over these. A node must not be able to
// cause that in a client.
func TestImpossibleValidators(t *testing.T) {
	for name, lie := range map[string]func(r *ctypes.ResultValidators){
		"short key":  func(r *ctypes.ResultValidators) { r.Validators[0].PubKey = ed25519.PubKey(make([]byte, 31)) },
		"no key":     func(r *ctypes.ResultValidators) { r.Validators[0].PubKey = nil },
		"other key":  func(r *ctypes.ResultValidators) { r.Validators[0].PubKey = secp256k1.PubKey(make([]byte, 3)) },
		"none":       func(r *ctypes.ResultValidators) { r.Validators[0] = nil },
		"twice":      func(r *ctypes.ResultValidators) { r.Validators[1] = r.Validators[0].Copy() },
		"no power":   func(r *ctypes.ResultValidators) { r.Validators[0].VotingPower = -1 },
		"much power": func(r *ctypes.ResultValidators) { r.Validators[0].VotingPower = math.MaxInt64 },
		"no address": func(r *ctypes.ResultValidators) { r.Validators[0].Address = nil },
		"nobody":     func(r *ctypes.ResultValidators) { r.Validators = nil },
	} {
		t.Run(name, func(t *testing.T) {
			chain := newFakeChain(t)
			chain.grow(3)
			node := &fakeNode{chain: chain, name: "liar", lie: func(a any) error {
				if r, ok := a.(*ctypes.ResultValidators); ok {
					lie(r)
				}
				return nil
			}}
			for _, trust := range []Trust{{Genesis: chain.genesis()}, {Height: 2, Hash: chain.blocks[1].Hash()}} {
				_, err := trusting(t, trust, node).verifier.header(testContext(t), 2, nil, nil)
				require.ErrorIs(t, err, ErrUntrusted)
			}
			_, err := trusting(t, Trust{Genesis: chain.genesis()}, &fakeNode{chain: chain, name: "honest"}, node).verifier.header(testContext(t), 2, nil, nil)
			require.ErrorIs(t, err, ErrUntrusted)
		})
	}
	// A page with few validators, of many announced ones, is the last that is read.
	chain, pages := newFakeChain(t), 0
	_, err := fetchValidators(testContext(t), &fakeNode{chain: chain, name: "liar", lie: func(a any) error {
		if r, ok := a.(*ctypes.ResultValidators); ok {
			pages++
			r.Validators, r.Total = r.Validators[:1], types.MaxVotesCount
		}
		return nil
	}}, 1)
	require.NoError(t, err)
	require.Equal(t, 1, pages)

	genesis := chain.genesis()
	genesis.Validators[0].PubKey = ed25519.PubKey(nil)
	_, err = lightclient.GenesisRoot(genesis)
	require.ErrorContains(t, err, "no ed25519 key")
}

// In virtual time, since the second answer counts for only a while after the first one.
func TestWitnesses(t *testing.T) {
	for _, test := range []struct {
		name      string
		witnesses []string
		err       error
	}{
		{"none", nil, nil},
		{"honest", []string{"honest"}, nil},
		{"honest and dead", []string{"dead", "honest"}, nil},
		{"honest and forger", []string{"forger", "honest"}, nil},
		{"dead", []string{"dead"}, ErrUntrusted},
		{"forger", []string{"forger"}, ErrUntrusted},
		{"fork", []string{"fork"}, ErrConflict},
		{"honest and fork", []string{"honest", "fork"}, ErrConflict},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				chain := newFakeChain(t)
				chain.grow(5)
				nodes := []RPC{&fakeNode{chain: chain, name: "primary"}}
				for _, name := range test.witnesses {
					nodes = append(nodes, witness(t, chain, name))
				}
				c := trusting(t, Trust{Genesis: chain.genesis()}, nodes...)
				_, err := c.Get(testContext(t), []byte("k"))
				if test.err == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, test.err)
				}
			})
		})
	}
}

// witness returns a node that behaves as its name says.
func witness(t *testing.T, chain *fakeChain, name string) *fakeNode {
	lies := map[string]func(any) error{
		"dead": func(any) error { return errDial },
		"forger": func(a any) error { // a header without valid signatures
			if r, ok := a.(*ctypes.ResultCommit); ok {
				r.Header.AppHash = make([]byte, 32)
				r.Commit.BlockID.Hash = r.Header.Hash()
			}
			return nil
		},
		"fork": func(a any) error { // a fork that the same validators signed
			if r, ok := a.(*ctypes.ResultCommit); ok {
				b := signBlock(t, r.Height, r.Time, r.Header.LastBlockID, make([]byte, 32), noTransactions, chain.validators, chain.validators)
				r.SignedHeader = *b.SignedHeader
			}
			return nil
		},
	}
	return &fakeNode{chain: chain, name: name, lie: lies[name]}
}

// TestHeaderComesLater: the header that proves the latest state is that of the next block, if the
// last block has transactions.
func TestHeaderComesLater(t *testing.T) {
	chain := newFakeChain(t)
	chain.sign(chain.validators, make([]byte, 32))
	chain.versions = append(chain.versions, chain.versions[len(chain.versions)-1])
	node := &fakeNode{chain: chain, name: "primary"}
	c := trusting(t, Trust{Genesis: chain.genesis()}, node)
	asked := 0
	node.lies(func(a any) error {
		if q, ok := a.(*ctypes.ResultABCIQuery); ok && asked == 0 {
			q.Response.Height = int64(len(chain.blocks)) // nothing has changed since
			asked++
			go chain.grow(1)
		}
		return nil
	})
	v, err := c.Get(testContext(t), []byte("k"))
	require.NoError(t, err)
	require.EqualValues(t, 3, v.Height)
}

func TestTrustedBlocksAreBounded(t *testing.T) {
	chain := newFakeChain(t)
	chain.grow(2 * maxTrusted)
	c := trusting(t, Trust{Genesis: chain.genesis()}, &fakeNode{chain: chain, name: "primary"})
	for height := int64(1); height <= 2*maxTrusted; height++ {
		_, err := c.verifier.header(testContext(t), height, nil, nil)
		require.NoError(t, err)
	}
	require.Equal(t, maxTrusted, c.verifier.mu.trusted.Len())
	_, err := c.verifier.header(testContext(t), 5, nil, nil)
	require.NoError(t, err, "the root of trust is still there")
}

package lightblocks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/light/provider"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/internal/spectest"
	"github.com/starling-kv/starling/transport"
)

// headersChain returns a chain with more heights than one answer holds, whose validators change.
func headersChain() *chain {
	return sharedChain(chainOptions{heights: 2*MaxHeaders + 40, validators: 4, turnover: 100, round: 2, evidence: 45})
}

func downTo(height int64) func(*types.Header) bool {
	return func(h *types.Header) bool { return h.Height <= height }
}

// requireAncestors compares blocks with those of the chain, downwards from a height.
func requireAncestors(t *testing.T, c *chain, from, to int64, found []Ancestor) {
	t.Helper()
	require.Len(t, found, int(from-to+1))
	for i, a := range found {
		lb := c.blocks[from-int64(i)-1]
		require.Equal(t, lb.Hash(), a.Hash(), "height %d", lb.Height)
		require.Equal(t, lb.Commit, a.Commit, "height %d", lb.Height)
		require.Equal(t, c.evidence[lb.Height], a.Evidence, "height %d", lb.Height)
		require.Equal(t, lb.ValidatorsHash.Bytes(), a.Validators.Hash(), "height %d", lb.Height)
	}
}

func TestAncestors(t *testing.T) {
	c := headersChain()
	top := c.heights - 1
	v := testVerifier(t, c, top, nil)
	v.Add(serve("a", c, nil))
	v.Add(serve("b", c, nil))
	found, err := v.Ancestors(t.Context(), top-1, downTo(1))
	require.NoError(t, err)
	requireAncestors(t, c, top-1, 1, found)
	require.Same(t, found[0].Validators, found[1].Validators, "neighbours share it")

	found, err = v.Ancestors(t.Context(), 50, downTo(41))
	require.NoError(t, err)
	requireAncestors(t, c, 50, 41, found)

	found, err = v.Ancestors(t.Context(), 50, downTo(0))
	require.ErrorIs(t, err, ErrUnavailable, "the first block has none below it")
	requireAncestors(t, c, 50, 1, found)
}

// Where the peers have pruned the blocks, the descent ends, and what it has is returned.
func TestAncestorsPruned(t *testing.T) {
	c := headersChain()
	v := testVerifier(t, c, 500, nil)
	for id, base := range map[transport.ID]int64{"a": 480, "b": 100, "c": 500} {
		pruned := *c
		pruned.base = base
		v.Add(serve(id, &pruned, nil))
	}
	found, err := v.Ancestors(t.Context(), 499, downTo(1))
	require.ErrorIs(t, err, ErrUnavailable)
	requireAncestors(t, c, 499, 100, found)
}

// An RPC server gives no ranges.
func TestAncestorsFromNobody(t *testing.T) {
	c := headersChain()
	v := testVerifier(t, c, 500, nil)
	v.Add(&testPeer{id: "a", chain: c})
	found, err := v.Ancestors(t.Context(), 499, downTo(1))
	require.ErrorIs(t, err, ErrNoPeers)
	require.Empty(t, found)
}

// headersPeer is a peer that changes the answers of the server of a chain.
type headersPeer struct {
	*Provider
	headers    func(ctx context.Context, headers []Ancestor) ([]Ancestor, error)
	lightBlock func(lb *types.LightBlock) *types.LightBlock
}

func (p *headersPeer) HeaderRange(ctx context.Context, from int64, count int) ([]Ancestor, error) {
	headers, err := p.Provider.HeaderRange(ctx, from, count)
	if err != nil || p.headers == nil {
		return headers, err
	}
	return p.headers(ctx, headers)
}

func (p *headersPeer) LightBlock(ctx context.Context, height int64) (*types.LightBlock, error) {
	lb, err := p.Provider.LightBlock(ctx, height)
	if err != nil || p.lightBlock == nil {
		return lb, err
	}
	return p.lightBlock(lb), nil
}

// Peers that give inconsistent headers, or validators that no header names, are caught, and others
// are asked.
func TestAncestorsOfLiars(t *testing.T) {
	c := headersChain()
	forked := c.fork(300)
	edit := func(change func(sh *types.SignedHeader)) func(context.Context, []Ancestor) ([]Ancestor, error) {
		return func(_ context.Context, headers []Ancestor) ([]Ancestor, error) {
			change(headers[7].SignedHeader)
			return headers, nil
		}
	}
	for name, liar := range map[string]*headersPeer{
		"header": {headers: edit(func(sh *types.SignedHeader) { sh.AppHash = sum("another") })},
		"parent": {headers: edit(func(sh *types.SignedHeader) { sh.LastBlockID.Hash = sum("another") })},
		"fork": {headers: edit(func(sh *types.SignedHeader) {
			*sh = *copyBlock(forked.blocks[sh.Height-1]).SignedHeader
		})},
		"signature": {headers: edit(func(sh *types.SignedHeader) { sh.Commit.Signatures[0].Signature[3] ^= 1 })},
		"signers":   {headers: edit(func(sh *types.SignedHeader) { sh.Commit.Signatures[1] = types.NewCommitSigAbsent() })},
		"round":     {headers: edit(func(sh *types.SignedHeader) { sh.Commit.Round++ })},
		"part set":  {headers: edit(func(sh *types.SignedHeader) { sh.Commit.BlockID.PartSetHeader.Total++ })},
		"validators": {lightBlock: func(lb *types.LightBlock) *types.LightBlock {
			if lb.Height < 400 {
				return copyBlock(forked.blocks[lb.Height-1])
			}
			return lb
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lied := make(chan transport.ID, 1)
			v := testVerifier(t, c, 500, func(o *Options) {
				o.Lied = func(id transport.ID, _ error) { lied <- id }
				o.hedge = time.Hour // the other one is asked only because of the lie
			})
			liar.Provider = serve("liar", c, nil)
			v.Add(liar)
			_, err := v.LightBlock(t.Context(), 500)
			require.NoError(t, err)
			v.Add(serve("other", c, nil))
			found, err := v.Ancestors(t.Context(), 499, downTo(250))
			require.NoError(t, err)
			requireAncestors(t, c, 499, 250, found)
			require.Equal(t, transport.ID("liar"), <-lied)
		})
	}
}

// A response that cannot be decoded proves a peer Byzantine, too.
func TestHeadersDecoding(t *testing.T) {
	c := headersChain()
	var good []byte
	for h := int64(46); h > 43; h-- {
		var err error
		good, err = appendHeader(good, Ancestor{SignedHeader: c.blocks[h-1].SignedHeader, Evidence: c.evidence[h]})
		require.NoError(t, err)
	}
	headers, err := decodeHeaders(good, testChain, 46, 3)
	require.NoError(t, err)
	require.Len(t, headers, 3)
	require.Len(t, headers[1].Evidence, 1)
	withheld, err := appendHeader(nil, Ancestor{SignedHeader: c.blocks[44].SignedHeader})
	require.NoError(t, err)
	invented, err := appendHeader(nil, Ancestor{SignedHeader: c.blocks[45].SignedHeader, Evidence: c.evidence[45]})
	require.NoError(t, err)
	for name, bad := range map[string]func() ([]Ancestor, error){
		"withheld":      func() ([]Ancestor, error) { return decodeHeaders(withheld, testChain, 45, 1) },
		"invented":      func() ([]Ancestor, error) { return decodeHeaders(invented, testChain, 46, 1) },
		"empty":         func() ([]Ancestor, error) { return decodeHeaders(nil, testChain, 46, 3) },
		"too many":      func() ([]Ancestor, error) { return decodeHeaders(good, testChain, 46, 2) },
		"another":       func() ([]Ancestor, error) { return decodeHeaders(good, testChain, 47, 3) },
		"another chain": func() ([]Ancestor, error) { return decodeHeaders(good, "other", 46, 3) },
		"cut off":       func() ([]Ancestor, error) { return decodeHeaders(good[:len(good)-1], testChain, 46, 3) },
		"cut length":    func() ([]Ancestor, error) { return decodeHeaders(good[:2], testChain, 46, 3) },
		"huge length": func() ([]Ancestor, error) {
			return decodeHeaders(slices.Concat([]byte{255, 255, 255, 255}, good), testChain, 46, 3)
		},
	} {
		_, err := bad()
		require.Error(t, err, name)
	}
}

// Peers that are silent, busy or send one header at a time do not delay the descent: other peers
// are asked in parallel.
func TestAncestorsOfSlowPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := headersChain()
		v := testVerifier(t, c, 500, nil)
		silent := func(ctx context.Context, _ []Ancestor) ([]Ancestor, error) {
			return nil, hang(ctx)
		}
		one := func(_ context.Context, headers []Ancestor) ([]Ancestor, error) {
			return headers[:1], nil
		}
		for _, id := range []transport.ID{"a", "b", "c"} {
			v.Add(&headersPeer{Provider: serve(id, c, nil), headers: silent})
		}
		v.Add(&headersPeer{Provider: serve("d", c, nil), headers: one})
		v.Add(serve("e", c, nil))
		found, err := v.Ancestors(t.Context(), 499, downTo(2))
		require.NoError(t, err)
		requireAncestors(t, c, 499, 2, found)

		// All are silent: it ends with ctx, and returns what came before.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		v.Remove("e")
		v.Remove("d")
		v.Add(&headersPeer{Provider: serve("d", c, nil), headers: func(ctx context.Context, headers []Ancestor) ([]Ancestor, error) {
			if headers[0].Height < 490 {
				cancel()
				return nil, hang(ctx)
			}
			return headers[:1], nil
		}})
		found, err = v.Ancestors(ctx, 499, downTo(2))
		require.True(t, errors.Is(err, context.Canceled), "%v", err)
		requireAncestors(t, c, 499, 490, found)
	})
}

// silentPeer gives light blocks and no headers.
type silentPeer struct{ *Provider }

func (silentPeer) HeaderRange(ctx context.Context, _ int64, _ int) ([]Ancestor, error) {
	return nil, hang(ctx)
}

func addSilent(v *Verifier, c *chain, n int) {
	for i := range n {
		v.Add(silentPeer{serve(transport.ID(fmt.Sprintf("silent %d", i)), c, nil)})
	}
}

// Silent peers do not delay the descent, whatever their number, and whether the honest peer answers
// at once or takes longer than a first turn.
func TestAncestorsAmongSilentPeers(t *testing.T) {
	for _, c := range []struct {
		silent int
		slow   time.Duration // of the honest one, for each answer
		within time.Duration
	}{
		{60, 0, 15 * time.Second}, {64, 0, 15 * time.Second}, {100, 0, 15 * time.Second}, {127, 0, 15 * time.Second}, {1000, 0, time.Minute},
		{64, 1500 * time.Millisecond, time.Minute}, {127, 3 * time.Second, time.Minute},
	} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%d silent, slow %s, seed %d", c.silent, c.slow, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					chain := headersChain()
					v := testVerifier(t, chain, 550, func(o *Options) { o.shuffle = rand.New(rand.NewPCG(seed, 0)).Shuffle })
					addSilent(v, chain, c.silent)
					v.Add(&headersPeer{Provider: serve("honest", chain, nil), headers: func(ctx context.Context, headers []Ancestor) ([]Ancestor, error) {
						return headers, sleep.For(ctx, c.slow)
					}})
					ctx, cancel := context.WithTimeout(t.Context(), c.within) // in virtual time
					defer cancel()
					began := time.Now()
					found, err := v.Ancestors(ctx, 549, downTo(2))
					require.NoError(t, err)
					requireAncestors(t, chain, 549, 2, found)
					t.Logf("%s", time.Since(began))
				})
			})
		}
	}
}

// The order in which peers were added does not determine which is asked first.
func TestAncestorsAskAtRandom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := headersChain()
		var asked []transport.ID
		v := testVerifier(t, chain, 50, func(o *Options) {
			o.shuffle = func(n int, swap func(i, j int)) { swap(0, n-1) }
		})
		for _, id := range []transport.ID{"first", "second", "third"} {
			v.Add(&headersPeer{Provider: serve(id, chain, nil), headers: func(_ context.Context, headers []Ancestor) ([]Ancestor, error) {
				asked = append(asked, id)
				return headers, nil
			}})
		}
		_, err := v.Ancestors(t.Context(), 49, downTo(40))
		require.NoError(t, err)
		require.Equal(t, []transport.ID{"third"}, asked)
	})
}

// A request over a slow connection is not cancelled and repeated if no other peer is waiting.
func TestAncestorsOverASlowLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain, asked := headersChain(), 0
		v := testVerifier(t, chain, 550, nil)
		v.Add(&headersPeer{Provider: serve("a", chain, nil), headers: func(ctx context.Context, headers []Ancestor) ([]Ancestor, error) {
			asked++
			return headers, sleep.For(ctx, 7*time.Second)
		}})
		found, err := v.Ancestors(t.Context(), 549, downTo(2))
		require.NoError(t, err)
		requireAncestors(t, chain, 549, 2, found)
		require.Equal(t, 3, asked)
	})
}

// A peer that is added while others fail is tried, too. The descent ends when all peers have been
// tried.
func TestAncestorsOfLateComers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := headersChain()
		v := testVerifier(t, chain, 550, nil)
		late := &headersPeer{Provider: serve("late", chain, nil)}
		v.Add(&headersPeer{Provider: serve("without", chain, nil), headers: func(context.Context, []Ancestor) ([]Ancestor, error) {
			v.Add(late)
			return nil, provider.ErrLightBlockNotFound
		}})
		found, err := v.Ancestors(t.Context(), 549, downTo(2))
		require.NoError(t, err)
		requireAncestors(t, chain, 549, 2, found)

		v = testVerifier(t, chain, 550, nil)
		addSilent(v, chain, 100)
		_, err = v.LightBlock(t.Context(), 550)
		require.NoError(t, err)
		began := time.Now()
		found, err = v.Ancestors(t.Context(), 549, downTo(2))
		require.ErrorIs(t, err, ErrUnavailable)
		require.Empty(t, found)
		require.Less(t, time.Since(began), 2*time.Minute)
	})
}

func TestServerHeaders(t *testing.T) {
	c := *headersChain()
	c.base = 30
	mux := new(transport.Mux)
	NewServer(ServerOptions{ChainID: testChain, Blocks: &c, States: &c}).Register(mux)
	p := NewProvider(testChain, newConn("a", mux))
	headers, err := p.HeaderRange(t.Context(), 40, 100)
	require.NoError(t, err)
	require.Len(t, headers, 11, "those from its base on")
	_, err = p.HeaderRange(t.Context(), 29, 1)
	require.Error(t, err)
	_, err = p.HeaderRange(t.Context(), c.Height()+1, 1)
	require.Error(t, err)
	_, err = p.HeaderRange(t.Context(), c.Height(), 1)
	require.Error(t, err, "the top has no canonical commit yet")
	for _, body := range [][]byte{encodeRange(0, 1), encodeRange(40, 0), encodeRange(40, MaxHeaders+1), encodeRange(-1, 1)} {
		_, err := mux.Serve(t.Context(), transport.Request{Method: MethodHeaders, Body: body})
		require.ErrorIs(t, err, transport.ErrRefused)
	}
}

// TestSpecExample makes the request and the answer in docs/spec/lightblocks.md.
func TestSpecExample(t *testing.T) {
	c := sharedChain(chainOptions{heights: 2, validators: 1, round: 1})
	mux := new(transport.Mux)
	NewServer(ServerOptions{ChainID: testChain, Blocks: c, States: c}).Register(mux)
	request := encodeRange(1, 1)
	answer, err := mux.Serve(t.Context(), transport.Request{Method: MethodHeaders, Body: request})
	require.NoError(t, err)
	spectest.Require(t, "lightblocks.md", request, answer)
}

// The length of an answer is limited even if commits are long.
func TestServerHeadersBound(t *testing.T) {
	c := sharedChain(chainOptions{heights: 40, validators: 400})
	p := serve("a", c, nil)
	headers, err := p.HeaderRange(t.Context(), 39, 39)
	require.NoError(t, err)
	require.Less(t, len(headers), 39)
	require.Greater(t, len(headers), 1)
	v := testVerifier(t, c, 40, nil)
	v.Add(p)
	found, err := v.Ancestors(t.Context(), 39, downTo(1))
	require.NoError(t, err)
	requireAncestors(t, c, 39, 1, found)
}

// BenchmarkAncestors does what a join does with the default of 1000 headers.
func BenchmarkAncestors(b *testing.B) {
	c := sharedChain(chainOptions{heights: 1002, validators: 4})
	v, err := NewVerifier(Options{ChainID: testChain, TrustHeight: 1002, TrustHash: c.blocks[1001].Hash()})
	require.NoError(b, err)
	defer v.Close()
	v.Add(serve("a", c, nil))
	for b.Loop() {
		found, err := v.Ancestors(b.Context(), 1001, downTo(2))
		require.NoError(b, err)
		require.Len(b, found, 1000)
	}
}

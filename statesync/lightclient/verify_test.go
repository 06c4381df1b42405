package lightclient

import (
	"io"
	"math"
	"testing"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/crypto/secp256k1"
	cmtmath "github.com/cometbft/cometbft/libs/math"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"
)

func rules(t testing.TB, whole bool) Rules {
	t.Helper()
	r, err := Rules{WholeCommits: whole}.WithDefaults()
	require.NoError(t, err)
	return r
}

func TestRulesAreChecked(t *testing.T) {
	require.Equal(t, 7*24*time.Hour, rules(t, false).TrustPeriod)
	for name, bad := range map[string]Rules{
		"negative period":  {TrustPeriod: -1},
		"negative drift":   {ClockDrift: -1},
		"less than third":  {TrustLevel: cmtmath.Fraction{Numerator: 1, Denominator: 4}},
		"more than all":    {TrustLevel: cmtmath.Fraction{Numerator: 4, Denominator: 3}},
		"zero denominator": {TrustLevel: cmtmath.Fraction{Numerator: 1}},
	} {
		_, err := bad.WithDefaults()
		require.Error(t, err, name)
	}
}

// A skip needs as much of the trusted set's power as the rules say, not as the default says.
func TestTrustLevel(t *testing.T) {
	c := makeChain(40, 5, 4) // of five validators, one is replaced every four heights
	for _, test := range []struct {
		level cmtmath.Fraction
		to    int64 // where 3, 4 or 5 of the five have signed
		err   error
	}{
		{cmtmath.Fraction{Numerator: 1, Denominator: 3}, 12, nil},
		{cmtmath.Fraction{Numerator: 3, Denominator: 5}, 12, ErrGap}, // not more than three fifths
		{cmtmath.Fraction{Numerator: 3, Denominator: 5}, 8, nil},
		{cmtmath.Fraction{Numerator: 4, Denominator: 5}, 8, ErrGap},
		{cmtmath.Fraction{Numerator: 4, Denominator: 5}, 3, nil},
	} {
		r, err := Rules{TrustLevel: test.level}.WithDefaults()
		require.NoError(t, err)
		require.ErrorIs(t, r.Follows(c.at(1), c.at(test.to), now), test.err, "%v, to %d", test.level, test.to)
	}
}

// climb runs a climb whose missing blocks come from get. It returns the heights that were proved
// and those that were requested.
func climb(r Rules, base, target *types.LightBlock, get func(h int64) *types.LightBlock) (proved, asked []int64, err error) {
	err = r.Climb(base, target, func() time.Time { return now }, func(h int64) (*types.LightBlock, bool, error) {
		asked = append(asked, h)
		return get(h), false, nil
	}, func(_ int64, lb *types.LightBlock) { proved = append(proved, lb.Height) })
	return proved, asked, err
}

func TestClimb(t *testing.T) {
	c := makeChain(200, 5, 4)
	genesis, err := GenesisRoot(c.genesis())
	require.NoError(t, err)
	for _, r := range []Rules{rules(t, false), rules(t, true)} {
		for _, base := range []*types.LightBlock{genesis, c.at(1), c.at(2), c.at(77), c.at(199)} {
			for _, to := range []int64{base.Height + 1, base.Height + 2, base.Height + 9, 200} {
				if to <= base.Height || to > 200 {
					continue
				}
				proved, asked, err := climb(r, base, c.at(to), c.at)
				require.NoError(t, err, "%d to %d", base.Height, to)
				require.IsIncreasing(t, append([]int64{base.Height}, proved...))
				require.Equal(t, to, proved[len(proved)-1])
				require.ElementsMatch(t, proved[:len(proved)-1], asked, "exactly the blocks that were missing are proved")
			}
		}
	}
	_, asked, err := climb(rules(t, true), c.at(1), c.at(200), c.at)
	require.NoError(t, err)
	require.EqualValues(t, 100, asked[0], "halfway")
}

// A block that was proved by other means can take the place of the missing one.
func TestClimbFromWhatIsTrusted(t *testing.T) {
	c := makeChain(100, 5, 4)
	get := func(lb *types.LightBlock, err error) error {
		return rules(t, true).Climb(c.at(1), c.at(21), func() time.Time { return now }, func(h int64) (*types.LightBlock, bool, error) {
			require.EqualValues(t, 11, h)
			return lb, true, err
		}, func(from int64, lb *types.LightBlock) {
			require.Equal(t, []int64{11, 21}, []int64{from, lb.Height})
		})
	}
	require.NoError(t, get(c.at(11), nil))
	require.Panics(t, func() { get(c.at(10), nil) })
	err := get(nil, io.EOF)
	require.ErrorIs(t, err, io.EOF)
	require.ErrorContains(t, err, "block 11 is needed because validators changed between 1 and 21")
}

// hostile holds changes that turn a good block into one that no honest node sends.
var hostile = map[string]func(c *chain, lb *types.LightBlock){
	"other chain": func(_ *chain, lb *types.LightBlock) {
		lb.ChainID = "another"
		lb.Commit.BlockID.Hash = lb.Hash()
	},
	// an altered header, and the old commit adapted to it
	"unsigned": func(_ *chain, lb *types.LightBlock) {
		lb.AppHash = sum("a lie")
		lb.Commit.BlockID.Hash = lb.Hash()
	},
	"own validators": func(_ *chain, lb *types.LightBlock) {
		own := makeOwn(lb.Height)
		*lb = *own
	},
	"no commit":      func(_ *chain, lb *types.LightBlock) { lb.Commit = nil },
	"no header":      func(_ *chain, lb *types.LightBlock) { lb.Header = nil },
	"no signed":      func(_ *chain, lb *types.LightBlock) { lb.SignedHeader = nil },
	"no set":         func(_ *chain, lb *types.LightBlock) { lb.ValidatorSet = nil },
	"no signatures":  func(_ *chain, lb *types.LightBlock) { lb.Commit.Signatures = nil },
	"few signatures": func(_ *chain, lb *types.LightBlock) { lb.Commit.Signatures = lb.Commit.Signatures[1:] },
	"absent": func(_ *chain, lb *types.LightBlock) {
		for i := range lb.Commit.Signatures[:3] {
			lb.Commit.Signatures[i] = types.NewCommitSigAbsent()
		}
	},
	"impossible time": func(_ *chain, lb *types.LightBlock) { lb.Time = time.Unix(-1<<62, 0) },
	"short key": func(_ *chain, lb *types.LightBlock) {
		lb.ValidatorSet.Validators[0].PubKey = ed25519.PubKey(make([]byte, 31))
	},
	"no key": func(_ *chain, lb *types.LightBlock) { lb.ValidatorSet.Validators[0].PubKey = nil },
	"other key": func(_ *chain, lb *types.LightBlock) {
		lb.ValidatorSet.Validators[0].PubKey = secp256k1.PubKey(make([]byte, 3))
	},
	"no validator": func(_ *chain, lb *types.LightBlock) { lb.ValidatorSet.Validators[0] = nil },
	"twice": func(_ *chain, lb *types.LightBlock) {
		lb.ValidatorSet.Validators[1] = lb.ValidatorSet.Validators[0].Copy()
	},
	"no power":   func(_ *chain, lb *types.LightBlock) { lb.ValidatorSet.Validators[0].VotingPower = -1 },
	"much power": func(_ *chain, lb *types.LightBlock) { lb.ValidatorSet.Validators[0].VotingPower = math.MaxInt64 },
	"no address": func(_ *chain, lb *types.LightBlock) { lb.ValidatorSet.Validators[0].Address = nil },
	"nobody":     func(_ *chain, lb *types.LightBlock) { lb.ValidatorSet.Validators = nil },
}

// makeOwn returns a block of a chain with other validators.
func makeOwn(h int64) *types.LightBlock {
	own := makeSalted("own ", h, 3, 1000)
	return own.at(h)
}

// Hostile blocks are refused by the basic checks, or cannot be proved; none causes a panic. They
// come whole, as over the transport, and in parts, as over RPC; directly above the trusted block,
// far above it, and as the root of trust.
func TestHostileBlocks(t *testing.T) {
	c := makeChain(40, 5, 7)
	for name, change := range hostile {
		t.Run(name, func(t *testing.T) {
			for _, h := range []int64{2, 4, 33} {
				bad := clone(c.at(h))
				change(c, bad)
				whole := func() error {
					if err := CheckBasic(bad, testChain, h); err != nil {
						return err
					}
					_, _, err := climb(rules(t, false), c.at(1), bad, c.at)
					require.ErrorIs(t, err, ErrInvalid)
					require.ErrorIs(t, rules(t, false).Root(bad, c.at(h).Hash()), ErrInvalid)
					return err
				}
				require.Error(t, whole())
				if bad.SignedHeader == nil || bad.ValidatorSet == nil {
					continue
				}
				lb, err := NewBlock(bad.SignedHeader, bad.ValidatorSet.Validators, testChain, h)
				if err == nil {
					_, _, err = climb(rules(t, false), c.at(1), lb, c.at)
				}
				require.Error(t, err)
			}
		})
	}
}

// A commit with one wrong signature and enough right ones proves its block, except where whole
// commits are required.
func TestWrongSignature(t *testing.T) {
	c := makeChain(20, 5, 7)
	for h := int64(2); h < 20; h += 4 {
		bad := clone(c.at(h))
		bad.Commit.Signatures[4].Signature[7] ^= 1
		require.NoError(t, CheckBasic(bad, testChain, h))
		_, _, err := climb(rules(t, false), c.at(h-1), bad, c.at)
		require.NoError(t, err)
		_, _, err = climb(rules(t, true), c.at(h-1), bad, c.at)
		require.ErrorIs(t, err, ErrInvalid)
		require.NoError(t, rules(t, false).Root(bad, c.at(h).Hash()))
		require.ErrorIs(t, rules(t, true).Root(bad, c.at(h).Hash()), ErrInvalid)
		require.ErrorIs(t, CheckCommit(bad), ErrInvalid)
	}
}

// A false block in place of the missing one ends a climb, and so does a target that is not above
// the base.
func TestHostilePivot(t *testing.T) {
	c := makeChain(60, 5, 4)
	_, _, err := climb(rules(t, false), c.at(1), c.at(60), func(h int64) *types.LightBlock {
		bad := clone(c.at(h))
		bad.AppHash = sum("a lie")
		bad.Commit.BlockID.Hash = bad.Hash()
		return bad
	})
	require.ErrorIs(t, err, ErrInvalid)
	for _, h := range []int64{1, 9, 10} {
		_, _, err := climb(rules(t, false), c.at(10), c.at(h), c.at)
		require.ErrorIs(t, err, ErrInvalid, h)
	}
	_, err = NewBlock(c.at(5).SignedHeader, c.at(5).ValidatorSet.Validators, testChain, 0)
	require.Error(t, err, "height 0 is no wildcard")
}

// An expired trust period and a wrong clock do not prove a peer Byzantine.
func TestTime(t *testing.T) {
	c := makeChain(20, 5, 7)
	r := rules(t, true)
	r.TrustPeriod = time.Minute
	require.NoError(t, r.Follows(c.at(1), c.at(3), c.at(1).Time.Add(time.Minute-1)))
	err := r.Follows(c.at(1), c.at(3), c.at(1).Time.Add(time.Minute))
	require.ErrorIs(t, err, ErrExpired)
	require.NotErrorIs(t, err, ErrInvalid)
	require.NoError(t, r.Follows(c.at(1), c.at(3), c.at(3).Time.Add(-DefaultClockDrift+1)))
	err = r.Follows(c.at(1), c.at(3), c.at(3).Time.Add(-DefaultClockDrift))
	require.ErrorIs(t, err, ErrFuture)
	require.NotErrorIs(t, err, ErrInvalid)
	r = rules(t, false)
	err = r.Follows(c.at(1), c.at(20), now)
	require.NoError(t, err)
	genesis := c.genesis()
	genesis.GenesisTime = now.Add(-2 * DefaultTrustPeriod)
	root, err := GenesisRoot(genesis)
	require.NoError(t, err)
	require.ErrorIs(t, r.Follows(root, c.at(1), now), ErrExpired)
}

func TestBelow(t *testing.T) {
	c := makeChain(20, 5, 7)
	for h := int64(19); h > 0; h-- {
		require.NoError(t, Below(c.at(h).Header, c.at(h+1).Header))
		require.NoError(t, CheckAncestor(c.at(h).SignedHeader, c.at(h+1).Header))
		require.NoError(t, CheckRound(testChain, c.at(h).SignedHeader, c.at(h).ValidatorSet))
	}
	for name, change := range map[string]func(lb *types.LightBlock){
		"header":   func(lb *types.LightBlock) { lb.AppHash = sum("a lie") },
		"time":     func(lb *types.LightBlock) { lb.Time = lb.Time.Add(time.Hour) },
		"no time":  func(lb *types.LightBlock) { lb.Time = time.Unix(-1<<62, 0) },
		"chain":    func(lb *types.LightBlock) { lb.ChainID = "another" },
		"nameless": func(lb *types.LightBlock) { lb.ValidatorsHash = nil },
	} {
		bad := clone(c.at(9))
		change(bad)
		require.ErrorIs(t, Below(bad.Header, c.at(10).Header), ErrInvalid, name)
		require.ErrorIs(t, CheckAncestor(bad.SignedHeader, c.at(10).Header), ErrInvalid, name)
	}
	for name, change := range map[string]func(lb *types.LightBlock){
		"parts":     func(lb *types.LightBlock) { lb.Commit.BlockID.PartSetHeader.Total++ },
		"signature": func(lb *types.LightBlock) { lb.Commit.Signatures[2].Signature[9] ^= 1 },
		"none":      func(lb *types.LightBlock) { lb.Commit.Signatures = nil },
		"no commit": func(lb *types.LightBlock) { lb.Commit = nil },
	} {
		bad := clone(c.at(9))
		change(bad)
		require.ErrorIs(t, CheckAncestor(bad.SignedHeader, c.at(10).Header), ErrInvalid, name)
	}
	bad := clone(c.at(9))
	bad.Commit.Round++ // no hash covers it
	require.NoError(t, CheckAncestor(bad.SignedHeader, c.at(10).Header))
	require.ErrorIs(t, CheckRound(testChain, bad.SignedHeader, bad.ValidatorSet), ErrInvalid)
	for i := range bad.Commit.Signatures {
		bad.Commit.Signatures[i] = types.NewCommitSigAbsent()
	}
	require.ErrorIs(t, CheckRound(testChain, bad.SignedHeader, bad.ValidatorSet), ErrInvalid)
}

// The first header's LastBlockID is empty, and so is the hash of a header without validators. Such
// a header is not accepted as the block below.
func TestNothingIsBelowTheFirstBlock(t *testing.T) {
	c := makeChain(3, 4, 7)
	require.True(t, IsFirst(c.at(1).Header))
	require.False(t, IsFirst(c.at(2).Header))
	first := clone(c.at(1)).Header
	first.Height = 100
	forged := &types.Header{Version: first.Version, ChainID: testChain, Height: 99, Time: first.Time.Add(-time.Hour),
		AppHash: []byte("forged"), ProposerAddress: first.ProposerAddress}
	require.Empty(t, forged.Hash())
	require.ErrorIs(t, Below(forged, first), ErrInvalid)
}

func TestGenesisRoot(t *testing.T) {
	c := makeChain(3, 4, 7)
	for name, change := range map[string]func(g *types.GenesisDoc){
		"nobody":    func(g *types.GenesisDoc) { g.Validators = nil },
		"no key":    func(g *types.GenesisDoc) { g.Validators[0].PubKey = nil },
		"short key": func(g *types.GenesisDoc) { g.Validators[0].PubKey = ed25519.PubKey(nil) },
		"twice":     func(g *types.GenesisDoc) { g.Validators[0] = g.Validators[1] },
		"power":     func(g *types.GenesisDoc) { g.Validators[0].Power = types.MaxTotalVotingPower },
	} {
		genesis := c.genesis()
		change(genesis)
		_, err := GenesisRoot(genesis)
		require.Error(t, err, name)
	}
	genesis := c.genesis()
	for i := range genesis.Validators {
		genesis.Validators[i].PubKey = ed25519.GenPrivKeyFromSecret([]byte{byte(i)}).PubKey()
	}
	root, err := GenesisRoot(genesis)
	require.NoError(t, err)
	require.ErrorIs(t, rules(t, false).Follows(root, c.at(1), now), ErrInvalid, "other validators")
	require.ErrorIs(t, rules(t, false).Follows(root, c.at(3), now), ErrGap)
}

func TestBlocksKeepTheRootAndWhatWasUsedLast(t *testing.T) {
	c := makeChain(120, 5, 4)
	k := NewBlocks(64)
	require.Nil(t, k.Root())
	require.Nil(t, k.Below(5))
	k.PutRoot(&Proved{LightBlock: c.at(50), From: 50})
	require.EqualValues(t, 50, k.PutRoot(&Proved{LightBlock: c.at(51), From: 51}).Height, "the first one stays")
	for h := int64(1); h <= 120; h++ {
		k.Put(&Proved{LightBlock: c.at(h), From: max(h-1, 1)})
		k.Get(7)
	}
	require.Equal(t, 64, k.Len())
	require.Len(t, k.blocks, 64)
	require.NotNil(t, k.Get(50))
	require.NotNil(t, k.Get(7))
	require.NotNil(t, k.Get(120))
	require.Nil(t, k.Get(8))
	require.Equal(t, int64(7), k.Below(49).Height)
	require.Nil(t, k.Below(6))
	require.Nil(t, k.Above(120))
	require.Nil(t, k.Above(math.MaxInt64-1))
	trace := k.Trace(120)
	require.Equal(t, int64(50), trace[0].Height)
	require.Equal(t, int64(120), trace[len(trace)-1].Height)
	other := clone(c.at(119))
	other.AppHash = sum("forked")
	require.Equal(t, c.at(119).Hash(), k.Put(&Proved{LightBlock: other}).Hash(), "what was there first stays")
}

package lightblocks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cometbft/cometbft/crypto"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/light/provider"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmtversion "github.com/cometbft/cometbft/proto/tendermint/version"
	"github.com/cometbft/cometbft/types"
	"github.com/cometbft/cometbft/version"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/transport"
)

const testChain = "lightblocks-test"

// chainEnd is the time of the last block of a test chain, just before synctest's clock starts.
var chainEnd = time.Date(1999, 12, 31, 23, 59, 50, 0, time.UTC)

func sum(format string, args ...any) []byte {
	h := sha256.Sum256(fmt.Appendf(nil, format, args...))
	return h[:]
}

func testKey(name string) crypto.PrivKey { return ed25519.GenPrivKeyFromSecret([]byte(name)) }

// chainOptions describe a test chain of one block per second.
type chainOptions struct {
	heights    int64
	validators int // their number
	// number of heights after which a new validator replaces the oldest one; 0: never
	turnover int64
	equal    bool  // all have the same power
	evidence int64 // number of heights after which a block holds evidence; 0: never
	salt     string
	round    int32
}

// chain is a chain with its keys. It implements Blocks and States. blocks[h-1] has height h.
type chain struct {
	chainOptions
	blocks []*types.LightBlock
	params types.ConsensusParams
	base   int64 // below it everything was pruned
	noSeen bool  // the top has no commit
	keys   map[string]crypto.PrivKey
	// evidence in blocks, by height
	evidence map[int64]types.EvidenceList
}

func makeChain(o chainOptions) *chain {
	c := &chain{chainOptions: o, params: *types.DefaultConsensusParams(), base: 1, keys: map[string]crypto.PrivKey{},
		evidence: map[int64]types.EvidenceList{}}
	c.params.Version.App = 1
	made := 0
	join := func() *types.Validator {
		key := testKey(fmt.Sprintf("%svalidator %d", o.salt, made))
		c.keys[string(key.PubKey().Address())] = key
		power := int64(10)
		if !o.equal {
			power += int64(made%4) * 3
		}
		made++
		return types.NewValidator(key.PubKey(), power)
	}
	var members []*types.Validator
	for range o.validators {
		members = append(members, join())
	}
	set := types.NewValidatorSet(members)
	var last types.BlockID
	for h := int64(1); h <= o.heights; h++ {
		next := set.Copy()
		if o.turnover > 0 && h%o.turnover == 0 {
			left := members[0]
			members = append(members[1:], join())
			mustDo(next.UpdateWithChangeSet([]*types.Validator{types.NewValidator(left.PubKey, 0), members[len(members)-1]}))
		}
		next.IncrementProposerPriority(1)
		if o.evidence > 0 && h%o.evidence == 0 {
			c.evidence[h] = types.EvidenceList{c.doubleVote(h - 1)}
		}
		lb := c.makeBlock(h, set, next, last, "")
		last = lb.Commit.BlockID
		c.blocks = append(c.blocks, lb)
		set = next
	}
	return c
}

func mustDo(err error) {
	if err != nil {
		panic(err)
	}
}

// doubleVote returns evidence that the first validator of a height signed two blocks of it.
func (c *chain) doubleVote(h int64) types.Evidence {
	lb := c.blocks[h-1]
	vote := lb.Commit.GetVote(0)
	other := vote.Copy()
	other.BlockID.Hash = sum("another block %d", h)
	var err error
	other.Signature, err = c.keys[string(vote.ValidatorAddress)].Sign(types.VoteSignBytes(testChain, other.ToProto()))
	mustDo(err)
	ev, err := types.NewDuplicateVoteEvidence(vote, other, lb.Time, lb.ValidatorSet)
	mustDo(err)
	return ev
}

// makeBlock makes and signs a block. fork, unless empty, makes it differ from the chain's own.
func (c *chain) makeBlock(h int64, set, next *types.ValidatorSet, last types.BlockID, fork string) *types.LightBlock {
	lastCommit := new(types.Commit)
	if h > 1 {
		lastCommit = c.blocks[h-2].Commit
	}
	header := &types.Header{
		Version: cmtversion.Consensus{Block: version.BlockProtocol, App: 1}, ChainID: testChain, Height: h,
		Time: chainEnd.Add(time.Duration(h-c.heights) * time.Second), LastBlockID: last,
		ValidatorsHash: set.Hash(), NextValidatorsHash: next.Hash(), ConsensusHash: c.params.Hash(),
		AppHash: sum("app %d%s", h-1, fork), LastResultsHash: sum("results %d", h-1), DataHash: sum("data %d", h), EvidenceHash: c.evidence[h].Hash(),
		LastCommitHash: lastCommit.Hash(), ProposerAddress: set.GetProposer().Address,
	}
	return c.sign(header, set)
}

func (c *chain) sign(header *types.Header, set *types.ValidatorSet) *types.LightBlock {
	commit := &types.Commit{Height: header.Height, Round: c.round, BlockID: types.BlockID{
		Hash: header.Hash(), PartSetHeader: types.PartSetHeader{Total: 1, Hash: sum("parts %X", header.Hash())}}}
	for i, val := range set.Validators {
		vote := &types.Vote{Type: cmtproto.PrecommitType, Height: header.Height, Round: c.round, BlockID: commit.BlockID,
			Timestamp: header.Time.Add(time.Duration(i) * time.Millisecond), ValidatorAddress: val.Address, ValidatorIndex: int32(i)}
		sig, err := c.keys[string(val.Address)].Sign(types.VoteSignBytes(testChain, vote.ToProto()))
		mustDo(err)
		vote.Signature = sig
		commit.Signatures = append(commit.Signatures, vote.CommitSig())
	}
	return &types.LightBlock{SignedHeader: &types.SignedHeader{Header: header, Commit: commit}, ValidatorSet: set}
}

// fork returns the same chain with other blocks from height at upwards, signed by the same
// validators.
func (c *chain) fork(at int64) *chain {
	f := *c
	f.blocks = slices.Clone(c.blocks)
	for h := at; h <= c.heights; h++ {
		old := f.blocks[h-1]
		header := *old.Header
		header.AppHash = sum("forked app %d", h)
		if h > 1 {
			header.LastBlockID, header.LastCommitHash = f.blocks[h-2].Commit.BlockID, f.blocks[h-2].Commit.Hash()
		}
		f.blocks[h-1] = f.sign(&header, old.ValidatorSet)
	}
	return &f
}

func (c *chain) at(h int64) *types.LightBlock {
	if h < c.base || h > c.Height() || h < 1 {
		return nil
	}
	return c.blocks[h-1]
}

func (c *chain) Base() int64   { return c.base }
func (c *chain) Height() int64 { return int64(len(c.blocks)) }

func (c *chain) LoadBlockMeta(h int64) *types.BlockMeta {
	if lb := c.at(h); lb != nil {
		return &types.BlockMeta{BlockID: lb.Commit.BlockID, Header: *lb.Header}
	}
	return nil
}

func (c *chain) LoadBlock(h int64) *types.Block {
	lb := c.at(h)
	if lb == nil {
		return nil
	}
	return &types.Block{Header: *lb.Header, Evidence: types.EvidenceData{Evidence: c.evidence[h]}}
}

func (c *chain) LoadBlockCommit(h int64) *types.Commit {
	if lb := c.at(h); lb != nil && h < c.Height() {
		return lb.Commit.Clone()
	}
	return nil
}

func (c *chain) LoadSeenCommit(h int64) *types.Commit {
	if lb := c.at(h); lb != nil && h == c.Height() && !c.noSeen {
		return lb.Commit.Clone()
	}
	return nil
}

func (c *chain) LoadValidators(h int64) (*types.ValidatorSet, error) {
	if lb := c.at(h); lb != nil {
		return lb.ValidatorSet.Copy(), nil
	}
	return nil, fmt.Errorf("no validators of height %d", h)
}

func (c *chain) LoadConsensusParams(h int64) (types.ConsensusParams, error) {
	if h < c.base {
		return types.ConsensusParams{}, errors.New("pruned")
	}
	return c.params, nil
}

func (c *chain) genesis() *types.GenesisDoc {
	params := c.params
	doc := &types.GenesisDoc{ChainID: testChain, GenesisTime: chainEnd.Add(-time.Duration(c.heights) * time.Second), ConsensusParams: &params}
	for _, val := range c.blocks[0].ValidatorSet.Validators {
		doc.Validators = append(doc.Validators, types.GenesisValidator{Address: val.Address, PubKey: val.PubKey, Power: val.VotingPower})
	}
	return doc
}

// makeOnce keeps chains that several tests use, since signing takes a while.
var makeOnce struct {
	sync.Mutex
	chains map[chainOptions]*chain
}

func sharedChain(o chainOptions) *chain {
	makeOnce.Lock()
	defer makeOnce.Unlock()
	if makeOnce.chains == nil {
		makeOnce.chains = map[chainOptions]*chain{}
	}
	if makeOnce.chains[o] == nil {
		makeOnce.chains[o] = makeChain(o)
	}
	c := *makeOnce.chains[o]
	return &c
}

// fakeConn is a connection that calls the server's Mux directly.
type fakeConn struct {
	id   transport.ID
	mux  transport.Handler
	done chan struct{}
}

var _ transport.Conn = (*fakeConn)(nil)

func newConn(id transport.ID, h transport.Handler) *fakeConn {
	return &fakeConn{id: id, mux: h, done: make(chan struct{})}
}

func (c *fakeConn) Remote() transport.Address {
	return transport.Address{ID: c.id, HostPort: net.JoinHostPort("fake", "1")}
}
func (c *fakeConn) ChainID() string       { return testChain }
func (c *fakeConn) Done() <-chan struct{} { return c.done }
func (c *fakeConn) Err() error            { return nil }
func (c *fakeConn) Close() error          { return nil }

func (c *fakeConn) Call(ctx context.Context, call transport.Call) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	answer, err := c.mux.Serve(ctx, transport.Request{Peer: "asker", Host: "fake", Method: call.Method, Body: bytes.Clone(call.Body)})
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, known := range []error{transport.ErrGone, transport.ErrBusy, transport.ErrRefused, transport.ErrTooLong,
			transport.ErrProtocol, transport.ErrClosed} {
			if errors.Is(err, known) {
				return nil, known
			}
		}
		return nil, transport.ErrFailed
	}
	if len(answer) > call.Max {
		return nil, transport.ErrTooLong
	}
	return bytes.Clone(answer), nil
}

// serve returns a Provider of a chain, through a Server and the encoding.
func serve(id transport.ID, c *chain, evidence func(types.Evidence) error) *Provider {
	var mux transport.Mux
	NewServer(ServerOptions{ChainID: testChain, Blocks: c, States: c, Evidence: evidence}).Register(&mux)
	return NewProvider(testChain, newConn(id, &mux))
}

// testPeer answers from a chain, or by the functions that are set.
type testPeer struct {
	id         transport.ID
	chain      *chain
	latency    time.Duration
	lightBlock func(ctx context.Context, height int64) (*types.LightBlock, error)
	params     func(ctx context.Context, height int64) (types.ConsensusParams, error)
	mu         struct {
		sync.Mutex
		asked    []int64
		evidence []types.Evidence
	}
}

func (p *testPeer) ID() transport.ID { return p.id }
func (p *testPeer) ChainID() string  { return testChain }

func (p *testPeer) LightBlock(ctx context.Context, height int64) (*types.LightBlock, error) {
	p.mu.Lock()
	p.mu.asked = append(p.mu.asked, height)
	p.mu.Unlock()
	if p.latency > 0 {
		if err := sleep.For(ctx, p.latency); err != nil {
			return nil, err
		}
	}
	if p.lightBlock != nil {
		return p.lightBlock(ctx, height)
	}
	return p.honest(height)
}

func (p *testPeer) honest(height int64) (*types.LightBlock, error) {
	if height == 0 {
		height = p.chain.Height()
	}
	lb := p.chain.at(height)
	switch {
	case height > p.chain.Height():
		return nil, provider.ErrHeightTooHigh
	case lb == nil:
		return nil, provider.ErrLightBlockNotFound
	}
	return copyBlock(lb), nil
}

func (p *testPeer) ConsensusParams(ctx context.Context, height int64) (types.ConsensusParams, error) {
	if p.params != nil {
		return p.params(ctx, height)
	}
	return p.chain.LoadConsensusParams(height)
}

func (p *testPeer) ReportEvidence(_ context.Context, ev types.Evidence) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.evidence = append(p.mu.evidence, ev)
	return nil
}

func (p *testPeer) reported() []types.Evidence {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.mu.evidence)
}

// copyBlock copies what tests change.
func copyBlock(lb *types.LightBlock) *types.LightBlock {
	header := *lb.Header
	return &types.LightBlock{SignedHeader: &types.SignedHeader{Header: &header, Commit: lb.Commit.Clone()}, ValidatorSet: lb.ValidatorSet.Copy()}
}

// testVerifier returns a Verifier that trusts the block of that height.
func testVerifier(t *testing.T, c *chain, trust int64, change func(*Options)) *Verifier {
	t.Helper()
	opts := Options{ChainID: testChain, TrustHeight: trust, TrustHash: c.blocks[trust-1].Hash(), shuffle: inOrder}
	if change != nil {
		change(&opts)
	}
	v, err := NewVerifier(opts)
	require.NoError(t, err)
	t.Cleanup(v.Close)
	return v
}

// inOrder has peers asked in the order in which they were added.
func inOrder(int, func(i, j int)) {}

// hang never answers.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

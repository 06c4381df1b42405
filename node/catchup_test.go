package node

import (
	"testing"
	"time"

	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/statesync/catchup"
	"github.com/starling-kv/starling/tx"
)

// A program that is too old for the blocks after an upgrade catches up to the last supported block,
// and reports it. A newer program continues on the same home.
func TestCatchUpToAnUpgrade(t *testing.T) {
	const last, head = 12, 30
	program := func(newest string) { buildinfo.RehearsedAppVersion = newest }
	defer program(buildinfo.RehearsedAppVersion)
	program("2")
	c := newMadeChain(t, nil)
	c.grow(5)
	require.NoError(t, c.add(c.block([]types.Tx{c.signer.operation(t, tx.NewScheduleUpgrade(2, last, "from the shelf"))}, nil, nil)))
	c.grow(head)
	require.Equal(t, uint64(2), c.state().Version.Consensus.App)

	program("1")
	f := c.newFollower()
	banned, err := f.catchUp(t.Context(), c.peer("one"), c.peer("two"))
	var tooOld *app.UpgradeError
	require.ErrorAs(t, err, &tooOld)
	require.Equal(t, app.UpgradeError{Version: 2, Newest: 1, Height: last, Info: "from the shelf"}, *tooOld)
	require.ErrorIs(t, f.failed, tooOld, "the node stops because of it")
	require.Empty(t, banned)
	require.Equal(t, int64(last), f.executor.Height())
	require.Equal(t, int64(last), f.blocks().Height(), "the next block is not even saved")
	f.close()

	program("2")
	f.open(nil)
	_, err = f.catchUp(t.Context(), c.peer("one"))
	require.NoError(t, err)
	require.Equal(t, int64(head-1), f.executor.Height())
	f.same(c)
}

// Past blocks have changing validators and evidence against one: each block is verified with the
// validator set of its height, and the evidence counts as committed.
func TestCatchUpThroughValidatorsAndEvidence(t *testing.T) {
	c := newMadeChain(t, nil)
	first := c.state().Validators.Validators[0]
	second := c.signer.newValidator("second")
	c.grow(3)
	require.NoError(t, c.add(c.block([]types.Tx{c.signer.operation(t, tx.NewConfirmedValidator(second.PubKey().Bytes(), 30))}, nil, nil)))
	c.grow(8)
	require.Equal(t, 2, c.state().Validators.Size())
	twice := c.twoVotes(second.PubKey().Address())
	c.grow(10)
	require.NoError(t, c.add(c.block(nil, []types.Evidence{twice}, nil)))
	require.NoError(t, c.add(c.block([]types.Tx{c.signer.operation(t, tx.NewSetValidator(first.PubKey.Bytes(), 0))}, nil, nil)))
	c.grow(14)
	require.Equal(t, 1, c.state().Validators.Size())
	fork := c.block([]types.Tx{types.Tx("another=block")}, nil, nil)
	fork.Commit = c.commit(fork.ID, fork.Time, types.NewValidatorSet([]*types.Validator{first}))
	c.grow(20)

	f := c.newFollower()
	honest := c.peer("honest")
	honest.claim.Last = 15
	_, err := f.catchUp(t.Context(), honest)
	require.NoError(t, err)
	require.Equal(t, int64(14), f.executor.Height())
	banned, err := f.catchUp(t.Context(), testPeer{"the validator that has left", forked{c.blocks(), fork}, catchup.Claim{First: 1, Last: fork.Height + 1}})
	require.NoError(t, err)
	require.Len(t, banned, 1)
	require.Equal(t, int64(14), f.executor.Height())
	banned, err = f.catchUp(t.Context(), c.peer("honest"))
	require.NoError(t, err)
	require.Empty(t, banned)
	require.Equal(t, int64(19), f.executor.Height())
	f.same(c)

	// The same evidence is not executed again, whoever signs it.
	require.NoError(t, f.executor.Apply(t.Context(), c.load(20)))
	for _, again := range []types.EvidenceList{{twice}, nil} {
		b := c.block(nil, again, nil)
		err := f.executor.Apply(t.Context(), b)
		if again == nil {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, comet.ErrInvalid)
		require.ErrorContains(t, err, "evidence was already committed")
		require.Equal(t, int64(20), f.blocks().Height(), "it is not saved")
	}
}

// forked is a store with a different block at one height.
type forked struct {
	catchup.Blocks
	at catchup.Block
}

func (s forked) LoadBlockMeta(h int64) *types.BlockMeta {
	if h == s.at.Height {
		return types.NewBlockMeta(s.at.Block, s.at.Parts)
	}
	return s.Blocks.LoadBlockMeta(h)
}

func (s forked) LoadBlockPart(h int64, index int) *types.Part {
	if h == s.at.Height {
		return s.at.Parts.GetPart(index)
	}
	return s.Blocks.LoadBlockPart(h, index)
}

func (s forked) LoadBlockCommit(h int64) *types.Commit {
	if h == s.at.Height {
		return s.at.Commit
	}
	return s.Blocks.LoadBlockCommit(h)
}

// Peers may have pruned different blocks: each is asked only for blocks that it has, and none is
// banned for missing ones. If no peer has the next block, the rest is left to CometBFT.
func TestCatchUpFromPrunedPeers(t *testing.T) {
	c := newMadeChain(t, nil)
	c.grow(40)
	pruned := c.newFollower() // has all blocks at first, and later only the last ones
	_, err := pruned.catchUp(t.Context(), c.peer("whole"))
	require.NoError(t, err)
	_, _, err = pruned.blocks().PruneBlocks(25, pruned.state())
	require.NoError(t, err)
	require.Equal(t, int64(25), pruned.blocks().Base())

	f := c.newFollower()
	banned, err := f.catchUp(t.Context(), pruned.peer("pruned"))
	require.NoError(t, err)
	require.Empty(t, banned)
	require.Zero(t, f.executor.Height(), "no peer has the first block")

	// A peer that claims pruned blocks again is not asked for them.
	late := pruned.peer("late")
	late.claim.First = 1
	start := c.peer("start")
	start.claim.Last = 30
	banned, err = f.catchUp(t.Context(), late, start, pruned.peer("pruned"))
	require.NoError(t, err)
	require.Empty(t, banned)
	require.Equal(t, int64(38), f.executor.Height())
	f.same(c)
}

// Blocks signed in violation of CometBFT's time rules are not executed.
func TestCatchUpRefusesWrongTimes(t *testing.T) {
	c := newMadeChain(t, nil)
	require.Zero(t, c.executor.Time())
	c.grow(5)
	before := c.executor.Time()
	require.Equal(t, c.blocks().LoadBlockMeta(5).Header.Time, before)
	for name, at := range map[string]func(time.Time) time.Time{
		"not after the last one":       func(time.Time) time.Time { return before },
		"not the median of the votes":  func(right time.Time) time.Time { return right.Add(time.Millisecond) },
		"before the chain's beginning": func(right time.Time) time.Time { return right.Add(-48 * time.Hour) },
	} {
		err := c.executor.Apply(t.Context(), c.block(nil, nil, func(b *types.Block) { b.Time = at(b.Time) }))
		require.ErrorIs(t, err, comet.ErrInvalid, name)
		require.ErrorContains(t, err, "block time", name)
		require.Equal(t, int64(5), c.blocks().Height(), "it is not saved")
	}
	// The right median, of votes from the future.
	b := c.block(nil, nil, nil)
	b.Commit = c.commit(b.ID, time.Now().Add(time.Hour), c.state().Validators)
	require.NoError(t, c.add(b))
	err := c.add(c.block(nil, nil, nil))
	require.ErrorIs(t, err, comet.ErrInvalid)
	require.ErrorContains(t, err, "too far in the future")
	require.Equal(t, int64(6), c.executor.Height())
}

// The limit of a block is that of the state, plus the header and the commit, and never more than a
// response may have.
func TestMaxBlockBytes(t *testing.T) {
	for _, most := range []int64{4 << 20, 16 << 20, types.MaxBlockSizeBytes, -1} {
		c := newMadeChain(t, func(doc *types.GenesisDoc) { doc.ConsensusParams.Block.MaxBytes = most })
		allowed := most
		if most < 0 {
			allowed = types.MaxBlockSizeBytes
		}
		got := c.executor.MaxBlockBytes()
		require.GreaterOrEqual(t, got, min(allowed+types.MaxOverheadForBlock+types.MaxCommitBytes(1), catchup.MaxBytes))
		require.LessOrEqual(t, got, int64(catchup.MaxBytes))
		require.Less(t, got, allowed+64<<10)
		c.grow(2)
		require.Equal(t, got, c.executor.MaxBlockBytes(), "the limit is that of the next block")
		second := c.signer.newValidator("second")
		require.NoError(t, c.add(c.block([]types.Tx{c.signer.operation(t, tx.NewConfirmedValidator(second.PubKey().Bytes(), 1))}, nil, nil)))
		c.grow(5)
		require.Equal(t, min(got+types.MaxCommitBytes(2)-types.MaxCommitBytes(1), catchup.MaxBytes), c.executor.MaxBlockBytes())
		c.close()
	}
}

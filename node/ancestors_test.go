package node

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	dbm "github.com/cometbft/cometbft-db"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/evidence"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/privval"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// After a node has joined, validators report that one of them signed two blocks at one height, or
// signed a false block for a light client, at heights before the snapshot. The joiner knows the
// validators of those heights, accepts the block with the evidence, and continues.
func TestJoinerAcceptsEvidenceAboutHeightsBeforeItsSnapshot(t *testing.T) {
	t.Parallel() // it waits for blocks
	home, n, first := fastNetwork(t, 10)
	validator := privval.LoadFilePV(nodetest.Load(t, home).CometBFT.PrivValidatorKeyFile(), nodetest.Load(t, home).CometBFT.PrivValidatorStateFile())
	key := validator.Key.PrivKey.(ed25519.PrivKey)
	old := doubleVote(t, n, key, 1)
	before := commitEvidence(t, home, n, old)
	untilSnapshot(t, n, before)
	logs := new(nodetest.LogBuffer)
	joiner := fastJoiner(t, home, n, first, nil)
	j := start(t, joiner, logs.Logger(t))
	require.True(t, logs.Has("Fetched the headers that evidence may refer to"))
	follows(t, j, n)
	base := j.Comet().BlockStore().Base()
	require.Greater(t, base, before)

	states := sm.NewStore(databaseOf(t, j, "state"), sm.StoreOptions{})
	state, err := states.Load()
	require.NoError(t, err)
	evidenceDB := dbm.NewMemDB() // a copy, so that the node's own database does not change
	require.NoError(t, copyDatabase(databaseOf(t, j, "evidence"), evidenceDB))
	pool, err := evidence.NewPool(evidenceDB, states, store.NewBlockStore(databaseOf(t, j, "blockstore")))
	require.NoError(t, err)
	require.ErrorContains(t, pool.CheckEvidence(cmttypes.EvidenceList{old}), "already committed")
	for height := int64(2); height < base; height++ {
		require.NoError(t, pool.CheckEvidence(cmttypes.EvidenceList{doubleVote(t, n, key, height)}), "height %d", height)
		require.NoError(t, pool.CheckEvidence(cmttypes.EvidenceList{attack(t, n, key, height)}), "height %d", height)
	}
	require.Equal(t, base, j.Comet().BlockStore().Base())
	require.Nil(t, j.Comet().BlockStore().LoadBlock(base-1), "only the header exists")
	require.Equal(t, int64(1), state.InitialHeight)

	// The same evidence in a block.
	with := commitEvidence(t, home, n, doubleVote(t, n, key, base-1))
	nodetest.Until(t, "the joiner beyond it", func() bool { return j.Application().Height() > with })
	nodetest.SameHashes(t, j.Application(), j.Comet)
}

// The operator chooses the number of headers; 0 is allowed.
func TestJoinWithoutHeadersForEvidence(t *testing.T) {
	t.Parallel() // it waits for blocks
	home, n, first := fastNetwork(t, 10)
	untilSnapshot(t, n, 4)
	for most, logged := range map[int64]bool{0: false, 2: true} {
		logs := new(nodetest.LogBuffer)
		j := start(t, fastJoiner(t, home, n, first, func(_ *cfg.Config, a *config.App) { a.Join.EvidenceHeaders = most }), logs.Logger(t))
		follows(t, j, n)
		require.Equal(t, logged, logs.Has("Fetched the headers that evidence may refer to"))
		blocks := j.Comet().BlockStore()
		for back := int64(1); back <= 3; back++ {
			require.Equal(t, back <= most, blocks.LoadBlockMeta(blocks.Base()-back) != nil, "%d of %d", back, most)
		}
		require.NoError(t, j.Stop())
	}
}

// untilSnapshot waits for a snapshot above a height.
func untilSnapshot(t *testing.T, n *Node, above int64) {
	t.Helper()
	nodetest.Until(t, "a snapshot", func() bool {
		heights := n.application.snapshots.Heights()
		return len(heights) > 0 && heights[len(heights)-1] > above && n.Comet().BlockStore().Height() > heights[len(heights)-1]+2
	})
}

// commitEvidence waits until a block holds the evidence.
func commitEvidence(t *testing.T, home string, n *Node, ev cmttypes.Evidence) (height int64) {
	t.Helper()
	from := n.Comet().BlockStore().Height()
	_, err := nodetest.RPC(t, home).BroadcastEvidence(t.Context(), ev)
	require.NoError(t, err)
	nodetest.Until(t, "a block with the evidence", func() bool {
		for h := from; h <= n.Comet().BlockStore().Height() && height == 0; h++ {
			if block := n.Comet().BlockStore().LoadBlock(h); block != nil && block.Evidence.Evidence.Has(ev) {
				height = h
			}
		}
		return height > 0
	})
	return height
}

func copyDatabase(from, to dbm.DB) error {
	it, err := from.Iterator(nil, nil)
	if err != nil {
		return err
	}
	for ; it.Valid() && err == nil; it.Next() {
		err = to.Set(bytes.Clone(it.Key()), bytes.Clone(it.Value()))
	}
	return errors.Join(err, it.Error(), it.Close())
}

func databaseOf(t *testing.T, n *Node, id string) dbm.DB {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	db, err := n.databases.DB(id)
	require.NoError(t, err)
	return db
}

// doubleVote is evidence that the only validator of n signed two blocks at a height.
func doubleVote(t *testing.T, n *Node, key ed25519.PrivKey, height int64) *cmttypes.DuplicateVoteEvidence {
	t.Helper()
	meta := n.Comet().BlockStore().LoadBlockMeta(height)
	set := cmttypes.NewValidatorSet([]*cmttypes.Validator{cmttypes.NewValidator(key.PubKey(), n.Comet().GenesisDoc().Validators[0].Power)})
	vote := func(fill byte) *cmttypes.Vote {
		hash := make([]byte, 32)
		hash[0] = fill
		v := &cmttypes.Vote{
			Type: cmtproto.PrecommitType, Height: height, BlockID: cmttypes.BlockID{Hash: hash, PartSetHeader: cmttypes.PartSetHeader{Total: 1, Hash: hash}},
			Timestamp: meta.Header.Time, ValidatorAddress: key.PubKey().Address(),
		}
		var err error
		v.Signature, err = key.Sign(cmttypes.VoteSignBytes(n.genesis.ChainID, v.ToProto()))
		require.NoError(t, err)
		return v
	}
	ev, err := cmttypes.NewDuplicateVoteEvidence(vote(1), vote(2), meta.Header.Time, set)
	require.NoError(t, err)
	return ev
}

// attack is evidence that the validator signed another block in the same round as the chain's, to
// deceive a light client.
func attack(t *testing.T, n *Node, key ed25519.PrivKey, height int64) *cmttypes.LightClientAttackEvidence {
	t.Helper()
	blocks := n.Comet().BlockStore()
	trusted := &cmttypes.SignedHeader{Header: &blocks.LoadBlockMeta(height).Header, Commit: blocks.LoadBlockCommit(height)}
	set := cmttypes.NewValidatorSet([]*cmttypes.Validator{cmttypes.NewValidator(key.PubKey(), n.Comet().GenesisDoc().Validators[0].Power)})
	header := *trusted.Header
	header.DataHash = make([]byte, 32)
	id := cmttypes.BlockID{Hash: header.Hash(), PartSetHeader: cmttypes.PartSetHeader{Total: 1, Hash: header.Hash()}}
	commit := &cmttypes.Commit{Height: height, Round: trusted.Commit.Round, BlockID: id, Signatures: []cmttypes.CommitSig{{
		BlockIDFlag: cmttypes.BlockIDFlagCommit, ValidatorAddress: key.PubKey().Address(), Timestamp: header.Time,
	}}}
	var err error
	commit.Signatures[0].Signature, err = key.Sign(commit.VoteSignBytes(n.genesis.ChainID, 0))
	require.NoError(t, err)
	ev := &cmttypes.LightClientAttackEvidence{
		ConflictingBlock: &cmttypes.LightBlock{SignedHeader: &cmttypes.SignedHeader{Header: &header, Commit: commit}, ValidatorSet: set},
		CommonHeight:     height, Timestamp: header.Time, TotalVotingPower: set.TotalVotingPower(),
	}
	ev.ByzantineValidators = ev.GetByzantineValidators(set, trusted)
	require.Len(t, ev.ByzantineValidators, 1)
	return ev
}

// A node without any of the headers stops at a block with evidence about one of them, and reports
// it. The next start fetches them first, and passes that block.
func TestMissingHeadersAreAskedFor(t *testing.T) {
	t.Parallel() // it waits for blocks
	home, n, first := fastNetwork(t, 10)
	untilSnapshot(t, n, 4)
	key := privval.LoadFilePV(nodetest.Load(t, home).CometBFT.PrivValidatorKeyFile(), nodetest.Load(t, home).CometBFT.PrivValidatorStateFile()).Key.PrivKey.(ed25519.PrivKey)
	joiner := fastJoiner(t, home, n, first, func(_ *cfg.Config, a *config.App) { a.Join.EvidenceHeaders = 0 })
	j := start(t, joiner, log.NewNopLogger())
	follows(t, j, n)
	base := j.Comet().BlockStore().Base()
	with := commitEvidence(t, home, n, doubleVote(t, n, key, base-2))
	var err error
	nodetest.Until(t, "its end", func() bool {
		select {
		case err = <-j.Failed():
			return true
		default:
			return false
		}
	})
	require.ErrorIs(t, err, comet.ErrHeaderMissing)
	require.ErrorContains(t, err, fmt.Sprintf("height %d: restart the node", base-2))
	require.NoError(t, j.Stop())

	// No peer can be asked: the node starts without the headers, and reports what is missing.
	conf := nodetest.Load(t, joiner)
	conf.App.Join.Peers, conf.App.Join.ReachTimeout, conf.CometBFT.P2P.PersistentPeers = "127.0.0.1:1", 10*time.Millisecond, ""
	j, err = New(t.Context(), conf, log.NewNopLogger())
	require.NoError(t, err)
	require.NoError(t, j.Start(t.Context()))
	require.EqualValues(t, 2, statusSource{j}.Status().Chain.MissingHeaders)
	require.NoError(t, j.Stop())

	logs := new(nodetest.LogBuffer)
	j = start(t, joiner, logs.Logger(t))
	require.True(t, logs.Has("Fetched headers that evidence may refer to"))
	require.Zero(t, statusSource{j}.Status().Chain.MissingHeaders)
	nodetest.Until(t, "the joiner beyond it", func() bool { return j.Application().Height() > with })
	nodetest.SameHashes(t, j.Application(), j.Comet)
}

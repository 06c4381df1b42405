package node

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/health"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// onlyForTransactions makes a node make blocks only for transactions.
func onlyForTransactions(o *home.InitOptions) {
	edit := o.Edit
	o.Edit = func(c *cfg.Config, a *config.App) {
		edit(c, a)
		c.Consensus.CreateEmptyBlocks = false
	}
}

// away is a validator that stops signing once it has left.
type away struct {
	cmttypes.PrivValidator
	left *atomic.Bool
}

var errAway = errors.New("away")

func (a away) SignVote(chainID string, vote *cmtproto.Vote) error {
	if a.left.Load() {
		return errAway
	}
	return a.PrivValidator.SignVote(chainID, vote)
}

func (a away) SignProposal(chainID string, proposal *cmtproto.Proposal) error {
	if a.left.Load() {
		return errAway
	}
	return a.PrivValidator.SignProposal(chainID, proposal)
}

// No block is decided because most of the voting power is away: after some rounds the node is not
// ready, even if the age of the last block is not checked.
func TestNotReadyWhileTheChainStands(t *testing.T) {
	dir, _ := nodetest.Home(t, onlyForTransactions)
	var left atomic.Bool
	n := start(t, dir, log.NewNopLogger(), WithPrivValidator(func(v cmttypes.PrivValidator) cmttypes.PrivValidator { return away{v, &left} }))
	nodetest.Put(t, nodetest.RPC(t, dir), "a", "1")
	left.Store(true)
	_, err := nodetest.RPC(t, dir).BroadcastTxSync(t.Context(), []byte("b=2"))
	require.NoError(t, err)
	var facts health.Facts
	nodetest.Until(t, "a pending block", func() bool {
		facts = n.healthFacts()
		return facts.Pending != nil && facts.Pending.Height == facts.Height+1 && len(n.Comet().Mempool().ReapMaxTxs(1)) == 1
	})
	facts.Now, facts.Disk = facts.Pending.Since.Add(facts.MaxPending), nil
	require.True(t, health.Of(facts).Ready, health.Of(facts).Line(false))
	facts.Now = facts.Now.Add(time.Second)
	require.Contains(t, health.Of(facts).Line(false), fmt.Sprintf("not ready: block %d has been pending for", facts.Height+1))
	require.NoError(t, n.Stop())
}

// A chain that waits for transactions is not stalled, however long it waits.
func TestReadyWhileTheChainWaitsForTransactions(t *testing.T) {
	dir, _ := nodetest.Home(t, onlyForTransactions)
	n := start(t, dir, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, dir), "a", "1")
	var facts health.Facts
	nodetest.Until(t, "no pending block", func() bool {
		facts = n.healthFacts()
		return n.Comet().BlockStore().Height() > 1 && facts.Pending == nil
	})
	facts.Now, facts.Disk = facts.Now.Add(24*time.Hour), nil
	require.True(t, health.Of(facts).Ready, health.Of(facts).Line(false))
	require.NoError(t, n.Stop())
}

// The limits follow from the configuration.
func TestHealthLimits(t *testing.T) {
	c := &config.Config{CometBFT: config.DefaultCometBFT(), App: config.DefaultApp()}
	consensus := c.CometBFT.Consensus
	facts := HealthFacts(c)
	require.Equal(t, maxBlockAge+consensus.TimeoutCommit, facts.MaxBlockAge)
	require.Equal(t, 3*(3+1+1)*time.Second+(1+2)*1500*time.Millisecond, facts.MaxPending, "three rounds")
	consensus.CreateEmptyBlocks = false
	require.Zero(t, HealthFacts(c).MaxBlockAge)
	consensus.CreateEmptyBlocksInterval = 5 * time.Minute
	require.Equal(t, maxBlockAge+consensus.TimeoutCommit+5*time.Minute, HealthFacts(c).MaxBlockAge)
	consensus.TimeoutPropose, consensus.TimeoutPrevote, consensus.TimeoutPrecommit = 1, 1, 1
	consensus.TimeoutProposeDelta, consensus.TimeoutPrevoteDelta, consensus.TimeoutPrecommitDelta = 1, 1, 1
	require.Equal(t, minPending, HealthFacts(c).MaxPending)
}

package node

import (
	"fmt"
	"time"

	cometnode "github.com/cometbft/cometbft/node"
	"github.com/dustin/go-humanize/english"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/health"
	"github.com/starling-kv/starling/statesync/catchup"
)

// maxBlockAge is the age of the last block above which a node counts as behind, in addition to the
// configured pause between blocks.
const maxBlockAge = time.Minute

// A block may be pending for as long as pendingRounds rounds take if all their timeouts expire, and
// for at least minPending.
const (
	pendingRounds = 3
	minPending    = 10 * time.Second
)

// HealthFacts returns the facts that follow from the configuration and the file system, without the
// node.
func HealthFacts(c *config.Config) health.Facts {
	facts := health.Facts{Now: time.Now()}
	consensus := c.CometBFT.Consensus
	// With an interval, empty blocks are made.
	if consensus.CreateEmptyBlocks || consensus.CreateEmptyBlocksInterval > 0 {
		facts.MaxBlockAge = maxBlockAge + consensus.TimeoutCommit + consensus.CreateEmptyBlocksInterval
	}
	for round := range int32(pendingRounds) {
		facts.MaxPending += consensus.Propose(round) + consensus.Prevote(round) + consensus.Precommit(round)
	}
	facts.MaxPending = max(facts.MaxPending, minPending)
	if free, known := disk.LeastFree(config.DataFolders(c.CometBFT)); known {
		facts.Disk = &health.Disk{Free: free, Minimum: uint64(c.App.Disk.MinFreeBytes)}
	}
	return facts
}

// Health reports whether the node is alive and ready. It may be called at any time between New and
// Stop.
func (n *Node) Health() health.Report { return health.Of(n.healthFacts()) }

func (n *Node) healthFacts() health.Facts {
	facts := HealthFacts(n.config)
	if p, joining := n.joinView.Progress(); joining {
		facts.Joining = string(p.Phase)
		if p.Chunks > 0 {
			facts.Joining = fmt.Sprintf("%d of %s", p.ChunksDone, english.Plural(p.Chunks, "chunk", ""))
		}
	}
	if p, catching := n.blocksView.Progress(); catching && p.State == catchup.CatchUp {
		facts.Joining = fmt.Sprintf("block %d of %d (%s)", p.Height, p.Target, p.State)
	}
	n.mu.Lock()
	facts.Failed = n.mu.failure
	n.mu.Unlock()
	facts.Waiting, facts.Degraded = n.application.backing.waiting(), n.application.backing.degraded()
	n.instance.Read(func(comet *cometnode.Node, syncing bool) {
		switch {
		case syncing:
			facts.Joining = "CometBFT's state sync"
		case comet.IsRunning():
			facts.Joining = ""
		}
		facts.Started, facts.CatchingUp = comet.IsRunning(), comet.ConsensusReactor().WaitSync()
		if p := n.instance.Pending(); facts.Started && !p.Since.IsZero() {
			facts.Pending = &health.Pending{Height: p.Height, Round: p.Round, Since: p.Since}
		}
		facts.Height = comet.BlockStore().Height()
		if meta := comet.BlockStore().LoadBlockMeta(facts.Height); meta != nil {
			facts.BlockTime = meta.Header.Time
		}
	})
	return facts
}

// consensusFailed records the end of CometBFT's consensus, which CometBFT only logs: the rest of
// the node keeps running.
func (n *Node) consensusFailed(cause error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.failure == nil {
		n.mu.failure = fmt.Errorf("consensus has ended: %w", cause)
	}
}

package node

import (
	"fmt"
	"time"

	cometnode "github.com/cometbft/cometbft/node"
	"github.com/dustin/go-humanize/english"

	"github.com/starling-kv/starling/catchup"
	"github.com/starling-kv/starling/health"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
)

// maxBlockAge is the age of the last block above which a node counts as behind, beyond the pauses
// that the configuration makes between blocks.
const maxBlockAge = time.Minute

// A block may be pending for as long as pendingRounds rounds take whose timeouts all expire, and
// for minPending in any case.
const (
	pendingRounds = 3
	minPending    = 10 * time.Second
)

// HealthFacts returns the facts that follow from a configuration and the file system, without the
// node.
func HealthFacts(c *config.Config) health.Facts {
	facts := health.Facts{Now: time.Now()}
	consensus := c.CometBFT.Consensus
	// the interval makes them in any case
	if consensus.CreateEmptyBlocks || consensus.CreateEmptyBlocksInterval > 0 {
		facts.MaxBlockAge = maxBlockAge + consensus.TimeoutCommit + consensus.CreateEmptyBlocksInterval
	}
	for round := range int32(pendingRounds) {
		facts.MaxPending += consensus.Propose(round) + consensus.Prevote(round) + consensus.Precommit(round)
	}
	facts.MaxPending = max(facts.MaxPending, minPending)
	if free, known := disk.LeastFree(config.DataFolders(c.CometBFT)); known {
		facts.Disk = &health.Disk{Free: free, Minimum: uint64(c.App.Storage.MinFreeBytes)}
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
	if s := n.application.sharded; s != nil {
		facts.Waiting = s.waiting()
	}
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

// consensusFailed records that CometBFT's consensus has ended, which CometBFT itself only logs: the
// rest of the node keeps running without it.
func (n *Node) consensusFailed(cause error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.failure == nil {
		n.mu.failure = fmt.Errorf("consensus has ended: %w", cause)
	}
}

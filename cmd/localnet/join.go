package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/e2e/runner"
)

// comparedHeights is how many heights the joiner's app hash is compared at, beside the snapshot's.
const comparedHeights = 3

// awaitSnapshot waits for a snapshot with everything written up to height written, on all nodes. It
// returns right after the snapshot was taken, so that a whole interval is left before the next.
func (n *network) awaitSnapshot(ctx context.Context, written int64) (int64, error) {
	snapshot := (written + snapshotInterval - 1) / snapshotInterval * snapshotInterval
	if late := n.height(ctx); late > snapshot+snapshotInterval/4 {
		snapshot = (late + snapshotInterval) / snapshotInterval * snapshotInterval
	}
	// A node begins with the headers of the two blocks after it, too.
	first := n.height(ctx)
	meter := n.screen.meter(fmt.Sprintf("waiting for the snapshot at height %d", snapshot), snapshot+2-first)
	defer meter.end()
	err := runner.Poll(ctx, fmt.Sprintf("the snapshot at height %d", snapshot), func() bool {
		height := n.height(ctx)
		meter.set(height-first, snapshot+2-first, "")
		return height >= snapshot+2
	})
	if err != nil {
		return 0, err
	}
	return snapshot, n.reach(ctx, append(n.liars[:len(n.liars):len(n.liars)], n.validators...), snapshot+2)
}

// attempts is how often the node joins at most, until it has met a liar.
const attempts = 3

// joinAndMeet lets the joiner join. If the join ends before the joiner has asked a liar for
// anything, as on a very busy machine, it forgets everything and joins again.
func (n *network) joinAndMeet(ctx context.Context, snapshot int64, sum *summary, det *details) error {
	for attempt := 1; ; attempt++ {
		process, err := n.join(ctx, snapshot, sum, det)
		if err != nil || sum.met() || !n.provable() || attempt == attempts {
			return err
		}
		n.screen.say("it was done before it had asked a liar for anything: it forgets all and joins again")
		if err := process.Stop(stopGrace); err != nil {
			return err
		}
		out, err := exec.CommandContext(ctx, n.programs.starlingd, "unsafe-reset-all", "--yes", "--home", n.joiner.Dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("unsafe-reset-all: %w\n%s", err, out)
		}
	}
}

// join starts the joiner, shows what happens to it, and returns when it is at the network's height.
func (n *network) join(ctx context.Context, snapshot int64, sum *summary, det *details) (*runner.Process, error) {
	trusted, err := n.validators[0].Header(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	err = n.joiner.Configure(func(c *cfg.Config) {
		c.P2P.PersistentPeers = runner.Peers(append(n.liars[:len(n.liars):len(n.liars)], n.validators...)...)
		c.StateSync.Enable = true
		c.StateSync.TrustHeight = trusted.Height
		c.StateSync.TrustHash = fmt.Sprintf("%X", trusted.Hash)
		if n.InBand {
			// CometBFT wants two servers, even where there is only one
			witness := n.validators[min(1, len(n.validators)-1)]
			c.StateSync.RPCServers = []string{n.validators[0].RPC(), witness.RPC()}
			c.StateSync.DiscoveryTime = 5 * time.Second // the least that CometBFT takes
		}
	})
	if err != nil {
		return nil, err
	}
	n.screen.say("a new node joins: it trusts header %d, and asks %s for the state behind it", trusted.Height,
		count(len(n.validators)+len(n.liars), "peer", "peers"))
	started := time.Now()
	process, err := n.start(n.joiner, n.programs.starlingd, "start", "--home", n.joiner.Dir)
	if err != nil {
		return nil, err
	}
	if err := n.watchRestore(ctx, sum, det); err != nil {
		return nil, err
	}
	n.screen.say("restored: %s verified, %s and %s", count(int(sum.Chunks), "chunk", "chunks"),
		rejected(sum.ChunksRejected), count(int(sum.PeersRejected), "peer rejected", "peers rejected"))
	if err := n.watchCatchUp(ctx, sum); err != nil {
		return nil, err
	}
	sum.JoinSeconds = float64(time.Since(started).Milliseconds()) / 1000
	status, err := n.joiner.Status(ctx)
	if err != nil {
		return nil, err
	}
	// usually the one awaited; a later one where the joiner was slow
	det.SnapshotHeight = status.Earliest - 1
	n.screen.say("the joiner is at the network's height, %d", sum.JoinerHeight)
	return process, nil
}

func rejected(chunks int64) string { return count(int(chunks), "chunk rejected", "chunks rejected") }

// watchRestore follows the joiner's metrics until its application has a state.
func (n *network) watchRestore(ctx context.Context, sum *summary, det *details) error {
	meter := n.screen.meter("joiner: looking for a snapshot", 0)
	defer func() { meter.end() }()
	looking := true
	scrape := func() {
		values, err := n.joiner.Scrape(ctx)
		if err != nil {
			return // it is not up yet, or too busy: the next one will do
		}
		sum.Chunks = values.Starling("statesync_snapshot_chunks")
		sum.ChunksRejected = values.Starling("statesync_chunks_rejected")
		sum.PeersRejected = values.Starling("statesync_peers_banned")
		det.SnapshotBytes = values.Starling("statesync_bytes_verified")
		if sum.Chunks == 0 {
			meter.set(0, 0, "")
			return
		}
		if looking {
			looking = false
			meter.end()
			meter = n.screen.meter("joiner: chunks verified", sum.Chunks)
		}
		meter.set(values.Starling("statesync_chunks_verified"), sum.Chunks,
			fmt.Sprintf("%s, %s", rejected(sum.ChunksRejected), count(int(sum.PeersRejected), "peer rejected", "peers rejected")))
	}
	err := runner.Poll(ctx, "the joiner to restore a snapshot", func() bool {
		scrape()
		at, err := n.joiner.AppInfo(ctx)
		return err == nil && at.Height > 0
	})
	if err != nil {
		return err
	}
	if n.InBand {
		scrape() // the final figures
		return nil
	}
	return n.restored(sum, det)
}

// restored takes the final figures from the line that a join over the transport ends with: it may
// take less time than a look at the metrics.
func (n *network) restored(sum *summary, det *details) error {
	lines := runner.Logged(n.joiner.Log(), runner.LogRestored)
	if len(lines) == 0 {
		return fmt.Errorf("the joiner has a state and does not say how it came by it: %s", n.joiner.Log())
	}
	last := lines[len(lines)-1]
	sum.Chunks, sum.ChunksRejected, sum.PeersRejected = last.Int("chunks"), last.Int("rejected"), last.Int("banned")
	det.SnapshotBytes, det.RestoreSeconds = last.Int("bytes"), last.Fields["seconds"]
	return nil
}

// watchCatchUp waits until joiner and network were seen at one height.
func (n *network) watchCatchUp(ctx context.Context, sum *summary) error {
	meter := n.screen.meter("joiner: following the network", 0)
	defer meter.end()
	return runner.Poll(ctx, "the joiner to reach the network's height", func() bool {
		before := n.height(ctx)
		joiner, err := n.joiner.AppInfo(ctx)
		if err != nil {
			return false
		}
		meter.set(0, 0, fmt.Sprintf("height %d of %d", joiner.Height, before))
		after := n.height(ctx)
		sum.Height, sum.JoinerHeight = after, joiner.Height
		return before == after && joiner.Height == after
	})
}

// compare compares app hashes: what the joiner's application says of its state against what the
// validators' headers say.
func (n *network) compare(ctx context.Context, sum *summary, det *details) error {
	var last int64
	for range comparedHeights {
		var at runner.App
		err := runner.Poll(ctx, "the joiner's next block", func() bool {
			var err error
			at, err = n.joiner.AppInfo(ctx)
			return err == nil && at.Height > last
		})
		if err != nil {
			return err
		}
		last = at.Height
		equal, err := n.equal(ctx, at)
		if err != nil {
			return err
		}
		if !equal {
			sum.AppHashEqual = false
			return fmt.Errorf("the joiner's app hash at height %d is %X, the validators have another", at.Height, at.Hash)
		}
		det.Compared = append(det.Compared, at.Height)
	}
	sum.AppHashEqual = true
	return nil
}

// equal compares with the header after at, of every validator: it holds the hash of the state that
// at is about.
func (n *network) equal(ctx context.Context, at runner.App) (bool, error) {
	for _, v := range n.validators {
		var header runner.Header
		err := runner.Poll(ctx, fmt.Sprintf("block %d", at.Height+1), func() bool {
			var err error
			header, err = v.Header(ctx, at.Height+1)
			return err == nil
		})
		if err != nil {
			return false, err
		}
		if !bytes.Equal(header.AppHash, at.Hash) {
			return false, nil
		}
	}
	return true, nil
}

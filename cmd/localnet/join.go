package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/starling-kv/starling/e2e/runner"
)

// comparedHeights is the number of heights, in addition to the snapshot's, at which the joiner's
// app hash is compared.
const comparedHeights = 3

// awaitSnapshot waits until all nodes have a snapshot with all written keys. It returns right after
// the snapshot was taken, so that a whole interval is left before the next.
func (n *network) awaitSnapshot(ctx context.Context) (int64, error) {
	first := n.height(ctx)
	snapshot := (n.Loaded + snapshotInterval - 1) / snapshotInterval * snapshotInterval
	if first > snapshot+snapshotInterval/4 {
		snapshot = (first + snapshotInterval) / snapshotInterval * snapshotInterval
	}
	// A joining node also needs the headers of the two blocks after the snapshot.
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
	return snapshot, n.reach(ctx, append(n.liars(), n.validators()...), snapshot+2)
}

// attempts is the maximum number of joins until the joiner has received an invalid response.
const attempts = 3

// joinAndMeet lets the joiner join. If the join ends before the joiner requested anything from a
// Byzantine peer, as can happen on a very busy machine, the joiner is reset and joins again.
func (n *network) joinAndMeet(ctx context.Context, snapshot int64, sum *summary, det *details) error {
	for attempt := 1; ; attempt++ {
		err := n.join(ctx, snapshot, sum, det)
		if err != nil || sum.met() || !n.provable() || attempt == attempts {
			return err
		}
		n.screen.say("the join ended before anything was requested from a Byzantine peer: resetting the node and joining again")
		if err := n.Forget(ctx, n.joiner); err != nil {
			return err
		}
	}
}

// launch starts the joiner, which trusts the header at a height.
func (n *network) launch(ctx context.Context, height int64) (started time.Time, err error) {
	trusted, err := n.validators()[0].Home.Header(ctx, height)
	if err != nil {
		return started, err
	}
	if err := n.Trust(n.joiner, trusted); err != nil {
		return started, err
	}
	started = time.Now()
	return started, n.Launch(ctx, n.joiner)
}

// arrived waits until the joiner has reached the network's height, and records the time since its
// start.
func (n *network) arrived(ctx context.Context, started time.Time, sum *summary, det *details) error {
	if err := n.watchCatchUp(ctx, sum); err != nil {
		return err
	}
	sum.JoinSeconds = float64(time.Since(started).Milliseconds()) / 1000
	status, err := n.joiner.Home.Status(ctx)
	if err != nil {
		return err
	}
	// Usually the awaited snapshot; a later one if the joiner was slow.
	det.SnapshotHeight = status.Earliest - 1
	n.screen.say("the joiner has reached the network's height, %d", sum.JoinerHeight)
	return nil
}

// join starts the joiner, shows its progress, and returns when it has reached the network's height.
func (n *network) join(ctx context.Context, snapshot int64, sum *summary, det *details) error {
	n.screen.say("a new node joins: it trusts header %d, and requests that state from %s", snapshot,
		count(n.Validators+n.Liars, "peer", "peers"))
	started, err := n.launch(ctx, snapshot)
	if err != nil {
		return err
	}
	if err := n.watchRestore(ctx, sum, det); err != nil {
		return err
	}
	n.screen.say("restored: %s verified, %s and %s", count(int(sum.Chunks), "chunk", "chunks"),
		rejected(sum.ChunksRejected), count(int(sum.PeersRejected), "peer rejected", "peers rejected"))
	return n.arrived(ctx, started, sum, det)
}

func rejected(chunks int64) string { return count(int(chunks), "chunk rejected", "chunks rejected") }

// watchRestore follows the joiner's metrics until its application has a state.
func (n *network) watchRestore(ctx context.Context, sum *summary, det *details) error {
	meter := n.screen.meter("joiner: looking for a snapshot", 0)
	defer func() { meter.end() }()
	looking := true
	scrape := func() {
		values, err := n.joiner.Home.Scrape(ctx)
		if err != nil {
			return // not up yet, or too busy: the next scrape will do
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
		at, err := n.joiner.Home.AppInfo(ctx)
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

// restored reads the final figures from the log line that ends a join over the transport: the join
// may take less time than one scrape of the metrics.
func (n *network) restored(sum *summary, det *details) error {
	lines := runner.Logged(n.joiner.Home.Log(), runner.LogRestored)
	if len(lines) == 0 {
		return fmt.Errorf("the joiner has a state, but its log does not report how it was restored: %s", n.joiner.Home.Log())
	}
	last := lines[len(lines)-1]
	sum.Chunks, sum.ChunksRejected, sum.PeersRejected = last.Int("chunks"), last.Int("rejected"), last.Int("banned")
	det.SnapshotBytes, det.RestoreSeconds = last.Int("bytes"), last.Fields["seconds"]
	return nil
}

// watchCatchUp waits until the joiner and the network report the same height.
func (n *network) watchCatchUp(ctx context.Context, sum *summary) error {
	meter := n.screen.meter("joiner: following the network", 0)
	defer meter.end()
	return runner.Poll(ctx, "the joiner to reach the network's height", func() bool {
		before := n.height(ctx)
		joiner, err := n.joiner.Home.AppInfo(ctx)
		if err != nil {
			return false
		}
		meter.set(0, 0, fmt.Sprintf("height %d of %d", joiner.Height, before))
		after := n.height(ctx)
		sum.Height, sum.JoinerHeight = after, joiner.Height
		return before == after && joiner.Height == after
	})
}

// compare compares the app hashes that the joiner's application reports with those in the
// validators' headers.
func (n *network) compare(ctx context.Context, sum *summary, det *details) error {
	var last int64
	for range comparedHeights {
		var at runner.App
		err := runner.Poll(ctx, "the joiner's next block", func() bool {
			var err error
			at, err = n.joiner.Home.AppInfo(ctx)
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

// equal compares at.Hash with the app hash in the next header of every validator: header H+1 holds
// the hash of the state at height H.
func (n *network) equal(ctx context.Context, at runner.App) (bool, error) {
	for _, v := range n.validators() {
		var header runner.Header
		err := runner.Poll(ctx, fmt.Sprintf("block %d", at.Height+1), func() bool {
			var err error
			header, err = v.Home.Header(ctx, at.Height+1)
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

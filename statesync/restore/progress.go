package restore

import (
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/statesync/view"
)

// counters are the loop's counters for view.Progress.
type counters struct {
	progress view.Progress
	rounds   int
	began    time.Time // when the fetching of this round started
	start    uint64    // bytes done at that time
}

// begin resets the counters at the start of a round.
func (c *counters) begin(m *avlstar.Manifest, r *statesync.Restorer) {
	c.rounds++
	c.progress = view.Progress{Chunks: len(m.Entries)}
	for _, e := range m.Entries {
		c.progress.Bytes += e.Root.Bytes
	}
	c.there(m, r)
}

// there counts the chunks that need not be fetched.
func (c *counters) there(m *avlstar.Manifest, r *statesync.Restorer) {
	p := &c.progress
	p.ChunksDone, p.BytesDone = 0, 0
	for k, e := range m.Entries {
		if _, missing := r.Want(uint32(k)); !missing {
			p.ChunksDone++
			p.BytesDone += e.Root.Bytes
		}
	}
	p.Reused = p.BytesDone
	c.began, c.start = time.Now(), p.BytesDone
}

// verified counts the answer for an item.
func (c *counters) verified(it *item) {
	switch it.kind {
	case wholeChunk:
		c.progress.ChunksDone++
		c.progress.BytesDone += it.bytes
	case pieceRange:
		c.progress.BytesDone += it.bytes
	}
}

// report publishes the progress in a phase, to the caller of Run and to the View, and returns it.
func (j *joiner) report(phase view.Phase) view.Progress {
	p := j.count.progress
	stats := j.loop.Stats()
	p.Phase, p.Height, p.Elapsed = phase, j.round.Height, time.Since(j.started)
	p.Peers, p.Banned = j.o.Peers.Count()
	p.Wasted, p.Refetched, p.Rejected, p.Retargets = stats.WastedBytes, stats.Refetched, stats.Rejected, j.count.rounds-1
	p.Memory = stats.MemoryBytes
	if since, done := time.Since(j.count.began).Seconds(), p.BytesDone-min(j.count.start, p.BytesDone); since > 0 && done > 0 {
		rate := float64(done) / since
		p.Rate = uint64(rate)
		p.Left = time.Duration(float64(p.Bytes-min(p.BytesDone, p.Bytes)) / rate * float64(time.Second))
	}
	j.show(p, stats.Peers)
	return p
}

func (j *joiner) show(p view.Progress, peers []scheduler.PeerStats) {
	j.o.View.Report(p, peers)
	if j.o.Progress != nil {
		j.o.Progress(p)
	}
}

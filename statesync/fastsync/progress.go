package fastsync

import (
	"fmt"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
)

// Phase of a join.
type Phase string

// The phases.
const (
	PhaseLooking   Phase = "looking"   // for peers and a snapshot; a View and node/join show this
	PhaseVerifying Phase = "verifying" // what an interrupted join has left on disk
	PhaseFetching  Phase = "fetching"
	PhaseWriting   Phase = "writing" // assembling the tree and making it durable
	PhaseDone      Phase = "done"
)

// Progress is how far a join is.
type Progress struct {
	Phase               Phase
	Height              int64 // of the snapshot
	Chunks, ChunksDone  int
	Bytes, BytesDone    uint64 // of the snapshot's chunks
	Reused              uint64 // of BytesDone: here already, from a killed join or another state
	Wasted              uint64 // bytes received that were of no use: lies, second copies, dropped
	Rejected, Refetched int    // answers that proved a lie; repeated requests
	Peers, Banned       int
	Retargets           int
	Rate                uint64 // bytes per second, since the snapshot was chosen
	Elapsed, Left       time.Duration
}

// keyvals are the fields of a line of the log.
func (p Progress) keyvals() []any {
	kv := []any{
		"height", p.Height, "chunks", fmt.Sprintf("%d/%d", p.ChunksDone, p.Chunks), "bytes", fmt.Sprintf("%d/%d", p.BytesDone, p.Bytes),
		"reused", p.Reused, "wasted", p.Wasted, "refetched", p.Refetched, "rejected", p.Rejected, "peers", p.Peers, "banned", p.Banned,
		"seconds", fmt.Sprintf("%.1f", p.Elapsed.Seconds()), "MB_per_s", fmt.Sprintf("%.2f", float64(p.Rate)/1e6),
	}
	if p.Retargets > 0 {
		kv = append(kv, "retargets", p.Retargets)
	}
	if p.Phase == PhaseFetching && p.Left > 0 {
		kv = append(kv, "seconds_left", fmt.Sprintf("%.0f", p.Left.Seconds()))
	}
	return kv
}

// counters are what the loop counts for Progress.
type counters struct {
	progress Progress
	rounds   int
	began    time.Time // when the fetching of this round began
	start    uint64    // bytes that were done then
}

// begin resets the counters at the beginning of a round.
func (c *counters) begin(m *avlstar.Manifest, r *statesync.Restorer) {
	c.rounds++
	c.progress = Progress{Chunks: len(m.Entries)}
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

// progress returns how far the join is, and the state of its peers.
func (j *joiner) progress() (Progress, []scheduler.PeerStats) {
	p := j.count.progress
	stats := j.sched.Stats()
	p.Phase, p.Height, p.Elapsed = PhaseFetching, j.round.height, time.Since(j.started)
	p.Peers, p.Banned = j.o.Peers.Count()
	p.Wasted, p.Refetched, p.Rejected, p.Retargets = stats.WastedBytes, stats.Refetched, stats.Rejected, j.count.rounds-1
	if since, done := time.Since(j.count.began).Seconds(), p.BytesDone-min(j.count.start, p.BytesDone); since > 0 && done > 0 {
		rate := float64(done) / since
		p.Rate = uint64(rate)
		p.Left = time.Duration(float64(p.Bytes-min(p.BytesDone, p.Bytes)) / rate * float64(time.Second))
	}
	return p, stats.Peers
}

// report shows progress to the caller of Join and to the View.
func (j *joiner) report(p Progress, peers []scheduler.PeerStats) {
	j.o.View.report(p, peers)
	if j.o.Progress != nil {
		j.o.Progress(p)
	}
}

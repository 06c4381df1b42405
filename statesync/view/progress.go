package view

import (
	"fmt"
	"time"
)

// Phase is the phase of a join.
type Phase string

// The phases.
const (
	PhaseLooking   Phase = "looking"   // for peers and a snapshot; a Join and node/join report this
	PhaseVerifying Phase = "verifying" // verifying what an interrupted join left on disk
	PhaseFetching  Phase = "fetching"
	PhaseWriting   Phase = "writing" // assembling the tree and making it durable
	PhaseDone      Phase = "done"
)

// Progress is the progress of a join.
type Progress struct {
	Phase               Phase
	Height              int64 // of the snapshot
	Chunks, ChunksDone  int
	Bytes, BytesDone    uint64 // of the snapshot's chunks
	Reused              uint64 // part of BytesDone from an interrupted join or another state
	Wasted              uint64 // bytes received in vain: invalid, duplicate or dropped
	Rejected, Refetched int    // provably invalid answers; repeated requests
	Peers, Banned       int
	Retargets           int
	Rate                uint64 // bytes per second, since the snapshot was chosen
	Memory              int64  // bytes of answers in flight or being verified
	Elapsed, Left       time.Duration
}

// Keyvals returns log fields.
func (p Progress) Keyvals() []any {
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

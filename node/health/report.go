package health

import (
	"fmt"
	"strings"
	"time"
)

// Facts are what a node knows about itself at one moment.
type Facts struct {
	Now time.Time
	// Failed is the reason why the node is stopping, for example because consensus has ended. nil:
	// it is not stopping.
	Failed error
	// Joining is the progress of a join, "" if there is none.
	Joining string
	// Started is set while CometBFT runs.
	Started bool
	// CatchingUp is set while blocks are being fetched from other nodes.
	CatchingUp bool
	Height     int64     // last block; 0: none yet
	BlockTime  time.Time // time of that block
	// MaxBlockAge is the age of the last block above which the node counts as behind. 0: no limit,
	// because blocks are made only for transactions.
	MaxBlockAge time.Duration
	// Pending is the block that consensus is working on; nil: none, or unknown.
	Pending *Pending
	// MaxPending is the time after which a pending block means that the chain is stalled.
	MaxPending time.Duration
	Disk       *Disk // the disk of the node with the least free space; nil: unknown
	// Waiting describes what the node of a sharded state waits for from storage nodes, "" if
	// nothing.
	Waiting string
	// Degraded names the ranges of a sharded state with fewer replicas in step than configured, ""
	// if there are none. The node works nevertheless.
	Degraded string
}

// Pending is a block that is not decided yet.
type Pending struct {
	Height int64
	Round  int32
	Since  time.Time
}

// Disk is the free space of a disk.
type Disk struct {
	Free uint64 // bytes
	// Minimum is the free space in bytes below which the node stops; 0: it does not check.
	Minimum uint64
}

// Low reports whether less than twice the minimum is free, so that the operator can free space
// before the node stops.
func (d Disk) Low() bool { return d.Minimum > 0 && d.Free/2 < d.Minimum }

// Check is the result of one check.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Report is the overall result and the checks behind it.
type Report struct {
	Live   bool    `json:"live"`
	Ready  bool    `json:"ready"`
	Height int64   `json:"height"`
	Checks []Check `json:"checks"` // always the same checks in the same order
}

// The names of the checks. A node is live if NameFailure passes, and ready if all pass,
// except NameReplicas.
const (
	NameFailure = "failure"
	NameJoin    = "join"
	NameSync    = "sync"
	NameBlocks  = "blocks"
	NameRound   = "round"
	NameDisk    = "disk"
	NameState   = "state"
	// NameReplicas fails for a node that is degraded. Such a node is ready.
	NameReplicas = "replicas"
)

// Of evaluates the facts.
func Of(f Facts) Report {
	r := Report{Live: f.Failed == nil, Height: f.Height, Checks: []Check{failure(f), join(f), sync(f), blocks(f), round(f), disk(f), state(f), replicas(f)}}
	r.Ready = true
	for _, c := range r.Checks {
		r.Ready = r.Ready && (c.OK || c.Name == NameReplicas)
	}
	return r
}

func failure(f Facts) Check {
	if f.Failed != nil {
		return Check{NameFailure, false, "the node is stopping: " + f.Failed.Error()}
	}
	return Check{NameFailure, true, "none"}
}

func join(f Facts) Check {
	if f.Joining != "" {
		return Check{NameJoin, false, "joining: " + f.Joining}
	}
	return Check{NameJoin, true, "not joining"}
}

func sync(f Facts) Check {
	switch {
	case !f.Started:
		return Check{NameSync, false, "the node has not started yet"}
	case f.CatchingUp:
		return Check{NameSync, false, fmt.Sprintf("fetching blocks, at height %d", f.Height)}
	}
	return Check{NameSync, true, "follows consensus"}
}

func state(f Facts) Check {
	if f.Waiting != "" {
		return Check{NameState, false, "waiting for storage nodes: " + f.Waiting}
	}
	return Check{NameState, true, "not waiting for storage nodes"}
}

func replicas(f Facts) Check {
	if f.Degraded != "" {
		return Check{NameReplicas, false, "degraded: " + f.Degraded}
	}
	return Check{NameReplicas, true, "no replica is known to be missing"}
}

func blocks(f Facts) Check {
	switch {
	case f.Height == 0:
		return Check{NameBlocks, false, "no block yet"}
	case f.BlockTime.IsZero():
		return Check{NameBlocks, f.MaxBlockAge == 0, fmt.Sprintf("the time of block %d is not known yet", f.Height)}
	}
	age := max(f.Now.Sub(f.BlockTime), 0).Round(time.Second)
	detail := fmt.Sprintf("block %d is %s old", f.Height, age)
	if f.MaxBlockAge > 0 && age > f.MaxBlockAge {
		return Check{NameBlocks, false, fmt.Sprintf("%s, more than %s", detail, f.MaxBlockAge)}
	}
	return Check{NameBlocks, true, detail}
}

func round(f Facts) Check {
	p := f.Pending
	if p == nil {
		return Check{NameRound, true, "no block is pending"}
	}
	age := max(f.Now.Sub(p.Since), 0)
	detail := fmt.Sprintf("block %d has been pending for %s, in round %d", p.Height, age.Round(time.Second), p.Round)
	if age > f.MaxPending {
		return Check{NameRound, false, fmt.Sprintf("%s: the chain is stalled (limit %s)", detail, f.MaxPending)}
	}
	return Check{NameRound, true, detail}
}

func disk(f Facts) Check {
	if f.Disk == nil {
		return Check{NameDisk, true, "the file system does not report its free space"}
	}
	detail := mebibytes(f.Disk.Free) + " free"
	if f.Disk.Minimum > 0 {
		detail += fmt.Sprintf(", the node stops below %s", mebibytes(f.Disk.Minimum))
	}
	if f.Disk.Low() {
		return Check{NameDisk, false, "disk low: " + detail + ": free some space"}
	}
	return Check{NameDisk, true, detail}
}

func mebibytes(bytes uint64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// Line returns the report in one line: the failed checks, or that all pass. With live it considers
// only the check for liveness.
func (r Report) Line(live bool) string {
	var wrong, degraded []string
	for _, c := range r.Checks {
		switch {
		case c.OK:
		case c.Name == NameReplicas:
			degraded = append(degraded, c.Detail)
		case !live || c.Name == NameFailure:
			wrong = append(wrong, c.Detail)
		}
	}
	switch {
	case len(wrong) > 0 && live:
		return "not live: " + strings.Join(wrong, "; ")
	case len(wrong) > 0:
		return "not ready: " + strings.Join(append(wrong, degraded...), "; ")
	case live:
		return "live"
	}
	return strings.Join(append([]string{fmt.Sprintf("ready at height %d", r.Height)}, degraded...), "; ")
}

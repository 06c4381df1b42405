package health

import (
	"fmt"
	"strings"
	"time"
)

// Facts are what a node knows of itself at one moment.
type Facts struct {
	Now time.Time
	// Failed is what the node stops for; nil: nothing. Consensus that has ended is among it.
	Failed error
	// Joining is how far a join is, empty: there is none under way.
	Joining string
	// Started: CometBFT runs.
	Started bool
	// CatchingUp: blocks are being fetched from others.
	CatchingUp bool
	Height     int64     // of the last block, 0: none yet
	BlockTime  time.Time // of that block
	// MaxBlockAge is the age of the last block above which the node counts as behind; 0: age says nothing, since blocks come only with
	// transactions.
	MaxBlockAge time.Duration
	Disk        *Disk // the fullest one that the node writes to; nil: not known
}

// Disk is the free space of a disk.
type Disk struct {
	Free uint64 // bytes
	// Minimum is the free space below which the node stops, 0: it does not look.
	Minimum uint64
}

// Low tells whether less than twice the minimum is free: time to make room before the node stops.
func (d Disk) Low() bool { return d.Minimum > 0 && d.Free/2 < d.Minimum }

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Report is the verdict, with what it rests on.
type Report struct {
	Live   bool    `json:"live"`
	Ready  bool    `json:"ready"`
	Height int64   `json:"height"`
	Checks []Check `json:"checks"` // always the same, in the same order
}

// The checks. NameFailure decides whether the node is live, all together whether it is ready.
const (
	NameFailure = "failure"
	NameJoin    = "join"
	NameSync    = "sync"
	NameBlocks  = "blocks"
	NameDisk    = "disk"
)

// Of judges the facts.
func Of(f Facts) Report {
	r := Report{Live: f.Failed == nil, Height: f.Height, Checks: []Check{failure(f), join(f), sync(f), blocks(f), disk(f)}}
	r.Ready = true
	for _, c := range r.Checks {
		r.Ready = r.Ready && c.OK
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
		return Check{NameSync, false, fmt.Sprintf("fetching blocks, %d is the last", f.Height)}
	}
	return Check{NameSync, true, "follows consensus"}
}

func blocks(f Facts) Check {
	if f.Height == 0 {
		return Check{NameBlocks, false, "there is no block yet"}
	}
	age := max(f.Now.Sub(f.BlockTime), 0).Round(time.Second)
	detail := fmt.Sprintf("block %d is %s old", f.Height, age)
	if f.MaxBlockAge > 0 && age > f.MaxBlockAge {
		return Check{NameBlocks, false, fmt.Sprintf("%s, more than %s", detail, f.MaxBlockAge)}
	}
	return Check{NameBlocks, true, detail}
}

func disk(f Facts) Check {
	if f.Disk == nil {
		return Check{NameDisk, true, "the file system does not say what is free"}
	}
	detail := mebibytes(f.Disk.Free) + " free"
	if f.Disk.Minimum > 0 {
		detail += fmt.Sprintf(", the node stops below %s", mebibytes(f.Disk.Minimum))
	}
	if f.Disk.Low() {
		return Check{NameDisk, false, "disk low: " + detail + ": make room"}
	}
	return Check{NameDisk, true, detail}
}

func mebibytes(bytes uint64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// Line is the report in one line: what is wrong, or that nothing is. live: only what counts for being alive.
func (r Report) Line(live bool) string {
	var wrong []string
	for _, c := range r.Checks {
		if !c.OK && (!live || c.Name == NameFailure) {
			wrong = append(wrong, c.Detail)
		}
	}
	switch {
	case len(wrong) > 0 && live:
		return "not live: " + strings.Join(wrong, "; ")
	case len(wrong) > 0:
		return "not ready: " + strings.Join(wrong, "; ")
	case live:
		return "live"
	}
	return fmt.Sprintf("ready at height %d", r.Height)
}

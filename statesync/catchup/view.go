package catchup

import (
	"sync"
	"time"
)

// Progress describes a run.
type Progress struct {
	State          State
	Height, Target int64  // last executed block, last block that can be executed
	Blocks         int64  // executed by this run
	Bytes          uint64 // of these blocks
	Rate           uint64 // recent bytes per second
	BlockRate      float64
	Memory         int64 // bytes of answers that are long, or decoded and not executed yet
	Peers, Banned  int
	Elapsed, Left  time.Duration // Left 0: unknown
}

// View publishes the progress of a run, during the run and afterwards. A nil View ignores reports.
// The zero View has no progress.
type View struct {
	mu struct {
		sync.Mutex
		progress Progress // State is empty before a run
	}
}

// Progress returns the progress of the current or last run; false if there was none.
func (v *View) Progress() (Progress, bool) {
	if v == nil {
		return Progress{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.progress, v.mu.progress.State != ""
}

// StateSync reports that the state is fetched first.
func (v *View) StateSync() { v.report(Progress{State: StateSync}) }

// report stores the progress.
func (v *View) report(p Progress) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.progress = p
}

// speed measures rates over the last speedOver.
type speed struct {
	began time.Time
	past  []sample
}

type sample struct {
	at     time.Time
	blocks int64
	bytes  uint64
}

const (
	speedOver  = 15 * time.Second
	speedEvery = 500 * time.Millisecond
)

// note adds a sample and completes p.
func (s *speed) note(now time.Time, p *Progress) {
	if n := len(s.past); n == 0 || now.Sub(s.past[n-1].at) >= speedEvery {
		s.past = append(s.past, sample{now, p.Blocks, p.Bytes})
	}
	for len(s.past) > 1 && now.Sub(s.past[0].at) > speedOver {
		s.past = s.past[1:]
	}
	p.Elapsed = now.Sub(s.began)
	if over := now.Sub(s.past[0].at).Seconds(); over > 0 {
		p.Rate = uint64(float64(p.Bytes-s.past[0].bytes) / over)
		p.BlockRate = float64(p.Blocks-s.past[0].blocks) / over
	}
	if p.BlockRate > 0 && p.Target > p.Height {
		p.Left = time.Duration(float64(p.Target-p.Height) / p.BlockRate * float64(time.Second))
	}
}

package avlstar

import (
	"runtime"
	"sync"
)

// maxWorkers limits the goroutines that work on a block.
const maxWorkers = 8

// crew is a group of goroutines that help with one block. They are started as soon as the block is
// known to be large, so that sleeping cores are awake when there is work: in a VM, waking a core
// takes a tenth of the time of a block.
type crew struct {
	others int
	begun  chan struct{} // closed when there is work, or when there will be none
	work   func(worker int)

	mu struct {
		sync.Mutex
		closed bool // goroutines that have not begun need not begin
	}
	busy sync.WaitGroup
}

// callCrew starts helpers for this number of changes. The caller must call dismiss later.
func callCrew(changes int) *crew {
	c := &crew{begun: make(chan struct{})}
	if changes < tune.minChanges {
		return c
	}
	c.others = min(runtime.GOMAXPROCS(0), maxWorkers) - 1
	for i := range c.others {
		go func() {
			<-c.begun
			if c.begin() {
				defer c.busy.Done()
				c.work(i + 1)
			}
		}()
	}
	return c
}

// workers returns the number of goroutines, the caller included.
func (c *crew) workers() int { return c.others + 1 }

// used reports whether do or dismiss was called.
func (c *crew) used() bool {
	select {
	case <-c.begun:
		return true
	default:
		return false
	}
}

// begin reports whether there is still work. If so, the caller must call busy.Done when it is done.
func (c *crew) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.closed {
		c.busy.Add(1)
	}
	return !c.mu.closed
}

// do runs work on all goroutines; work must return only when nothing is left to share. do returns
// when the work is done, without waiting for helpers that got no core. It can be called once.
func (c *crew) do(work func(worker int)) {
	c.work = work
	close(c.begun)
	work(0)
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.busy.Wait()
}

// dismiss ends idle helpers.
func (c *crew) dismiss() {
	if !c.used() {
		c.mu.closed = true
		close(c.begun)
	}
}

package avlstar

import (
	"runtime"
	"sync"
)

// maxWorkers bounds the goroutines that share a block.
const maxWorkers = 8

// crew is the other goroutines that help with one block. They are called as soon as the block is known to be large, so that a core that
// sleeps is awake when there is something to share: in a virtual machine that takes as long as a tenth of a block.
type crew struct {
	others int
	begun  chan struct{} // closed when there is work, or when it is known that there will be none
	work   func(worker int)

	mu struct {
		sync.Mutex
		closed bool // who has not begun need not
	}
	busy sync.WaitGroup
}

// callCrew calls as many as so many changes are worth. dismiss must follow.
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

// workers returns how many there are, the caller included.
func (c *crew) workers() int { return c.others + 1 }

// used says whether do was called, or dismiss.
func (c *crew) used() bool {
	select {
	case <-c.begun:
		return true
	default:
		return false
	}
}

// begin says whether there is still something to do.
func (c *crew) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.closed {
		c.busy.Add(1)
	}
	return !c.mu.closed
}

// do lets all do work, which must go on until nothing is left to be shared, and returns when it is done. It does not wait for those that
// found no core to run on meanwhile. It can be called once.
func (c *crew) do(work func(worker int)) {
	c.work = work
	close(c.begun)
	work(0)
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.busy.Wait()
}

// dismiss sends away who has nothing to do.
func (c *crew) dismiss() {
	if !c.used() {
		c.mu.closed = true
		close(c.begun)
	}
}

package avlstar

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// maxWorkers bounds the goroutines that share a block.
const maxWorkers = 8

// crew is the other goroutines that help with one block. They are called as soon as the block is known to be large, and then wait awake
// for some tenths of a millisecond until there is something to share: to wake a core that sleeps takes a virtual machine as long
// as a tenth of a block.
type crew struct {
	others int
	state  atomic.Int32 // crewWaits, crewWorks or crewLeaves
	work   func(worker int)
	wg     sync.WaitGroup
}

const (
	crewWaits = iota
	crewWorks
	crewLeaves
)

// callCrew calls as many as so many changes are worth. dismiss must follow.
func callCrew(changes int) *crew {
	c := &crew{}
	if changes < minParallel {
		return c
	}
	c.others = min(runtime.GOMAXPROCS(0), maxWorkers) - 1
	for i := range c.others {
		c.wg.Go(func() {
			for c.state.Load() == crewWaits {
				runtime.Gosched()
			}
			if c.state.Load() == crewWorks {
				c.work(i + 1)
			}
		})
	}
	return c
}

// workers returns how many there are, the caller included.
func (c *crew) workers() int { return c.others + 1 }

// do lets all do work, and returns when they have. It can be called once.
func (c *crew) do(work func(worker int)) {
	c.work = work
	c.state.Store(crewWorks)
	work(0)
	c.wg.Wait()
}

// dismiss sends away who has nothing to do.
func (c *crew) dismiss() { c.state.CompareAndSwap(crewWaits, crewLeaves) }

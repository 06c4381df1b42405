package sgc

import (
	"hash/maphash"
	"math"
	"sync"
)

// Zone is a part of the cache with its own lists, ghosts and target.
type Zone int

const (
	State  Zone = iota // pages of the state
	Blocks             // records of the block zone
	numZones
)

func (z Zone) String() string {
	if z == State {
		return "state"
	}
	return "blocks"
}

// Parameters of a cache. TestSimulation prints their effect.
const (
	// Entries larger than the budget / largestPart are not kept, because they would displace too
	// many others.
	largestPart = 8
	// Entries larger than the capacity of the zone's lists / largestOfZone are not kept either.
	largestOfZone = 4
	// The ghosts of a zone represent the budget / ghostPart. More ghosts admit less selectively,
	// fewer forget entries that return.
	ghostPart = 2
	// Ghosts within the budget / windowPart behind their list can move the budget.
	windowPart = 8
	stepPart   = 1024 // a ghost hit moves the budget / stepPart ...
	// ... times the number of successive hits in the same zone, at most this: noise cancels out,
	// while a shift of the load is followed quickly.
	longestRun    = 16
	probationPart = 4 // at least the capacity / probationPart is for entries used once
)

// Cache stores values of two zones within one budget of bytes. All methods may be called
// concurrently.
type Cache struct {
	budget    int64
	minTarget int64 // minimum of a zone's target
	tooLarge  int64 // larger entries are not kept
	window    int64 // ghosts this near to their list can move the budget
	step      int64 // bytes that a ghost hit moves
	fixed     bool
	seed      maphash.Seed

	mu struct {
		sync.Mutex
		zones  [numZones]zone
		target int64 // of State; the rest of the budget is that of Blocks
		run    struct {
			zone   Zone
			length int64 // number of successive ghost hits in zone
		}
		moves uint64
		moved int64
	}
}

// zone contains the entries and the ghosts of a zone.
type zone struct {
	store
	ghosts       ghosts
	other        int64 // bytes that the zone uses elsewhere
	hits, misses uint64
	ghostHits    uint64
}

// Option changes the behavior of a cache.
type Option func(*config)

type config struct {
	minShare float64
	split    float64
	fixed    bool
}

// WithFixedSplit gives the state zone a fixed share of the budget (between 0 and 1), for
// comparisons.
func WithFixedSplit(stateShare float64) Option {
	return func(c *config) { c.split, c.fixed = stateShare, true }
}

// New returns an empty cache of at most budget bytes. Both zones begin with one half.
func New(budget int64, opts ...Option) *Cache {
	cfg := config{minShare: 1. / 16, split: 0.5}
	for _, o := range opts {
		o(&cfg)
	}
	budget = max(budget, 0)
	c := &Cache{
		budget:    budget,
		minTarget: int64(float64(budget) * min(max(cfg.minShare, 0), 0.5)),
		tooLarge:  budget / largestPart,
		window:    max(budget/windowPart, 1),
		step:      max(budget/stepPart, 1),
		fixed:     cfg.fixed,
		seed:      maphash.MakeSeed(),
	}
	c.mu.target = int64(float64(budget) * min(max(cfg.split, 0), 1))
	for z := range c.mu.zones {
		c.mu.zones[z].clear(budget)
	}
	return c
}

// Clear removes the entries and ghosts of a zone whose data on disk were replaced. Counters and
// targets are kept.
func (c *Cache) Clear(z Zone) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.zones[z].clear(c.budget)
}

func (zo *zone) clear(budget int64) {
	zo.store = newStore(budget)
	zo.ghosts.init(budget / ghostPart)
}

// hash returns half of the bits of maphash. Collisions are harmless, because keys are compared.
func (c *Cache) hash(key []byte) uint32 { return uint32(maphash.Bytes(c.seed, key)) }

// Get returns the value of a key in a zone. The value must not be modified. A miss of a recently
// evicted key moves budget to the zone.
func (c *Cache) Get(z Zone, key []byte) (any, bool) {
	hash := c.hash(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.lookUp(z, hash, key, true); e != none {
		return c.mu.zones[z].valueOf(e), true
	}
	return nil, false
}

// Peek is Get for a lookup that has alternatives: a miss is not counted.
func (c *Cache) Peek(z Zone, key []byte) (any, bool) {
	hash := c.hash(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.lookUp(z, hash, key, false); e != none {
		return c.mu.zones[z].valueOf(e), true
	}
	return nil, false
}

// Has is Get without the value.
func (c *Cache) Has(z Zone, key []byte) bool {
	hash := c.hash(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lookUp(z, hash, key, true) != none
}

// GetBytes is Get for values of PutBytes. It appends a copy of the value to buf, which may be nil.
// The result is nil only if there is no value.
func (c *Cache) GetBytes(z Zone, key, buf []byte) ([]byte, bool) {
	hash := c.hash(key)
	c.mu.Lock()
	e := c.lookUp(z, hash, key, true)
	if e == none {
		c.mu.Unlock()
		return buf, false
	}
	value, lasting, ok := c.mu.zones[z].bytesOf(e)
	if lasting {
		c.mu.Unlock() // large values are copied without the lock
	} else {
		defer c.mu.Unlock()
	}
	if !ok {
		return buf, false
	}
	if buf == nil {
		buf = make([]byte, 0, len(value))
	}
	return append(buf, value...), true
}

// lookUp returns the entry of a key and marks it as used, or returns none. A miss is counted if
// count is set. The caller holds c.mu.
func (c *Cache) lookUp(z Zone, hash uint32, key []byte, count bool) uint32 {
	zo := &c.mu.zones[z]
	if e := zo.find(hash, key); e != none {
		zo.hits++
		zo.use(e, c.capacity(z))
		return e
	}
	if count {
		zo.misses++
		if depth, ok := zo.ghosts.hit(hash); ok {
			zo.ghostHits++
			c.move(z, depth)
		}
	}
	return none
}

// Put stores value under key. size is the memory of the value; the key and the overhead are added.
// A value larger than an eighth of the budget, or a quarter of the capacity of the zone's lists, is
// not stored. An existing value of the key is dropped in any case.
func (c *Cache) Put(z Zone, key []byte, value any, size int) {
	hash := c.hash(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	charge := chargeOf(len(key), size)
	if again, keep := c.admit(z, hash, key, charge); keep {
		c.mu.zones[z].addObject(hash, key, value, charge, again)
		c.fit(z)
	}
}

// PutBytes is Put with a copy of bytes, which is stored in a slot with its key, unless it is large.
func (c *Cache) PutBytes(z Zone, key, value []byte) {
	hash := c.hash(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	zo := &c.mu.zones[z]
	if again, keep := c.admit(z, hash, key, zo.chargeOfBytes(len(key), len(value))); keep {
		zo.addBytes(hash, key, value, again)
		c.fit(z)
	}
}

// admit removes the existing entry of a key. keep: the new entry may be added; again: it is known
// to be used repeatedly. The caller holds c.mu.
func (c *Cache) admit(z Zone, hash uint32, key []byte, charge int64) (again, keep bool) {
	zo := &c.mu.zones[z]
	again = zo.ghosts.remove(hash)
	if e := zo.find(hash, key); e != none {
		again = again || zo.entries.at(e).protected
		zo.remove(e)
	}
	if charge > c.tooLarge || zo.entries.n == math.MaxUint32 {
		return again, false
	}
	if charge > c.capacity(z)/largestOfZone {
		zo.ghosts.add(hash, charge) // a zone with more budget would keep it
		return again, false
	}
	return again, true
}

// Drop removes the value of a key.
func (c *Cache) Drop(z Zone, key []byte) {
	hash := c.hash(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	zo := &c.mu.zones[z]
	// Its ghost is removed as well. A larger cache would have dropped the entry, too, so more space
	// would not avoid the next miss.
	zo.ghosts.remove(hash)
	if e := zo.find(hash, key); e != none {
		zo.remove(e)
	}
}

// Evicted reports that the zone evicted an entry that it kept outside of the cache (see SetOther).
// A Get of its key soon after counts like that of an entry evicted from the cache.
func (c *Cache) Evicted(z Zone, key []byte, size int) {
	hash := c.hash(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if zo := &c.mu.zones[z]; zo.find(hash, key) == none {
		zo.ghosts.add(hash, chargeOf(len(key), size))
	}
}

// Target returns the number of bytes that the zone may use now, here and elsewhere. The targets sum
// up to the budget.
func (c *Cache) Target(z Zone) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.targetLocked(z)
}

// SetOther sets the number of bytes that the zone uses outside of the cache. They count toward its
// target.
func (c *Cache) SetOther(z Zone, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.zones[z].other = max(bytes, 0)
	c.fit(z)
}

func (c *Cache) targetLocked(z Zone) int64 {
	if z == State {
		return c.mu.target
	}
	return c.budget - c.mu.target
}

// capacity returns the number of bytes that the zone's lists may use.
func (c *Cache) capacity(z Zone) int64 {
	return max(c.targetLocked(z)-c.mu.zones[z].other, 0)
}

// move gives budget to zone z, which missed an entry that a list longer by depth bytes would have
// kept.
func (c *Cache) move(z Zone, depth int64) {
	zo := &c.mu.zones[z]
	free := max(c.capacity(z)-zo.bytes(), 0) // the zone has already grown and is not full yet
	if c.fixed || depth <= free || depth-free > c.window {
		return
	}
	donor := 1 - z
	if c.mu.run.zone != z {
		c.mu.run.zone, c.mu.run.length = z, 0
	}
	c.mu.run.length = min(c.mu.run.length+1, longestRun)
	step := min(c.step*c.mu.run.length, c.targetLocked(donor)-c.minTarget)
	if step <= 0 {
		return
	}
	if z == State {
		c.mu.target += step
	} else {
		c.mu.target -= step
	}
	c.mu.moves++
	c.mu.moved += step
	c.fit(donor)
}

// fit evicts entries while the zone is above its capacity.
func (c *Cache) fit(z Zone) {
	zo, capacity := &c.mu.zones[z], c.capacity(z)
	for zo.bytes() > capacity {
		zo.balance(capacity)
		e := zo.probation.back
		if e == none {
			e = zo.protected.back
		}
		hash, charge := zo.hashOf(e), zo.chargeAt(e)
		zo.remove(e)
		zo.ghosts.add(hash, charge)
	}
}

// use records a hit.
func (zo *zone) use(e uint32, capacity int64) {
	zo.store.move(e, true)
	zo.balance(capacity)
}

// balance limits the protected segment to its share.
func (zo *zone) balance(capacity int64) {
	for limit := capacity - capacity/probationPart; zo.protected.bytes > limit; {
		zo.store.move(zo.protected.back, false)
	}
}

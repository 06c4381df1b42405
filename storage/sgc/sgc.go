package sgc

import (
	"hash/maphash"
	"sync"
)

// Zone is a part of the cache that has lists, ghosts and a target of its own.
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

// What a cache is tuned with. TestSimulation prints how it then does.
const (
	// an entry of more than the budget / largestPart is not kept: it would cost too many others
	largestPart   = 8
	largestOfZone = 4 // nor is one of more than what the zone's lists may hold / largestOfZone
	// the ghosts of a zone stand for the budget / ghostPart: more admits less, less forgets what
	// comes back
	ghostPart = 2
	// ghosts within the budget / windowPart behind their list count for the game
	windowPart = 8
	stepPart   = 1024 // one of them moves the budget / stepPart ...
	// ... times how many in a row were of the same zone, at most this: noise cancels out, a shift
	// is followed fast
	longestRun    = 16
	probationPart = 4 // the capacity / probationPart at least is for entries that were used once
)

// entryOverhead is what an entry costs besides its key and value: the entry itself, its slot in the
// map, and a ghost, as there may be as many of them. TestMemory measures it.
const entryOverhead = 240

// Cache keeps values of two zones within one budget of bytes. All methods may be called
// concurrently.
type Cache struct {
	budget    int64
	minTarget int64 // a zone's target never falls below
	tooLarge  int64 // entries above are not kept
	window    int64 // ghosts this near to their list count for the budget
	step      int64 // bytes that one of them moves
	fixed     bool
	seed      maphash.Seed

	mu struct {
		sync.Mutex
		zones  [numZones]zone
		target int64 // of State; what is left of the budget is that of Blocks
		run    struct {
			zone   Zone
			length int64 // how many of the last ghost hits in a row were of zone
		}
		moves uint64
		moved int64
	}
}

// zone is a segmented LRU list (probation, protected) and its ghosts.
type zone struct {
	entries              map[uint64]*entry
	probation, protected list
	ghosts               ghosts
	other                int64 // bytes that the zone uses elsewhere
	hits, misses         uint64
	ghostHits            uint64
}

type entry struct {
	next, prev *entry
	hash       uint64
	key        string
	value      any
	charge     int64 // bytes of key, value and overhead
	protected  bool
}

// Option changes how a cache works.
type Option func(*config)

type config struct {
	minShare float64
	split    float64
	fixed    bool
}

// WithFixedSplit gives the state zone this share of the budget (between 0 and 1) for good: what the
// game is compared with.
func WithFixedSplit(stateShare float64) Option {
	return func(c *config) { c.split, c.fixed = stateShare, true }
}

// New returns an empty cache that holds at most budget bytes. Both zones begin with a half.
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

// Clear forgets everything that a zone keeps or has evicted: what is behind it is another one from
// now on. Counters and targets stay.
func (c *Cache) Clear(z Zone) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.zones[z].clear(c.budget)
}

func (zo *zone) clear(budget int64) {
	zo.entries = map[uint64]*entry{}
	zo.probation, zo.protected, zo.ghosts = list{}, list{}, ghosts{}
	zo.probation.init()
	zo.protected.init()
	zo.ghosts.init(budget / ghostPart)
}

// Get returns the value that the zone keeps under key. A miss whose key was evicted lately moves
// budget to the zone.
func (c *Cache) Get(z Zone, key []byte) (any, bool) {
	hash := maphash.Bytes(c.seed, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if value, ok := c.hit(z, hash, key); ok {
		return value, true
	}
	zo := &c.mu.zones[z]
	zo.misses++
	if depth, ok := zo.ghosts.hit(hash); ok {
		zo.ghostHits++
		c.move(z, depth)
	}
	return nil, false
}

// Peek is Get for a key that is only one of several ways to an answer: a miss is not counted.
func (c *Cache) Peek(z Zone, key []byte) (any, bool) {
	hash := maphash.Bytes(c.seed, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hit(z, hash, key)
}

// hit returns the value under key, if there is one, and counts that. The caller holds c.mu.
func (c *Cache) hit(z Zone, hash uint64, key []byte) (any, bool) {
	zo := &c.mu.zones[z]
	if e := zo.entries[hash]; e != nil && e.key == string(key) {
		zo.hits++
		zo.use(e, c.capacity(z))
		return e.value, true
	}
	return nil, false
}

// Put keeps value under key. size is the memory that value holds; the key and the cache's own
// memory are added. A value larger than an eighth of the budget, or a quarter of what the zone's
// lists may hold, is not kept; what was kept under the key is dropped.
func (c *Cache) Put(z Zone, key []byte, value any, size int) {
	hash := maphash.Bytes(c.seed, key)
	charge := charge(key, size)
	c.mu.Lock()
	defer c.mu.Unlock()
	zo := &c.mu.zones[z]
	again := zo.ghosts.remove(hash)
	if e := zo.entries[hash]; e != nil {
		again = again || e.protected
		zo.remove(e)
	}
	if charge > c.tooLarge {
		return
	}
	if charge > c.capacity(z)/largestOfZone {
		zo.ghosts.add(hash, charge) // a zone with more budget would keep it
		return
	}
	e := &entry{hash: hash, key: string(key), value: value, charge: charge, protected: again}
	zo.entries[hash] = e
	zo.list(e).pushFront(e)
	c.fit(z)
}

func charge(key []byte, size int) int64 {
	return int64(max(size, 0)) + int64(len(key)) + entryOverhead
}

// Drop removes what the zone keeps under key.
func (c *Cache) Drop(z Zone, key []byte) {
	hash := maphash.Bytes(c.seed, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	zo := &c.mu.zones[z]
	// Its ghost goes as well: a larger cache would have dropped it too, so the next miss is none
	// that space would have avoided.
	zo.ghosts.remove(hash)
	if e := zo.entries[hash]; e != nil {
		zo.remove(e)
	}
}

// Evicted tells that the zone gave up an entry that it kept outside of the cache (see SetOther). If
// Get asks for it soon, that counts like an entry evicted from the cache.
func (c *Cache) Evicted(z Zone, key []byte, size int) {
	hash := maphash.Bytes(c.seed, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if zo := &c.mu.zones[z]; zo.entries[hash] == nil {
		zo.ghosts.add(hash, charge(key, size))
	}
}

// Target returns the bytes that the zone may use now, here and elsewhere. The targets sum up to the
// budget.
func (c *Cache) Target(z Zone) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.targetLocked(z)
}

// SetOther says how many bytes the zone uses outside of the cache. They count against its target.
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

// capacity is what the zone's lists may hold.
func (c *Cache) capacity(z Zone) int64 {
	return max(c.targetLocked(z)-c.mu.zones[z].other, 0)
}

// move gives budget to zone z, which missed an entry that a list longer by depth bytes would have
// kept.
func (c *Cache) move(z Zone, depth int64) {
	zo := &c.mu.zones[z]
	free := max(c.capacity(z)-zo.bytes(), 0) // it has grown already, and is not full yet
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

// fit evicts what the zone has above its capacity.
func (c *Cache) fit(z Zone) {
	zo, capacity := &c.mu.zones[z], c.capacity(z)
	for zo.bytes() > capacity {
		zo.balance(capacity)
		e := zo.probation.back()
		if e == nil {
			e = zo.protected.back()
		}
		zo.remove(e)
		zo.ghosts.add(e.hash, e.charge)
	}
}

func (zo *zone) bytes() int64 { return zo.probation.bytes + zo.protected.bytes }

func (zo *zone) list(e *entry) *list {
	if e.protected {
		return &zo.protected
	}
	return &zo.probation
}

func (zo *zone) remove(e *entry) {
	zo.list(e).remove(e)
	delete(zo.entries, e.hash)
}

// use notes a hit.
func (zo *zone) use(e *entry, capacity int64) {
	zo.list(e).remove(e)
	e.protected = true
	zo.protected.pushFront(e)
	zo.balance(capacity)
}

// balance keeps the protected segment within its share.
func (zo *zone) balance(capacity int64) {
	for limit := capacity - capacity/probationPart; zo.protected.bytes > limit; {
		e := zo.protected.back()
		zo.protected.remove(e)
		e.protected = false
		zo.probation.pushFront(e)
	}
}

// list is a doubly linked list of entries in a ring around root.
type list struct {
	root  entry
	bytes int64
}

func (l *list) init() { l.root.next, l.root.prev = &l.root, &l.root }

func (l *list) back() *entry {
	if l.root.prev == &l.root {
		return nil
	}
	return l.root.prev
}

func (l *list) pushFront(e *entry) {
	e.prev, e.next = &l.root, l.root.next
	e.prev.next, e.next.prev = e, e
	l.bytes += e.charge
}

func (l *list) remove(e *entry) {
	e.prev.next, e.next.prev = e.next, e.prev
	e.next, e.prev = nil, nil
	l.bytes -= e.charge
}

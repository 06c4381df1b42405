package rangestore

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/starling-kv/starling/storage/sgc"
)

// Memory is the memory budget of all ranges of a node: half is a cache of pages that were read, the
// other half is for the trees. All methods may be called concurrently.
//
//	├──────── cache of pages ────────┼──────────────── trees ────────────────┤
//	  of all ranges                    a │ b │ c │ by the pages that each reads
//	                                   └───┴───┴─ floor of each: a quarter of the half, in equal parts
//
// A tree that reads more pages than others would profit more from memory, so its part grows. The
// division depends only on the order of calls: there is no clock.
type Memory struct {
	cache *sgc.Cache
	trees int64
	reads atomic.Int64 // number of pages read since the last division

	mu struct {
		sync.Mutex
		all []*share
	}
}

const (
	// divideAfter is the number of pages read between two divisions.
	divideAfter = 1 << 12
	// Each tree has at least trees / floorPart / number of trees.
	floorPart = 4
)

// share is the part of a range.
type share struct {
	reads  atomic.Int64 // pages read since the last division
	budget atomic.Int64
	recent float64 // reads, halved with each division; guarded by Memory.mu
}

// NewMemory returns a budget of so many bytes. In addition, each Store takes a few MiB for its
// database, and what is not durable yet.
func NewMemory(bytes int64) *Memory {
	bytes = max(bytes, 0)
	return &Memory{cache: sgc.New(bytes/2, sgc.WithFixedSplit(1)), trees: bytes / 2}
}

// CacheBytes returns the bytes of the cache of pages.
func (m *Memory) CacheBytes() int64 { return m.cache.Stats().Zones[sgc.State].Bytes }

// join adds a range. The caller must call leave.
func (m *Memory) join() *share {
	s := new(share)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.all = append(m.mu.all, s)
	m.divide()
	return s
}

// leave removes a range. It may be called more than once.
func (m *Memory) leave(s *share) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.all = slices.DeleteFunc(m.mu.all, func(other *share) bool { return other == s })
	m.divide()
}

// read counts a page that the tree of s reads.
func (m *Memory) read(s *share) {
	s.reads.Add(1)
	m.reads.Add(1)
}

// budget returns the bytes that the tree of s should take.
func (m *Memory) budget(s *share) int64 {
	if m.reads.Load() >= divideAfter {
		m.mu.Lock()
		if m.reads.Load() >= divideAfter { // otherwise another goroutine has divided
			m.divide()
		}
		m.mu.Unlock()
	}
	return s.budget.Load()
}

// divide divides the trees' half. The caller holds m.mu.
func (m *Memory) divide() {
	m.reads.Store(0)
	sum := 0.
	for _, s := range m.mu.all {
		s.recent = s.recent/2 + float64(s.reads.Swap(0))
		sum += s.recent
	}
	for _, s := range m.mu.all {
		equal := float64(m.trees) / float64(len(m.mu.all))
		if sum == 0 {
			s.budget.Store(int64(equal))
			continue
		}
		floor := equal / floorPart
		s.budget.Store(int64(floor + (float64(m.trees)-floor*float64(len(m.mu.all)))*s.recent/sum))
	}
}

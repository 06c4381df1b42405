// Package sgctest provides a reference LRU and key distributions for simulations of the
// space-gaming cache, in the tests of package sgc and in benchmarks. It does not import package
// sgc, whose own tests import it.
package sgctest

import (
	"container/list"
	"math"
	"math/rand/v2"
	"slices"
)

// Zipf draws from a Zipf distribution over keys in random order.
func Zipf(exponent float64) func(rng *rand.Rand, n int) func() int {
	return func(rng *rand.Rand, n int) func() int {
		sums, total := make([]float64, n), 0.0
		for i := range sums {
			total += math.Pow(float64(i+1), -exponent)
			sums[i] = total
		}
		place := rng.Perm(n)
		return func() int {
			i, _ := slices.BinarySearch(sums, rng.Float64()*total)
			return place[min(i, n-1)]
		}
	}
}

// Normal draws from a normal distribution around the middle key, sigma n/8.
func Normal(rng *rand.Rand, n int) func() int {
	return func() int {
		for {
			if i := int(float64(n) * (0.5 + rng.NormFloat64()/8)); i >= 0 && i < n {
				return i
			}
		}
	}
}

// LRU is one list for all zones Z, as a database's block cache is.
type LRU[Z ~int] struct {
	budget, bytes int64
	charge        func(key, size int) int64
	order         *list.List // of *entry, most recently used first
	entries       map[string]*list.Element
}

type entry struct {
	key    string
	charge int64
}

// NewLRU returns an empty cache of budget bytes. charge returns the bytes that a value costs.
func NewLRU[Z ~int](budget int64, charge func(key, size int) int64) *LRU[Z] {
	return &LRU[Z]{budget: budget, charge: charge, order: list.New(), entries: map[string]*list.Element{}}
}

// Get reports whether the cache has a value. It returns no value.
func (l *LRU[Z]) Get(zone Z, key []byte) (any, bool) {
	e, ok := l.entries[string(append(key, byte(zone)))]
	if ok {
		l.order.MoveToFront(e)
	}
	return nil, ok
}

// Put adds a value of size bytes that the cache does not have.
func (l *LRU[Z]) Put(zone Z, key []byte, _ any, size int) {
	e := &entry{string(append(key, byte(zone))), l.charge(len(key), size)}
	l.entries[e.key] = l.order.PushFront(e)
	for l.bytes += e.charge; l.bytes > l.budget; {
		last := l.order.Remove(l.order.Back()).(*entry)
		delete(l.entries, last.key)
		l.bytes -= last.charge
	}
}

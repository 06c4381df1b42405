// Package workload makes the operations of a benchmark. All contestants get the same operations;
// they depend only on the seed.
//
//	New(spec) ── step 1 … L ──▶ load: batches of puts of new keys, until there are Keys
//	              │
//	              └── step L+1 … ─▶ versions: 1,000 changes each, 80 % update · 15 % insert · 5 % delete
//
//	a key   = f(seed, identity)          20 bytes          ┐ so the model of the state is two arrays of numbers
//	a value = f(seed, identity, step)    100 bytes         ┘ without pointers, which the garbage collector does not scan
//
// Each process has its own Workload and makes the operations itself, outside the timed parts. The
// changes of a step are in random order; no key occurs twice in a step.
package workload

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/starling-kv/starling/internal/child"
)

// Sizes of the workload (issue "The tree at the speed of the hardware").
const (
	KeyBytes   = 20
	ValueBytes = 100

	Updates = 800
	Inserts = 150
	Deletes = 50
	// Changes is the number of changes in a version.
	Changes = Updates + Inserts + Deletes

	// MinKeys is enough for the updates and deletes of a version, which all have different keys.
	MinKeys = 2 * Changes
)

// Spec determines the operations.
type Spec struct {
	Seed  uint64 `json:"seed"`
	Keys  int    `json:"keys"`
	Batch int    `json:"batch"` // changes per step of the load
}

// Change puts a value or, if Value is nil, deletes a key. The receiver may keep both slices.
type Change = child.Change

// Workload makes the steps, and tracks the state after them. It is not safe for concurrent use.
type Workload struct {
	spec    Spec
	step    uint32
	present []uint32 // identities of the keys in the state, unordered
	last    []uint32 // by identity: the step that wrote the value
}

// New returns a workload with memory for versions versions after the load.
func New(spec Spec, versions int) (*Workload, error) {
	switch {
	case spec.Keys < MinKeys:
		return nil, fmt.Errorf("%d keys are too few for versions of %d changes: at least %d are needed", spec.Keys, Changes, MinKeys)
	case spec.Batch < 1:
		return nil, fmt.Errorf("load batch of %d keys: at least 1 is needed", spec.Batch)
	}
	// Allocate and touch all memory now: a tree's memory is measured later, as growth of the
	// process.
	room := spec.Keys + versions*Inserts
	w := &Workload{spec: spec, present: make([]uint32, room), last: make([]uint32, room)}
	for i := range room {
		w.present[i], w.last[i] = 1, 1
	}
	w.present, w.last = w.present[:0], w.last[:0]
	return w, nil
}

// LoadSteps returns the number of steps of the load.
func (s Spec) LoadSteps() int { return (s.Keys + s.Batch - 1) / s.Batch }

// Len returns the number of keys in the state.
func (w *Workload) Len() int { return len(w.present) }

// Step returns the number of steps made so far.
func (w *Workload) Step() int { return int(w.step) }

// Loaded reports whether the load is complete.
func (w *Workload) Loaded() bool { return int(w.step) >= w.spec.LoadSteps() }

// Next makes the changes of the next step.
func (w *Workload) Next() []Change {
	w.step++
	if int(w.step) <= w.spec.LoadSteps() {
		n := min(w.spec.Batch, w.spec.Keys-len(w.last))
		changes := make([]Change, n)
		for i := range changes {
			changes[i] = w.insert()
		}
		return changes
	}
	return w.version()
}

func (w *Workload) version() []Change {
	rng := w.rand(uint64(w.step))
	changes := make([]Change, 0, Changes)
	// Keys are drawn without repetition: each drawn key is moved to the front.
	for i := range Updates + Deletes {
		j := i + rng.IntN(len(w.present)-i)
		w.present[i], w.present[j] = w.present[j], w.present[i]
	}
	for _, id := range w.present[:Updates] {
		w.last[id] = w.step
		changes = append(changes, Change{Key: w.key(id), Value: w.value(id, w.step)})
	}
	for i := Updates + Deletes - 1; i >= Updates; i-- {
		changes = append(changes, Change{Key: w.key(w.present[i])})
		end := len(w.present) - 1
		w.present[i] = w.present[end]
		w.present = w.present[:end]
	}
	for range Inserts {
		changes = append(changes, w.insert())
	}
	rng.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	return changes
}

func (w *Workload) insert() Change {
	id := uint32(len(w.last))
	w.last = append(w.last, w.step)
	w.present = append(w.present, id)
	return Change{Key: w.key(id), Value: w.value(id, w.step)}
}

// Present draws n random keys of the state, with their values. Within a step, round selects the
// draw.
func (w *Workload) Present(n int, round uint64) []Change {
	rng := w.rand(uint64(w.step) | (round+1)<<32)
	drawn := make([]Change, n)
	for i := range drawn {
		id := w.present[rng.IntN(len(w.present))]
		drawn[i] = Change{Key: w.key(id), Value: w.value(id, w.last[id])}
	}
	return drawn
}

// PresentKeys is Present without values. It is faster: all keys share one array.
func (w *Workload) PresentKeys(n int, round uint64) [][]byte {
	rng := w.rand(uint64(w.step) | (round+1)<<32)
	array := make([]byte, 0, n*KeyBytes+8)
	keys := make([][]byte, n)
	for i := range keys {
		from := len(array)
		array = w.appendKey(array, w.present[rng.IntN(len(w.present))])
		keys[i] = array[from:len(array):len(array)]
	}
	return keys
}

func (w *Workload) rand(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(w.spec.Seed, stream)) //nolint:gosec // must be reproducible
}

func (w *Workload) key(id uint32) []byte {
	return w.appendKey(make([]byte, 0, 24), id)[:KeyBytes:KeyBytes]
}

func (w *Workload) appendKey(b []byte, id uint32) []byte {
	end := len(b) + KeyBytes
	// Mix is a bijection, so the first 8 bytes of all keys differ.
	state := Mix(w.spec.Seed) + uint64(id)
	for range 3 {
		state = Mix(state)
		b = binary.LittleEndian.AppendUint64(b, state)
	}
	return b[:end]
}

func (w *Workload) value(id, step uint32) []byte {
	return AppendRandom(make([]byte, 0, ValueBytes+7), ValueBytes, w.spec.Seed^0x76616c7565, uint64(id)<<32|uint64(step))[:ValueBytes:ValueBytes]
}

// AppendRandom appends n bytes, which differ for each seed and what. It writes up to seven bytes
// more into the capacity of b.
func AppendRandom(b []byte, n int, seed, what uint64) []byte {
	end := len(b) + n
	for state := Mix(Mix(seed) + what); len(b) < end; {
		state += 0x9e3779b97f4a7c15
		b = binary.LittleEndian.AppendUint64(b, Mix(state))
	}
	return b[:end]
}

// Mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, OOPSLA 2014).
func Mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

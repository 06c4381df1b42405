package server

import (
	"errors"
	"iter"

	"github.com/starling-kv/starling/avlstar"
)

// ErrNoState: no state of that height is stored.
var ErrNoState = errors.New("no state of that height is stored")

// StateInfo describes a stored state of a range.
type StateInfo struct {
	Height     int64 // the state after this block
	Commitment avlstar.Commitment
	// Boundary is a multiproof of the paths to both edges of the range. It is all that a stored
	// state has outside of the range.
	Boundary []byte
}

// Disk holds the stored states of one range at some heights: the leaves in the range with their
// heights in the tree. Files implements it and writes each state as a whole file. disktest.Run
// checks that an implementation fulfils this contract.
//
// A state becomes visible with Keep only, and is then complete whatever happens to the process or
// the power. A state without Keep is never shown by List or Open. Methods may be called
// concurrently, but only one state may be written at a time.
//
//	Begin ─► Write ─► … ─► Write ─► Keep ─► Close          List  [200 300]
//	                         │                             Open  300 ─► Leaves ─► Close
//	                         └─► Close: discarded          Drop  200
type Disk interface {
	// Begin starts writing the state of a height. It fails if that height is already kept.
	Begin(StateInfo) (StateWriter, error)
	// List returns the heights of the kept states, ascending.
	List() ([]int64, error)
	// Open opens a kept state. Errors: ErrNoState; ErrDamaged; ErrOther.
	Open(height int64) (StoredState, error)
	// Drop removes a state durably. A concurrent reader of the state either continues or gets an
	// error. Error: ErrNoState.
	Drop(height int64) error
	// Close closes the disk. No state may be open for reading or writing.
	Close() error
}

// StateWriter writes a state. It must be used by one goroutine.
type StateWriter interface {
	// Write adds a leaf, whose key must be above the previous one. The leaf's bytes must stay
	// unchanged until Write returns.
	Write(avlstar.Leaf) error
	// Keep makes the state durable. It is called at most once, after the last leaf.
	Keep() error
	// Close ends the write, and removes the partial state unless Keep has returned nil. It is
	// called exactly once.
	Close() error
}

// StoredState reads a state. It must be used by one goroutine.
type StoredState interface {
	Info() StateInfo
	// Leaves yields the leaves in key order. The caller may keep their bytes but not modify them.
	// An error, such as ErrDamaged, is yielded last with a zero leaf. Without an error, all leaves
	// have been yielded.
	Leaves() iter.Seq2[avlstar.Leaf, error]
	Close() error
}

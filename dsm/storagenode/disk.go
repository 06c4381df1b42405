package storagenode

import (
	"errors"
	"iter"

	"github.com/starling-kv/starling/avlstar"
)

// ErrNoState: there is no stored state of that height.
var ErrNoState = errors.New("no state of that height is stored")

// StateInfo describes a stored state of a range.
type StateInfo struct {
	Height     int64 // of the block after which it is the state
	Commitment avlstar.Commitment
	// Seam is a bag: the ways to both edges of the range, which is all that a stored state has of
	// what lies outside.
	Seam []byte
}

// Disk has the stored states of one range: the leaves in the range with their heights, at some
// heights. Package storage's state zone (Pebble) keeps states by links to its tables, and is to
// implement this next; Files writes each state whole. A distributed store would stand behind it
// too. disktest.Run checks that an implementation keeps this contract.
//
// A state is written in one go, and is there after Keep only: completely, whatever happens to the
// process or the power. One that is not kept leaves nothing that List or Open show. Methods may be
// called concurrently, but one state is written at a time.
//
//	Begin ─► Write ─► … ─► Write ─► Keep ─► Close          List  [200 300]
//	                         │                             Open  300 ─► Leaves ─► Close
//	                         └─► Close: nothing is kept    Drop  200
type Disk interface {
	// Begin begins the state of a height. It fails if one of that height is kept.
	Begin(StateInfo) (StateWriter, error)
	// List returns the heights of the states that are kept, ascending.
	List() ([]int64, error)
	// Open opens a state that is kept. Errors: ErrNoState; ErrDamaged; ErrOther.
	Open(height int64) (StoredState, error)
	// Drop removes a state, durably. Who reads it meanwhile reads on or gets an error. Error:
	// ErrNoState.
	Drop(height int64) error
	// Close closes the disk. Nothing is being written or read.
	Close() error
}

// StateWriter writes a state. It is for one goroutine.
type StateWriter interface {
	// Write adds a leaf, whose key is above the one before. It may refer to the leaf's bytes until
	// it returns.
	Write(avlstar.Leaf) error
	// Keep makes the state durable. It is called at most once, after the last leaf.
	Keep() error
	// Close ends the writing, and removes what was written unless Keep has returned nil. It is
	// called exactly once.
	Close() error
}

// StoredState is a state that is read. It is for one goroutine.
type StoredState interface {
	Info() StateInfo
	// Leaves yields the leaves in key order. Their bytes may be kept and must not be changed. An
	// error, such as ErrDamaged, is yielded last, with a zero value; without one, all leaves that
	// were written have been yielded.
	Leaves() iter.Seq2[avlstar.Leaf, error]
	Close() error
}

// Package contestant drives the trees that are compared, each through its own API, behind one
// interface.
//
//	                    Contestant
//	        ┌───────────────┼────────────────┐
//	    starling         memiavl            iavl ──▶ Pebble (pebble.go)
//	  avlstar.Version  in memory, no WAL  node cache of 781,250, fast storage: the SDK's defaults
//
//	Prepare ─▶ commit() = root      Get · Prove      Stream: an export that runs during commits
//	                                                 Export ─▶ Import: all of one version and back
//
// Each contestant's type says how it is driven, and why. All contestants get the changes in random
// order and sort them within the timed part: the SDK hands sorted changes to IAVL, and memiavl is
// about 10 % faster with sorted changes.
package contestant

import (
	"bytes"
	"fmt"
	"slices"

	ics23 "github.com/cosmos/ics23/go"

	"github.com/starling-kv/starling/bench/workload"
)

// Contestant is a versioned tree with one writer. Only Stream.Next may be called concurrently with
// other methods.
type Contestant interface {
	// Prepare converts changes to the implementation's own form, which is not timed. commit, which
	// must be called once, makes them the next version and returns its root hash.
	Prepare(changes []workload.Change) (commit func() (root []byte, err error))
	// Get returns the value of a key in the newest version, or nil if it is absent.
	Get(key []byte) ([]byte, error)
	// Prove returns the serialised ICS-23 proof of a key in the newest version.
	Prove(key []byte) (Proof, error)
	// VerifyProof checks with ics23/go that p proves key and value against the root of the newest
	// version.
	VerifyProof(p Proof, key, value []byte) error
	// Stream pins the newest version and starts to export it.
	Stream() (Stream, error)
	// Export exports the newest version completely.
	Export() (Export, error)
	// CheckLen fails unless the newest version has n keys.
	CheckLen(n int) error
	Close() error
}

// Proof is what a client receives: one or two serialised CommitmentProofs.
type Proof [][]byte

// Bytes is the length of the proof.
func (p Proof) Bytes() (n int) {
	for _, operator := range p {
		n += len(operator)
	}
	return n
}

// Stream exports a pinned version piece by piece, starting over at the end. Next may be called
// concurrently with the methods of Contestant; Close must come after the last Next.
type Stream interface {
	// Next exports about StreamPiece bytes of leaf records, and returns their number.
	Next() (int, error)
	Close()
}

// StreamPiece is the number of bytes that one Next exports: about one chunk.
const StreamPiece = 1 << 20

// Export is a complete export in memory.
type Export interface {
	// Bytes is the total length of the leaf records.
	Bytes() int
	// Import rebuilds the version from the export alone, and fails unless the root is that of the
	// exported version. done frees what Import created.
	Import() (done func(), err error)
}

// ManyGetter is a Contestant that can look up many keys at once.
type ManyGetter interface {
	// GetMany sets each value to what Get returns for the key of the same index.
	GetMany(values, keys [][]byte) error
}

// Hasher is a Contestant that counts its hash computations.
type Hasher interface {
	// Hashed returns how many inner nodes and leaves the last commit hashed.
	Hashed() (inner, leaves uint64)
}

// Snapshotter is a Contestant that can write a snapshot of its newest version into a new folder.
type Snapshotter interface{ Snapshot(dir string) error }

// Names are the trees that Open accepts, Starling first.
var Names = []string{"starling", "memiavl", "iavl"}

// Mapped is the name of memiavl over a memory-mapped snapshot, opened by MapMemiavl.
const Mapped = "memiavl mapped"

// Indexed is the name of Starling with a hash index.
const Indexed = "starling index"

// Open creates an empty tree. dir is a folder for its files, which the caller removes.
func Open(name, dir string) (Contestant, error) {
	switch name {
	case "starling":
		return openStarling(false)
	case Indexed:
		return openStarling(true)
	case "memiavl":
		return openMemiavl(dir), nil
	case "iavl":
		return openIAVL(dir)
	}
	return nil, fmt.Errorf("unknown tree %q; the trees are %q", name, Names)
}

func sortChanges(changes []workload.Change) {
	slices.SortFunc(changes, func(a, b workload.Change) int { return bytes.Compare(a.Key, b.Key) })
}

// leafBytes is the length of Starling's leaf record of an entry. The size of every export is given
// in these records.
func leafBytes(key, value []byte) int { return 1 + 1 + len(key) + 1 + len(value) }

// verifyIAVL checks a proof of memiavl or IAVL: both have the form of IAVL v1.
func verifyIAVL(root []byte, p Proof, key, value []byte) error {
	var proof ics23.CommitmentProof
	if err := proof.Unmarshal(p[0]); err != nil {
		return fmt.Errorf("the proof does not decode: %w", err)
	}
	if !ics23.VerifyMembership(ics23.IavlSpec, root, &proof, key, value) {
		return fmt.Errorf("the proof of key %x does not verify against the root %x", key, root)
	}
	return nil
}

func checkLen(have, want int) error {
	if have != want {
		return fmt.Errorf("the tree has %d keys, the workload has %d", have, want)
	}
	return nil
}

func checkRoot(imported, exported []byte) error {
	if !bytes.Equal(imported, exported) {
		return fmt.Errorf("the imported root is %x, the exported one %x", imported, exported)
	}
	return nil
}

// Package contestant drives the trees that are compared, each through its own API, behind one
// interface.
//
//	                    Contestant
//	        ┌───────────────┼────────────────┐
//	    starling         memiavl            iavl ──▶ Pebble (pebble.go)
//	  avlstar.Version  in memory, no WAL  node cache of 781,250, fast storage: the SDK's defaults
//
//	Prepare ─▶ commit() = root      Get · Prove      Stream: an export that runs beside commits
//	                                                 Export ─▶ Import: all of one version and back
//
// How each is driven, and why, is explained at its type. All get the changes in random order and
// sort them, which is timed: the SDK hands sorted changes to IAVL, and memiavl is about 10 % faster
// with them.
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
	// Prepare converts changes to the form that the implementation takes, which is not timed.
	// commit makes them the next version and returns its root hash; it is called once.
	Prepare(changes []workload.Change) (commit func() (root []byte, err error))
	// Get returns the value of a key in the newest version, or nil if it is absent.
	Get(key []byte) ([]byte, error)
	// Prove returns the serialised ICS-23 proof of a key that is in the newest version.
	Prove(key []byte) (Proof, error)
	// VerifyProof checks with ics23/go that the proof leads from key and value to the root of the
	// newest version.
	VerifyProof(p Proof, key, value []byte) error
	// Stream pins the newest version and begins to export it.
	Stream() (Stream, error)
	// Export exports the newest version completely.
	Export() (Export, error)
	// CheckLen fails unless the newest version has n keys.
	CheckLen(n int) error
	Close() error
}

// Proof is what a client gets: one or two serialised CommitmentProofs.
type Proof [][]byte

// Bytes is the length of the proof.
func (p Proof) Bytes() (n int) {
	for _, operator := range p {
		n += len(operator)
	}
	return n
}

// Stream exports a pinned version piece by piece, over and over. Next may be called concurrently
// with the methods of Contestant; Close must follow the last Next.
type Stream interface {
	// Next exports about StreamPiece bytes of leaf records, and returns their number.
	Next() (int, error)
	Close()
}

// StreamPiece is the number of bytes that Next exports at once: a chunk.
const StreamPiece = 1 << 20

// Export is a complete export, in memory.
type Export interface {
	// Bytes is the length of its leaf records.
	Bytes() int
	// Import rebuilds the version from the export alone, and fails if its root is not that of the
	// exported version. done frees what it made.
	Import() (done func(), err error)
}

// ManyGetter is a Contestant that looks for many keys at once.
type ManyGetter interface {
	// GetMany sets each value to what Get returns for its key.
	GetMany(values, keys [][]byte) error
}

// Hasher is a Contestant that counts its hashes.
type Hasher interface {
	// Hashed returns how many inner nodes and leaves the last commit hashed.
	Hashed() (inner, leaves uint64)
}

// Snapshotter is a Contestant that writes snapshots of its newest version, each into a new folder.
type Snapshotter interface{ Snapshot(dir string) error }

// Names are the trees that Open knows, Starling first.
var Names = []string{"starling", "memiavl", "iavl"}

// Mapped is the name of memiavl over a snapshot that it maps, which MapMemiavl opens.
const Mapped = "memiavl mapped"

// Indexed is the name of Starling with an index by hash.
const Indexed = "starling index"

// Open makes an empty tree. dir is a folder for its files, which the caller removes.
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
	return nil, fmt.Errorf("no tree is called %q: there are %q", name, Names)
}

func sortChanges(changes []workload.Change) {
	slices.SortFunc(changes, func(a, b workload.Change) int { return bytes.Compare(a.Key, b.Key) })
}

// leafBytes is the length of Starling's leaf record for an entry, in which all exports are counted.
func leafBytes(key, value []byte) int { return 1 + 1 + len(key) + 1 + len(value) }

// verifyIAVL checks a proof of memiavl or IAVL: both are in the form of IAVL v1.
func verifyIAVL(root []byte, p Proof, key, value []byte) error {
	var proof ics23.CommitmentProof
	if err := proof.Unmarshal(p[0]); err != nil {
		return fmt.Errorf("the proof does not decode: %w", err)
	}
	if !ics23.VerifyMembership(ics23.IavlSpec, root, &proof, key, value) {
		return fmt.Errorf("the proof of key %x does not lead to the root %x", key, root)
	}
	return nil
}

func checkLen(have, want int) error {
	if have != want {
		return fmt.Errorf("the tree has %d keys, the workload %d", have, want)
	}
	return nil
}

func checkRoot(imported, exported []byte) error {
	if !bytes.Equal(imported, exported) {
		return fmt.Errorf("the imported root is %x, the exported one %x", imported, exported)
	}
	return nil
}

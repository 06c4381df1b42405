package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"

	ics23 "github.com/cosmos/ics23/go"
)

// Types of the proof operators in the response to a query, and the key of the state's root in the
// simple Merkle map.
const (
	OpState = "ics23:starling"
	OpMap   = "ics23:simple"
	OpRange = "starling:range"
	MapKey  = mapStateKey
)

// ErrInvalidProof is wrapped by every error of VerifyProof and VerifyRange. The sender of such a
// proof is faulty or Byzantine: no correct node makes one.
var ErrInvalidProof = errors.New("invalid proof")

// StateSpec is the ICS-23 proof spec of the state tree (docs/spec/proofs.md#specs). The leaf is
// SHA256(00 ‖ SHA256(key) ‖ SHA256(value)). An inner node has a prefix of 51 bytes (01 ‖ stat(left)
// ‖ stat(right) ‖ SHA256(key)) before the hashes of its two children. max_depth 0 stands for the
// verifiers' default, 128. Read only.
var StateSpec = &ics23.ProofSpec{
	LeafSpec: &ics23.LeafOp{
		Hash:         ics23.HashOp_SHA256,
		PrehashKey:   ics23.HashOp_SHA256,
		PrehashValue: ics23.HashOp_SHA256,
		Length:       ics23.LengthOp_NO_PREFIX,
		Prefix:       []byte{0},
	},
	InnerSpec: &ics23.InnerSpec{
		ChildOrder:      []int32{0, 1},
		ChildSize:       32,
		MinPrefixLength: innerPrefixBytes,
		MaxPrefixLength: innerPrefixBytes,
		Hash:            ics23.HashOp_SHA256,
	},
}

// MapSpec is the ICS-23 proof spec of the simple Merkle map above the state tree. It is the spec of
// the Cosmos multi-store. Read only.
var MapSpec = ics23.TendermintSpec

// Proof proves that a key has a value, or that it is absent, under an AppHash. It consists of two
// serialised cosmos.ics23.v1.CommitmentProof.
//
//	AppHash ──Map──▶ root of the state tree ──State──▶ SHA256(key), SHA256(value)
//
// For the empty tree, State is empty, and Map proves that the root is SHA256("").
type Proof struct{ State, Map []byte }

// Prove returns the proof of key in v: of its value if it is present, otherwise of its absence
// between its neighbours. It fails if no tree can hold the key, and with a *PageError.
func (v *Version) Prove(key []byte) (Proof, error) {
	if err := checkKey(key); err != nil {
		return Proof{}, fmt.Errorf("avlstar: cannot prove: %w", err)
	}
	v.inUse()
	defer runtime.KeepAlive(v)
	state, err := v.proveState(key)
	if err != nil {
		return Proof{}, fmt.Errorf("avlstar: cannot prove: %w", err)
	}
	return Proof{State: state, Map: v.proveMap()}, nil
}

// VerifyProof checks that under appHash key has value or, if value is empty or nil, that key is
// absent.
//
// First a decoder reads the proof. It accepts only one encoding, and limits depth and lengths
// before anything is hashed (proof_codec.go). Then ics23/go verifies the proof under MapSpec and
// StateSpec. So a key in a state has exactly one proof, byte for byte: a proof with anything
// altered, added or left out is refused.
func VerifyProof(appHash Hash, key, value []byte, p Proof) error {
	if err := verifyProof(appHash, key, value, p); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidProof, err)
	}
	return nil
}

func verifyProof(appHash Hash, key, value []byte, p Proof) error {
	if err := checkKey(key); err != nil {
		return err
	}
	root, err := verifyMap(appHash, p.Map)
	if err != nil {
		return err
	}
	if len(p.State) == 0 {
		if len(value) != 0 {
			return errors.New("no state operator, but a value to prove")
		}
		if root != emptyRoot {
			return errors.New("no state operator, but the tree is not empty")
		}
		return nil
	}
	proof, err := decodeStateProof(p.State)
	if err != nil {
		return fmt.Errorf("state operator: %w", err)
	}
	if len(value) != 0 {
		return verifyPresence(root, key, value, proof)
	}
	return verifyAbsence(root, key, proof)
}

func verifyPresence(root Hash, key, value []byte, proof *ics23.CommitmentProof) error {
	e := proof.GetExist()
	switch {
	case e == nil:
		return errors.New("a proof of absence for a value")
	case !bytes.Equal(e.Key, key):
		return errors.New("proof of another key")
	case !bytes.Equal(e.Value, value):
		return errors.New("proof of another value")
	case !ics23.VerifyMembership(StateSpec, root[:], proof, key, value):
		return errors.New("the state operator does not lead to the state's root")
	}
	return nil
}

func verifyAbsence(root Hash, key []byte, proof *ics23.CommitmentProof) error {
	n := proof.GetNonexist()
	switch {
	case n == nil:
		return errors.New("a proof of a value for an absent key")
	case !bytes.Equal(n.Key, key): // ics23/go ignores this field
		return errors.New("proof of another key")
	case n.Left != nil && bytes.Compare(n.Left.Key, key) >= 0:
		return errors.New("the left neighbour is not below the key")
	case n.Right != nil && bytes.Compare(n.Right.Key, key) <= 0:
		return errors.New("the right neighbour is not above the key")
	case !ics23.VerifyNonMembership(StateSpec, root[:], proof, key):
		return errors.New("the neighbours are not adjacent leaves under the state's root")
	}
	return nil
}

// verifyMap checks the map's operator and returns the root of the state tree that it proves.
func verifyMap(appHash Hash, b []byte) (Hash, error) {
	root, chunks, err := decodeMapProof(b)
	if err != nil {
		return Hash{}, fmt.Errorf("map operator: %w", err)
	}
	if !ics23.VerifyMembership(MapSpec, appHash[:], mapProof(root, chunks), []byte(MapKey), root[:]) {
		return Hash{}, errors.New("map operator: it does not lead to the app hash")
	}
	return root, nil
}

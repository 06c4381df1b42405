package store

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/cometbft/cometbft/crypto/merkle"
	cmtprotocrypto "github.com/cometbft/cometbft/proto/tendermint/crypto"
	ics23 "github.com/cosmos/ics23/go"

	errorsmod "cosmossdk.io/errors"
	"cosmossdk.io/store/types"

	"github.com/starling-kv/starling/avlstar"
)

// A proof of a key is three operators (docs/spec/cosmosstore.md#proofs):
//
//	app hash ──ics23:simple, store's name──► root ──ics23:simple, "state"──► state ──ics23:starling, key──► stored value
const (
	// ProofOpState is the type of the first one.
	ProofOpState = avlstar.OpState
	// MapKey is the key of the second one, in the simple map that a store's root is.
	MapKey = avlstar.MapKey
)

// StateSpec is the ICS-23 spec of the first operator; those of the others are ics23.TendermintSpec.
// Read only.
var StateSpec = avlstar.StateSpec

// ErrProof is wrapped by the errors of VerifyQuery.
var ErrProof = errors.New("invalid proof")

// stateOp is the operator of a key in the state tree. It takes the value as applications know it:
// what it proves is the stored form.
type stateOp struct{ types.CommitmentOp }

// Run implements merkle.ProofOperator.
func (op stateOp) Run(args [][]byte) ([][]byte, error) {
	if len(args) == 1 {
		args = [][]byte{Escape(args[0])}
	}
	return op.CommitmentOp.Run(args)
}

// StateOpDecoder decodes operators of type ProofOpState, for merkle.ProofRuntime.
func StateOpDecoder(pop cmtprotocrypto.ProofOp) (merkle.ProofOperator, error) {
	if pop.Type != ProofOpState {
		return nil, errorsmod.Wrapf(types.ErrInvalidProof, "unexpected ProofOp.Type; got %s, want %s", pop.Type, ProofOpState)
	}
	proof := &ics23.CommitmentProof{}
	if err := proof.Unmarshal(pop.Data); err != nil {
		return nil, err
	}
	return stateOp{types.CommitmentOp{Type: ProofOpState, Spec: StateSpec, Key: pop.Key, Proof: proof}}, nil
}

// ProofRuntime returns a runtime that knows the operators of IAVL's stores and of this package's.
// The key path of a key in a store is /store/state/key.
func ProofRuntime() *merkle.ProofRuntime {
	prt := merkle.NewProofRuntime()
	prt.RegisterOpDecoder(types.ProofOpIAVLCommitment, types.CommitmentOpDecoder)
	prt.RegisterOpDecoder(types.ProofOpSimpleMerkleCommitment, types.CommitmentOpDecoder)
	prt.RegisterOpDecoder(ProofOpState, StateOpDecoder)
	return prt
}

// VerifyQuery checks the answer of a multi-store to a query "/name/key" with a proof: under
// appHash, the app hash in the header after the answer's height, the store has this value for key
// or, if value is nil, does not have the key. All errors wrap ErrProof.
//
// It is stricter than ProofRuntime: the operators have one encoding, and an empty store's absence
// is proved, for which a runtime has no form.
func VerifyQuery(appHash []byte, name string, key, value []byte, ops *cmtprotocrypto.ProofOps) error {
	if err := verifyQuery(appHash, name, key, value, ops); err != nil {
		return fmt.Errorf("%w: store %q, key %x: %w", ErrProof, name, key, err)
	}
	return nil
}

func verifyQuery(appHash []byte, name string, key, value []byte, ops *cmtprotocrypto.ProofOps) error {
	if n := len(ops.GetOps()); n != 2 && n != 3 {
		return fmt.Errorf("%d operators, 3 are one proof, 2 that of an empty store", n)
	}
	inStore, outer := ops.Ops[:len(ops.Ops)-1], ops.Ops[len(ops.Ops)-1]
	root, err := storeRoot(appHash, name, outer)
	if err != nil {
		return err
	}
	var p avlstar.Proof
	for i, op := range inStore {
		switch last := i == len(inStore)-1; {
		case last && op.Type == types.ProofOpSimpleMerkleCommitment && string(op.Key) == MapKey:
			p.Map = op.Data
		case !last && op.Type == ProofOpState && string(op.Key) == string(key):
			p.State = op.Data
		default:
			return fmt.Errorf("operator %d is of type %q and key %x", i, op.Type, op.Key)
		}
	}
	var stored []byte
	if value != nil {
		stored = Escape(value)
	}
	return avlstar.VerifyProof(root, key, stored, p)
}

// storeRoot returns the root of a store, which the outermost operator proves under appHash.
func storeRoot(appHash []byte, name string, op cmtprotocrypto.ProofOp) (root avlstar.Hash, err error) {
	if op.Type != types.ProofOpSimpleMerkleCommitment || string(op.Key) != name {
		return root, fmt.Errorf("the last operator is of type %q and key %q", op.Type, op.Key)
	}
	proof := &ics23.CommitmentProof{}
	if err := proof.Unmarshal(op.Data); err != nil {
		return root, err
	}
	value := proof.GetExist().GetValue()
	if len(value) != sha256.Size || !ics23.VerifyMembership(ics23.TendermintSpec, appHash, proof, []byte(name), value) {
		return root, errors.New("the app hash does not have a store of that name with that root")
	}
	return avlstar.Hash(value), nil
}

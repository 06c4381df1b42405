package store

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/cometbft/cometbft/crypto/merkle"
	cmtprotocrypto "github.com/cometbft/cometbft/proto/tendermint/crypto"
	ics23 "github.com/cosmos/ics23/go"

	errorsmod "cosmossdk.io/errors"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/avlstar"
)

// A proof of a key consists of three operators (docs/spec/cosmosstore.md#proofs):
//
//	app hash ──ics23:simple, store's name──► root ──ics23:simple, "state"──► state ──ics23:starling, key──► stored value
const (
	// ProofOpState is the type of the operator that proves a key in the state tree. It is the first
	// in the list of operators.
	ProofOpState = avlstar.OpState
	// MapKey is the key of the state in a store's root, which is the root of a simple map. It is
	// the key of the second operator.
	MapKey = avlstar.MapKey
)

// StateSpec is the ICS-23 spec of the first operator. The other two use ics23.TendermintSpec. It
// must not be modified.
var StateSpec = avlstar.StateSpec

// ErrProof is wrapped by the errors of VerifyQuery.
var ErrProof = errors.New("invalid proof")

// stateOp is the operator of a key in the state tree. Its argument is the application's value; the
// operator proves the stored form of that value (Escape).
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

// ProofRuntime returns a runtime that decodes the proof operators of IAVL stores and of Starling
// stores. The key path of a key in a Starling store is /store/state/key.
func ProofRuntime() *merkle.ProofRuntime {
	prt := merkle.NewProofRuntime()
	prt.RegisterOpDecoder(types.ProofOpIAVLCommitment, types.CommitmentOpDecoder)
	prt.RegisterOpDecoder(types.ProofOpSimpleMerkleCommitment, types.CommitmentOpDecoder)
	prt.RegisterOpDecoder(ProofOpState, StateOpDecoder)
	return prt
}

// VerifyQuery verifies a multi-store's answer to a query "/name/key" with a proof. It checks that
// the store has the given value for key, or does not have the key if value is nil. appHash is the
// app hash in the header after the answer's height. All errors wrap ErrProof.
//
// It differs from ProofRuntime in two ways: it accepts only one encoding of the operators, and it
// can verify that a key is absent from an empty store, which a runtime cannot.
func VerifyQuery(appHash []byte, name string, key, value []byte, ops *cmtprotocrypto.ProofOps) error {
	if err := verifyQuery(appHash, name, key, value, ops); err != nil {
		return fmt.Errorf("%w: store %q, key %x: %w", ErrProof, name, key, err)
	}
	return nil
}

func verifyQuery(appHash []byte, name string, key, value []byte, ops *cmtprotocrypto.ProofOps) error {
	if n := len(ops.GetOps()); n != 2 && n != 3 {
		return fmt.Errorf("%d operators: want 3, or 2 for an empty store", n)
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
			return fmt.Errorf("unexpected operator %d: type %q, key %x", i, op.Type, op.Key)
		}
	}
	var stored []byte
	if value != nil {
		stored = Escape(value)
	}
	return avlstar.VerifyProof(root, key, stored, p)
}

// storeRoot returns the root of a store. The outermost operator must prove it against appHash.
func storeRoot(appHash []byte, name string, op cmtprotocrypto.ProofOp) (root avlstar.Hash, err error) {
	if op.Type != types.ProofOpSimpleMerkleCommitment || string(op.Key) != name {
		return root, fmt.Errorf("unexpected last operator: type %q, key %q", op.Type, op.Key)
	}
	proof := &ics23.CommitmentProof{}
	if err := proof.Unmarshal(op.Data); err != nil {
		return root, err
	}
	value := proof.GetExist().GetValue()
	if len(value) != sha256.Size || !ics23.VerifyMembership(ics23.TendermintSpec, appHash, proof, []byte(name), value) {
		return root, errors.New("the app hash does not prove this root for this store")
	}
	return avlstar.Hash(value), nil
}

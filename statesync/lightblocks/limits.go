package lightblocks

import (
	"fmt"
	"sync"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/protowalk"
)

// A peer's protobuf is checked before it is decoded, because CometBFT's decoders allocate a hundred
// bytes or more for an element of two bytes. The tables below describe CometBFT's messages
// (proto/tendermint/types) as far as these contain repeated fields.

// Minimum sizes of the elements that CometBFT encodes, in bytes.
const (
	leastSignature = 15  // of an absent validator: flag and time
	leastValidator = 60  // address, ed25519 key, a power of one byte
	leastEvidence  = 200 // two votes, each with address and signature
)

// maxKeyTypes is far above the number of key types in CometBFT.
const maxKeyTypes = 64

var (
	opaque, sub, repeated = protowalk.Opaque, protowalk.Sub, protowalk.Repeated

	blockIDTable = protowalk.Message{Name: "block id", Fields: []protowalk.Field{opaque(1, "hash"), opaque(2, "parts")}}

	headerTable = protowalk.Message{Name: "header", Fields: []protowalk.Field{
		opaque(1, "version"), opaque(2, "chain id"), opaque(4, "time"), sub(5, "last block id", &blockIDTable),
		opaque(6, "last commit hash"), opaque(7, "data hash"), opaque(8, "validators hash"), opaque(9, "next validators hash"),
		opaque(10, "consensus hash"), opaque(11, "app hash"), opaque(12, "last results hash"), opaque(13, "evidence hash"),
		opaque(14, "proposer"),
	}}

	signatureTable = protowalk.Message{Name: "signature", Fields: []protowalk.Field{
		opaque(2, "address"), opaque(3, "time"), opaque(4, "signature"),
	}}

	commitTable = protowalk.Message{Name: "commit", Fields: []protowalk.Field{
		sub(3, "block id", &blockIDTable), repeated(4, "signatures", &signatureTable, types.MaxVotesCount, leastSignature),
	}}

	signedHeaderTable = protowalk.Message{Name: "signed header", Fields: []protowalk.Field{
		sub(1, "header", &headerTable), sub(2, "commit", &commitTable),
	}}

	keyTable = protowalk.Message{Name: "public key", OneOf: true, Fields: []protowalk.Field{
		opaque(1, "ed25519"), opaque(2, "secp256k1"), opaque(3, "bls12381"), opaque(4, "mldsa65"), opaque(5, "secp256k1eth"),
	}}

	validatorTable = protowalk.Message{Name: "validator", Fields: []protowalk.Field{
		opaque(1, "address"), sub(2, "key", &keyTable),
	}}

	validatorSetTable = protowalk.Message{Name: "validator set", Fields: []protowalk.Field{
		repeated(1, "validators", &validatorTable, types.MaxVotesCount, leastValidator), sub(2, "proposer", &validatorTable),
	}}

	lightBlockTable = protowalk.Message{Name: "light block", Fields: []protowalk.Field{
		sub(1, "signed header", &signedHeaderTable), sub(2, "validator set", &validatorSetTable),
	}, Rule: signaturesOfValidators}

	voteTable = protowalk.Message{Name: "vote", Fields: []protowalk.Field{
		sub(4, "block id", &blockIDTable), opaque(5, "time"), opaque(6, "address"), opaque(8, "signature"),
		opaque(9, "extension"), opaque(10, "extension's signature"),
	}}

	duplicateVoteTable = protowalk.Message{Name: "duplicate vote", Fields: []protowalk.Field{
		sub(1, "first vote", &voteTable), sub(2, "second vote", &voteTable), opaque(5, "time"),
	}}

	attackTable = protowalk.Message{Name: "light client attack", Fields: []protowalk.Field{
		sub(1, "conflicting block", &lightBlockTable),
		repeated(3, "byzantine validators", &validatorTable, types.MaxVotesCount, leastValidator), opaque(5, "time"),
	}}

	evidenceTable = protowalk.Message{Name: "evidence", OneOf: true, Fields: []protowalk.Field{
		sub(1, "duplicate vote", &duplicateVoteTable), sub(2, "light client attack", &attackTable),
	}}

	evidenceListTable = protowalk.Message{Name: "evidence of a block", Fields: []protowalk.Field{
		repeated(1, "evidence", &evidenceTable, MaxLightBlock/leastEvidence, leastEvidence),
	}}

	keyTypesTable = protowalk.Message{Name: "validator parameters", Fields: []protowalk.Field{
		repeated(1, "types of keys", nil, maxKeyTypes, 1),
	}}

	paramsTable = protowalk.Message{Name: "consensus parameters", Fields: []protowalk.Field{
		opaque(1, "block"), opaque(2, "evidence"), sub(3, "validator", &keyTypesTable), opaque(4, "version"),
		opaque(5, "abci"), opaque(6, "authority"),
	}}
)

// signaturesOfValidators is the rule of a light block: a commit has at most one signature per
// validator. Validators are longer than signatures, so their bytes bound the number of signatures.
func signaturesOfValidators(lightBlock []byte) error {
	signatures, validators := protowalk.Count(lightBlock, 1, 2, 4), protowalk.Count(lightBlock, 2, 1)
	if signatures > validators {
		return fmt.Errorf("%w: %d signatures of %d validators", protowalk.ErrTooMany, signatures, validators)
	}
	return nil
}

const shortMessage = 64 << 10 // bytes

// long serializes the decoding of long messages in this process, whichever peers they come from.
// The memory that a decoder used in addition to its result is garbage by the time the next one
// starts.
var long sync.Mutex

// walked calls decode if the table accepts body. decode must decode body.
func walked(body []byte, table *protowalk.Message, decode func() error) error {
	if err := protowalk.Walk(body, table); err != nil {
		return err
	}
	if len(body) > shortMessage {
		long.Lock()
		defer long.Unlock()
	}
	return decode()
}

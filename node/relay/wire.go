package relay

import (
	"errors"
	"fmt"

	"github.com/cometbft/cometbft/consensus"
	"github.com/cometbft/cometbft/crypto/merkle"
	"github.com/cometbft/cometbft/p2p"
	cmtcons "github.com/cometbft/cometbft/proto/tendermint/consensus"
	"github.com/cometbft/cometbft/types"
	"github.com/cosmos/gogoproto/proto"

	"github.com/starling-kv/starling/internal/protowalk"
	"github.com/starling-kv/starling/transport"
)

// Method is the method of a relayed message. The body is CometBFT's consensus Message. The answer
// has one bit for each part of the block, set if the peer has the part: part i is bit 1<<(i%8) of
// byte i/8. It is empty if the peer does not know the block.
const Method transport.Method = 18

// maxAnswer limits an answer, in bytes.
const maxAnswer = (int(types.MaxBlockPartsCount) + 7) / 8

// maxMessage limits a message, in bytes: a part, its proof, and the envelope. The proof in the
// largest block has 11 hashes.
const maxMessage = int(types.BlockPartSizeBytes) + 8<<10

// errMessage: no correct node sends these bytes.
var errMessage = errors.New("neither a proposal nor a block part")

// The tables describe CometBFT's messages (proto/tendermint/consensus), as far as they have
// repeated fields.
var (
	proofTable = protowalk.Message{Name: "proof", Fields: []protowalk.Field{
		protowalk.Opaque(3, "leaf hash"), protowalk.Repeated(4, "aunts", nil, merkle.MaxAunts, 32),
	}}
	partTable = protowalk.Message{Name: "part", Fields: []protowalk.Field{
		protowalk.Opaque(2, "bytes"), protowalk.Sub(3, "proof", &proofTable),
	}}
	blockPartTable = protowalk.Message{Name: "block part", Fields: []protowalk.Field{protowalk.Sub(3, "part", &partTable)}}
	proposalTable  = protowalk.Message{Name: "proposal", Fields: []protowalk.Field{protowalk.Opaque(1, "proposal")}}
	messageTable   = protowalk.Message{Name: "message", OneOf: true, Fields: []protowalk.Field{
		protowalk.Opaque(1, "round step"), protowalk.Opaque(2, "valid block"), protowalk.Sub(3, "proposal", &proposalTable),
		protowalk.Opaque(4, "proof of lock"), protowalk.Sub(5, "block part", &blockPartTable), protowalk.Opaque(6, "vote"),
		protowalk.Opaque(7, "has vote"), protowalk.Opaque(8, "majority"), protowalk.Opaque(9, "bits"),
	}}
)

// encode returns the body of a message; nil: this kind is not relayed.
func encode(message proto.Message) []byte {
	switch message.(type) {
	case *cmtcons.Proposal, *cmtcons.BlockPart:
	default:
		return nil
	}
	body, err := proto.Marshal(message.(p2p.Wrapper).Wrap())
	if err != nil || len(body) > maxMessage {
		return nil
	}
	return body
}

// decode parses a body. It returns the message as p2p would pass it to the reactor, and its
// content: a *consensus.ProposalMessage or a *consensus.BlockPartMessage that is valid by itself.
// Errors match errMessage.
func decode(body []byte) (message proto.Message, content consensus.Message, err error) {
	if len(body) > maxMessage {
		return nil, nil, fmt.Errorf("%w: %d bytes", errMessage, len(body))
	}
	if err := protowalk.Walk(body, &messageTable); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errMessage, err)
	}
	var m cmtcons.Message
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errMessage, err)
	}
	switch sum := m.Sum.(type) {
	case *cmtcons.Message_Proposal:
		message = sum.Proposal
	case *cmtcons.Message_BlockPart:
		message = sum.BlockPart
	default:
		return nil, nil, errMessage
	}
	if content, err = consensus.MsgFromProto(message); err == nil {
		err = content.ValidateBasic()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errMessage, err)
	}
	// A part set of this size will be allocated.
	if p, is := content.(*consensus.ProposalMessage); is && p.Proposal.BlockID.PartSetHeader.Total > types.MaxBlockPartsCount {
		return nil, nil, fmt.Errorf("%w: a block of %d parts", errMessage, p.Proposal.BlockID.PartSetHeader.Total)
	}
	return message, content, nil
}

// kind returns the label of a message in metrics.
func kind(message proto.Message) string {
	if _, is := message.(*cmtcons.Proposal); is {
		return Proposal
	}
	return Part
}

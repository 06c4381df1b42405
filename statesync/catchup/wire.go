package catchup

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/wire"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/transport"
)

// MethodBlocks requests blocks of consecutive heights and the commit of the last one
// (docs/spec/transport.md#blocks-method-17).
const MethodBlocks transport.Method = 17

// Limits of the messages.
const (
	MaxBlocks = 256 // in one answer
	// MaxBytes limits an answer. It fits CometBFT's longest block, 100 MiB, with the commit of its
	// largest validator set.
	MaxBytes = 128 << 20
	minBytes = 64 << 10
)

var errMessage = wire.ErrMalformed

// request asks for the blocks of count heights, beginning at from, in an answer of at most limit
// bytes.
//
//	height:u64be ‖ count:u16be (1 … 256) ‖ limit:u32be (64 KiB … 128 MiB)
type request struct {
	from  int64
	count int
	limit int
}

func (r request) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(r.from))
	b = binary.BigEndian.AppendUint16(b, uint16(r.count))
	return binary.BigEndian.AppendUint32(b, uint32(r.limit))
}

func decodeRequest(b []byte) (request, error) {
	w := wire.NewReader(b)
	r := request{w.Height("height"), int(w.Uint16("count")), int(w.Uint32("limit"))}
	if err := w.End(); err != nil {
		return request{}, fmt.Errorf("a request for blocks: %w", err)
	}
	if r.from == 0 || r.from > math.MaxInt64-MaxBlocks || r.count < 1 || r.count > MaxBlocks || r.limit < minBytes || r.limit > MaxBytes {
		return request{}, fmt.Errorf("%d blocks from height %d in %d bytes: %w", r.count, r.from, r.limit, errMessage)
	}
	return r, nil
}

// An answer has at least one block, and otherwise as many as were requested, as the peer has, and
// as fit:
//
//	n:u16be (1 … count) ‖ (length:u32be ‖ block) × n ‖ length:u32be ‖ commit of the last block
//
// or reports how many bytes the first block needs:
//
//	0:u16be ‖ needed:u32be (above the limit, at most 128 MiB)
//
// block is CometBFT's protobuf encoding, which its parts are cut from; commit is a protobuf, too.
const (
	countBytes  = 2
	lengthBytes = 4
)

// appendPart appends a block or a commit to an answer.
func appendPart(answer, part []byte) []byte {
	return append(binary.BigEndian.AppendUint32(answer, uint32(len(part))), part...)
}

// needAnswer answers a request whose limit is too low for its first block.
func needAnswer(needed int) []byte {
	return binary.BigEndian.AppendUint32(make([]byte, countBytes), uint32(needed))
}

// Block is a block of a peer that is consistent in itself, with its commit. The commit proves the
// block once its signatures have been verified against the validators.
type Block struct {
	*types.Block
	ID     types.BlockID  // computed from the received bytes
	Parts  *types.PartSet // over these bytes
	Commit *types.Commit  // names ID
	Bytes  int
}

// decodeNeed returns how many bytes the first block needs, if the answer reports that; ok is false
// for any other answer.
func decodeNeed(r request, answer []byte) (needed int, ok bool, err error) {
	w := wire.NewReader(answer)
	if n := w.Uint16("blocks"); w.Err() != nil || n != 0 {
		return 0, false, nil //nolint:nilerr // another answer
	}
	needed = int(w.Uint32("needed bytes"))
	if err := w.End(); err != nil {
		return 0, true, fmt.Errorf("an answer without blocks: %w", err)
	}
	if needed <= r.limit || needed > MaxBytes {
		return 0, true, fmt.Errorf("needed %d bytes with a limit of %d: %w", needed, r.limit, errMessage)
	}
	return needed, true, nil
}

// answerReader returns the number of blocks in an answer, and a reader positioned after that
// number.
func answerReader(r request, answer []byte) (n int, w *wire.Reader, err error) {
	reader := wire.NewReader(answer)
	n = reader.Count16("blocks", r.count, lengthBytes)
	if err := reader.Err(); err != nil {
		return 0, nil, err
	}
	if n < 1 {
		return 0, nil, fmt.Errorf("no blocks: %w", errMessage)
	}
	return n, &reader, nil
}

// decodeAnswer decodes the first most blocks of an answer from an untrusted peer, or all if it has
// fewer. It checks that the blocks are of the chain and of the requested heights, and that each is
// linked to the next one. It checks only the form of the last commit, and it verifies no
// signatures. The blocks refer to answer, which must not be changed afterwards.
func decodeAnswer(chainID string, r request, answer []byte, most int) ([]Block, error) {
	n, w, err := answerReader(r, answer)
	if err != nil {
		return nil, err
	}
	blocks := make([]Block, 0, min(n, most))
	for range min(n, most) {
		raw := w.Bytes32("block", math.MaxInt32)
		if err := w.Err(); err != nil {
			return nil, err
		}
		b, err := lightblocks.DecodeBlock(raw)
		if err != nil {
			return nil, err
		}
		wanted := r.from + int64(len(blocks))
		if b.Height != wanted || b.ChainID != chainID {
			return nil, fmt.Errorf("a block of height %d of chain %q, not of height %d of %q: %w", b.Height, b.ChainID, wanted, chainID, errMessage)
		}
		parts := types.NewPartSetFromData(raw, types.BlockPartSizeBytes)
		id := types.BlockID{Hash: b.Hash(), PartSetHeader: parts.Header()}
		if len(blocks) > 0 {
			if err := blocks[len(blocks)-1].prove(b.LastCommit); err != nil {
				return nil, err
			}
		}
		blocks = append(blocks, Block{Block: b, ID: id, Parts: parts, Bytes: len(raw)})
	}
	raw := w.Bytes32("commit", math.MaxInt32)
	if err := w.Err(); err != nil {
		return nil, err
	}
	if most < n {
		raw = lightblocks.LastCommit(raw)
	} else if err := w.End(); err != nil {
		return nil, err
	}
	commit, err := lightblocks.DecodeCommit(raw)
	if err != nil {
		return nil, err
	}
	return blocks, blocks[len(blocks)-1].prove(commit)
}

// burden is the memory of an answer while it is decoded, itself included.
type burden struct {
	blocks  int   // the number of leading blocks that fit
	bytes   int64 // their approximate memory
	perHead int   // approximate size of any of its blocks, in bytes of an answer
}

// weighAnswer estimates the memory of an answer, whose blocks need not be well-formed, and how many
// of them can be decoded within most bytes. Its errors wrap errMessage.
func weighAnswer(r request, answer []byte, most int64) (burden, error) {
	n, w, err := answerReader(r, answer)
	if err != nil {
		return burden{}, err
	}
	sums := make([]int64, 0, MaxBlocks) // of the first blocks, each with the commit after them
	all := int64(len(answer))
	for i := range n {
		raw := w.Bytes32("block", math.MaxInt32)
		if err := w.Err(); err != nil {
			return burden{}, err
		}
		if i > 0 {
			sums = append(sums, all+signatureMemory*int64(len(lightblocks.LastCommit(raw))))
		}
		all += lightblocks.BlockMemory(raw)
	}
	all += signatureMemory * int64(w.Len())
	sums = append(sums, all)
	weight := burden{perHead: int(max(all/decoded, int64(len(answer)))) / n}
	for i, sum := range sums {
		if sum <= most {
			weight.blocks, weight.bytes = i+1, sum
		}
	}
	return weight, nil
}

// signatureMemory is the memory per byte of a decoded commit.
const signatureMemory = 20

// prove sets the commit of a block; the commit must be for this block.
func (b *Block) prove(commit *types.Commit) error {
	if commit == nil || commit.Height != b.Height || !commit.BlockID.Equals(b.ID) {
		return fmt.Errorf("the commit that follows block %d is for another block: %w", b.Height, errMessage)
	}
	b.Commit = commit
	return nil
}

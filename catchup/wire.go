package catchup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/transport"
)

// MethodBlocks asks for blocks of consecutive heights, and the commit of the last one
// (docs/spec/transport.md#blocks-method-17).
const MethodBlocks transport.Method = 17

// Limits of the messages.
const (
	MaxBlocks = 256 // in one answer
	// MaxBytes is the limit of an answer: it has room for CometBFT's longest block, 100 MiB, and
	// the commit of its largest set of validators.
	MaxBytes = 128 << 20
	minBytes = 64 << 10

	requestBytes = 8 + 2 + 4
)

var errMessage = errors.New("malformed message")

// request asks for the blocks of count heights, from from upwards, in an answer of at most limit
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
	if len(b) != requestBytes {
		return request{}, fmt.Errorf("a request for blocks has %d bytes, not %d: %w", requestBytes, len(b), errMessage)
	}
	from := binary.BigEndian.Uint64(b)
	r := request{int64(from), int(binary.BigEndian.Uint16(b[8:])), int(binary.BigEndian.Uint32(b[10:]))}
	if from == 0 || from > math.MaxInt64-MaxBlocks || r.count < 1 || r.count > MaxBlocks || r.limit < minBytes || r.limit > MaxBytes {
		return request{}, fmt.Errorf("%d blocks from height %d in %d bytes: %w", r.count, from, r.limit, errMessage)
	}
	return r, nil
}

// An answer has as many blocks as were asked for, the peer has, and fit, and at least one:
//
//	n:u16be (1 … count) ‖ (length:u32be ‖ block) × n ‖ length:u32be ‖ commit of the last block
//
// or says how many bytes it would need for the first block:
//
//	0:u16be ‖ needed:u32be (above the limit, at most 128 MiB)
//
// block is CometBFT's protobuf, the bytes that its parts are cut from; commit is its protobuf.
const (
	countBytes  = 2
	lengthBytes = 4
)

// appendPart appends a block or a commit to an answer.
func appendPart(answer, part []byte) []byte {
	return append(binary.BigEndian.AppendUint32(answer, uint32(len(part))), part...)
}

// needAnswer is the answer to a request whose limit is too low for its first block.
func needAnswer(needed int) []byte {
	return binary.BigEndian.AppendUint32(make([]byte, countBytes), uint32(needed))
}

// Block is a block of a peer, consistent in itself, with the commit that proves it once somebody
// who knows the validators has checked the signatures.
type Block struct {
	*types.Block
	ID     types.BlockID  // computed from the bytes that came
	Parts  *types.PartSet // over these bytes
	Commit *types.Commit  // names ID
	Bytes  int
}

// decodeNeed returns how many bytes an answer says that it needs; ok is false if it is another
// answer.
func decodeNeed(r request, answer []byte) (needed int, ok bool, err error) {
	if len(answer) < countBytes || binary.BigEndian.Uint16(answer) != 0 {
		return 0, false, nil
	}
	if len(answer) != countBytes+lengthBytes {
		return 0, true, fmt.Errorf("an answer without blocks has %d bytes: %w", len(answer), errMessage)
	}
	needed = int(binary.BigEndian.Uint32(answer[countBytes:]))
	if needed <= r.limit || needed > MaxBytes {
		return 0, true, fmt.Errorf("a block of %d bytes does not fit in %d: %w", needed, r.limit, errMessage)
	}
	return needed, true, nil
}

// countBlocks returns how many blocks an answer has.
func countBlocks(r request, answer []byte) (int, error) {
	if len(answer) < countBytes {
		return 0, fmt.Errorf("an answer of %d bytes: %w", len(answer), errMessage)
	}
	n := int(binary.BigEndian.Uint16(answer))
	if n < 1 || n > r.count {
		return 0, fmt.Errorf("%d blocks, and %d were asked for: %w", n, r.count, errMessage)
	}
	return n, nil
}

// decodeAnswer decodes the first most blocks of an answer, or all, if it has fewer: that somebody
// has sent who need not be honest. They are of the chain and of the heights that were asked for,
// and each is linked to the next one; of the last commit only the form is checked, and of no commit
// the signatures. The blocks keep answer: it must not be changed afterwards.
func decodeAnswer(chainID string, r request, answer []byte, most int) ([]Block, error) {
	n, err := countBlocks(r, answer)
	if err != nil {
		return nil, err
	}
	rest := answer[countBytes:]
	blocks := make([]Block, 0, min(n, most))
	for range min(n, most) {
		raw, err := nextPart(&rest)
		if err != nil {
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
	raw, err := nextPart(&rest)
	switch {
	case err != nil:
		return nil, err
	case most < n:
		raw = lightblocks.LastCommit(raw)
	case len(rest) > 0:
		return nil, fmt.Errorf("%d bytes after the commit: %w", len(rest), errMessage)
	}
	commit, err := lightblocks.DecodeCommit(raw)
	if err != nil {
		return nil, err
	}
	return blocks, blocks[len(blocks)-1].prove(commit)
}

// burden is what an answer takes in memory while it is decoded, itself included.
type burden struct {
	blocks  int   // that fit, from the first one on
	bytes   int64 // what these take, about
	perHead int   // about what any of its blocks takes, in bytes of an answer
}

// weighAnswer counts what an answer takes, whose blocks need not be well-formed, and how many of
// them can be decoded within most bytes. Its errors wrap errMessage.
func weighAnswer(r request, answer []byte, most int64) (burden, error) {
	n, err := countBlocks(r, answer)
	if err != nil {
		return burden{}, err
	}
	rest := answer[countBytes:]
	sums := make([]int64, 0, MaxBlocks) // of the first blocks, and of the commit after these
	all := int64(len(answer))
	for i := range n {
		raw, err := nextPart(&rest)
		if err != nil {
			return burden{}, err
		}
		if i > 0 {
			sums = append(sums, all+signatureMemory*int64(len(lightblocks.LastCommit(raw))))
		}
		all += lightblocks.BlockMemory(raw)
	}
	all += signatureMemory * int64(len(rest))
	sums = append(sums, all)
	w := burden{perHead: int(max(all/decoded, int64(len(answer)))) / n}
	for i, sum := range sums {
		if sum <= most {
			w.blocks, w.bytes = i+1, sum
		}
	}
	return w, nil
}

// signatureMemory is what a byte of a commit takes, decoded.
const signatureMemory = 20

// prove sets the commit of a block, which must name it.
func (b *Block) prove(commit *types.Commit) error {
	if commit == nil || commit.Height != b.Height || !commit.BlockID.Equals(b.ID) {
		return fmt.Errorf("the commit that follows block %d is of another block: %w", b.Height, errMessage)
	}
	b.Commit = commit
	return nil
}

func nextPart(rest *[]byte) ([]byte, error) {
	b := *rest
	if len(b) < lengthBytes || uint64(len(b)-lengthBytes) < uint64(binary.BigEndian.Uint32(b)) {
		return nil, fmt.Errorf("a block or commit is cut off: %w", errMessage)
	}
	end := lengthBytes + int(binary.BigEndian.Uint32(b))
	*rest = b[end:]
	return b[lengthBytes:end:end], nil
}

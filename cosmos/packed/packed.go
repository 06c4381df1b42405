// Package packed compresses chunks on their way to a joiner that accepts it
// (docs/spec/iavl.md#requests).
//
//	answer ──Packer.Pack──▶ 03 ‖ zstd frame ──▶ Unpacker.Split ──▶ chunk ──▶ iavlsync.VerifyChunk
//
// A frame proves nothing: the receiver verifies the chunk that it has. iavlsync itself has no
// dependency, so it does not know this kind of answer, and refuses it.
package packed

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/klauspost/compress/zstd"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// Kind is the first byte of a compressed answer. A zstd frame (RFC 8878) of a whole chunk follows.
const Kind = 3

// Packer compresses answers. It may be used concurrently. At most four answers, and one for two
// processors, are compressed at a time: a validator executes blocks meanwhile.
type Packer struct{ zstd *zstd.Encoder }

// maxRatio limits the length of a chunk over that of its frame, and so the memory that a false
// frame costs a receiver.
const maxRatio = 256

// NewPacker returns a Packer.
func NewPacker() *Packer {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderCRC(false), // the chunk is verified
		zstd.WithEncoderConcurrency(max(1, min(4, runtime.GOMAXPROCS(0)/2))), zstd.WithLowerEncoderMem(true),
		zstd.WithSingleSegment(true))
	if err != nil {
		panic(err) // the options are constants
	}
	return &Packer{e}
}

// sampleBytes is the length of the part of a chunk that shows whether compression pays, so that
// random values cost little.
const sampleBytes = 16 << 10

// Pack returns the compressed form of an answer if that is shorter by a tenth, but not 256 times
// shorter, and the answer otherwise. Only whole chunks are compressed.
func (p *Packer) Pack(answer []byte) []byte {
	if len(answer) == 0 || iavlsync.AnswerKind(answer[0]) != iavlsync.AnswerWhole {
		return answer
	}
	chunk := answer[1:]
	if len(chunk) > 4*sampleBytes {
		sample := chunk[len(chunk)/2:][:sampleBytes]
		if !pays(len(p.zstd.EncodeAll(sample, nil)), sampleBytes) {
			return answer
		}
	}
	b := make([]byte, 1, 1+len(chunk)/2)
	b[0] = Kind
	if b = p.zstd.EncodeAll(chunk, b); pays(len(b), len(answer)) && len(chunk) <= maxRatio*(len(b)-1) {
		return b
	}
	return answer
}

func pays(packed, plain int) bool { return packed <= plain-plain/10 }

// Unpacker decompresses answers. It may be used concurrently; at most one answer per CPU is
// decompressed at a time.
type Unpacker struct{ zstd *zstd.Decoder }

// NewUnpacker returns an Unpacker.
func NewUnpacker() *Unpacker {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(iavlsync.MaxAnswerBytes), zstd.WithDecoderMaxWindow(iavlsync.MaxAnswerBytes))
	if err != nil {
		panic(err) // the options are constants
	}
	return &Unpacker{d}
}

// maxBlock is the length of the longest block of a frame (RFC 8878, section 3.1.1.2.4).
const maxBlock = 128 << 10

// Split is iavlsync.SplitAnswer, which also accepts compressed answers. It allocates one block more
// than the chunk, which has at most 16 MiB, and at most 256 times the length of the answer. Errors
// wrap iavlsync.ErrInvalidChunk.
func (u *Unpacker) Split(answer []byte) (iavlsync.AnswerKind, []byte, error) {
	if len(answer) == 0 || answer[0] != Kind {
		return iavlsync.SplitAnswer(answer)
	}
	frame := answer[1:]
	var head zstd.Header
	err := head.Decode(frame)
	n := head.FrameContentSize
	switch {
	case err != nil:
	case head.Skippable || !head.HasFCS:
		err = errors.New("the frame does not have the length of its chunk")
	case n > iavlsync.MaxAnswerBytes || n <= uint64(len(frame)) || n > maxRatio*uint64(len(frame)):
		err = fmt.Errorf("a frame of %d bytes with a chunk of %d", len(frame), n)
	case !isWhole(frame, head):
		err = errors.New("not one whole frame")
	}
	var chunk []byte
	if err == nil {
		// The output is limited to the capacity. A false block may be longer than the rest of it.
		chunk, err = u.zstd.DecodeAll(frame, make([]byte, 0, n+maxBlock))
	}
	if err == nil && uint64(len(chunk)) != n {
		err = fmt.Errorf("%d bytes, the frame has %d", len(chunk), n)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%w: compressed: %w", iavlsync.ErrInvalidChunk, err)
	}
	return iavlsync.AnswerWhole, chunk, nil
}

// isWhole reports whether b is one frame with this header, and nothing more.
func isWhole(b []byte, head zstd.Header) bool {
	for at := head.HeaderSize; at+3 <= len(b); {
		block := uint32(b[at]) | uint32(b[at+1])<<8 | uint32(b[at+2])<<16
		const runLength = 1
		if at += 3; block>>1&3 == runLength {
			at++
		} else {
			at += int(block >> 3)
		}
		if last := block&1 == 1; last {
			if head.HasCheckSum {
				at += 4
			}
			return at == len(b)
		}
	}
	return false
}

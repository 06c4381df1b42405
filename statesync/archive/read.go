package archive

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/klauspost/compress/zstd"

	"github.com/starling-kv/starling/avlstar"
)

// Reader reads a snapshot file.
type Reader struct {
	in      io.ReaderAt
	size    int64
	header  Header
	body    int64 // offset of the manifest
	trailer trailer
}

// Open reads header and trailer, and detects a file that is not complete: ErrNotArchive,
// ErrVersion, ErrTruncated, ErrTrailing, ErrDamaged. in must not change while it is used; its
// ReadAt may be called concurrently.
func Open(in io.ReaderAt, size int64) (*Reader, error) {
	r := &Reader{in: in, size: size}
	if err := r.readHeader(); err != nil {
		return nil, err
	}
	if err := r.readTrailer(); err != nil {
		return nil, err
	}
	return r, nil
}

// Header returns the file's header.
func (r *Reader) Header() Header { return r.header }

// Size returns the length of the file in bytes.
func (r *Reader) Size() uint64 { return uint64(r.size) }

// read reads the bytes [at, at+n), all of which are in the file.
func (r *Reader) read(at int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if got, err := r.in.ReadAt(b, at); got < n {
		return nil, fmt.Errorf("byte offset %d: %w", at+int64(got), err)
	}
	return b, nil
}

func (r *Reader) readHeader() error {
	prelude, err := r.read(0, int(min(r.size, int64(preludeBytes))))
	if err != nil {
		return err
	}
	if n := min(len(prelude), len(magic)); string(prelude[:n]) != magic[:n] {
		return ErrNotArchive
	}
	cut := fmt.Errorf("%w: it ends in the header, after %d bytes", ErrTruncated, r.size)
	if len(prelude) < preludeBytes {
		return cut
	}
	length, err := headerBytes(prelude)
	if err != nil {
		return &DamageError{"header", 0, err}
	}
	if int64(length) > r.size {
		return cut
	}
	b, err := r.read(0, length)
	if err != nil {
		return err
	}
	r.body = int64(length)
	r.header, err = decodeHeader(b)
	if err != nil && !errors.Is(err, ErrVersion) {
		err = &DamageError{"header", 0, err}
	}
	return err
}

// frames returns the offset of the first frame.
func (r *Reader) frames() uint64 { return uint64(r.body) + r.header.manifest + crcBytes }

func (r *Reader) readTrailer() error {
	if end := r.frames() + uint64(trailerBytes); end > uint64(r.size) {
		return fmt.Errorf("%w: it ends at byte offset %d, and needs at least %d bytes", ErrTruncated, r.size, end)
	}
	at := r.size - trailerBytes
	b, err := r.read(at, int(trailerBytes))
	if err != nil {
		return err
	}
	t, ok := decodeTrailer(b)
	if !ok || t.fileBytes != uint64(r.size) {
		return r.diagnose()
	}
	if t.chunks != r.header.Commitment.Chunks {
		return &DamageError{"trailer", at, fmt.Errorf("%d chunks, the header says %d", t.chunks, r.header.Commitment.Chunks)}
	}
	r.trailer = t
	return nil
}

// diagnose finds out what is wrong with a file that does not end with its trailer, from the heads
// of its frames.
func (r *Reader) diagnose() error {
	at, size := r.frames(), uint64(r.size)
	m := r.header.Commitment.Chunks
	for k := range m {
		cut := fmt.Errorf("%w: it ends at byte offset %d, in chunk %d of %d", ErrTruncated, size, k, m)
		if size-at < frameHead {
			return cut
		}
		head, err := r.read(int64(at), frameHead)
		if err != nil {
			return err
		}
		length := uint64(binary.BigEndian.Uint32(head[1:]))
		if err := checkFrame(head[0], length, maxChunk, false); err != nil {
			return &DamageError{chunkName(k, m), int64(at), err}
		}
		if size-at < frameHead+length+crcBytes {
			return cut
		}
		at += frameHead + length + crcBytes
	}
	if size-at < uint64(trailerBytes) {
		return fmt.Errorf("%w: it ends at byte offset %d, in the trailer", ErrTruncated, size)
	}
	b, err := r.read(int64(at), int(trailerBytes))
	if err != nil {
		return err
	}
	t, ok := decodeTrailer(b)
	if !ok || t.fileBytes != at+uint64(trailerBytes) {
		return &DamageError{"trailer", int64(at), errors.New("not a trailer")}
	}
	return fmt.Errorf("%w: %d bytes after its end at byte offset %d", ErrTrailing, size-t.fileBytes, t.fileBytes)
}

func chunkName(k, m uint32) string { return fmt.Sprintf("chunk %d of %d", k, m) }

// Contents are the chunks of a file whose manifest is proved.
type Contents struct {
	Manifest *avlstar.Manifest
	r        *Reader
	unpack   *zstd.Decoder
}

// Verify proves the manifest against a trusted app hash. The proved header bounds the memory for
// reading it.
func (r *Reader) Verify(appHash avlstar.Hash) (*Contents, error) {
	if got := r.header.AppHash(); got != appHash {
		return nil, fmt.Errorf("%w: its app hash is %s, the trusted one of height %d is %s", ErrOtherState, got, r.header.Height, appHash)
	}
	// the proved number of chunks bounds the length, and the file contains it
	b, err := r.read(r.body, int(r.header.manifest)+crcBytes)
	if err != nil {
		return nil, err
	}
	encoded, ok := cutCRC(b)
	if !ok {
		return nil, &DamageError{"manifest", r.body, errChecksum}
	}
	m, err := avlstar.VerifyManifest(encoded, appHash)
	if err != nil {
		return nil, &DamageError{"manifest", r.body, err}
	}
	if total := totalBytes(m); total != r.trailer.bytes {
		return nil, &DamageError{"trailer", r.size - trailerBytes, fmt.Errorf("chunks of %d bytes, the manifest has %d", r.trailer.bytes, total)}
	}
	// Decoders for concurrent callers of Data. Their output is capped at the expected length, so a
	// decompression bomb costs nothing.
	unpack, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxChunk), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return &Contents{m, r, unpack}, nil
}

// maxWindow is the next power of two above maxChunk.
const maxWindow = 1 << 24

// Chunk is a chunk of the file whose checksum was verified.
type Chunk struct {
	Index   uint32
	Offset  int64 // of its frame
	c       *Contents
	method  byte
	payload []byte
}

// Chunks yields all chunks in order. An error is yielded last. The caller may stop early.
func (c *Contents) Chunks() iter.Seq2[*Chunk, error] {
	return func(yield func(*Chunk, error) bool) {
		at := int64(c.r.frames())
		end := c.r.size - trailerBytes
		in := bufio.NewReaderSize(io.NewSectionReader(c.r.in, at, end-at), 1<<20)
		for k := range uint32(len(c.Manifest.Entries)) {
			chunk, err := c.next(in, k, at, end)
			if err != nil {
				yield(nil, err)
				return
			}
			at += int64(frameHead + len(chunk.payload) + crcBytes)
			if !yield(chunk, nil) {
				return
			}
		}
		if at != end {
			yield(nil, fmt.Errorf("%w: %d bytes before the trailer at byte offset %d", ErrTrailing, end-at, end))
		}
	}
}

// ChunkAt reads chunk k again, whose frame is at an offset that Chunks has yielded. It may be
// called concurrently.
func (c *Contents) ChunkAt(k uint32, at int64) (*Chunk, error) {
	end := c.r.size - trailerBytes
	return c.next(io.NewSectionReader(c.r.in, at, end-at), k, at, end)
}

// next reads the frame of chunk k at offset at; end is the offset of the trailer.
func (c *Contents) next(in io.Reader, k uint32, at, end int64) (*Chunk, error) {
	damaged := func(err error) error { return &DamageError{chunkName(k, uint32(len(c.Manifest.Entries))), at, err} }
	failed := func(err error) error {
		// an early end in a file of the length that its trailer has
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return damaged(errors.New("the frame reaches into the trailer"))
		}
		return fmt.Errorf("byte offset %d: %w", at, err)
	}
	var head [frameHead]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, failed(err)
	}
	length := uint64(binary.BigEndian.Uint32(head[1:]))
	if err := checkFrame(head[0], length, c.Manifest.Entries[k].Root.Bytes, true); err != nil {
		return nil, damaged(err)
	}
	if uint64(end-at) < frameHead+length+crcBytes {
		return nil, damaged(errors.New("the frame reaches into the trailer"))
	}
	b := make([]byte, frameHead+int(length)+crcBytes)
	copy(b, head[:])
	if _, err := io.ReadFull(in, b[frameHead:]); err != nil {
		return nil, failed(err)
	}
	body, ok := cutCRC(b)
	if !ok {
		return nil, damaged(errChecksum)
	}
	return &Chunk{k, at, c, head[0], body[frameHead:]}, nil
}

// Data returns the uncompressed chunk, which has exactly the length in the manifest. The caller
// verifies the contents with VerifyChunk, see Damaged. Data may be called concurrently; the caller
// owns the result.
func (k *Chunk) Data() ([]byte, error) {
	if k.method == stored {
		return k.payload, nil
	}
	want := k.c.Manifest.Entries[k.Index].Root.Bytes
	var head zstd.Header
	if err := head.Decode(k.payload); err != nil {
		return nil, k.Damaged(err)
	}
	if head.Skippable || !head.HasFCS || head.FrameContentSize != want || !bytes.HasPrefix(k.payload, zstdMagic) {
		return nil, k.Damaged(fmt.Errorf("its content size is not %d bytes", want))
	}
	data, err := k.c.unpack.DecodeAll(k.payload, make([]byte, 0, want))
	if err != nil {
		return nil, k.Damaged(err)
	}
	if uint64(len(data)) != want {
		return nil, k.Damaged(fmt.Errorf("it unpacks to %d bytes, the manifest has %d", len(data), want))
	}
	return data, nil
}

// zstdMagic starts a zstd frame (RFC 8878, section 3.1.1).
var zstdMagic = []byte{0x28, 0xB5, 0x2F, 0xFD}

// Damaged returns a DamageError for a chunk that is unusable because of err.
func (k *Chunk) Damaged(err error) error {
	return &DamageError{chunkName(k.Index, uint32(len(k.c.Manifest.Entries))), k.Offset, err}
}

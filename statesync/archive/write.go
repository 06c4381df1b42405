package archive

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"

	"github.com/klauspost/compress/zstd"

	"github.com/starling-kv/starling/avlstar"
)

// Source is an immutable snapshot. Chunk may be called concurrently, for indices below the
// commitment's number of chunks; the caller owns the result. Manifest returns the encoded manifest,
// which the caller does not modify.
type Source interface {
	Height() int64
	Commitment() avlstar.Commitment
	Manifest() []byte
	Chunk(k uint32) ([]byte, error)
}

// Options configure Write.
type Options struct {
	ChainID string // 1 to 50 bytes
	// Progress, if not nil, is called from one goroutine with the number of chunk bytes written.
	Progress func(done, total uint64)

	workers int // chunks read and compressed in parallel; default: one per CPU
}

// Stats describe a written file.
type Stats struct {
	Chunks    uint32
	Bytes     uint64 // total length of all chunks, uncompressed
	FileBytes uint64
}

// Write writes a snapshot; it stops when ctx ends. The same state gives the same bytes for any
// number of workers. At most workers + 2 chunks are in memory, in addition to the manifest. After
// an error the output is not a snapshot file. src is not used after Write has returned.
func Write(ctx context.Context, w io.Writer, src Source, o Options) (Stats, error) {
	manifest := src.Manifest()
	header := Header{ChainID: o.ChainID, Height: src.Height(), Commitment: src.Commitment(), manifest: uint64(len(manifest))}
	if err := header.check(); err != nil {
		return Stats{}, fmt.Errorf("snapshot file: %w", err)
	}
	m, err := avlstar.VerifyManifest(manifest, header.AppHash())
	if err != nil {
		return Stats{}, fmt.Errorf("snapshot file: %w", err)
	}
	a := &writer{out: w, src: src, manifest: m, progress: o.Progress, total: totalBytes(m)}
	if o.workers <= 0 {
		o.workers = runtime.GOMAXPROCS(0)
	}
	if a.zstd, err = newEncoder(o.workers); err != nil {
		return Stats{}, err
	}
	a.write(header.encode())
	a.write(manifest)
	a.write(appendCRC(manifest[:len(manifest):len(manifest)])[len(manifest):])
	if err := a.chunks(ctx, o.workers); err != nil {
		return Stats{}, err
	}
	stats := Stats{Chunks: uint32(len(m.Entries)), Bytes: a.total, FileBytes: a.written + uint64(trailerBytes)}
	a.write(trailer{stats.Chunks, stats.Bytes, stats.FileBytes}.encode())
	return stats, a.failed
}

func totalBytes(m *avlstar.Manifest) (total uint64) {
	for k := range m.Entries {
		total += m.Entries[k].Root.Bytes // VerifyManifest has checked the sum for overflow
	}
	return total
}

func newEncoder(workers int) (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(workers), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderCRC(false), // the frame has its own checksum
		zstd.WithSingleSegment(true))
}

type writer struct {
	out      io.Writer
	src      Source
	manifest *avlstar.Manifest
	zstd     *zstd.Encoder
	progress func(done, total uint64)
	total    uint64
	written  uint64
	failed   error // first error of out
}

func (a *writer) write(b []byte) {
	if a.failed != nil {
		return
	}
	n, err := a.out.Write(b)
	a.written += uint64(n)
	a.failed = err
}

// frame is an encoded chunk.
type frame struct {
	bytes []byte
	chunk uint64 // length of the chunk
	err   error
}

// chunks encodes frames in parallel and writes them in order.
func (a *writer) chunks(ctx context.Context, workers int) error {
	ctx, cancel := context.WithCancel(ctx)
	queue := make(chan chan frame, workers)
	go func() {
		defer close(queue)
		for k := range a.manifest.Entries {
			made := make(chan frame, 1)
			select {
			case queue <- made:
			case <-ctx.Done():
				return
			}
			go func() { made <- a.frame(uint32(k)) }()
		}
	}()
	var (
		done uint64
		err  error
	)
	for made := range queue { // drain it, so that the source is not used afterwards
		f := <-made
		switch {
		case err != nil:
			continue
		case ctx.Err() != nil:
			err = ctx.Err()
		case f.err != nil:
			err = f.err
		default:
			a.write(f.bytes)
			err = a.failed
		}
		if err != nil {
			cancel()
			continue
		}
		if done += f.chunk; a.progress != nil {
			a.progress(done, a.total)
		}
	}
	if err == nil {
		err = ctx.Err() // the queue may have ended early
	}
	cancel()
	return err
}

// frame reads and compresses chunk k.
func (a *writer) frame(k uint32) frame {
	data, err := a.src.Chunk(k)
	if err != nil {
		return frame{err: fmt.Errorf("chunk %d of %d: %w", k, len(a.manifest.Entries), err)}
	}
	if want := a.manifest.Entries[k].Root.Bytes; uint64(len(data)) != want {
		return frame{err: fmt.Errorf("chunk %d of %d: %d bytes, the manifest has %d", k, len(a.manifest.Entries), len(data), want)}
	}
	b := make([]byte, frameHead, frameHead+len(data)+crcBytes)
	b = a.zstd.EncodeAll(data, b)
	b[0] = compressed
	if len(b)-frameHead >= len(data) {
		b = append(b[:frameHead], data...)
		b[0] = stored
	}
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-frameHead))
	return frame{bytes: appendCRC(b), chunk: uint64(len(data))}
}

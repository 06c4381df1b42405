package storagenode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/dustin/go-humanize"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/archive"
	"github.com/starling-kv/starling/transport"
)

// snapshotFile is a snapshot file as a source of ranges: it answers the requests of a takeover at
// one height, like another node, and is trusted as little.
//
//	FILE ──one pass──► the tree above its pages, in memory
//	  └── chunk k ◄── pages of a witness
type snapshotFile struct {
	path   string
	file   *archive.File
	log    log.Logger
	height int64

	open struct { // held while the file is read for the first time
		sync.Mutex
		version *avlstar.Version // nil: not read yet
		failure error            // the file cannot be used
	}
	contents *archive.Contents
	chunks   []fileChunk

	mu struct {
		sync.Mutex
		read []readChunk // the last ones, the newest first
	}
}

type fileChunk struct {
	first []byte // least key
	at    int64  // offset of the frame
}

type readChunk struct {
	k    int
	data []byte
}

// chunksRead is the number of unpacked chunks in memory: one for each worker of a takeover.
const chunksRead = pageWorkers

var (
	_ transport.Conn = (*snapshotFile)(nil)
	_ avlstar.Pages  = (*snapshotFile)(nil)
)

// openSnapshotFile opens a snapshot file of a chain. It reads only the header and the trailer.
func openSnapshotFile(path, chainID string, logger log.Logger) (*snapshotFile, error) {
	file, err := archive.OpenFile(path)
	if err != nil {
		return nil, err
	}
	header := file.Header()
	if header.ChainID != chainID {
		err := config.Invalid(fmt.Errorf("the snapshot file %q has chain %q, the genesis file has chain %q", path, header.ChainID, chainID))
		return nil, errors.Join(err, file.Close())
	}
	return &snapshotFile{path: path, file: file, log: logger, height: header.Height}, nil
}

// Close implements transport.Conn.
func (f *snapshotFile) Close() error {
	f.open.Lock()
	defer f.open.Unlock()
	if f.open.version != nil {
		f.open.version.Release()
		f.open.version = nil
	}
	return f.file.Close()
}

func (f *snapshotFile) Remote() transport.Address { return transport.Address{HostPort: f.path} }
func (f *snapshotFile) ChainID() string           { return f.file.Header().ChainID }
func (f *snapshotFile) Done() <-chan struct{}     { return nil }
func (f *snapshotFile) Err() error                { return nil }

// prepare reads the file once. Nothing in the file is trusted: the takeover verifies what it takes
// from it against a proved header. Errors: that of ctx; archive.ErrDamaged and others of the file.
func (f *snapshotFile) prepare(ctx context.Context) error {
	f.open.Lock()
	defer f.open.Unlock()
	if f.open.version != nil || f.open.failure != nil {
		return f.open.failure
	}
	var err error
	if f.contents, err = f.file.Verify(f.file.Header().AppHash()); err == nil {
		f.chunks = nil
		paging := avlstar.Paging{Pages: f, Budget: func() int64 { return 0 }}
		f.open.version, err = avlstar.FromLeavesPaged(f.contents.Manifest.ChunkBytes, paging, f.leaves(ctx))
	}
	if err != nil && ctx.Err() == nil {
		f.open.failure = err
	}
	return err
}

// leaves yields the leaves of all chunks, and notes where these begin.
func (f *snapshotFile) leaves(ctx context.Context) iter.Seq2[avlstar.Leaf, error] {
	began, logged, done := time.Now(), time.Now(), uint64(0)
	total := f.file.Header().Commitment.Root.Bytes
	return func(yield func(avlstar.Leaf, error) bool) {
		for chunk, err := range f.contents.Chunks() {
			var data []byte
			if err = errors.Join(err, ctx.Err()); err == nil {
				data, err = f.unpack(chunk)
			}
			if err != nil {
				yield(avlstar.Leaf{}, err)
				return
			}
			done += uint64(len(data))
			for first := true; len(data) > 0; first = false {
				l, rest, err := record.Decode(data)
				if err != nil {
					err = chunk.Damaged(err)
				} else if first {
					f.chunks = append(f.chunks, fileChunk{bytes.Clone(l.Key), chunk.Offset})
				}
				if !yield(l, err) || err != nil {
					return
				}
				data = rest
			}
			if time.Since(logged) >= progressEvery {
				logged = time.Now()
				rate := float64(done) / time.Since(began).Seconds()
				f.log.Info("Reading a snapshot file", "file", f.path, "height", f.height, "bytes", done, "of", total,
					"rate", humanize.IBytes(uint64(rate))+"/s", "seconds_left", int64(float64(total-min(done, total))/rate))
			}
		}
	}
}

// unpack returns the records of a chunk; the first one has its height in the tree.
func (f *snapshotFile) unpack(c *archive.Chunk) ([]byte, error) {
	data, err := c.Data()
	if err != nil {
		return nil, err
	}
	if len(data) > 0 {
		data[0] = f.contents.Manifest.Entries[c.Index].BoundaryHeight
	}
	return data, nil
}

// chunk returns the records of chunk k.
func (f *snapshotFile) chunk(k int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.IndexFunc(f.mu.read, func(r readChunk) bool { return r.k == k }); i >= 0 {
		return f.mu.read[i].data, nil
	}
	c, err := f.contents.ChunkAt(uint32(k), f.chunks[k].at)
	if err != nil {
		return nil, err
	}
	data, err := f.unpack(c)
	if err != nil {
		return nil, err
	}
	f.mu.read = append([]readChunk{{k, data}}, f.mu.read[:min(len(f.mu.read), chunksRead-1)]...)
	return data, nil
}

// Page implements avlstar.Pages.
func (f *snapshotFile) Page(s avlstar.Subtree) (*avlstar.Page, error) {
	k := max(0, sort.Search(len(f.chunks), func(i int) bool { return bytes.Compare(f.chunks[i].first, s.First) > 0 })-1)
	var records []byte
	for ; uint64(len(records)) < s.Bytes && k < len(f.chunks); k++ {
		data, err := f.chunk(k)
		if err != nil {
			return nil, err
		}
		for len(records) == 0 && len(data) > 0 {
			l, rest, err := record.Decode(data)
			if err != nil {
				return nil, err
			}
			if bytes.Compare(l.Key, s.First) >= 0 {
				break
			}
			data = rest
		}
		records = append(records, data[:min(uint64(len(data)), s.Bytes-uint64(len(records)))]...)
	}
	return avlstar.VerifyPage(s.Stub, records)
}

// Call implements transport.Conn.
func (f *snapshotFile) Call(_ context.Context, c transport.Call) ([]byte, error) {
	switch c.Method {
	case dsm.MethodUpper:
		u, err := witness.DecodeUpper(c.Body)
		if err != nil {
			return nil, err
		}
		if u.Height != f.height {
			return nil, transport.ErrGone
		}
		return witness.Upper(f.open.version, int(u.Depth))
	case dsm.MethodWitness:
		w, err := witness.DecodeWitness(c.Body)
		if err != nil {
			return nil, err
		}
		if w.Height != f.height {
			return nil, transport.ErrGone
		}
		return witness.Multiproof(f.open.version, w, multiproofBytes, false)
	}
	return nil, transport.ErrRefused
}

// fillFromFile takes a range over from the snapshot file, at its height; other nodes are asked for
// what cannot be read. A range follows from there, or is taken over at a newer height, for which
// only what has changed since then is fetched.
func (n *Process) fillFromFile(ctx context.Context, p *place, v verifier, givers []*giver) error {
	f := n.snapshot
	if err := f.prepare(ctx); err != nil {
		return fmt.Errorf("the snapshot file %q: %w", f.path, err)
	}
	file := &giver{Conn: f, parts: []dsm.Claim{{Oldest: f.height, Newest: f.height}}}
	return n.takeOverAt(ctx, p, v, append([]*giver{file}, givers...), f.height)
}

package serve

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/starling-kv/starling/cosmos/codefiles"
	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
)

// extensions holds what an application's extension snapshotters keep outside the stores, such as
// contract code. Its chunks are a stream of the SDK's snapshot items, without the items of stores.
//
// The extensions are read from the SDK's snapshot of the same height, since only the application's
// snapshot manager knows them. The app hash does not commit to their chunks: the offer carries the
// hashes of these. A joiner compares code in them with the hashes in the state
// (docs/decisions/0057-extensions-in-band.md).
type extensions struct{ chunks [][]byte }

// maxExtensions is the maximum number of extension chunks, of 10 MB each, kept in memory per state.
const maxExtensions = 25

var (
	errNoSnapshot        = errors.New("the SDK has made no snapshot of this height, so the files outside the database are missing")
	errNoFilesInSnapshot = errors.New("the SDK's snapshot of this height has no files, although the module keeps files outside the database: register the module's extension (SnapshotManager().RegisterExtensions)")
	errLargeExtensions   = fmt.Errorf("extensions are larger than %d MB: joiners need the SDK's snapshots", 10*maxExtensions)
	errNotExtensions     = errors.New("extension chunks contain store items or unknown items")
	errSnapshotIsDamaged = errors.New("a chunk of the SDK's snapshot is missing")
)

// len returns the number of chunks.
func (e *extensions) len() int {
	if e == nil {
		return 0
	}
	return len(e.chunks)
}

// encode returns the hashes of the chunks.
func (e *extensions) encode() (b []byte) {
	if e == nil {
		return nil
	}
	for _, chunk := range e.chunks {
		hash := sha256.Sum256(chunk)
		b = append(b, hash[:]...)
	}
	return b
}

// outgrow reports whether a cut and its extensions together exceed CometBFT's limits.
func (e *extensions) outgrow(c *cut) bool {
	return len(c.encoded)+sha256.Size*e.len() > inBandManifestBytes || c.m.Chunks()+e.len() > inBandChunks
}

// snapshotPoll is the interval between checks for the SDK's snapshot, which the SDK makes in the
// background without a notification.
const snapshotPoll = 500 * time.Millisecond

// extensionsOf waits for the SDK's snapshot of the state's height and returns its extensions, which
// may be empty. It returns nil if the SDK makes no snapshot of this height.
func (a *App) extensionsOf(s *state) (*extensions, error) {
	manager, height := a.SnapshotManager(), uint64(s.Height())
	if manager == nil || manager.GetInterval() == 0 || height%manager.GetInterval() != 0 {
		return nil, nil
	}
	for {
		list, err := manager.List()
		if err != nil {
			return nil, err
		}
		newer := false
		for _, have := range list { // newest first
			if have.Height == height && have.Format == generation.CurrentFormat {
				return readExtensions(manager, have)
			}
			newer = newer || have.Height > height
		}
		if newer {
			return nil, errNoSnapshot // the SDK makes no snapshots of older heights
		}
		if s.frozen.isReleased() {
			return nil, errReleased
		}
		select {
		case <-a.closing:
			return nil, errReleased
		case <-time.After(snapshotPoll):
		}
	}
}

// readExtensions returns the extensions in one of the SDK's snapshots, which may be empty.
func readExtensions(manager *generation.Manager, s *generation.Snapshot) (*extensions, error) {
	stop := make(chan struct{})
	defer close(stop)
	chunks := make(chan io.ReadCloser)
	go func() {
		defer close(chunks)
		for k := range s.Chunks {
			b, err := manager.LoadChunk(s.Height, s.Format, k)
			if err == nil && b == nil {
				err = errSnapshotIsDamaged
			}
			var chunk io.Reader = bytes.NewReader(b)
			if err != nil {
				chunk = failing{err}
			}
			select {
			case chunks <- io.NopCloser(chunk):
			case <-stop:
				return
			}
		}
	}()
	r, err := generation.NewStreamReader(chunks)
	if err != nil {
		return nil, err
	}
	// The reader is not closed, because Close would wait for chunks that are no longer needed.
	out := make(chan io.ReadCloser)
	e := &extensions{}
	done := make(chan error, 1)
	go func() { done <- e.collect(out) }()
	w := generation.NewStreamWriter(out)
	some, err := false, error(nil)
	for err == nil {
		item := generation.SnapshotItem{}
		if err = r.ReadMsg(&item); err != nil {
			break
		}
		if item.GetExtension() != nil || item.GetExtensionPayload() != nil {
			some = true
			err = w.WriteMsg(&item)
		}
	}
	if errors.Is(err, io.EOF) {
		err = w.Close()
	} else {
		w.CloseWithError(err)
	}
	err = errors.Join(err, <-done)
	if err != nil {
		return nil, fmt.Errorf("extensions of the SDK's snapshot of height %d: %w", s.Height, err)
	}
	if !some {
		return &extensions{}, nil
	}
	return e, nil
}

// onlyExtensions returns an error if the chunks are not a valid stream, or contain an item that is
// not an extension's. It calls each with every payload and the name of its extension.
func onlyExtensions(files [][]byte, each func(extension string, payload []byte) error) error {
	chunks := make(chan io.ReadCloser, len(files))
	for _, file := range files {
		chunks <- io.NopCloser(bytes.NewReader(file))
	}
	close(chunks)
	r, err := generation.NewStreamReader(chunks)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	for name := ""; ; {
		item := generation.SnapshotItem{}
		err := r.ReadMsg(&item)
		switch begin, payload := item.GetExtension(), item.GetExtensionPayload(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case begin != nil:
			name = begin.Name
		case payload != nil:
			if err := each(name, payload.Payload); err != nil {
				return err
			}
		default:
			return errNotExtensions
		}
	}
}

// errOtherCode reports extension chunks without code that the state has the hash of.
var errOtherCode = errors.New("the files do not have the code that the state commits to")

// verifyExtensions returns an error if the chunks are not those of extensions, or if code is
// missing among them that the state in the database has the hash of. The extension of a module has
// the name of its store, and its payloads are compressed by gzip.
func verifyExtensions(files [][]byte, db nodedb.DB) error {
	missing := map[string]map[iavlsync.Hash]bool{} // by store
	left := map[string]int{}                       // files that may still come, by store
	for i := range codefiles.Modules {
		m := &codefiles.Modules[i]
		hashes, err := m.Hashes(db)
		if err != nil {
			return err
		}
		if left[m.Store] = len(hashes); len(hashes) > 0 {
			missing[m.Store] = map[iavlsync.Hash]bool{}
		}
		for _, h := range hashes {
			missing[m.Store][h] = true
		}
	}
	err := onlyExtensions(files, func(extension string, payload []byte) error {
		if missing[extension] == nil {
			return nil
		}
		z, err := gzip.NewReader(bytes.NewReader(payload))
		if err != nil {
			return nil //nolint:nilerr // the module decides which other forms it restores
		}
		if left[extension]--; left[extension] < 0 {
			return fmt.Errorf("%w: extension %q has more files than the state has hashes", errOtherCode, extension)
		}
		h := sha256.New()
		if n, err := io.Copy(h, io.LimitReader(z, iavlsync.MaxFileBytes+1)); err != nil || n > iavlsync.MaxFileBytes {
			return fmt.Errorf("%w: a file of extension %q cannot be decompressed, or has more than %d bytes", errOtherCode, extension, iavlsync.MaxFileBytes)
		}
		delete(missing[extension], iavlsync.Hash(h.Sum(nil)))
		return nil
	})
	if err != nil {
		return err
	}
	for i := range codefiles.Modules {
		store := codefiles.Modules[i].Store
		for h := range missing[store] {
			return fmt.Errorf("%w: store %q has the hash %s", errOtherCode, store, h)
		}
	}
	return nil
}

// collect keeps the first maxExtensions chunks. It reads and drops the others, and then fails.
func (e *extensions) collect(chunks <-chan io.ReadCloser) (err error) {
	for chunk := range chunks {
		b, readErr := io.ReadAll(chunk)
		err = errors.Join(err, readErr, chunk.Close())
		if len(e.chunks) == maxExtensions {
			err = errLargeExtensions
			continue
		}
		e.chunks = append(e.chunks, b)
	}
	return err
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

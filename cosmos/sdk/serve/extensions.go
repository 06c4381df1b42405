package serve

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"

	"cosmossdk.io/store/snapshots"
	"cosmossdk.io/store/snapshots/types"
)

// extensions are what the extension snapshotters of an application keep beside a state, such as the
// code of contracts: chunks of the SDK's own stream of items, without those of stores.
//
// They are taken from the SDK's snapshot of the height, since only the application's manager knows
// its extensions. As there, no hash of the chain binds them; hashes that travel with the offer bind
// them to it (docs/decisions/0057-extensions-in-band.md).
type extensions struct{ chunks [][]byte }

// maxExtensions limits how many chunks of 10 MB are kept in memory for a state.
const maxExtensions = 25

var (
	errNoSnapshot        = errors.New("the SDK has made no snapshot of this height, from which files beside the database could be taken")
	errNoFilesInSnapshot = errors.New("the SDK's snapshot of this height has no files, although its module keeps some beside the database: register the module's extension (SnapshotManager().RegisterExtensions)")
	errLargeExtensions   = fmt.Errorf("its extensions have more than %d MB: joiners need the SDK's snapshots", 10*maxExtensions)
	errNotExtensions     = errors.New("among its files are items of stores, or of nothing that is known")
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

// outgrow reports whether a cut with extensions is more than CometBFT takes.
func (e *extensions) outgrow(c *cut) bool {
	return len(c.encoded)+sha256.Size*e.len() > inBandManifestBytes || c.m.Chunks()+e.len() > inBandChunks
}

// snapshotPoll is the time between two looks whether the SDK has made its snapshot, which it does
// beside the blocks and tells nobody.
const snapshotPoll = 500 * time.Millisecond

// extensionsOf returns the extensions of a state, once the SDK has made its own snapshot; empty:
// that has none; nil: the application takes no such snapshots.
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
		for _, have := range list { // the newest first
			if have.Height == height && have.Format == types.CurrentFormat {
				return readExtensions(manager, have)
			}
			newer = newer || have.Height > height
		}
		if newer {
			return nil, errNoSnapshot // it makes no older ones
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

// readExtensions takes the extensions out of a snapshot of the SDK's; empty: it has none.
func readExtensions(manager *snapshots.Manager, s *types.Snapshot) (*extensions, error) {
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
	r, err := snapshots.NewStreamReader(chunks)
	if err != nil {
		return nil, err
	}
	// The reader is not closed: it would wait for chunks that are not needed any more.
	out := make(chan io.ReadCloser)
	e := &extensions{}
	done := make(chan error, 1)
	go func() { done <- e.collect(out) }()
	w := snapshots.NewStreamWriter(out)
	some, err := false, error(nil)
	for err == nil {
		item := types.SnapshotItem{}
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

// onlyExtensions fails if chunks have another item than those of extensions, or are no stream.
func onlyExtensions(files [][]byte) error {
	chunks := make(chan io.ReadCloser, len(files))
	for _, file := range files {
		chunks <- io.NopCloser(bytes.NewReader(file))
	}
	close(chunks)
	r, err := snapshots.NewStreamReader(chunks)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	for {
		item := types.SnapshotItem{}
		switch err := r.ReadMsg(&item); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case item.GetExtension() == nil && item.GetExtensionPayload() == nil:
			return errNotExtensions
		}
	}
}

// collect keeps chunks. Too many are read, and not kept.
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

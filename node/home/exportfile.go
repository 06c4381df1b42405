package home

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/archive"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/treestore"
)

// ErrNoSnapshot: neither a stored snapshot nor the state on disk has the requested height.
var ErrNoSnapshot = errors.New("no snapshot of that height")

// ExportOptions configures an export.
type ExportOptions struct {
	File      string
	Overwrite bool  // replace an existing File
	Height    int64 // 0: the newest stored snapshot, or the state on disk if none is stored
	// Reading is called with the number of keys read from the state on disk, which must be read to
	// determine its chunks. total is an estimate. May be nil.
	Reading func(done, total uint64)
	// Writing is called with the bytes of chunks written. May be nil.
	Writing func(done, total uint64)
}

// SnapshotFile describes a snapshot that was exported or imported.
type SnapshotFile struct {
	File      string  `json:"file"`
	ChainID   string  `json:"chain_id"`
	Height    int64   `json:"height"`
	AppHash   string  `json:"app_hash"`
	Chunks    uint32  `json:"chunks"`
	Bytes     uint64  `json:"bytes"` // total of all chunks, uncompressed
	FileBytes uint64  `json:"file_bytes"`
	Seconds   float64 `json:"seconds"`
}

func snapshotFile(path, chainID string, height int64, hash avlstar.Hash, s archive.Stats, started time.Time) SnapshotFile {
	return SnapshotFile{
		File: path, ChainID: chainID, Height: height, AppHash: fmt.Sprintf("%X", hash[:]),
		Chunks: s.Chunks, Bytes: s.Bytes, FileBytes: s.FileBytes, Seconds: seconds(started),
	}
}

// Exported is the result of an export.
type Exported struct {
	SnapshotFile
	// Stored: a stored snapshot was exported; otherwise the state on disk.
	Stored bool `json:"stored"`
	// Header is the height of the header with the app hash; 0: the home does not have it.
	Header int64 `json:"header"`
}

// ExportSnapshot writes a snapshot of a stopped node to a file.
//
//	stored snapshot: description ─► manifest, chunk k = a range of keys, verified ──┐
//	state on disk:   read once, its root computed ─► manifest, chunk k ─────────────┴─► FILE.partial ─► FILE
//
// Each chunk is verified before it is written. The app hash is compared with the header after the
// height, if the home has it. Data that differ from what was stored are ErrDamaged.
func ExportSnapshot(ctx context.Context, conf *config.Config, o ExportOptions) (result Exported, err error) {
	started := time.Now()
	d, err := openOffline(conf, true)
	if err != nil {
		return result, stopTheNode(err, "export from a stopped node")
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.sharded {
		return result, config.Invalid(fmt.Errorf("%w: use --from-network, or export from a node with [state] mode = %q", ErrSharded, config.ModeLocal))
	}
	if d.state == nil {
		return result, fmt.Errorf("%w: %q does not exist", ErrNoData, config.StateDir(d.dataDir()))
	}
	exported, err := d.exported(ctx, o)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, exported.close()) }()
	hash := exported.Commitment().AppHash()
	named, header, err := d.appHashAfter(exported.Height())
	if err != nil {
		return result, err
	}
	if named != nil && !bytes.Equal(named, hash[:]) {
		return result, fmt.Errorf("%w: the state at height %d in %q has app hash %s, but the network's is %X (header %d)",
			ErrDamaged, exported.Height(), exported.folder, hash, named, header)
	}
	stats, err := archive.WriteFile(ctx, o.File, o.Overwrite, exported, archive.Options{ChainID: exported.chainID, Progress: o.Writing})
	switch {
	case errors.Is(err, statesync.ErrDamagedPin):
		return result, fmt.Errorf("the snapshot in %q is %w: %w: remove that folder, or export another height; the state itself is in another folder",
			exported.folder, ErrDamaged, err)
	case errors.Is(err, storage.ErrNoPage):
		return result, treestore.Damaged(err)
	case err != nil:
		return result, err
	}
	result.SnapshotFile = snapshotFile(o.File, exported.chainID, exported.Height(), hash, stats, started)
	result.Stored, result.Header = exported.stored, header
	return result, nil
}

// stopTheNode adds a hint to an error caused by a running node.
func stopTheNode(err error, or string) error {
	if errors.Is(err, storage.ErrLocked) {
		return fmt.Errorf("%w: stop the node, or %s", err, or)
	}
	return err
}

// exported is the content of the file.
type exported struct {
	archive.Source
	chainID string
	folder  string
	stored  bool
	close   func() error
}

// exported opens the snapshot or state to export.
func (d *offline) exported(ctx context.Context, o ExportOptions) (*exported, error) {
	meta, have := d.state.Meta()
	var heights []string
	pins := d.state.Pins()
	slices.Reverse(pins)
	for _, pin := range pins {
		if len(pin.Data) == 0 {
			continue // it has no description, see statesync.Manager.AddStored
		}
		if o.Height == 0 || o.Height == pin.Height {
			return d.storedSnapshot(pin)
		}
		heights = append(heights, strconv.FormatInt(pin.Height, 10))
	}
	switch {
	case !have:
		return nil, fmt.Errorf("%w in %q: the node has not committed a block, or its join was interrupted", ErrNoData, config.StateDir(d.dataDir()))
	case o.Height == 0 || o.Height == meta.Height:
		return d.stateOnDisk(ctx, meta, o.Reading)
	}
	stored := "no snapshot is stored"
	if len(heights) > 0 {
		stored = "stored snapshots have heights " + strings.Join(heights, ", ")
	}
	return nil, fmt.Errorf("%w: %d is not available, %s, and the state on disk has height %d", ErrNoSnapshot, o.Height, stored, meta.Height)
}

// storedSnapshot opens a stored snapshot in the same way as for serving.
func (d *offline) storedSnapshot(pin storage.PinInfo) (*exported, error) {
	folder := filepath.Join(config.SnapshotsDir(d.dataDir()), strconv.FormatInt(pin.Height, 10))
	opened, err := d.state.OpenPin(pin.Height)
	if err != nil {
		return nil, err
	}
	meta, err := opened.Meta()
	if err := errors.Join(err, opened.Close()); err != nil {
		return nil, err
	}
	why := &firstError{}
	manager := statesync.NewManager(statesync.Options{
		Logger: why, Keep: 1, OpenPin: func(height int64) (statesync.Pin, error) { return d.state.OpenPin(height) },
	})
	manager.AddStored(pin.Height, pin.Data)
	served, ok := manager.Serve(pin.Height)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the snapshot in %q is %w: %w: remove that folder, or export another height; the state itself is in another folder",
			folder, ErrDamaged, why.err), manager.Close())
	}
	return &exported{
		Source: served, chainID: meta.ChainID, folder: folder, stored: true,
		close: func() error { served.Release(); return manager.Close() },
	}, nil
}

// firstError is a logger that keeps the first logged error.
type firstError struct{ err error }

func (*firstError) Debug(string, ...any) {}
func (*firstError) Info(string, ...any)  {}
func (*firstError) Warn(string, ...any)  {}

func (l *firstError) Error(_ string, keyvals ...any) {
	for _, v := range keyvals {
		if err, is := v.(error); is && l.err == nil {
			l.err = err
		}
	}
}

func (l *firstError) With(...any) log.Logger { return l }

// stateOnDisk reads the state and computes its root, because it has no description of its chunks
// yet. Pages are read from disk a second time for the chunks.
func (d *offline) stateOnDisk(ctx context.Context, meta storage.Meta, progress func(done, total uint64)) (*exported, error) {
	total, err := d.state.EstimateKeys()
	if err != nil {
		return nil, err
	}
	store := treestore.New(treestore.Options{Zone: d.state, Cache: sgc.New(d.config.App.Disk.SharedCache())})
	v, err := store.Read(ctx, func(done uint64) {
		if progress != nil {
			progress(done, max(done, total))
		}
	})
	if err != nil {
		return nil, err
	}
	return &exported{
		Source: versionSource{v, meta.Height}, chainID: meta.ChainID, folder: config.StateDir(d.dataDir()),
		close: func() error { v.Release(); return nil },
	}, nil
}

// versionSource serves a version as a snapshot.
type versionSource struct {
	*avlstar.Version
	height int64
}

func (s versionSource) Height() int64    { return s.height }
func (s versionSource) Manifest() []byte { return s.Version.Manifest().Encode() }

func seconds(since time.Time) float64 {
	return time.Since(since).Round(10 * time.Millisecond).Seconds()
}

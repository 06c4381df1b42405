package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/crc32c"
	"github.com/starling-kv/starling/internal/durable/onvfs"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// ErrNoPin: there is no pin of that height.
var ErrNoPin = errors.New("no such pin")

// A pin is a durable snapshot: a folder with a complete database, which has links to the zone's
// immutable tables and a file list of its own. The folder gets its final name last, and loses it
// first:
//
//	made-1000000 ──rename──► 1000000 ──rename──► gone-1000000 ──► removed
//	 database, description    whole
//
// So a folder whose name is a number is complete.
const (
	pinMade = "made-"
	pinGone = "gone-"
	// pinDescription is the name of a file that contains
	//
	//	version:u8 ‖ height:u64be ‖ data ‖ CRC-32C of all before:u32be
	pinDescription = "PIN"
	pinVersion     = 1
)

// PinInfo describes a pin.
type PinInfo struct {
	Height int64
	Data   []byte // from Owner.PinData
}

type pins struct {
	mu struct {
		sync.Mutex
		whole map[int64]*pinEntry // by height
	}
	unusable []error                          // of a read-only zone; set by Open
	uses     atomic.Pointer[map[int64]uint64] // immutable
}

type pinEntry struct {
	data  []byte            // immutable
	files map[string]uint64 // sizes of its files; immutable
	mu    struct {
		sync.Mutex             // held while the pin is opened, closed or removed
		open       *generation // not nil while uses > 0
		uses       int
		dropped    bool // removed from pins.mu.whole: the last user removes the files
	}
}

// Pin is an open pin.
type Pin struct {
	s      *Zone
	height int64
	entry  *pinEntry
	g      *generation
	folder engine.Folder
	closed atomic.Bool
}

func (s *Zone) pinPath(prefix string, height int64) string {
	return s.opts.FS.PathJoin(s.opts.PinDir, prefix+strconv.FormatInt(height, 10))
}

// pin creates a pin of the state on disk, which is the state after w. The state itself is durable,
// so an error is logged and does not fail the zone.
func (s *Zone) pin(w *waiting) {
	var data []byte
	if w.Owner != nil {
		data = w.Owner.PinData()
	}
	if err := s.makePin(w.Meta.Height, data); err != nil {
		s.log.Error("cannot create a snapshot", "folder", s.opts.PinDir, "height", w.Meta.Height, "err", err)
	}
}

func (s *Zone) makePin(height int64, data []byte) error {
	fs, made, whole := s.opts.FS, s.pinPath(pinMade, height), s.pinPath("", height)
	if err := fs.RemoveAll(made); err != nil {
		return err
	}
	err := s.db.Checkpoint(made) // also creates and syncs the parent folders
	if err == nil {
		err = onvfs.Write(fs, fs.PathJoin(made, pinDescription), sealPin(pinVersion, height, data))
	}
	if err == nil {
		err = onvfs.Rename(fs, made, whole)
	}
	if err != nil {
		return errors.Join(err, fs.RemoveAll(made))
	}
	e := &pinEntry{data: slices.Clone(data), files: s.pinFiles(height)}
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	s.pins.mu.whole[height] = e
	return nil
}

// readPinDescription returns the opaque description. It fails if the description is not that of
// height.
func readPinDescription(fs vfs.FS, path string, height int64) ([]byte, error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	version, data, err := unsealPin(b, height)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q: %w: %w", path, err, ErrCorrupt)
	case version == 0 || version > pinVersion:
		return nil, fmt.Errorf("%q: version %d: %w", path, version, ErrNewerFormat)
	}
	return data, nil
}

func sealPin(version byte, height int64, data []byte) []byte {
	b := append(make([]byte, 0, 1+8+len(data)+4), version)
	b = append(binary.BigEndian.AppendUint64(b, uint64(height)), data...)
	return binary.BigEndian.AppendUint32(b, crc32c.Sum(b))
}

// unsealPin is the inverse of sealPin. It does not check the version.
func unsealPin(b []byte, height int64) (version byte, data []byte, err error) {
	if len(b) < 1+8+4 {
		return 0, nil, fmt.Errorf("%d bytes", len(b))
	}
	body := b[:len(b)-4]
	if crc32c.Sum(body) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return 0, nil, errors.New("wrong checksum")
	}
	// A newer version may have another layout after its first byte.
	if at := binary.BigEndian.Uint64(body[1:]); body[0] <= pinVersion && at != uint64(height) {
		return 0, nil, fmt.Errorf("it belongs to height %d", at)
	}
	return body[0], body[1+8:], nil
}

// loadPins finds the pins on disk and removes those that are incomplete or above the zone's height.
func (s *Zone) loadPins() error {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	s.pins.mu.whole = map[int64]*pinEntry{}
	names, err := s.opts.FS.List(s.opts.PinDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return s.folder.Err("list the snapshots", err)
	}
	safe := s.Safe()
	for _, name := range names {
		path := s.opts.FS.PathJoin(s.opts.PinDir, name)
		height, err := strconv.ParseInt(name, 10, 64)
		if err != nil || height <= 0 || strconv.FormatInt(height, 10) != name {
			// Folders with other names do not belong to the zone.
			if strings.HasPrefix(name, pinMade) || strings.HasPrefix(name, pinGone) {
				s.removeRest(path)
			}
			continue
		}
		data, err := readPinDescription(s.opts.FS, s.opts.FS.PathJoin(path, pinDescription), height)
		if err == nil && height > safe {
			err = fmt.Errorf("the state is at height %d", safe)
		}
		switch {
		case errors.Is(err, ErrNewerFormat): // left for the program version that can read it
		case err == nil:
			s.pins.mu.whole[height] = &pinEntry{data: data, files: s.pinFiles(height)}
		case s.opts.ReadOnly:
			s.pins.unusable = append(s.pins.unusable, s.pinFolder(height).Corrupt(err))
		default:
			s.log.Info("removing an unusable snapshot", "folder", path, "why", err)
			if err := s.discardPin(height); err != nil {
				return s.folder.Err("remove a snapshot", err)
			}
		}
	}
	return nil
}

func (s *Zone) removeRest(path string) {
	if s.opts.ReadOnly {
		return
	}
	if err := s.opts.FS.RemoveAll(path); err != nil {
		s.log.Error("cannot remove the remains of a snapshot", "folder", path, "err", err)
	}
}

// discardPin renames a pin durably and then removes it.
func (s *Zone) discardPin(height int64) error {
	gone := s.pinPath(pinGone, height)
	if err := s.opts.FS.RemoveAll(gone); err != nil {
		return err
	}
	if err := onvfs.Rename(s.opts.FS, s.pinPath("", height), gone); err != nil {
		return err
	}
	s.removeRest(gone)
	return nil
}

// UnusablePins returns an ErrCorrupt with a remedy for each damaged pin of a read-only zone. Other
// zones remove such pins in Open.
func (s *Zone) UnusablePins() []error { return s.pins.unusable }

// Pins returns the pins in ascending order of heights.
func (s *Zone) Pins() []PinInfo {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	infos := make([]PinInfo, 0, len(s.pins.mu.whole))
	for height, e := range s.pins.mu.whole {
		infos = append(infos, PinInfo{height, slices.Clone(e.data)})
	}
	slices.SortFunc(infos, func(a, b PinInfo) int { return int(max(-1, min(1, a.Height-b.Height))) })
	return infos
}

// DropPin removes a pin as soon as it is not open. It does nothing if there is none.
func (s *Zone) DropPin(height int64) error {
	return s.folder.Err("remove a snapshot", s.removePins(func(h int64) bool { return h == height }))
}

func (s *Zone) removePins(which func(height int64) bool) error {
	s.pins.mu.Lock()
	found := map[int64]*pinEntry{}
	for height, e := range s.pins.mu.whole {
		if which(height) {
			found[height] = e
			delete(s.pins.mu.whole, height)
		}
	}
	s.pins.mu.Unlock()
	var errs error
	for height, e := range found {
		e.mu.Lock()
		e.mu.dropped = true
		if e.mu.uses == 0 {
			errs = errors.Join(errs, s.discardPin(height))
		}
		e.mu.Unlock()
	}
	return errs
}

// OpenPin opens the pin of a height. It fails with ErrNoPin if there is none. The caller must close
// it.
func (s *Zone) OpenPin(height int64) (*Pin, error) {
	if !s.users.enter() {
		return nil, s.closedErr("open a snapshot")
	}
	defer s.users.leave()
	s.pins.mu.Lock()
	e := s.pins.mu.whole[height]
	s.pins.mu.Unlock()
	if e == nil {
		return nil, fmt.Errorf("state folder %s: height %d: %w", s.dir, height, ErrNoPin)
	}
	p := &Pin{s: s, height: height, entry: e, folder: s.pinFolder(height)}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.dropped {
		return nil, fmt.Errorf("state folder %s: height %d: %w", s.dir, height, ErrNoPin)
	}
	if e.mu.open == nil {
		db, err := p.folder.Open(&pebble.Options{Cache: s.cache, ReadOnly: true, Merger: leafMerger})
		if err != nil {
			return nil, err
		}
		meta, _, err := readMeta(db)
		if err == nil && meta.Height != height {
			err = fmt.Errorf("it contains the state of height %d: %w", meta.Height, pebble.ErrCorruption)
		}
		if err != nil {
			return nil, errors.Join(p.folder.Err("open", err), db.Close())
		}
		e.mu.open = newGeneration(height, db)
	}
	e.mu.uses++
	p.g = e.mu.open
	return p, nil
}

// pinFolder returns the folder of a pin, as used in messages.
func (s *Zone) pinFolder(height int64) engine.Folder {
	return engine.Folder{
		Zone: "snapshot", Dir: s.pinPath("", height), WayOut: "remove that folder; the state itself is stored elsewhere",
		FS: s.opts.FS, Logger: s.log,
	}.WithDefaults()
}

// Range reads the leaves with keys in [first, after), nil: unbounded, as records like Zone.Page. It
// fails with ErrNoPage if they exceed limit bytes.
func (p *Pin) Range(first, after []byte, limit uint64) ([]byte, error) {
	if p.closed.Load() {
		return nil, fmt.Errorf("snapshot folder %s: %w", p.folder.Dir, ErrClosed)
	}
	records, err := p.g.records(make([]byte, 0, min(limit, 1<<20)), first, after, limit+1)
	switch {
	case err != nil:
		return nil, p.readErr(err)
	case uint64(len(records)) > limit:
		return nil, ErrNoPage
	}
	return records, nil
}

// Close closes the pin. No Range may be under way.
func (p *Pin) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	e := p.entry
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.uses--; e.mu.uses > 0 {
		return nil
	}
	err := e.mu.open.release()
	e.mu.open = nil
	if e.mu.dropped {
		err = errors.Join(err, p.s.discardPin(p.height))
	}
	return p.folder.Err("close", err)
}

// RollbackToPin replaces the state of the zone by the state of a pin. The zone must not be open.
// The state is copied into new tables, which verifies every checksum, and replaces the old state
// atomically. Pins above it are removed.
func RollbackToPin(dir string, height int64, opts Options) error {
	opts.ReadOnly = false
	s, err := open(dir, opts)
	if err != nil {
		return err
	}
	close(s.flusherDone)
	return errors.Join(s.rollback(height), s.Close())
}

func (s *Zone) rollback(height int64) error {
	p, err := s.OpenPin(height)
	if err != nil {
		return err
	}
	tables, err := p.writeTables()
	if err := errors.Join(err, p.Close()); err != nil {
		return err
	}
	s.generations.dropAll()
	if _, err := s.db.IngestAndExcise(context.Background(), tables, nil, nil, wholeZone); err != nil {
		return s.folder.Err("roll back", err)
	}
	return s.folder.Err("roll back", errors.Join(
		s.removePins(func(h int64) bool { return h > height }), s.opts.FS.RemoveAll(s.ingestDir())))
}

// writeTables writes all leaves and meta to tables, durably, and returns their paths.
func (p *Pin) writeTables() ([]string, error) {
	meta, err := p.Meta()
	if err != nil {
		return nil, err
	}
	c, err := p.g.newCursor(nil, nil)
	if err != nil {
		return nil, p.folder.Err("read", err)
	}
	t, err := p.s.newTables()
	if err != nil {
		return nil, errors.Join(p.s.folder.Err("roll back", err), c.close())
	}
	defer t.stop()
	var failed error // error of writing
	c.first()
	err = c.read(nil, func(key, value []byte, height uint8) bool {
		failed = t.add(record.Leaf{Key: key, Value: value, Height: height})
		return failed == nil
	})
	if err = errors.Join(err, c.close()); err != nil {
		return nil, p.readErr(err)
	}
	if failed == nil {
		failed = t.finish(meta)
	}
	return t.paths, p.s.folder.Err("roll back", failed)
}

// readErr wraps the error of a read, and marks it as corruption if the data is damaged.
func (p *Pin) readErr(err error) error {
	if errors.Is(err, errLeafForm) {
		return p.folder.Corrupt(err)
	}
	return p.folder.Err("read", err)
}

package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// ErrNoPin: no state of that height is kept on disk.
var ErrNoPin = errors.New("no such pin")

// A pin is a folder with a whole database: links to the zone's tables, which never change, and a
// list of its own. It gets its name last, and loses it first:
//
//	made-1000000 ──rename──► 1000000 ──rename──► gone-1000000 ──► removed
//	 database, description    whole
//
// So what has a number as its name is whole.
const (
	pinMade = "made-"
	pinGone = "gone-"
	// pinDescription is the file with
	//
	//	version:u8 ‖ height:u64be ‖ data ‖ CRC-32C of all before:u32be
	//
	// In version 1 the data, where there were any, stood in a second envelope of the same form.
	pinDescription = "PIN"
	pinVersion     = 2
)

// PinInfo says which state a pin is.
type PinInfo struct {
	Height int64
	Data   []byte // what Block.PinData gave
}

type pins struct {
	mu struct {
		sync.Mutex
		whole map[int64]*pinEntry // by height
	}
	unusable []error // of a zone that is ReadOnly; set by Open
}

type pinEntry struct {
	data []byte // immutable
	mu   struct {
		sync.Mutex             // held while the pin is opened, closed or removed
		open       *generation // nil: closed; open exactly while uses > 0
		uses       int
		dropped    bool // out of pins.mu.whole: its last user removes the files
	}
}

// Pin is a state that is kept on disk, open for reading.
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

// pin keeps the state on disk, which is the one after w. The state itself is durable: that a pin
// cannot be made is no failure of the zone.
func (s *Zone) pin(w *waiting) {
	if err := s.makePin(w.Meta.Height, w.PinData()); err != nil {
		s.log.Error("cannot keep a snapshot", "folder", s.opts.PinDir, "height", w.Meta.Height, "err", err)
	}
}

func (s *Zone) makePin(height int64, data []byte) error {
	fs, made, whole := s.opts.FS, s.pinPath(pinMade, height), s.pinPath("", height)
	if err := fs.RemoveAll(made); err != nil {
		return err
	}
	err := s.db.Checkpoint(made) // makes and syncs the folders above, too
	if err == nil {
		err = writePinDescription(fs, fs.PathJoin(made, pinDescription), height, data)
	}
	if err == nil {
		err = engine.SyncDir(fs, made)
	}
	if err == nil {
		err = fs.Rename(made, whole)
	}
	if err != nil {
		return errors.Join(err, fs.RemoveAll(made))
	}
	if err := engine.SyncDir(fs, s.opts.PinDir); err != nil {
		return err
	}
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	s.pins.mu.whole[height] = &pinEntry{data: slices.Clone(data)}
	return nil
}

func writePinDescription(fs vfs.FS, path string, height int64, data []byte) error {
	b := sealPin(pinVersion, height, data)
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// readPinDescription returns the opaque description; an error if it is not that of height.
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
	if err == nil && version == 1 && len(data) > 0 {
		if version, data, err = unsealPin(data, height); err == nil && version != 1 {
			err = fmt.Errorf("version %d within version 1", version)
		}
	}
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
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// unsealPin is the inverse of sealPin. The version is whatever stands there.
func unsealPin(b []byte, height int64) (version byte, data []byte, err error) {
	if len(b) < 1+8+4 {
		return 0, nil, fmt.Errorf("%d bytes", len(b))
	}
	body := b[:len(b)-4]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return 0, nil, errors.New("wrong checksum")
	}
	// A newer version may have another layout behind its first byte.
	if at := binary.BigEndian.Uint64(body[1:]); body[0] <= pinVersion && at != uint64(height) {
		return 0, nil, fmt.Errorf("it is of height %d", at)
	}
	return body[0], body[1+8:], nil
}

// loadPins finds the pins on disk. Those that are not whole, or of heights that the zone does not
// reach, are removed.
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
			// else it is not ours
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
		case errors.Is(err, ErrNewerFormat): // who can read it may be back
		case err == nil:
			s.pins.mu.whole[height] = &pinEntry{data: data}
		case s.opts.ReadOnly:
			s.pins.unusable = append(s.pins.unusable, s.pinFolder(height).Corrupt(err))
		default:
			s.log.Info("removing a snapshot that cannot be used", "folder", path, "why", err)
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
		s.log.Error("cannot remove what is left of a snapshot", "folder", path, "err", err)
	}
}

// discardPin takes the name from a pin, durably, and then removes it.
func (s *Zone) discardPin(height int64) error {
	gone := s.pinPath(pinGone, height)
	if err := s.opts.FS.RemoveAll(gone); err != nil {
		return err
	}
	if err := s.opts.FS.Rename(s.pinPath("", height), gone); err != nil {
		return err
	}
	if err := engine.SyncDir(s.opts.FS, s.opts.PinDir); err != nil {
		return err
	}
	s.removeRest(gone)
	return nil
}

// UnusablePins returns what is wrong with each folder that is named as a pin and is none, as
// ErrCorrupt with the way out. A zone that is not ReadOnly removes them when it is opened.
func (s *Zone) UnusablePins() []error { return s.pins.unusable }

// Pins lists the pins in ascending order of their heights.
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

// DropPin removes a pin, once nobody has it open. It does nothing if there is none.
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

// OpenPin opens the state that is kept of a height. The caller closes it.
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
		o, layout := &pebble.Options{Cache: s.cache, ReadOnly: true, Merger: leafMerger}, byte(FormatVersion)
		old, err := isLayout1(p.folder)
		if err != nil {
			return nil, err
		}
		if old {
			o.Merger, layout = nil, layout1
		}
		db, err := p.folder.Open(o)
		if err != nil {
			return nil, err
		}
		meta, _, err := readMeta(db, layout)
		if err == nil && meta.Height != height {
			err = fmt.Errorf("it holds the state of height %d: %w", meta.Height, pebble.ErrCorruption)
		}
		if err != nil {
			return nil, errors.Join(p.folder.Err("open", err), db.Close())
		}
		e.mu.open = newGeneration(height, db, layout)
	}
	e.mu.uses++
	p.g = e.mu.open
	return p, nil
}

// pinFolder is the folder of a pin as its messages name it.
func (s *Zone) pinFolder(height int64) engine.Folder {
	return engine.Folder{
		Zone: "snapshot", Dir: s.pinPath("", height), WayOut: "remove that folder; the state itself lies elsewhere",
		FS: s.opts.FS, Logger: s.log,
	}.WithDefaults()
}

// Range reads the leaves with keys in [first, after), nil: open, as records in the form of
// Zone.Page. ErrNoPage if they take more than limit bytes.
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

// Close gives the pin up; no Range may be under way.
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

// RollbackToPin makes the state of a pin the state of the zone, which nobody has open. It is copied
// into new tables, every checksum verified, and takes the place of the old one in a single step: a
// crash leaves the one or the other. Pins above it are removed.
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
	var number atomic.Int64
	out := s.newTables(&number)
	if err := errors.Join(p.copyTo(out), p.Close()); err != nil {
		return err
	}
	s.generations.dropAll()
	if _, err := s.db.IngestAndExcise(context.Background(), out.done, nil, nil, wholeZone); err != nil {
		return s.folder.Err("roll back", err)
	}
	return s.folder.Err("roll back", errors.Join(
		s.removePins(func(h int64) bool { return h > height }), s.opts.FS.RemoveAll(s.ingestDir())))
}

// copyTo copies every leaf, and meta.
func (p *Pin) copyTo(out *tables) error {
	meta, err := p.Meta()
	if err != nil {
		return err
	}
	c, err := p.g.newCursor(nil, nil)
	if err != nil {
		return p.folder.Err("read", err)
	}
	var key, rec []byte
	var failed error // of writing
	c.first()
	err = c.read(nil, func(k, value []byte, height uint8) bool {
		key, rec = append(append(key[:0], kindLeaf), k...), append(append(rec[:0], height), value...)
		failed = out.set(key, rec)
		return failed == nil
	})
	if err = errors.Join(err, c.close()); err != nil {
		return p.readErr(err)
	}
	if failed == nil {
		failed = out.set([]byte{kindMeta}, meta.encode())
	}
	if failed == nil {
		failed = out.finish()
	}
	return p.s.folder.Err("roll back", failed)
}

// readErr is the error of a read: damage, or a file that cannot be read.
func (p *Pin) readErr(err error) error {
	if errors.Is(err, errLeafForm) {
		return p.folder.Corrupt(err)
	}
	return p.folder.Err("read", err)
}

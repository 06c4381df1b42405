package storage

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
)

// PinUses returns what each pin keeps on disk, in bytes, by height: what the zone gains if it
// removes that pin after those before it. The caller must not modify the result, which was measured
// after the last flush, or when the zone was opened. Each file of a pin counts once, at the newest
// pin that has it, unless the zone still has the table. A table that the zone no longer needs, but
// has not deleted yet, does not count until it is deleted: the engine deletes it soon, unless a
// state of an earlier flush needs it. A removed pin that is still being read does not count.
func (s *Zone) PinUses() map[int64]uint64 {
	if uses := s.pins.uses.Load(); uses != nil {
		return *uses
	}
	return nil
}

// measurePins sets the result of PinUses. It lists the zone's folder, if there is a pin.
func (s *Zone) measurePins() {
	uses := map[int64]uint64{}
	type found struct {
		height int64
		files  map[string]uint64
	}
	var all []found
	s.pins.mu.Lock()
	for height, e := range s.pins.mu.whole {
		all = append(all, found{height, e.files})
	}
	s.pins.mu.Unlock()
	if len(all) > 0 {
		names, err := s.opts.FS.List(s.dir)
		if err != nil {
			s.log.Error("cannot measure the snapshots: their disk space is unknown", "folder", s.dir, "err", err)
			return
		}
		counted := make(map[string]bool, len(names))
		for _, name := range names {
			counted[name] = isTable(name)
		}
		slices.SortFunc(all, func(a, b found) int { return int(max(-1, min(1, b.height-a.height))) })
		for _, p := range all {
			uses[p.height] = 0
			for name, size := range p.files {
				if !counted[name] {
					uses[p.height] += size
				}
				counted[name] = counted[name] || isTable(name)
			}
		}
	}
	s.pins.uses.Store(&uses)
}

// isTable reports whether files with that name in the zone and in pins are links to one file: the
// engine never changes a table, and never reuses its number.
func isTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

// pinFiles returns the sizes of the files of a complete pin, which do not change. A file that is
// removed meanwhile is left out.
func (s *Zone) pinFiles(height int64) map[string]uint64 {
	dir := s.pinPath("", height)
	names, err := s.opts.FS.List(dir)
	files := make(map[string]uint64, len(names))
	for _, name := range names {
		info, failed := s.opts.FS.Stat(s.opts.FS.PathJoin(dir, name))
		if failed == nil {
			files[name] = uint64(info.Size())
		} else if !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		s.log.Error("cannot measure a snapshot: some of its disk space is not counted", "folder", dir, "err", err)
	}
	return files
}

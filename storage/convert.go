package storage

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// convertEvery is the time between two lines in the log.
const convertEvery = 10 * time.Second

// convert makes a zone of layout 1 one of layout 2.
func convert(dir string, opts Options) error {
	old, err := openLayout1(dir, opts)
	if err != nil {
		return err
	}
	err = old.makeWhole()
	if err == nil {
		// While it is open, and so locked: nobody changes what is about to be removed.
		err = old.folder.Err("convert", replaceOld(dir, opts.FS))
	}
	return errors.Join(err, old.Close())
}

// makeWhole writes a zone of layout 1 as a new one into convertWhole. A copy that turns out to be
// damaged, as a loss of power may leave it, is begun again, once: what it is of is still there.
func (s *Zone) makeWhole() error {
	made := s.inZone(convertMade)
	err := s.copyInto(made)
	if errors.Is(err, ErrCorrupt) && !errors.As(err, new(sourceErr)) {
		s.log.Error("a copy of the state is damaged: it is made again", "folder", made, "err", err)
		if err := s.opts.FS.RemoveAll(made); err != nil {
			return s.folder.Err("convert", err)
		}
		err = s.copyInto(made)
	}
	if err != nil {
		return err
	}
	err = engine.SyncDir(s.opts.FS, made)
	if err == nil {
		err = s.opts.FS.Rename(made, s.inZone(convertWhole))
	}
	if err == nil {
		err = engine.SyncDir(s.opts.FS, s.dir)
	}
	return s.folder.Err("convert", err)
}

// copyInto makes the zone in that folder, which may have a part of it, a copy of s.
func (s *Zone) copyInto(made string) error {
	into := s.opts
	into.ReadOnly, into.PinDir = false, made+"-pins" // there are none
	zone, err := openLayout(made, into, FormatVersion)
	if err != nil {
		return err
	}
	close(zone.flusherDone)
	return errors.Join(zone.copyOf(s), zone.Close())
}

// sourceErr marks an error that has to do with the zone that is converted, not with the copy.
type sourceErr struct{ error }

func (e sourceErr) Unwrap() error { return e.error }

// copyOf makes s, which is empty or has a part of it, a copy of old.
func (s *Zone) copyOf(old *Zone) error {
	meta, ok := old.Meta()
	if !ok {
		s.log.Info("the state folder has no state: an interrupted join begins again", "folder", old.dir)
		return s.Reset()
	}
	if done, ok := s.Meta(); ok {
		if bytes.Equal(done.encode(), meta.encode()) {
			return s.settleCopy(old, max(s.unsettledBytes(), 1), time.Now())
		}
	}
	c, err := newConversion(old, meta)
	if err != nil {
		return err
	}
	r, err := s.resumeOrBegin(c.label)
	if err != nil {
		return err
	}
	if err := c.copyTo(r); err != nil {
		r.Close()
		return err
	}
	if err := r.commit(meta); err != nil {
		return err
	}
	return s.settleCopy(old, c.bytes, c.started)
}

// settleCopy makes the tables of a copy of old, and reports it as the second half of a conversion
// whose first half copied that many bytes.
func (s *Zone) settleCopy(old *Zone, bytes uint64, started time.Time) error {
	told := time.Now()
	tell := func(done, total uint64) error {
		done = bytes + uint64(float64(bytes)*(float64(done)/float64(max(total, 1))))
		if err := s.opts.Converting(done, 2*bytes); err != nil {
			return err
		}
		if now := time.Now(); now.Sub(told) >= convertEvery {
			told = now
			s.log.Info("converting the state: it is copied, tables are made", "folder", old.dir, "done", done-bytes, "of", bytes)
		}
		return nil
	}
	if err := s.settleNow(tell); err != nil {
		return err
	}
	if err := tell(1, 1); err != nil {
		return old.folder.Err("convert", err)
	}
	s.log.Info("converted the state", "folder", old.dir, "bytes", bytes, "seconds", int64(time.Since(started).Seconds()))
	return nil
}

func (s *Zone) resumeOrBegin(label []byte) (*Restore, error) {
	if of, ok := s.Interrupted(); ok && bytes.Equal(of, label) {
		return s.ResumeRestore()
	}
	return s.BeginRestore(label)
}

// conversion copies the leaves of a zone, part by part.
type conversion struct {
	old   *Zone
	parts []part
	bytes uint64 // of keys and values, as the tables' properties say
	large uint64 // of them, in the table that has most: about the largest part, as it is in memory
	label []byte // meta ‖ SHA-256 of the parts: a restore of another label has other parts

	started time.Time
	mu      struct {
		sync.Mutex
		next   int    // part
		parts  int    // that are to be copied
		done   uint64 // bytes
		copied uint64 // of them, by this process
		told   time.Time
		err    error
	}
}

// part has the keys in [first, after).
type part struct{ first, after []byte }

func newConversion(old *Zone, meta Meta) (*conversion, error) {
	cuts, err := old.cuts()
	if err != nil {
		return nil, sourceErr{old.readErr(err)}
	}
	c := &conversion{old: old, parts: make([]part, len(cuts)+1), started: time.Now()}
	names := sha256.New()
	for i := range c.parts {
		if i > 0 {
			c.parts[i].first = cuts[i-1]
			names.Write(binary.BigEndian.AppendUint32(nil, uint32(len(cuts[i-1]))))
			names.Write(cuts[i-1])
		}
		if i < len(cuts) {
			c.parts[i].after = cuts[i]
		}
	}
	c.label = names.Sum(meta.encode())
	levels, err := old.db.SSTables(pebble.WithProperties())
	if err != nil {
		return nil, sourceErr{old.readErr(err)}
	}
	for _, level := range levels {
		for _, t := range level {
			if p := t.Properties; p != nil {
				c.bytes += p.RawKeySize + p.RawValueSize
				c.large = max(c.large, p.RawKeySize+p.RawValueSize)
			}
		}
	}
	c.mu.told = c.started
	return c, nil
}

func partID(i int) RunID { return RunID(binary.BigEndian.AppendUint32(nil, uint32(i))) }

// copyTo adds the parts that r lacks, several at a time.
func (c *conversion) copyTo(r *Restore) error {
	there := r.Runs()
	c.mu.parts = len(c.parts) - len(there)
	c.mu.done = c.bytes / uint64(len(c.parts)) * uint64(len(there))
	if err := c.checkDisk(); err != nil {
		return err
	}
	c.old.log.Info("converting the state to another layout, once; it can be interrupted at any time", "folder", c.old.dir,
		"height", c.old.Safe(), "bytes", c.bytes, "done", c.mu.done)
	var wg sync.WaitGroup
	for range c.copiers() {
		wg.Go(func() {
			for {
				i, ok := c.take()
				if !ok {
					return
				}
				if _, is := slices.BinarySearch(there, partID(i)); is {
					whole, err := c.keepPart(r, i)
					if whole || err != nil {
						c.ended(err, false)
						continue
					}
				}
				c.ended(c.copyPart(r, i), true)
			}
		})
	}
	wg.Wait()
	return c.mu.err
}

// copyBytes is about what the parts that are copied at a time may take in memory. Values that
// compress well make parts large: one alone may take more.
const copyBytes = 128 << 20

// copiers is the number of parts that are copied at a time.
func (c *conversion) copiers() int {
	return max(1, min(4, runtime.GOMAXPROCS(0), int(copyBytes/max(c.large, 1))))
}

// take returns the next part, false if there is none or there was an error.
func (c *conversion) take() (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.next++
	return c.mu.next - 1, c.mu.next <= len(c.parts) && c.mu.err == nil
}

// keepPart reports whether the run that r has of a part is what was written, and removes it
// otherwise: runs and journal are synced at the end only, so that after a loss of power a run may
// be listed of which the disk has nothing.
func (c *conversion) keepPart(r *Restore, i int) (bool, error) {
	_, err := r.Read(partID(i))
	if !errors.Is(err, ErrCorrupt) {
		return err == nil, err
	}
	c.old.log.Info("a part of the conversion is not what was written: it is copied again", "folder", c.old.dir, "part", i, "err", err)
	c.mu.Lock()
	c.mu.parts++
	c.mu.done -= c.bytes / uint64(len(c.parts))
	c.mu.Unlock()
	return false, r.Remove(partID(i))
}

func (c *conversion) copyPart(r *Restore, i int) error {
	g := c.old.generations.newest()
	defer func() { _ = g.release() }()
	// All of it before any is added: a run that ends early would count as one that is whole.
	records, err := g.records(nil, c.parts[i].first, c.parts[i].after, 1<<62)
	if err != nil {
		return sourceErr{c.old.readErr(err)}
	}
	height := uint8(0)
	if len(records) > 0 {
		height = records[0]
	}
	return r.Add(partID(i), height, records)
}

// ended notes that a part is there, copied or kept, or why not, and reports the progress, now and
// then in the log.
func (c *conversion) ended(err error, copied bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.mu.err = errors.Join(c.mu.err, err)
		return
	}
	if copied {
		share := c.bytes / uint64(len(c.parts))
		c.mu.done += share
		c.mu.copied += share
		if c.mu.parts--; c.mu.parts == 0 {
			c.mu.done = c.bytes // of which the parts have a rounded share each
		}
	}
	if err := c.old.opts.Converting(c.mu.done, 2*c.bytes); err != nil {
		c.mu.err = errors.Join(c.mu.err, c.old.folder.Err("convert", err))
		return
	}
	now := time.Now()
	if now.Sub(c.mu.told) < convertEvery {
		return
	}
	c.mu.told = now
	rate := max(1, float64(c.mu.copied)/now.Sub(c.started).Seconds())
	left := time.Duration(float64(c.bytes-min(c.mu.done, c.bytes)) / rate * float64(time.Second))
	c.old.log.Info("converting the state: it is being copied", "folder", c.old.dir, "done", c.mu.done, "of", c.bytes, "bytes_per_second", int64(rate), "left", left.Round(time.Second))
}

// checkDisk returns an error if what is to be copied does not fit the disk, where that is known.
func (c *conversion) checkDisk() error {
	usage, err := c.old.opts.FS.GetDiskUsage(c.old.dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return nil // who finds no space says so
	}
	if err != nil {
		return c.old.folder.Err("convert", err)
	}
	// The records are appended first, and 1.35 bytes are then written for each of keys and values
	// (decision 0022); heights are counted, too.
	need := (c.bytes - min(c.bytes, c.mu.done)) + c.bytes/2*3
	if usage.AvailBytes >= need {
		return nil
	}
	return fmt.Errorf("state folder %s: %w: its conversion to another layout needs about %d MB beside it, and %d MB are free: "+
		"make room on the disk, then start again; the program that wrote it can use it meanwhile", c.old.dir, ErrDiskFull, need>>20, usage.AvailBytes>>20)
}

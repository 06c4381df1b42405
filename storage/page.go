package storage

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/avlstar/record"
)

// ErrNoPage: no state that is kept has what is asked for.
var ErrNoPage = errors.New("no kept state has this page")

// maxIdle is how many iterators of a generation are kept for the next reader.
const maxIdle = 16

// generation is the state after a flush, or of a pin, or of a restore that is not settled, for as
// long as it is referred to.
type generation struct {
	height int64
	reader pebble.Reader // nil: not settled, the state is in set
	layout byte
	set    *runSet
	freed  chan struct{} // closed when nobody refers to it any more; nil where reader is not
	refs   atomic.Int64
	// the zone was emptied: an iterator that is made from now on may see nothing
	revoked atomic.Bool

	mu struct {
		sync.Mutex
		// not the newest any more: its iterators would keep obsolete tables on disk, so none are
		// kept
		old  bool
		idle []cursor
	}
}

// newGeneration returns a generation with one reference.
func newGeneration(height int64, reader pebble.Reader, layout byte) *generation {
	g := &generation{height: height, reader: reader, layout: layout}
	g.refs.Store(1)
	return g
}

// newUnsettledGeneration returns one of a restored state, with one reference.
func newUnsettledGeneration(height int64, set *runSet) *generation {
	g := &generation{height: height, set: set, freed: make(chan struct{})}
	g.refs.Store(1)
	return g
}

func (g *generation) release() error {
	if g.refs.Add(-1) > 0 {
		return nil
	}
	if g.reader == nil {
		close(g.freed)
		return nil
	}
	return errors.Join(g.closeIdle(), g.reader.Close())
}

func (g *generation) closeIdle() error {
	g.mu.Lock()
	g.mu.old = true
	idle := g.mu.idle
	g.mu.idle = nil
	g.mu.Unlock()
	var err error
	for _, c := range idle {
		err = errors.Join(err, c.close())
	}
	return err
}

// cursor walks over the leaves of a generation.
type cursor interface {
	// first goes to the first leaf.
	first()
	// seek goes to the first leaf that is not below key.
	seek(key []byte)
	// read calls take for each leaf in key order, from where the cursor is. Slices are valid during
	// the call. after bounds it, nil: what bounds it has.
	read(after []byte, take func(key, value []byte, height uint8) bool) error
	close() error
}

// newCursor reads keys in [first, after); nil: open.
func (g *generation) newCursor(first, after []byte) (c cursor, err error) {
	if g.layout == layout1 {
		c, err = newPairCursor(g.reader, first, after)
	} else {
		c, err = newLeafCursor(g.reader, first, after)
	}
	if err != nil {
		return nil, err
	}
	if g.revoked.Load() {
		return nil, errors.Join(errEmptied, c.close())
	}
	return c, nil
}

var errEmptied = errors.New("the zone was emptied meanwhile")

func bounds(kind byte, first, after []byte) *pebble.IterOptions {
	o := &pebble.IterOptions{LowerBound: append([]byte{kind}, first...), UpperBound: []byte{kind + 1}}
	if after != nil {
		o.UpperBound = append([]byte{kind}, after...)
	}
	return o
}

// leafCursor is the cursor of the layout that is written.
type leafCursor struct{ it *pebble.Iterator }

func newLeafCursor(r pebble.Reader, first, after []byte) (cursor, error) {
	it, err := r.NewIter(bounds(kindLeaf, first, after))
	if err != nil {
		return nil, err
	}
	return leafCursor{it}, nil
}

func (c leafCursor) close() error { return c.it.Close() }

func (c leafCursor) first() { c.it.First() }

func (c leafCursor) seek(key []byte) {
	var seek [64]byte
	c.it.SeekGE(append(append(seek[:0], kindLeaf), key...))
}

func (c leafCursor) read(after []byte, take func(key, value []byte, height uint8) bool) error {
	for ; c.it.Valid(); c.it.Next() {
		key := c.it.Key()[1:]
		if after != nil && bytes.Compare(key, after) >= 0 {
			break
		}
		rec, err := c.it.ValueAndErr()
		if err != nil {
			return err
		}
		value, height, err := splitLeaf(key, rec)
		if err != nil {
			return err
		}
		if !take(key, value, height) {
			return nil
		}
	}
	return c.it.Error()
}

// records appends leaves with keys in [first, after) to buf, until it has enough bytes.
func (g *generation) records(buf, first, after []byte, enough uint64) (_ []byte, err error) {
	if g.reader == nil {
		buf, err = g.set.records(buf, first, after, enough)
		return buf, g.unlessRevoked(err)
	}
	g.mu.Lock()
	var c cursor
	if n := len(g.mu.idle); n > 0 {
		c, g.mu.idle = g.mu.idle[n-1], g.mu.idle[:n-1]
	}
	g.mu.Unlock()
	if c == nil {
		if c, err = g.newCursor(nil, nil); err != nil {
			return buf, err
		}
	}
	c.seek(first)
	err = c.read(after, func(key, value []byte, height uint8) bool {
		buf = record.Append(buf, record.Leaf{Key: key, Value: value, Height: height})
		return uint64(len(buf)) < enough
	})
	g.mu.Lock()
	keep := err == nil && !g.mu.old && len(g.mu.idle) < maxIdle
	if keep {
		g.mu.idle = append(g.mu.idle, c)
	}
	g.mu.Unlock()
	if !keep {
		if failed := c.close(); err == nil { // else it is the same error again
			err = failed
		}
	}
	return buf, err
}

// unlessRevoked returns errEmptied for an error of reading files that are being removed.
func (g *generation) unlessRevoked(err error) error {
	if err != nil && g.revoked.Load() {
		return errEmptied
	}
	return err
}

// generations are those that are kept, each with one reference, in ascending order of their
// heights.
type generations struct {
	hits, misses atomic.Int64
	records      atomic.Int64 // that were found by their keys
	mu           struct {
		sync.RWMutex
		kept []*generation
		lent map[*Kept]struct{} // references that others hold
	}
}

// push makes g the newest; the others go unless all are to be kept.
func (gs *generations) push(g *generation, keep bool) {
	gs.mu.Lock()
	old := gs.mu.kept
	if keep {
		gs.mu.kept = append(slices.Clone(old), g)
	} else {
		gs.mu.kept = []*generation{g}
	}
	gs.mu.Unlock()
	for _, o := range old {
		if keep {
			_ = o.closeIdle() // an iterator's error was returned where it was used
		} else {
			_ = o.release()
		}
	}
}

// replace makes g the only one. It returns a channel for each of the others that is not settled,
// which is closed when nobody reads it any more.
func (gs *generations) replace(g *generation) (freed []<-chan struct{}) {
	gs.mu.Lock()
	old := gs.mu.kept
	gs.mu.kept = []*generation{g}
	gs.mu.Unlock()
	for _, o := range old {
		if o.reader == nil {
			freed = append(freed, o.freed)
		}
		_ = o.release() // an iterator's error was returned where it was used
	}
	return freed
}

// newest returns nil if there is none. The caller releases it.
func (gs *generations) newest() *generation { return gs.nth(0) }

// nth counts from the newest.
func (gs *generations) nth(n int) *generation {
	gs.mu.RLock()
	defer gs.mu.RUnlock()
	if n >= len(gs.mu.kept) {
		return nil
	}
	g := gs.mu.kept[len(gs.mu.kept)-1-n]
	g.refs.Add(1)
	return g
}

// all returns the newest first. The caller releases them.
func (gs *generations) all() []*generation {
	gs.mu.RLock()
	defer gs.mu.RUnlock()
	all := slices.Clone(gs.mu.kept)
	slices.Reverse(all)
	for _, g := range all {
		g.refs.Add(1)
	}
	return all
}

// dropAll drops all, and revokes them, also those that were dropped before and are lent still.
func (gs *generations) dropAll() {
	gs.mu.Lock()
	old := gs.mu.kept
	gs.mu.kept = nil
	for _, g := range old {
		g.revoked.Store(true)
	}
	for k := range gs.mu.lent {
		k.g.revoked.Store(true)
	}
	gs.mu.Unlock()
	for _, g := range old {
		_ = g.release()
	}
}

// trim drops those that keep does not want; the newest stays.
func (gs *generations) trim(keep func(g *generation) bool) {
	gs.mu.Lock()
	var kept, dropped []*generation
	for i, g := range gs.mu.kept {
		if i == len(gs.mu.kept)-1 || keep(g) {
			kept = append(kept, g)
		} else {
			dropped = append(dropped, g)
		}
	}
	gs.mu.kept = kept
	gs.mu.Unlock()
	for _, g := range dropped {
		_ = g.release()
	}
}

func (gs *generations) count() int {
	gs.mu.RLock()
	defer gs.mu.RUnlock()
	return len(gs.mu.kept)
}

var pageBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 32<<10); return &b }}

// Page reads the leaves with keys in [first, after), nil: open, as records (package avlstar/record)
// in key order, size bytes in all. It tries the kept states, newest first, until accept returns
// true; accept may use records only during the call. Leaves beyond size bytes are ignored: the page
// may be newer than the state, and they deleted since. Where first is nil, such leaves may also
// come before the page; accept is then offered what follows after one leaf, after two, and so on.
// Errors: ErrNoPage if accept returned true for none, and those of reading.
func (s *Zone) Page(first, after []byte, size uint64, accept func(records []byte) bool) error {
	if !s.users.enter() {
		return s.closedErr("read a page")
	}
	defer s.users.leave()
	newest := s.generations.newest()
	if newest == nil {
		s.generations.misses.Add(1)
		return ErrNoPage
	}
	found, err := s.pageOf(newest, first, after, size, accept)
	if err != nil || found {
		return err
	}
	all := s.generations.all()
	for i, g := range all {
		if g != newest && !found && err == nil {
			found, err = s.pageOf(g, first, after, size, accept)
		} else {
			_ = g.release()
		}
		all[i] = nil
	}
	if err == nil && !found {
		s.generations.misses.Add(1)
		return ErrNoPage
	}
	return err
}

// pageOf releases g.
func (s *Zone) pageOf(g *generation, first, after []byte, size uint64, accept func(records []byte) bool) (found bool, err error) {
	defer func() { _ = g.release() }()
	buf := pageBuffers.Get().(*[]byte)
	defer pageBuffers.Put(buf)
	enough := size
	if first == nil {
		enough += maxBefore
	}
	*buf, err = g.records((*buf)[:0], first, after, enough)
	switch {
	case errors.Is(err, errEmptied):
		return false, nil
	case err != nil:
		return false, s.readErr(err)
	}
	for rest := *buf; uint64(len(rest)) >= size; rest = rest[record.Size(rest):] {
		if endsAt(rest, size) && accept(rest[:size]) {
			s.generations.hits.Add(1)
			return true, nil
		}
		if first != nil {
			break
		}
	}
	return false, nil
}

// maxBefore is the maximum of bytes of deleted leaves to look through before a page whose first is
// nil.
const maxBefore = 8 << 20

// endsAt reports whether b[:size] ends with a whole record.
func endsAt(b []byte, size uint64) bool {
	at := uint64(0)
	for at < size {
		at += uint64(record.Size(b[at:]))
	}
	return at == size
}

// readErr is the error of a read: damage, or a file that cannot be read.
func (s *Zone) readErr(err error) error {
	if errors.Is(err, errLeafForm) || errors.Is(err, errDamagedRun) {
		return s.folder.Corrupt(err)
	}
	return s.folder.Err("read", err)
}

// Trim drops kept states. These stay: the newest; those above oldest, and the newest of the others;
// and for each pinned height, the newest state that is not above it. Pins on disk stay only if they
// are of pinned heights: the flusher removes the others after its next flush. Trim does no I/O.
func (s *Zone) Trim(oldest int64, pinned []int64) {
	if !s.users.enter() {
		return
	}
	defer s.users.leave()
	gs := s.generations.all()
	// upTo is the greatest height of a kept state that is not above a height: a version of that
	// height reads its pages from that state.
	upTo := func(height int64) (found int64) {
		for _, g := range gs {
			if g.height <= height {
				found = max(found, g.height)
			}
		}
		return found
	}
	base, others := upTo(oldest), make([]int64, len(pinned))
	for i, height := range pinned {
		others[i] = upTo(height)
	}
	for _, g := range gs {
		_ = g.release()
	}
	s.generations.trim(func(g *generation) bool { return g.height >= base || slices.Contains(others, g.height) })
	s.mu.Lock()
	s.mu.pinned, s.mu.trimmed, s.mu.trimmedTo = slices.Clone(pinned), true, s.mu.last
	s.mu.Unlock()
}

// removeUnpinned removes the pins on disk that the last Trim did not name.
func (s *Zone) removeUnpinned() {
	s.mu.Lock()
	pinned, trimmed, upTo := s.mu.pinned, s.mu.trimmed, s.mu.trimmedTo
	s.mu.trimmed = false
	s.mu.Unlock()
	if !trimmed {
		return
	}
	if err := s.removePins(func(height int64) bool { return height <= upTo && !slices.Contains(pinned, height) }); err != nil {
		s.log.Error("cannot remove a snapshot", "folder", s.opts.PinDir, "err", err)
	}
}

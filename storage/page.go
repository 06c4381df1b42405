package storage

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/avlstar/record"
)

// ErrNoPage: no kept state contains the page.
var ErrNoPage = errors.New("no kept state has this page")

// maxIdle is the number of iterators of a generation that are kept for reuse.
const maxIdle = 16

// generation is the state after a flush, of a pin, or of a restore that is not settled. It is
// reference-counted.
type generation struct {
	height int64
	reader pebble.Reader // nil: not settled, and the state is in set
	set    *runSet
	freed  chan struct{} // closed by the last release; nil if reader is not nil
	refs   atomic.Int64
	// Set when the zone is emptied: iterators created afterwards may see nothing.
	revoked atomic.Bool

	mu struct {
		sync.Mutex
		// Set when the generation is no longer the newest. Its iterators are then not kept, because
		// they would keep obsolete tables on disk.
		old  bool
		idle []*cursor
	}
}

// newGeneration returns a generation with one reference.
func newGeneration(height int64, reader pebble.Reader) *generation {
	g := &generation{height: height, reader: reader}
	g.refs.Store(1)
	return g
}

// newUnsettledGeneration returns a generation of a restored state, with one reference.
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

// cursor iterates over the leaves of a generation.
type cursor struct{ it *pebble.Iterator }

// newCursor returns a cursor over the keys in [first, after); nil: unbounded.
func (g *generation) newCursor(first, after []byte) (*cursor, error) {
	it, err := g.iterate(kindLeaf, first, after)
	if err != nil {
		return nil, err
	}
	return &cursor{it}, nil
}

// iterate returns an iterator over the records of a kind with keys in [first, after); nil is open.
// Error: errEmptied, since a zone that is emptied also loses the records of older snapshots.
func (g *generation) iterate(kind byte, first, after []byte) (*pebble.Iterator, error) {
	it, err := g.reader.NewIter(kindRange(kind, first, after))
	if err != nil {
		return nil, err
	}
	if g.revoked.Load() {
		return nil, errors.Join(errEmptied, it.Close())
	}
	return it, nil
}

// kindRange bounds an iterator to the records of a kind with keys in [first, after); nil is open.
func kindRange(kind byte, first, after []byte) *pebble.IterOptions {
	o := &pebble.IterOptions{LowerBound: append([]byte{kind}, first...), UpperBound: []byte{kind + 1}}
	if after != nil {
		o.UpperBound = append([]byte{kind}, after...)
	}
	return o
}

var errEmptied = errors.New("the zone was emptied meanwhile")

func (c *cursor) close() error { return c.it.Close() }

// first moves to the first leaf.
func (c *cursor) first() { c.it.First() }

// seek moves to the first leaf at or above key.
func (c *cursor) seek(key []byte) {
	var seek [64]byte
	c.it.SeekGE(append(append(seek[:0], kindLeaf), key...))
}

// read calls take for each leaf in key order, from the current position, until take returns false
// or a key is not below after (nil: the cursor's own bound). Slices are valid during the call.
func (c *cursor) read(after []byte, take func(key, value []byte, height uint8) bool) error {
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

// records appends leaves with keys in [first, after) to buf until buf has at least enough bytes.
func (g *generation) records(buf, first, after []byte, enough uint64) (_ []byte, err error) {
	if g.reader == nil {
		buf, err = g.set.records(buf, first, after, enough)
		return buf, g.unlessRevoked(err)
	}
	g.mu.Lock()
	var c *cursor
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
		if failed := c.close(); err == nil { // otherwise it is the same error
			err = failed
		}
	}
	return buf, err
}

// unlessRevoked replaces an error by errEmptied if the files are being removed.
func (g *generation) unlessRevoked(err error) error {
	if err != nil && g.revoked.Load() {
		return errEmptied
	}
	return err
}

// generations holds the kept states in ascending order of heights, each with one reference.
type generations struct {
	hits, misses atomic.Int64
	records      atomic.Int64 // number of records found by key
	mu           struct {
		sync.RWMutex
		kept []*generation
		lent map[*Kept]struct{} // references of callers
	}
}

// push adds g as the newest. Unless keep, it drops the others.
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
			_ = o.closeIdle() // an iterator's error was returned by its reader
		} else {
			_ = o.release()
		}
	}
}

// replace makes g the only generation. For each dropped unsettled generation it returns a channel
// that is closed by the last release.
func (gs *generations) replace(g *generation) (freed []<-chan struct{}) {
	gs.mu.Lock()
	old := gs.mu.kept
	gs.mu.kept = []*generation{g}
	gs.mu.Unlock()
	for _, o := range old {
		if o.reader == nil {
			freed = append(freed, o.freed)
		}
		_ = o.release() // an iterator's error was returned by its reader
	}
	return freed
}

// newest returns the newest generation, nil if there is none. The caller must release it.
func (gs *generations) newest() *generation { return gs.nth(0) }

// nth returns the nth newest generation.
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

// all returns all generations, newest first. The caller must release them.
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

// dropAll drops and revokes all generations, including dropped ones that are still lent.
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

// trim drops the generations for which keep returns false, except the newest.
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

// Page reads the leaves with keys in [first, after), nil: unbounded, as records (package
// avlstar/record) in key order, size bytes in total. It tries the kept states, newest first, until
// accept returns true; accept may use records only during the call. A state may be older than the
// page and still contain leaves that were deleted since: leaves beyond size bytes are ignored. If
// first is nil, such leaves may also precede the page. Then accept is also offered the records
// after one leaf, after two leaves, and so on. Errors: ErrNoPage if accept never returned true, and
// read errors.
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

// pageOf looks for a page in g, and releases g.
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

// maxBefore is the maximum number of bytes of deleted leaves skipped before a page whose first is
// nil.
const maxBefore = 8 << 20

// endsAt reports whether b[:size] ends at the end of a record.
func endsAt(b []byte, size uint64) bool {
	at := uint64(0)
	for at < size {
		at += uint64(record.Size(b[at:]))
	}
	return at == size
}

// readErr wraps the error of a read, and marks it as corruption if the data is damaged.
func (s *Zone) readErr(err error) error {
	if errors.Is(err, errLeafForm) || errors.Is(err, errDamagedRun) {
		return s.folder.Corrupt(err)
	}
	return s.folder.Err("read", err)
}

// Trim drops kept states, except: the newest; those above oldest, and the newest of the others; and
// for each pinned height, the nearest state at or below it and the nearest at or above it, which
// has the pages that became durable later. Pins on disk survive only at pinned heights: the flusher
// removes the others after its next flush. Trim does no I/O.
func (s *Zone) Trim(oldest int64, pinned []int64) {
	if !s.users.enter() {
		return
	}
	defer s.users.leave()
	gs := s.generations.all()
	// upTo returns the greatest height of a kept state at or below height: a version of that height
	// reads its pages from that state.
	upTo := func(height int64) (found int64) {
		for _, g := range gs {
			if g.height <= height {
				found = max(found, g.height)
			}
		}
		return found
	}
	from := func(height int64) int64 {
		found := int64(math.MaxInt64)
		for _, g := range gs {
			if g.height >= height {
				found = min(found, g.height)
			}
		}
		return found
	}
	base := upTo(oldest)
	var others []int64
	for _, height := range pinned {
		others = append(others, upTo(height), from(height))
	}
	for _, g := range gs {
		_ = g.release()
	}
	s.generations.trim(func(g *generation) bool { return g.height >= base || slices.Contains(others, g.height) })
	s.mu.Lock()
	s.mu.pinned, s.mu.trimmed, s.mu.trimmedTo = slices.Clone(pinned), true, s.mu.last
	if s.mu.oldest = oldest; len(pinned) > 0 {
		s.mu.oldest = min(oldest, slices.Min(pinned))
	}
	s.mu.Unlock()
}

// ReadUpTo reports that no version above height reads pages, because these versions are completely
// in memory. When Trim has passed that height, the states of past flushes are dropped by the next
// flush. After ReadUpTo(math.MaxInt64), which is the default, and before the first Trim, they are
// kept.
func (s *Zone) ReadUpTo(height int64) { s.readUpTo.Store(height) }

// keepsGenerations reports whether a version in use may need a state other than the newest.
func (s *Zone) keepsGenerations() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opts.Generations && s.mu.oldest <= s.readUpTo.Load()
}

// removeUnpinned removes the pins on disk that the last Trim did not name. The newest one stays
// while a named one is not on disk yet: a rollback needs one.
func (s *Zone) removeUnpinned() {
	s.mu.Lock()
	pinned, trimmed, upTo := s.mu.pinned, s.mu.trimmed, s.mu.trimmedTo
	s.mu.trimmed = false
	s.mu.Unlock()
	if !trimmed {
		return
	}
	newest := int64(0)
	for _, p := range s.Pins() {
		newest = p.Height
	}
	if len(pinned) == 0 || slices.Max(pinned) <= newest {
		newest = 0
	}
	gone := func(height int64) bool { return height <= upTo && height != newest && !slices.Contains(pinned, height) }
	if err := s.removePins(gone); err != nil {
		s.log.Error("cannot remove a snapshot", "folder", s.opts.PinDir, "err", err)
	}
}

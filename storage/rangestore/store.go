package rangestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/pages"
)

// ErrOther: a state, or a log of updates of one, belongs to another chain or key range.
var ErrOther = errors.New("of another chain or key range")

// remedy ends the messages of storage.ErrCorrupt.
const remedy = "remove the folder, and the node fetches the range again"

// databaseCache is the size of the block cache of each range's database, in bytes.
const databaseCache = 4 << 20

// OpenBytes is the memory that an open range takes in addition to Memory, in bytes: its database's
// block cache and memtables, and what the database takes when nothing happens (0.6 MiB,
// measured with 50 empty ranges). Changes that are not durable yet are not included.
const OpenBytes = databaseCache + 2*storage.MemTableBytes + 1<<20

// flushBlocks is the number of versions that a flush writes. Fewer take less memory until they are
// durable, and less time to replay after a kill; more cost fewer bytes on disk.
const flushBlocks = 10

// flushInterval is the time for which changes wait for a flush at most. The node's log has them, so
// they may wait.
const flushInterval = time.Minute

// compactAfter is the number of flushes until a compaction. A compaction rewrites the whole page
// list, 31 MB with ten million keys: with four instead of two flushes, a node writes 4.8 to 6.0
// bytes per changed byte instead of 8.2 to 9.7 (docs/runs/sharded.txt).
const compactAfter = 4

// flushBytes is the size of changes that are flushed at once, and a quarter of those that may wait:
// a node has many ranges.
const flushBytes = 4 << 20

// Options configure a Store.
type Options struct {
	Dir     string // folder of the zone; created if necessary
	FS      vfs.FS // default: the operating system's
	Keys    avlstar.KeyRange
	ChainID string
	Memory  *Memory    // required; shared by the ranges of a node
	Logger  log.Logger // default: silent
	// Failed is called when a state cannot be made durable, or a page cannot be read. It is called
	// by any goroutine, and must not call the store. Default: no call.
	Failed func(error)
	// Fatal is storage.Options.Fatal.
	Fatal func(error)

	blockCache int64 // default: databaseCache; tests have almost none
}

// Store is a key range on disk. Create, Load, Commit and Trim are called by one goroutine at a
// time; all other methods may be called concurrently.
type Store struct {
	zone     *storage.Zone
	dir      string
	keys     avlstar.KeyRange
	chainID  string
	memory   *Memory
	share    *share
	pages    *pages.Pages
	scrubber pages.Scrubber[*avlstar.Partial]
	log      log.Logger
	list     pages.ListWriter[*avlstar.Partial]
}

// Open opens the store in o.Dir. It discards what an interrupted Create has left, and keeps what a
// Fill has left. Errors: ErrOther; storage.ErrCorrupt; those of storage.Open.
func Open(o Options) (*Store, error) {
	if err := checkKeys(o.Keys); err != nil {
		return nil, fmt.Errorf("range %s: %w", o.Keys, err)
	}
	if o.Logger == nil {
		o.Logger = log.NewNopLogger()
	}
	if o.blockCache == 0 {
		o.blockCache = databaseCache
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	zone, err := storage.Open(o.Dir, storage.Options{
		FS: o.FS, Logger: o.Logger, Failed: o.Failed, Fatal: o.Fatal, CacheBytes: o.blockCache, Generations: true, FlushBlocks: flushBlocks,
		FlushBytes: flushBytes, FlushInterval: flushInterval, MaxLagBytes: 4 * flushBytes, CompactAfter: compactAfter,
		Remedy: remedy,
	})
	if err != nil {
		return nil, err
	}
	s := &Store{zone: zone, dir: o.Dir, keys: o.Keys, chainID: o.ChainID, memory: o.Memory, log: o.Logger}
	unread := func(err error) {
		if !errors.Is(err, storage.ErrClosed) { // versions may outlive the store
			o.Failed(err)
		}
	}
	s.pages = &pages.Pages{Zone: zone, Cache: o.Memory.cache, Failed: unread, Logger: o.Logger}
	if _, _, _, err = s.state(); err == nil {
		if label, interrupted := zone.Interrupted(); interrupted && !bytes.Equal(label, s.fillLabel()) {
			err = zone.Reset()
		}
	}
	if err != nil {
		return nil, errors.Join(err, zone.Close())
	}
	s.share = o.Memory.join()
	return s, nil
}

// KeysOf returns the range of the store in a folder that is not in use, and the height of its
// state; false: it has no state. It changes nothing. Errors: as Open, except that any range is
// accepted.
func KeysOf(fs vfs.FS, dir, chainID string) (keys avlstar.KeyRange, height int64, ok bool, err error) {
	if _, err := fs.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return keys, 0, false, nil
	}
	zone, err := storage.Open(dir, storage.Options{FS: fs, Generations: true, ReadOnly: true, CacheBytes: databaseCache, Remedy: remedy})
	if err != nil {
		return keys, 0, false, err
	}
	s := &Store{zone: zone, dir: dir, chainID: chainID}
	meta, e, ok, err := s.described()
	keys = avlstar.KeyRange{First: slices.Clone(e.keys.First), After: slices.Clone(e.keys.After)}
	return keys, meta.Height, ok, errors.Join(err, zone.Close())
}

// Remove removes the folder of a closed store, or of one that Open refuses. After
// storage.ErrCorrupt, call Remove, Open and Create: Create alone cannot replace a state if the
// database does not open, or has failed.
func Remove(fs vfs.FS, dir string) error {
	if err := fs.RemoveAll(dir); err != nil {
		return fmt.Errorf("state folder %s: remove: %w", dir, err)
	}
	return nil
}

// state describes the durable state; false if there is none. Errors: ErrOther, storage.ErrCorrupt.
func (s *Store) state() (storage.Meta, extra, bool, error) {
	meta, e, ok, err := s.described()
	if err == nil && ok && !e.keys.Equal(s.keys) {
		return meta, extra{}, false, fmt.Errorf("state folder %s is %w: it has keys %s, not %s", s.dir, ErrOther, e.keys, s.keys)
	}
	return meta, e, ok, err
}

// described is state for any range.
func (s *Store) described() (storage.Meta, extra, bool, error) {
	meta, ok := s.zone.Meta()
	if !ok {
		return meta, extra{}, false, nil
	}
	if meta.ChainID != s.chainID {
		return meta, extra{}, false, fmt.Errorf("state folder %s is %w: it is of chain %q, not %q", s.dir, ErrOther, meta.ChainID, s.chainID)
	}
	if len(meta.Extra) == 0 {
		return meta, extra{}, false, fmt.Errorf("state folder %s is %w: it has no key range", s.dir, ErrOther)
	}
	e, err := decodeExtra(meta.Extra)
	switch {
	case errors.Is(err, storage.ErrNewerFormat):
		return meta, extra{}, false, fmt.Errorf("state folder %s: %w", s.dir, err)
	case err != nil:
		return meta, extra{}, false, s.corrupt(err)
	}
	if hash := e.commitment.AppHash(); string(hash[:]) != string(meta.AppHash) {
		return meta, extra{}, false, s.corrupt(fmt.Errorf("its commitment has app hash %s, not %X", hash, meta.AppHash))
	}
	return meta, e, true, nil
}

func (s *Store) corrupt(err error) error {
	return fmt.Errorf("state folder %s is %w: %w: %s", s.dir, storage.ErrCorrupt, err, remedy)
}

// meta describes a state.
func (s *Store) meta(height int64, c avlstar.Commitment, boundary []byte) storage.Meta {
	hash := c.AppHash()
	return storage.Meta{
		Height: height, AppHash: hash[:], ChunkBytes: c.ChunkBytes, ChainID: s.chainID,
		Extra: extra{s.keys, c, boundary}.encode(),
	}
}

// counted counts the pages that the tree reads.
type counted struct{ *Store }

// Page implements avlstar.Pages.
func (c counted) Page(s avlstar.Subtree) (*avlstar.Page, error) {
	c.memory.read(c.share)
	return c.pages.Page(s)
}

func (s *Store) paging() avlstar.Paging {
	return avlstar.Paging{
		Pages: counted{s}, Evicted: s.pages.Evicted,
		Budget: func() int64 { return s.memory.budget(s.share) },
	}
}

// Commit queues the version next, and returns before it is durable. base is the version committed
// before, or loaded, of the same tree: changes are all changes inside the range since then, with
// any others, and must not be modified later. It waits while too much is queued. The caller may
// release both versions afterwards. Pages of next may leave the tree once it is durable. Errors:
// those of storage.Zone's Write; *avlstar.PageError.
func (s *Store) Commit(height int64, next, base *avlstar.Partial, changes []avlstar.Change) error {
	boundary, err := next.Boundary(s.keys)
	if err != nil {
		return fmt.Errorf("state folder %s: commit: %w", s.dir, err)
	}
	p := &pending{keys: s.keys, next: next, base: base, list: s.list.Next(height, 0, next, base)}
	block := storage.Block{Meta: s.meta(height, next.Commitment(), boundary), Owner: p, NewPageList: p.list.Whole()}
	for _, c := range changes {
		switch {
		case !s.keys.Contains(c.Key):
		case c.Value == nil:
			block.Deletes = append(block.Deletes, c.Key)
		default:
			block.Puts = append(block.Puts, record.Leaf{Key: c.Key, Value: c.Value})
		}
	}
	next.Retain()
	if err := s.zone.Write(block); err != nil {
		p.release()
		s.list.Begin(false)
		return err
	}
	return nil
}

// pending is a version that is not durable yet. It holds a reference to the version until the zone
// has copied the heights and the changes of the page list.
type pending struct {
	keys     avlstar.KeyRange
	next     *avlstar.Partial
	base     *avlstar.Partial // may have been released
	list     pages.ListPart[*avlstar.Partial]
	released bool
}

var _ storage.Owner = (*pending)(nil)

// Take implements storage.Owner.
func (p *pending) Take(height func(key []byte, height uint8), page func(key, record []byte)) {
	for key, h := range p.next.NewInner(p.base, p.keys) {
		height(key, h)
	}
	p.list.Take(page)
	p.release()
}

// PinData implements storage.Owner. No block has a pin.
func (p *pending) PinData() []byte { return nil }

// Done implements storage.Owner.
func (p *pending) Done(durable bool) {
	if durable {
		p.next.Stored()
	}
	p.release()
}

func (p *pending) release() {
	if !p.released {
		p.released = true
		p.next.Release()
		p.list.Release()
	}
}

// Durable returns the height of the durable state; false if there is none.
func (s *Store) Durable() (height int64, ok bool) {
	meta, ok := s.zone.Meta()
	return meta.Height, ok
}

// Flush waits until all committed versions are durable, or ctx ends.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.zone.Settle(ctx); err != nil {
		return err
	}
	return s.zone.Flush()
}

// Trim says that versions below oldest are no longer used, except those at the heights others. The
// disk frees what only unused versions need.
func (s *Store) Trim(oldest int64, others []int64) { s.zone.Trim(oldest, others) }

// StopSettling lets Commit and Flush return that wait until the state that Create stored is in the
// database. It is called before Close; the next Open continues.
func (s *Store) StopSettling() { s.zone.StopSettling() }

// Scrub repeatedly verifies all pages on disk, at most bytesPerSecond of leaf records. It must not
// be called concurrently. latest returns the newest version, which Scrub releases; nil: none. It
// returns nil when ctx ends or the store is closed. Errors: storage.ErrCorrupt; read errors.
func (s *Store) Scrub(ctx context.Context, latest func() *avlstar.Partial, bytesPerSecond int64) error {
	s.scrubber.Pages, s.scrubber.Latest, s.scrubber.Of = s.pages, latest, (*avlstar.Partial).Pages
	err := s.scrubber.Scrub(ctx, bytesPerSecond)
	if errors.Is(err, pages.ErrDamaged) {
		return s.corrupt(err)
	}
	return err
}

// ScrubStats returns the counters of Scrub.
func (s *Store) ScrubStats() pages.ScrubStats { return s.scrubber.Stats() }

// Bytes returns the disk usage in bytes.
func (s *Store) Bytes() uint64 { return s.zone.DiskBytes() }

// Metrics returns the counters of the zone.
func (s *Store) Metrics() storage.Metrics { return s.zone.Metrics() }

// Close makes committed versions durable, unless the state that Create stored is not settled yet or
// the disk has failed, and closes the store. Versions may be released later, but their pages can no
// longer be read.
func (s *Store) Close() error {
	err := s.zone.Close()
	s.memory.leave(s.share)
	return err
}

package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/cosmos/store"
	"github.com/starling-kv/starling/storage"
)

// DefaultPinEvery is used if Options.PinEvery is 0.
const DefaultPinEvery = 1000

// keptPins is the number of pins (snapshots on disk) that are kept in addition to the zone itself.
const keptPins = 2

// MaxNameBytes is the greatest length of a store's name.
const MaxNameBytes = 255

const prunedKey = "s/starling/pruned" // → height:u64be: versions up to this height are pruned

// ErrNoHistory reports that a version cannot be rebuilt from the states and records on disk.
var ErrNoHistory = errors.New("the disk does not have that version of the Starling stores")

// Options of a Disk.
type Options struct {
	Dir        string         // folder of the zone; the folder of its pins is Dir + "-pins"
	FS         vfs.FS         // default: the operating system's
	Logger     storage.Logger // default: silent
	ChunkBytes uint64         // of all stores
	PinEvery   int64          // number of heights between two pins
	// FlushBlocks is the number of queued commits at which the zone writes them to disk;
	// 0: storage's default.
	FlushBlocks int
}

// Disk keeps the Starling stores of a multi-store on disk. Its methods must not be called
// concurrently.
type Disk struct {
	o    Options
	db   dbm.DB
	zone *storage.Zone

	height  int64 // of the state that was loaded or logged last; 0: no state
	written int64 // last height that was passed to the zone
	pruned  int64 // versions up to this one are pruned
	// gone deletes the keys that removed stores left behind. The next commit writes these deletions
	// before its own changes.
	gone []Named
}

// Open opens the folder, and creates it if it is missing. db is the multi-store's database.
func Open(db dbm.DB, o Options) (*Disk, error) {
	if o.ChunkBytes == 0 {
		o.ChunkBytes = avlstar.DefaultChunkBytes
	}
	if o.PinEvery == 0 {
		o.PinEvery = DefaultPinEvery
	}
	d := &Disk{o: o, db: db}
	b, err := db.Get([]byte(prunedKey))
	if err != nil {
		return nil, err
	}
	if len(b) == 8 {
		d.pruned = int64(binary.BigEndian.Uint64(b))
	}
	return d, d.open()
}

func (d *Disk) zoneOptions() storage.Options {
	return storage.Options{FS: d.o.FS, Logger: d.o.Logger, FlushBlocks: d.o.FlushBlocks}
}

func (d *Disk) open() (err error) {
	d.zone, err = storage.Open(d.o.Dir, d.zoneOptions())
	if err != nil {
		return err
	}
	d.written = d.zone.Safe()
	return nil
}

// Close writes the queued commits to the zone and closes it.
func (d *Disk) Close() error {
	d.dropGone()
	return d.zone.Close()
}

// prefix returns the first bytes of a store's keys in the zone.
func prefix(name string) []byte { return appendField(nil, []byte(name)) }

// Check returns an error if no store can have this name.
func Check(name string) error {
	if len(name) > MaxNameBytes {
		return fmt.Errorf("store name of %d bytes, the limit is %d", len(name), MaxNameBytes)
	}
	return nil
}

// Named is the last commit of a store.
type Named struct {
	Name string
	store.Commit
}

// byPrefix compares store names in the order of the stores' keys in the zone.
func byPrefix(a, b string) int { return bytes.Compare(prefix(a), prefix(b)) }

// Log adds the record of a commit to the batch that makes the commit durable. The batch has only
// the first part of a long record. Log writes the other parts to the database immediately; they are
// not read until the batch is written.
func (d *Disk) Log(batch dbm.Batch, height int64, commits []Named) error {
	if d.height == 0 {
		// No records continue the zone's state: its stores were removed or rolled back.
		if d.written > 0 {
			d.written = 0
			if err := d.zone.Reset(); err != nil {
				return err
			}
		}
		if err := d.removeRecords(batch, 0, height-1); err != nil {
			return err
		}
	}
	r := commitRecord{previous: d.height}
	for _, c := range slices.Concat(d.gone, commits) {
		if len(c.Changes) > 0 {
			r.stores = append(r.stores, Changes{c.Name, c.Changes})
		}
	}
	slices.SortStableFunc(r.stores, func(a, b Changes) int { return strings.Compare(a.Name, b.Name) })
	parts := r.encode()
	for i := len(parts) - 1; i > 0; i-- {
		if err := d.db.SetSync(logKey(height, uint32(i)), parts[i]); err != nil {
			return err
		}
	}
	d.height = height
	return batch.Set(logKey(height, 0), parts[0])
}

// Skip records that a version was committed again. The disk already has it.
func (d *Disk) Skip(height int64) { d.height = height }

// Prune records that versions up to height will not be loaded again, and removes the records that
// later versions do not need.
func (d *Disk) Prune(batch dbm.Batch, height int64) error {
	d.pruned = max(d.pruned, height)
	if err := batch.Set([]byte(prunedKey), binary.BigEndian.AppendUint64(nil, uint64(d.pruned))); err != nil {
		return err
	}
	pins := d.zone.Pins()
	if len(pins) < keptPins {
		return nil
	}
	oldest := pins[len(pins)-keptPins].Height
	pinned := heightsOf(pins[len(pins)-keptPins:])
	// Also keep the heights of pins that are queued and not created yet.
	for h := (pins[len(pins)-1].Height/d.o.PinEvery + 1) * d.o.PinEvery; h <= d.written; h += d.o.PinEvery {
		pinned = append(pinned, h)
	}
	d.zone.Trim(oldest, pinned)
	return d.removeRecords(batch, 0, oldest)
}

func heightsOf(pins []storage.PinInfo) (h []int64) {
	for _, p := range pins {
		h = append(h, p.Height)
	}
	return h
}

func (d *Disk) removeRecords(batch dbm.Batch, from, to int64) error {
	var keys [][]byte
	if err := heights(d.db, from, to, func(_ int64, key []byte) { keys = append(keys, key) }); err != nil {
		return err
	}
	for _, key := range keys {
		if err := batch.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// Write passes a logged commit to the zone, and takes over the references of commits.
func (d *Disk) Write(height int64, commits []Named) error {
	return d.write(height, commits, height%d.o.PinEvery == 0)
}

func (d *Disk) write(height int64, commits []Named, pin bool) error {
	if height <= d.written { // the zone already has this height: it was committed again
		(&owner{commits}).release()
		d.dropGone()
		return nil
	}
	commits, d.gone = slices.Concat(d.gone, commits), nil
	slices.SortStableFunc(commits, func(a, b Named) int { return byPrefix(a.Name, b.Name) })
	o := &owner{commits}
	block := storage.Block{Meta: d.meta(height, commits), Pin: pin, Owner: o}
	for _, c := range commits {
		p := prefix(c.Name)
		for _, change := range c.Changes {
			key := append(append(make([]byte, 0, len(p)+len(change.Key)), p...), change.Key...)
			if change.Value == nil {
				block.Deletes = append(block.Deletes, key)
			} else {
				block.Puts = append(block.Puts, record.Leaf{Key: key, Value: change.Value})
			}
		}
	}
	if err := d.zone.Write(block); err != nil {
		o.release()
		return err
	}
	d.written = height
	return nil
}

// owner holds the references of commits until the zone has read the heights of their inner nodes.
type owner struct{ commits []Named }

var _ storage.Owner = (*owner)(nil)

// Take implements storage.Owner.
func (o *owner) Take(add func(key []byte, height uint8), _ func(key, record []byte)) {
	var key []byte
	for _, c := range o.commits {
		key = append(key[:0], prefix(c.Name)...)
		n := len(key)
		for k, h := range c.Version.State.NewInner(c.Base) {
			key = append(key[:n], k...)
			add(key, h)
		}
	}
	o.release()
}

// PinData implements storage.Owner. Pins of this package carry no data.
func (*owner) PinData() []byte { return nil }

// Done implements storage.Owner.
func (o *owner) Done(bool) { o.release() }

func (o *owner) release() {
	for _, c := range o.commits {
		c.Release()
	}
	o.commits = nil
}

// meta describes the state after a commit. Its hash only identifies the state: the trees are
// verified against the roots in the commit info.
func (d *Disk) meta(height int64, commits []Named) storage.Meta {
	h := sha256.New()
	for _, c := range commits {
		root := c.Version.State.AppHash()
		h.Write(append(prefix(c.Name), root[:]...))
	}
	return storage.Meta{Height: height, AppHash: h.Sum(nil), ChunkBytes: d.o.ChunkBytes, ChainID: "cosmos/store"}
}

// Replace replaces everything in the zone with the given states of a height. The caller then writes
// the commit info of that height. If no height was committed before, a crash between the two leaves
// only data that is never loaded.
func (d *Disk) Replace(height int64, states map[string]*avlstar.Version) error {
	if err := d.zone.Reset(); err != nil {
		return err
	}
	d.written, d.height = 0, 0
	d.dropGone()
	var commits []Named
	for name, v := range states {
		c := Named{name, store.Commit{Version: store.Version{Height: height, State: v}}}
		for kv, err := range v.Ascend(nil, nil) {
			if err != nil {
				return err
			}
			c.Changes = append(c.Changes, avlstar.Change{Key: bytes.Clone(kv.Key), Value: bytes.Clone(kv.Value)})
		}
		v.Retain()
		commits = append(commits, c)
	}
	// No records lead to this height, so a rollback to it or to a later height needs this pin.
	if err := d.write(height, commits, true); err != nil {
		return err
	}
	d.height = height
	return d.zone.Flush()
}

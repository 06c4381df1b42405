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

// DefaultPinEvery is Options.PinEvery where it is 0.
const DefaultPinEvery = 1000

// keptPins is the number of pins that stay, besides the zone itself.
const keptPins = 2

// MaxNameBytes is the greatest length of a store's name.
const MaxNameBytes = 255

const prunedKey = "s/starling/pruned" // → height:u64be, up to which versions were pruned

// ErrNoHistory: what is on disk does not lead to a version.
var ErrNoHistory = errors.New("the disk does not have that version of the Starling stores")

// Options of a Disk.
type Options struct {
	Dir        string         // folder of the zone, and with "-pins" behind it of its pins
	FS         vfs.FS         // default: the operating system's
	Logger     storage.Logger // default: silent
	ChunkBytes uint64         // of all stores
	PinEvery   int64          // heights between two pins
	// FlushBlocks is the number of commits after which the zone writes them; 0: storage's default.
	FlushBlocks int
}

// Disk is the stores of a multi-store on disk. Its methods are not called concurrently.
type Disk struct {
	o    Options
	db   dbm.DB
	zone *storage.Zone

	height  int64 // of what was loaded or logged last; 0: no state
	written int64 // of what the zone has, or is about to have
	pruned  int64 // versions up to this one are gone
	// gone are deletions of what stores have left that were removed before the height that was
	// loaded. They go with the next commit, before its changes.
	gone []Named
}

// Open opens the folder, which it creates if need be. db is the multi-store's.
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

// Close makes durable what waits.
func (d *Disk) Close() error {
	d.dropGone()
	return d.zone.Close()
}

// prefix is what the zone's keys of a store begin with.
func prefix(name string) []byte { return appendField(nil, []byte(name)) }

// Check returns an error for a name that no store can have.
func Check(name string) error {
	if len(name) > MaxNameBytes {
		return fmt.Errorf("a store's name of %d bytes, at most %d are possible", len(name), MaxNameBytes)
	}
	return nil
}

// Named is the last commit of a store.
type Named struct {
	Name string
	store.Commit
}

// byPrefix brings stores into the order of their keys in the zone.
func byPrefix(a, b string) int { return bytes.Compare(prefix(a), prefix(b)) }

// Log adds the record of a commit to the batch that makes it durable. Long ones begin in batches
// of their own before, which nobody reads until that batch is written.
func (d *Disk) Log(batch dbm.Batch, height int64, commits []Named) error {
	if d.height == 0 {
		// What is there leads to no height that is left: stores were removed, and rolled back over.
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

// Skip says that a version was committed again that the disk has.
func (d *Disk) Skip(height int64) { d.height = height }

// Prune says that versions up to height need not be loaded any more, and removes records that lead
// to no later one.
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
	// Those that are still to be made stay, too.
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

// Write hands a commit that was logged over to the zone, and takes over the references of commits.
func (d *Disk) Write(height int64, commits []Named) error {
	return d.write(height, commits, height%d.o.PinEvery == 0)
}

func (d *Disk) write(height int64, commits []Named, pin bool) error {
	release := func() {
		for _, c := range commits {
			c.Release()
		}
	}
	if height <= d.written { // committed again
		release()
		d.dropGone()
		return nil
	}
	commits, d.gone = slices.Concat(d.gone, commits), nil
	slices.SortStableFunc(commits, func(a, b Named) int { return byPrefix(a.Name, b.Name) })
	block := storage.Block{Meta: d.meta(height, commits), Taken: release}
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
	block.Heights = func(yield func([]byte, uint8) bool) {
		var key []byte
		for _, c := range commits {
			key = append(key[:0], prefix(c.Name)...)
			n := len(key)
			for k, h := range c.Version.State.NewInner(c.Base) {
				if key = append(key[:n], k...); !yield(key, h) {
					return
				}
			}
		}
	}
	if pin {
		block.PinData = func() []byte { return nil }
	}
	if err := d.zone.Write(block); err != nil {
		release()
		return err
	}
	d.written = height
	return nil
}

// meta describes the state after a commit. Its hash is only a mark: what proves the trees are the
// roots in the commit info.
func (d *Disk) meta(height int64, commits []Named) storage.Meta {
	h := sha256.New()
	for _, c := range commits {
		root := c.Version.State.AppHash()
		h.Write(append(prefix(c.Name), root[:]...))
	}
	return storage.Meta{Height: height, AppHash: h.Sum(nil), ChunkBytes: d.o.ChunkBytes, ChainID: "cosmos/store"}
}

// Replace makes these states the only ones, at this height, for whoever writes the commit info of
// that height then. A crash before that leaves nothing that is ever loaded, if there was no height.
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
	// Pinned: no records lead to here, so this is what rollbacks begin from.
	if err := d.write(height, commits, true); err != nil {
		return err
	}
	d.height = height
	return d.zone.Flush()
}

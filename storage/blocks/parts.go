package blocks

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/internal/keyspace"
	"github.com/starling-kv/starling/storage/seglog"
)

const (
	// partsID and partsPrefix identify the parts of blocks: their keys are P:HEIGHT:INDEX in the
	// database of this ID (CometBFT v0.40.0, store/store.go, calcBlockPartKey).
	partsID     = "blockstore"
	partsPrefix = "P:"
	// heldRecords and heldBytes limit the held values.
	heldRecords, heldBytes = 256, 8 << 20
)

// parts stores large values, the parts of blocks, outside of Pebble. In place of such a value,
// Pebble stores a reference: a tag followed by a seglog.Ref.
//
//	Set ─────────────► held ──────┐  (its reference is written only after its record is durable)
//	                              ▼
//	batch, SetSync ──► Append ─► Sync ─► one batch of Pebble: references, the segment's end, the rest
//
// A value that is set without sync is held in memory until anything else is written or synced. The
// parts of a large block are set one by one, and the batch that follows them is synced. So writes
// reach the disk in their order, and a block costs one sync of a segment.
type parts struct {
	store *seglog.Store
	tag   [tagBytes]byte // random prefix of every reference; zero in an empty read-only zone

	mu struct {
		sync.Mutex // held while records are appended and their references written
		cursors    map[uint32]uint64
		turn       uint32 // last segment swept in turn, apart from the oldest
		stuck      map[uint32]bool
	}
	held struct {
		sync.RWMutex // taken after mu
		groups       []*seglog.Group
		values       map[string][]byte // newest values by key
		bytes        int
		any          atomic.Bool
	}
	appended atomic.Uint64 // bytes, since the zone was opened
	sweeping atomic.Bool   // the last sweep stopped at its limit
}

const (
	tagBytes  = 16
	partBytes = tagBytes + seglog.RefBytes // size of a reference in Pebble
)

// Keys of the zone itself. They sort before those of all databases.
var (
	tagKey     = []byte{0, 1}
	endsPrefix = []byte{0, 2}
)

// endKey returns the key of the end of a segment's records. Its value is a uint64.
func endKey(number uint32) []byte {
	return binary.BigEndian.AppendUint32(bytes.Clone(endsPrefix), number)
}

// isPart reports whether a key of the database belongs to a part.
func (d *database) isPart(key []byte) bool {
	return d.parts && bytes.HasPrefix(key, []byte(partsPrefix))
}

// outside reports whether a value belongs in a segment: a large part, or a value that looks like a
// reference.
func (d *database) outside(key, value []byte) bool {
	if _, is := d.z.reference(value); is {
		return true
	}
	return d.isPart(key) && len(value) >= largeValue && len(value) <= seglog.MaxValue
}

// reference decodes a value in Pebble as a reference; false if it is not one.
func (z *Zone) reference(value []byte) (seglog.Ref, bool) {
	if len(value) != partBytes || !bytes.HasPrefix(value, z.parts.tag[:]) {
		return seglog.Ref{}, false
	}
	return seglog.DecodeRef(value[tagBytes:]), true
}

func (z *Zone) readTag() error {
	tag, found, err := z.read(tagKey)
	switch {
	case err != nil:
		return err
	case !found || len(tag) != tagBytes:
		return z.folder.Corrupt(errors.New("the tag of references to segments is missing"))
	}
	copy(z.parts.tag[:], tag)
	return nil
}

// openParts opens the segments.
func (z *Zone) openParts(limit uint64) error {
	ends := map[uint32]uint64{}
	it, err := z.db.NewIter(&pebble.IterOptions{LowerBound: endsPrefix, UpperBound: []byte{0, 3}})
	if err != nil {
		return z.readErr(err)
	}
	for it.First(); it.Valid(); it.Next() {
		key, value := it.Key(), it.Value()
		if len(key) != len(endsPrefix)+4 || len(value) != 8 {
			return errors.Join(z.folder.Corrupt(fmt.Errorf("end of a segment %x: %x", key, value)), it.Close())
		}
		ends[binary.BigEndian.Uint32(key[len(endsPrefix):])] = binary.BigEndian.Uint64(value)
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return z.readErr(err)
	}
	z.parts.store, err = seglog.Open(seglog.Options{
		FS: z.folder.FS, Dir: z.folder.Dir, Ends: ends, Limit: limit, ReadOnly: z.readOnly,
	})
	z.parts.mu.cursors, z.parts.mu.stuck = map[uint32]uint64{}, map[uint32]bool{}
	z.parts.held.values = map[string][]byte{}
	return z.partErr("open", err)
}

// partErr converts an error of a segment to an error of the zone.
func (z *Zone) partErr(doing string, err error) error {
	if errors.Is(err, seglog.ErrDamaged) {
		return z.folder.Corrupt(err)
	}
	return z.folder.Err(doing, err)
}

// resolve returns the value for a stored value: the value itself or, if it is a reference, the
// referenced record. It fails with seglog.ErrGone if the record was removed meanwhile.
func (z *Zone) resolve(key, value []byte) ([]byte, error) {
	ref, is := z.reference(value)
	if !is {
		return value, nil
	}
	value, err := z.parts.store.Read(key, ref)
	if errors.Is(err, seglog.ErrGone) {
		return nil, err
	}
	if err != nil {
		err = z.partErr("read", err)
		z.failed(err)
	}
	return value, err
}

// lost returns the error for a reference to a missing segment.
func (z *Zone) lost(err error) error {
	err = z.folder.Corrupt(fmt.Errorf("a part refers to a missing record: %w", err))
	z.failed(err)
	return err
}

// heldValue returns the value of a key, if it is held.
func (p *parts) heldValue(key []byte) ([]byte, bool) {
	if !p.held.any.Load() {
		return nil, false
	}
	p.held.RLock()
	defer p.held.RUnlock()
	value, is := p.held.values[string(key)]
	return value, is
}

// hold adds a group of one record to the held values. The caller holds mu.
func (p *parts) hold(g *seglog.Group) {
	p.held.Lock()
	defer p.held.Unlock()
	p.held.groups = append(p.held.groups, g)
	p.held.values[string(g.Key(0))] = g.Value(0)
	p.held.bytes += g.Bytes()
	p.held.any.Store(true)
}

func (p *parts) full() bool { return len(p.held.groups) >= heldRecords || p.held.bytes >= heldBytes }

// forget drops the held values after their references were written. The caller holds mu.
func (p *parts) forget() {
	p.held.Lock()
	defer p.held.Unlock()
	p.held.groups, p.held.bytes = nil, 0
	clear(p.held.values)
	p.held.any.Store(false)
}

// commitParts writes the held values and then a batch, which may be nil. A batch of a single part
// may be held instead.
func (z *Zone) commitParts(b *batch, sync bool) error {
	p := &z.parts
	p.mu.Lock()
	defer p.mu.Unlock()
	if b != nil && !sync && len(b.outside) == 1 && b.batch.Count() == 1 && !p.full() {
		return z.cached(b.batch, func() error {
			p.hold(&b.group)
			return nil
		})
	}
	groups := p.held.groups
	if b != nil && b.group.Len() > 0 {
		groups = append(slices.Clip(groups), &b.group)
	}
	out := z.db.NewBatch()
	defer out.Close()
	var own []seglog.Ref
	if len(groups) > 0 {
		refs, end, err := p.store.Append(groups...)
		if err == nil {
			err = p.store.Sync()
		}
		if err != nil {
			return z.folder.Fail("write", err)
		}
		for _, g := range groups {
			p.appended.Add(uint64(g.Bytes()))
		}
		err = errors.Join(err, out.Set(endKey(p.store.Active()), binary.BigEndian.AppendUint64(nil, end), nil))
		for i, g := range p.held.groups {
			err = errors.Join(err, out.Set(g.Key(0), refs[i].AppendTo(p.tag[:tagBytes:tagBytes]), nil))
		}
		if err != nil {
			return z.folder.Err("write", err)
		}
		own = refs[len(p.held.groups):]
	}
	if b != nil {
		if err := z.refer(out, b, own); err != nil {
			return z.folder.Err("write", err)
		}
	}
	options := pebble.NoSync
	if sync {
		options = pebble.Sync
	}
	if err := z.cached(out, func() error { return z.folder.Err("write", out.Commit(options)) }); err != nil {
		return err
	}
	p.forget()
	return nil
}

// refer appends the operations of b to out. Values outside are replaced by references.
func (z *Zone) refer(out *pebble.Batch, b *batch, refs []seglog.Ref) error {
	if len(refs) == 0 {
		return out.Apply(b.batch, nil)
	}
	next := 0
	for i, reader := 0, b.batch.Reader(); ; i++ {
		kind, key, value, ok, err := reader.Next()
		if !ok || err != nil {
			return err
		}
		switch {
		case next < len(b.outside) && b.outside[next] == i:
			err = out.Set(key, refs[next].AppendTo(z.parts.tag[:tagBytes:tagBytes]), nil)
			next++
		case kind == pebble.InternalKeyKindDelete:
			err = out.Delete(key, nil)
		default:
			err = out.Set(key, value, nil)
		}
		if err != nil {
			return err
		}
	}
}

// releaseHeld writes the held values, so that an iterator sees them.
func (z *Zone) releaseHeld(sync bool) error {
	if !z.parts.held.any.Load() {
		return nil
	}
	return z.commitParts(nil, sync)
}

// sweepSteps is the number of records that a write checks, so that no write waits long for
// removals. If a prune of many blocks leaves more, later writes continue.
const sweepSteps = 128

// sweep removes segments without references, and checks a limited number of records: first in the
// oldest segments, then in others in turn, so that a segment with a part that is never deleted does
// not block others. Dead records are not checked again, because references to them are never
// written again. A segment that cannot be read or removed is logged and kept: nothing depends on
// its removal.
func (z *Zone) sweep(steps int) {
	p := &z.parts
	p.mu.Lock()
	defer p.mu.Unlock()
	numbers := slices.DeleteFunc(p.store.All(), func(n uint32) bool { return n == p.store.Active() || p.mu.stuck[n] })
	for len(numbers) > 0 && z.sweepOne(numbers[0], &steps) {
		numbers = numbers[1:]
	}
	for going := true; going && steps > 0 && len(numbers) > 1; {
		i, _ := slices.BinarySearch(numbers, p.mu.turn+1)
		i = max(1, i%len(numbers))
		number := numbers[i]
		if going = z.sweepOne(number, &steps); steps > 0 {
			p.mu.turn = number
		}
		numbers = slices.Delete(numbers, i, i+1)
	}
	p.sweeping.Store(steps <= 0)
}

// sweepAll sweeps all segments until ctx ends.
func (z *Zone) sweepAll(ctx context.Context) error {
	z.parts.mu.Lock()
	defer z.parts.mu.Unlock()
	for _, number := range z.parts.store.All() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if steps := math.MaxInt; number != z.parts.store.Active() {
			z.sweepOne(number, &steps)
		}
	}
	return nil
}

// sweepOne removes a segment if nothing refers to it. steps counts down. The caller holds mu.
func (z *Zone) sweepOne(number uint32, steps *int) (removed bool) {
	p := &z.parts
	if p.mu.stuck[number] {
		return false
	}
	removed, err := z.sweepRecords(number, steps)
	if err != nil {
		// It may have parts that are needed: it is kept, and `starlingd verify` reports it.
		p.mu.stuck[number] = true
		z.folder.Logger.Error("cannot remove a file of blocks", "zone", z.folder.Zone, "err", z.partErr("prune", err))
	}
	return removed
}

// sweepRecords is sweepOne without error handling. A segment may be removed even if an error is
// returned.
func (z *Zone) sweepRecords(number uint32, steps *int) (removed bool, err error) {
	p := &z.parts
	for ; ; *steps-- {
		if *steps <= 0 {
			return false, nil
		}
		key, ref, ok, err := p.store.Next(number, p.mu.cursors[number])
		if err != nil {
			return false, err
		}
		if !ok {
			break
		}
		stored, _, err := z.read(key)
		if err != nil {
			return false, err
		}
		if now, is := z.reference(stored); is && now == ref {
			*steps--
			return false, nil
		}
		p.mu.cursors[number] = ref.Offset + uint64(ref.Length)
	}
	// This also makes the deletions of the records durable.
	if err := z.db.Delete(endKey(number), pebble.Sync); err != nil {
		return false, err
	}
	delete(p.mu.cursors, number)
	return true, p.store.Remove(number)
}

// partsNow returns the segments and a database snapshot of the same moment. No segment is removed
// until unhold is called.
func (z *Zone) partsNow() (all []uint32, at *pebble.Snapshot, unhold func() error) {
	z.parts.mu.Lock()
	defer z.parts.mu.Unlock()
	return z.parts.store.All(), z.db.NewSnapshot(), z.parts.store.Hold()
}

// verifySegment reads all records of a segment, and returns the number of records with a reference
// in at.
func (z *Zone) verifySegment(at *pebble.Snapshot, number uint32) (referred int, err error) {
	for offset := uint64(0); ; {
		key, ref, ok, err := z.parts.store.Next(number, offset)
		if err != nil || !ok {
			return referred, err
		}
		if _, err := z.parts.store.Read(key, ref); err != nil {
			return referred, err
		}
		stored, closer, err := at.Get(key)
		if err == nil {
			if now, is := z.reference(stored); is && now == ref {
				referred++
			}
			err = closer.Close()
		}
		if err != nil && !errors.Is(err, pebble.ErrNotFound) {
			return referred, err
		}
		offset += uint64(ref.Length)
	}
}

// references counts the references to each segment.
func (z *Zone) references(at *pebble.Snapshot) (map[uint32]int, error) {
	prefix := append([]byte{byte(len(partsID))}, partsID...)
	it, err := at.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keyspace.PrefixEnd(prefix)})
	if err != nil {
		return nil, err
	}
	counts := map[uint32]int{}
	for it.First(); it.Valid(); it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, errors.Join(err, it.Close())
		}
		if ref, is := z.reference(value); is {
			counts[ref.Segment]++
		}
	}
	return counts, errors.Join(it.Error(), it.Close())
}

// noSegments returns an error if there are segments, for a folder without a database.
func (z *Zone) noSegments() error {
	numbers, err := seglog.Numbers(z.folder.FS, z.folder.Dir)
	if err != nil {
		return z.folder.Err("open", err)
	}
	if len(numbers) > 0 {
		return z.folder.Corrupt(fmt.Errorf("there are %d segments with parts of blocks, but no database", len(numbers)))
	}
	return nil
}

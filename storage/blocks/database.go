package blocks

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	dbm "github.com/cometbft/cometbft-db"

	"github.com/starling-kv/starling/storage/seglog"
)

var (
	// ErrKeyEmpty, ErrValueNil and ErrBatchClosed: the caller violated the contract of cometbft-db.
	ErrKeyEmpty    = errors.New("key cannot be empty")
	ErrValueNil    = errors.New("value cannot be nil")
	ErrBatchClosed = errors.New("batch has been written or closed")
)

// database contains the keys of one ID.
type database struct {
	z           *Zone
	prefix, end []byte // its keys are in [prefix, end)
	parts       bool   // it contains parts of blocks
}

var _ dbm.DB = (*database)(nil)

func (d *database) key(key []byte) []byte {
	return append(append(make([]byte, 0, len(d.prefix)+len(key)), d.prefix...), key...)
}

// Get returns a copy of the value; nil if there is none.
func (d *database) Get(key []byte) ([]byte, error) {
	if len(key) == 0 {
		return nil, ErrKeyEmpty
	}
	release, err := d.z.use()
	if err != nil {
		return nil, err
	}
	defer release()
	full := d.key(key)
	if value, is := d.z.parts.heldValue(full); is {
		return bytes.Clone(value), nil
	}
	stored, err := d.stored(full)
	for err == nil {
		value, err := d.z.resolve(full, stored)
		if !errors.Is(err, seglog.ErrGone) {
			return value, err
		}
		// The segment was removed after the reference was read. So the key was deleted or set
		// before the removal, and the database is read again.
		before := stored
		if stored, _, err = d.z.read(full); err == nil && bytes.Equal(stored, before) {
			return nil, d.z.lost(seglog.ErrGone)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, err
}

// stored returns the value or reference from the cache or the database; nil if there is none.
func (d *database) stored(full []byte) ([]byte, error) {
	if d.z.cache == nil {
		value, _, err := d.z.read(full)
		return value, err
	}
	value, hit := d.z.cache.get(full)
	if hit {
		return value, nil
	}
	ticket := d.z.cache.beginRead(full)
	value, found, err := d.z.read(full)
	if err != nil || !found {
		return nil, err
	}
	d.z.cache.fill(ticket, full, value)
	return value, nil
}

func (d *database) Has(key []byte) (bool, error) {
	if len(key) == 0 {
		return false, ErrKeyEmpty
	}
	release, err := d.z.use()
	if err != nil {
		return false, err
	}
	defer release()
	full := d.key(key)
	if _, is := d.z.parts.heldValue(full); is {
		return true, nil
	}
	if d.z.cache != nil && d.z.cache.has(full) {
		return true, nil
	}
	_, closer, err := d.z.db.Get(full)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, d.z.readErr(err)
	}
	return true, d.z.readErr(closer.Close())
}

func (d *database) Set(key, value []byte) error     { return d.set(key, value, false) }
func (d *database) SetSync(key, value []byte) error { return d.set(key, value, true) }
func (d *database) Delete(key []byte) error         { return d.remove(key, false) }
func (d *database) DeleteSync(key []byte) error     { return d.remove(key, true) }

func (d *database) set(key, value []byte, sync bool) error {
	b := d.newBatch()
	err := b.Set(key, value)
	if err == nil {
		err = b.write(sync)
	}
	if closed := b.Close(); err == nil {
		err = closed
	}
	return err
}

func (d *database) remove(key []byte, sync bool) error {
	b := d.newBatch()
	err := b.Delete(key)
	if err == nil {
		err = b.write(sync)
	}
	if closed := b.Close(); err == nil {
		err = closed
	}
	return err
}

// Close has no effect: the zone is closed as a whole.
func (d *database) Close() error { return nil }

// bounds returns the bounds of [start, end) in the zone's database; nil is unbounded. empty reports
// whether the range is empty.
func (d *database) bounds(start, end []byte) (lower, upper []byte, empty bool) {
	lower, upper = d.prefix, d.end
	if start != nil {
		lower = d.key(start)
	}
	if end != nil {
		upper = d.key(end)
	}
	return lower, upper, bytes.Compare(lower, upper) >= 0
}

// Compact rewrites the files in [start, end) to free the space of deleted and replaced values; nil
// is unbounded.
func (d *database) Compact(start, end []byte) error {
	release, err := d.z.use()
	if err != nil {
		return err
	}
	defer release()
	lower, upper, empty := d.bounds(start, end)
	if empty {
		return nil
	}
	return d.z.compact(d.z.closing, lower, upper)
}

// Print writes all keys and values to the standard output.
func (d *database) Print() error {
	it, err := d.Iterator(nil, nil)
	if err != nil {
		return err
	}
	for ; it.Valid(); it.Next() {
		fmt.Printf("[%X]:\t[%X]\n", it.Key(), it.Value())
	}
	return errors.Join(it.Error(), it.Close())
}

// Stats describes the zone, and estimates the size of this database on disk.
func (d *database) Stats() map[string]string {
	release, err := d.z.use()
	if err != nil {
		return nil
	}
	defer release()
	stats := map[string]string{"pebble": d.z.db.Metrics().String()}
	if size, err := d.z.db.EstimateDiskUsage(d.prefix, d.end); err == nil {
		if d.parts {
			size += d.z.parts.store.Bytes()
		}
		stats["disk_bytes"] = fmt.Sprint(size)
	}
	return stats
}

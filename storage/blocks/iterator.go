package blocks

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	dbm "github.com/cometbft/cometbft-db"

	"github.com/starling-kv/starling/storage/seglog"
)

// iterator iterates over the database as of its creation. It must be used by one goroutine, but the
// zone may be closed meanwhile: then the current position stays readable, and Next ends the
// iteration with ErrClosed.
type iterator struct {
	d          *database
	start, end []byte
	reverse    bool
	unhold     func() error // releases the segments; nil: not held

	mu struct {
		sync.Mutex
		source *pebble.Iterator // nil: closed, or an empty range
		key    []byte           // of the position, without prefix; nil: at the end
		value  []byte           // of the position, once read
		err    error
	}
}

var _ dbm.Iterator = (*iterator)(nil)

// Iterator iterates over [start, end) in ascending order.
func (d *database) Iterator(start, end []byte) (dbm.Iterator, error) {
	return d.iterate(start, end, false)
}

// ReverseIterator iterates over [start, end) in descending order.
func (d *database) ReverseIterator(start, end []byte) (dbm.Iterator, error) {
	return d.iterate(start, end, true)
}

func (d *database) iterate(start, end []byte, reverse bool) (dbm.Iterator, error) {
	if (start != nil && len(start) == 0) || (end != nil && len(end) == 0) {
		return nil, ErrKeyEmpty
	}
	release, err := d.z.use()
	if err != nil {
		return nil, err
	}
	defer release()
	it := &iterator{d: d, start: start, end: end, reverse: reverse}
	lower, upper, empty := d.bounds(start, end)
	if empty {
		return it, nil
	}
	if d.parts {
		if err := d.z.releaseHeld(false); err != nil {
			return nil, err
		}
		it.unhold = d.z.parts.store.Hold() // before the snapshot of the database
	}
	source, err := d.z.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, errors.Join(d.z.readErr(err), it.letGo())
	}
	it.mu.source = source
	if reverse {
		it.settle(source.Last())
	} else {
		it.settle(source.First())
	}
	d.z.iterators.Lock()
	defer d.z.iterators.Unlock()
	d.z.iterators.open[it] = struct{}{}
	return it, nil
}

// settle takes over the position of source. The caller holds mu, or is the only user.
func (it *iterator) settle(valid bool) {
	it.mu.key, it.mu.value = nil, nil
	if valid {
		it.mu.key = bytes.Clone(it.mu.source.Key()[len(it.d.prefix):])
	} else if err := it.mu.source.Error(); err != nil {
		it.mu.err = it.d.z.readErr(err)
	}
}

func (it *iterator) Domain() (start, end []byte) { return it.start, it.end }

func (it *iterator) Valid() bool {
	it.mu.Lock()
	defer it.mu.Unlock()
	return it.mu.key != nil
}

func (it *iterator) Next() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.mustBeValid()
	switch {
	case it.mu.source == nil:
		it.mu.key, it.mu.value = nil, nil
		it.mu.err = fmt.Errorf("blocks folder %s: %w", it.d.z.folder.Dir, ErrClosed)
	case it.reverse:
		it.settle(it.mu.source.Prev())
	default:
		it.settle(it.mu.source.Next())
	}
}

// Key returns the key. The caller may keep it, as CometBFT's indexer does.
func (it *iterator) Key() []byte {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.mustBeValid()
	return it.mu.key
}

// Value returns the value. The caller may keep it. If it cannot be read, it is nil, and Error
// returns the reason.
func (it *iterator) Value() []byte {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.mustBeValid()
	it.load()
	return it.mu.value
}

// load reads the value of the position once.
func (it *iterator) load() {
	if it.mu.value != nil || it.mu.source == nil {
		return
	}
	value, err := it.mu.source.ValueAndErr()
	if err != nil {
		it.mu.key, it.mu.err = nil, it.d.z.readErr(err)
		return
	}
	if _, is := it.d.z.reference(value); is {
		if value, err = it.d.z.resolve(it.d.key(it.mu.key), value); errors.Is(err, seglog.ErrGone) {
			err = it.d.z.lost(err)
		}
		if err != nil {
			it.mu.key, it.mu.err = nil, err
			return
		}
		it.mu.value = value
		return
	}
	it.mu.value = append(make([]byte, 0, len(value)), value...)
}

// letGo releases the segments.
func (it *iterator) letGo() error {
	if it.unhold == nil {
		return nil
	}
	unhold := it.unhold
	it.unhold = nil
	return it.d.z.partErr("prune", unhold())
}

func (it *iterator) mustBeValid() {
	if it.mu.key == nil {
		panic("iterator is invalid")
	}
}

func (it *iterator) Error() error {
	it.mu.Lock()
	defer it.mu.Unlock()
	return it.mu.err
}

func (it *iterator) Close() error {
	it.mu.Lock()
	it.mu.key, it.mu.value = nil, nil
	err := it.closeSource()
	it.mu.Unlock()
	// Last, so that the zone is not closed while source is open.
	it.d.z.iterators.Lock()
	defer it.d.z.iterators.Unlock()
	delete(it.d.z.iterators.open, it)
	return err
}

// detach closes the source when the zone is closed, and keeps the position.
func (it *iterator) detach() error {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.mu.key != nil {
		it.load()
	}
	return it.closeSource()
}

func (it *iterator) closeSource() error {
	if it.mu.source == nil {
		return nil
	}
	source := it.mu.source
	it.mu.source = nil
	err := it.d.z.folder.Err("read", source.Close()) // an error that settle or load has recorded
	return errors.Join(err, it.letGo())
}

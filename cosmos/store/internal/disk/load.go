package disk

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/cosmos/store"
	"github.com/starling-kv/starling/storage"
)

// states holds the states of all stores at a height, by name. Empty stores may be missing.
type states map[string]*avlstar.Version

func (s states) release() {
	for _, v := range s {
		v.Release()
	}
}

// Load returns, for each store in roots, its version at height and the earlier versions that are
// rebuilt before it. The version at height must have the given root. The error wraps ErrNoHistory
// if the disk does not have the version. After Load, Log continues from height. The next commit
// deletes the keys of stores that are not in inInfo, which are the names in the commit info, so
// that a new store of the same name starts empty.
func (d *Disk) Load(height int64, roots map[string][]byte, inInfo map[string]bool) (map[string][]store.Version, error) {
	if height <= d.pruned && len(roots) > 0 {
		return nil, fmt.Errorf("version %d is pruned: %w", height, ErrNoHistory)
	}
	d.dropGone()
	target := height
	if len(roots) == 0 {
		// Stores that were removed since may have keys to delete.
		var err error
		if target, err = d.lastUpTo(height); err != nil {
			return nil, err
		}
	}
	base, records, err := d.way(target)
	if len(roots) == 0 && errors.Is(err, ErrNoHistory) {
		d.height = 0 // Log starts over
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := d.at(base)
	if err != nil {
		return nil, err
	}
	defer func() { s.release() }()
	found := map[string][]store.Version{}
	note := func(h int64) {
		for name := range roots {
			if v := s[name]; v != nil && v.Len() > 0 && h > d.pruned {
				v.Retain()
				found[name] = append(found[name], store.Version{Height: h, State: v})
			}
		}
	}
	// A store that became empty may have been removed, and a later store may use the same name.
	emptied := func(name string) {
		for _, v := range found[name] {
			v.State.Release()
		}
		delete(found, name)
	}
	fail := func(err error) (map[string][]store.Version, error) {
		for _, versions := range found {
			for _, v := range versions {
				v.State.Release()
			}
		}
		return nil, err
	}
	if base > 0 {
		note(base)
	}
	for _, h := range records {
		if err := d.replay(s, h, emptied); err != nil {
			return fail(err)
		}
		note(h)
	}
	for name, root := range roots {
		if len(found[name]) == 0 || found[name][len(found[name])-1].Height != height {
			v, err := avlstar.Empty(d.o.ChunkBytes)
			if err != nil {
				return fail(err)
			}
			found[name] = append(found[name], store.Version{Height: height, State: v})
		}
		versions := found[name]
		if got := versions[len(versions)-1].State.AppHash(); !bytes.Equal(got[:], root) {
			return fail(fmt.Errorf("store %q at height %d has root %s, the commit info has %x: application.db and %s are from different copies, or one is damaged: %w",
				name, height, got, root, d.o.Dir, storage.ErrCorrupt))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if inInfo[name] || s[name].Len() == 0 {
			continue
		}
		if err := d.remove(name, s[name]); err != nil {
			return fail(err)
		}
	}
	d.height = target
	return found, nil
}

// lastUpTo returns the greatest height, not above the given one, of the zone, a pin or a record.
func (d *Disk) lastUpTo(height int64) (last int64, err error) {
	if err := d.zone.Flush(); err != nil {
		return 0, err
	}
	for _, h := range append(heightsOf(d.zone.Pins()), d.zone.Safe()) {
		if h <= height {
			last = max(last, h)
		}
	}
	err = heights(d.db, last+1, height, func(h int64, _ []byte) { last = max(last, h) })
	return last, err
}

// remove makes the next commit delete all keys of a store.
func (d *Disk) remove(name string, v *avlstar.Version) error {
	empty, err := avlstar.Empty(d.o.ChunkBytes)
	if err != nil {
		return err
	}
	c := store.Commit{Version: store.Version{State: empty}}
	for kv, err := range v.Ascend(nil, nil) {
		if err != nil {
			empty.Release()
			return err
		}
		c.Changes = append(c.Changes, avlstar.Change{Key: bytes.Clone(kv.Key)})
	}
	d.gone = append(d.gone, Named{name, c})
	return nil
}

func (d *Disk) dropGone() {
	for _, c := range d.gone {
		c.Release()
	}
	d.gone = nil
}

// replay applies the record of a height to s, and passes the commit to the zone if the zone does
// not have it. It calls emptied for each store that the record leaves without keys.
func (d *Disk) replay(s states, height int64, emptied func(name string)) error {
	r, ok, err := readRecord(d.db, height)
	if err == nil && !ok {
		err = fmt.Errorf("height %d: %w: missing", height, errRecord)
	}
	if err != nil {
		return err
	}
	var commits []Named
	defer func() {
		for _, c := range commits {
			c.Release()
		}
	}()
	for _, c := range r.stores {
		v := s[c.Name]
		if v == nil {
			if v, err = avlstar.Empty(d.o.ChunkBytes); err != nil {
				return err
			}
			s[c.Name] = v
		}
		next, err := v.Apply(c.Changes)
		if err != nil {
			return fmt.Errorf("store %q at height %d: %w", c.Name, height, err)
		}
		if s[c.Name] = next; next.Len() == 0 {
			emptied(c.Name)
		}
		next.Retain()
		// The commit takes over v's reference.
		commits = append(commits, Named{c.Name, store.Commit{Version: store.Version{Height: height, State: next}, Base: v, Changes: c.Changes}})
	}
	of := commits
	commits = nil
	return d.Write(height, of)
}

// way returns base, the height of the newest state on disk from which records lead to height, and
// the heights of these records. Base 0 is the empty state.
func (d *Disk) way(height int64) (base int64, records []int64, err error) {
	if err := d.zone.Flush(); err != nil {
		return 0, nil, err
	}
	bases := []int64{0}
	for _, p := range d.zone.Pins() {
		bases = append(bases, p.Height)
	}
	bases = append(bases, d.zone.Safe())
	slices.Sort(bases)
	bases = slices.Compact(bases)
	for _, base := range slices.Backward(bases) {
		if base > height {
			continue
		}
		records, err := leads(d.db, base, height)
		if err != nil {
			return 0, nil, err
		}
		if records != nil || base == height {
			return base, records, nil
		}
	}
	return 0, nil, fmt.Errorf("version %d: %w: no unbroken records lead to it from the states at heights %d in %s",
		height, ErrNoHistory, bases[1:], d.o.Dir)
}

// leads returns the heights of the records that lead from one height to another, or nil if one of
// them is missing.
func leads(db dbm.DB, from, to int64) (records []int64, err error) {
	var all []int64
	if err := heights(db, from+1, to, func(h int64, _ []byte) {
		if len(all) == 0 || all[len(all)-1] != h {
			all = append(all, h)
		}
	}); err != nil {
		return nil, err
	}
	if len(all) == 0 || all[len(all)-1] != to {
		return nil, nil
	}
	at := from
	for _, h := range all {
		b, err := db.Get(logKey(h, 0))
		if err != nil {
			return nil, err
		}
		if b == nil {
			return nil, nil
		}
		previous, _, _, err := decodeHeader(b)
		if err != nil {
			return nil, fmt.Errorf("height %d: %w", h, err)
		}
		if previous != at {
			return nil, nil
		}
		at = h
	}
	return all, nil
}

// at reads the states of a height from the zone or from a pin.
func (d *Disk) at(height int64) (states, error) {
	if height == 0 {
		return states{}, nil
	}
	if meta, ok := d.zone.Meta(); ok && meta.Height == height {
		return d.build(meta, d.zone.Scan())
	}
	p, err := d.zone.OpenPin(height)
	if err != nil {
		return nil, err
	}
	meta, err := p.Meta()
	var s states
	if err == nil {
		s, err = d.build(meta, p.Scan())
	}
	if err := errors.Join(err, p.Close()); err != nil {
		return nil, err
	}
	return s, nil
}

// build builds the trees of all stores from their leaves.
func (d *Disk) build(meta storage.Meta, leaves iter.Seq2[record.Leaf, error]) (states, error) {
	if meta.ChunkBytes != d.o.ChunkBytes {
		return nil, fmt.Errorf("state folder %s has a chunk limit of %d bytes, but %d is configured: the limit cannot change", d.o.Dir, meta.ChunkBytes, d.o.ChunkBytes)
	}
	next, stop := iter.Pull2(leaves)
	defer stop()
	s := states{}
	l, err, ok := next()
	for ok && err == nil {
		name, _, fieldErr := field(l.Key, MaxNameBytes)
		if err = fieldErr; err != nil {
			break
		}
		p := prefix(string(name))
		var v *avlstar.Version
		v, err = avlstar.FromLeaves(d.o.ChunkBytes, func(yield func(avlstar.Leaf, error) bool) {
			for ok && err == nil && bytes.HasPrefix(l.Key, p) {
				l.Key = l.Key[len(p):]
				if !yield(l, nil) {
					return
				}
				l, err, ok = next()
			}
			if err != nil {
				yield(avlstar.Leaf{}, err)
			}
		})
		if err == nil {
			if s[string(p[len(p)-len(name):])] != nil {
				err = errors.New("the keys of a store are not contiguous")
			}
			s[string(p[len(p)-len(name):])] = v
		}
	}
	if err != nil {
		s.release()
		return nil, fmt.Errorf("state folder %s at height %d: %w", d.o.Dir, meta.Height, err)
	}
	return s, nil
}

// Begin must be called before a state is loaded. If the zone's state is later than latest, Begin
// brings the zone back to latest or an earlier height. latest is the last height that the
// multi-store committed (0: none), and has reports whether that height has Starling stores. The
// zone can be ahead after an interrupted restore, or if the database is an older copy.
func (d *Disk) Begin(latest int64, has bool) error {
	if err := d.zone.Flush(); err != nil {
		return err
	}
	if d.zone.Safe() <= latest {
		return nil
	}
	return d.back(latest, has)
}

// Rollback brings the zone back to a version. has reports whether that version has Starling stores.
// The caller then makes that version the last one, in one batch with ForgetAfter. If it crashes
// before that batch is written, no committed version is lost. The error wraps ErrNoHistory if that
// version cannot be loaded.
func (d *Disk) Rollback(height int64, has bool) error {
	if height <= d.pruned {
		return fmt.Errorf("version %d is pruned: %w", height, ErrNoHistory)
	}
	if err := d.zone.Flush(); err != nil {
		return err
	}
	return d.back(height, has)
}

// ForgetAfter removes all records after height in the batch that makes height the last version.
func (d *Disk) ForgetAfter(batch dbm.Batch, height int64) error {
	return d.removeRecords(batch, height+1, 1<<62)
}

// back brings the zone to a state at or below the given height from which records lead to that
// height.
func (d *Disk) back(height int64, has bool) error {
	base, _, err := d.way(height)
	if err != nil && (has || !errors.Is(err, ErrNoHistory)) {
		return err
	}
	switch {
	case d.zone.Safe() <= height:
		return nil
	case base == 0: // records lead from the empty state to height, or height has no Starling stores
		d.written = 0
		return d.zone.Reset()
	}
	if err := d.zone.Close(); err != nil {
		return err
	}
	err = storage.RollbackToPin(d.o.Dir, base, d.zoneOptions())
	return errors.Join(err, d.open())
}

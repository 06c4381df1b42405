package avlstar

import (
	"bytes"
	"runtime"
)

// Records finds values by their keys in a stored state. It belongs to one version, and is released
// when that version is released. Record may be called concurrently.
type Records interface {
	// Record returns the value of key. If the state has the key, it is in page s of the version.
	// The caller may keep the slice. ok is false if Record does not know whether key is present,
	// for whatever reason; the page is then read instead. It must not return a value that the
	// version does not have, because nothing verifies the value afterwards: ByKey trusts the disk.
	Record(s Subtree, key []byte) (value []byte, ok bool, err error)
	// Release is called once, when no Record is running or will be called. It must not block.
	Release()
}

// SetRecords sets the records that ByKey uses, and makes v their owner. It must be called at most
// once, before v is shared with another goroutine.
func (v *Version) SetRecords(r Records) {
	if v.records != nil {
		panic("avlstar: records of a version were set twice")
	}
	v.records = r
}

// ByKey reads a version without rebuilding pages. The value of a key that is not in memory is read
// from its record, unverified; a key without a record is looked up in its verified page. So values
// are as trustworthy as the checksums on disk, and absence is proved. ByKey is for queries without
// a proof, and for checks that a later execution repeats; execution itself must read through
// Version.
type ByKey struct{ v *Version }

// ByKey returns a ByKey for v, valid as long as v is referenced.
func (v *Version) ByKey() ByKey { return ByKey{v} }

// View does what Version.View does.
func (r ByKey) View(key []byte) (value []byte, ok bool, err error) {
	return r.v.viewBy(key, r.v.records)
}

// Get does what Version.Get does.
func (r ByKey) Get(key []byte) (value []byte, ok bool, err error) {
	defer runtime.KeepAlive(r.v)
	value, ok, err = r.View(key)
	return bytes.Clone(value), ok, err
}

// Get returns the value of key, which must not be modified; ok is false if the key is not in the
// page.
func (p *Page) Get(key []byte) (value []byte, ok bool) {
	l := p.find(key)
	switch {
	case !bytes.Equal(l.Key, key):
		return nil, false
	case len(l.Value) < len(p.data)/2:
		// Return a copy, so that the caller does not keep the whole page alive.
		return bytes.Clone(l.Value), true
	}
	return l.Value[:len(l.Value):len(l.Value)], true
}

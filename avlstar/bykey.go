package avlstar

import (
	"bytes"
	"runtime"
)

// Records finds values by their keys in a stored state. It belongs to one version, whose last
// Release releases it. Record may be called concurrently.
type Records interface {
	// Record returns the value of key, which lies in the page s of the version if it is there; the
	// caller may keep the slice. ok is false where Record does not know that key is present, for
	// whatever reason; then the page is read. It must not return a value that the version does not
	// have. It relies on what it reads being what was stored: nothing proves that afterwards.
	Record(s Subtree, key []byte) (value []byte, ok bool, err error)
	// Release is called once, when no Record is running or will be called. It must not block.
	Release()
}

// SetRecords sets where ByKey looks. It must be called at most once, before another goroutine has
// v. v takes over r.
func (v *Version) SetRecords(r Records) {
	if v.records != nil {
		panic("avlstar: records of a version were set twice")
	}
	v.records = r
}

// ByKey reads a version without rebuilding pages: where a value has left memory, its record is
// asked for, and what is found is taken as it is. What is not found is looked for in its verified
// page: so a value is as good as the checksums of the disk, and absence is proved. It is for
// queries without a proof, and for checks that a later execution repeats. What decides about a
// block must be read through Version.
type ByKey struct{ v *Version }

// ByKey returns that way to read v. It is valid as long as v is referenced.
func (v *Version) ByKey() ByKey { return ByKey{v} }

// View is Version.View.
func (r ByKey) View(key []byte) (value []byte, ok bool, err error) {
	return r.v.viewBy(key, r.v.records)
}

// Get is Version.Get.
func (r ByKey) Get(key []byte) (value []byte, ok bool, err error) {
	defer runtime.KeepAlive(r.v)
	value, ok, err = r.View(key)
	return bytes.Clone(value), ok, err
}

// Get returns the value of key, which must not be modified; ok is false if the page lacks it.
func (p *Page) Get(key []byte) (value []byte, ok bool) {
	l := p.find(key)
	switch {
	case !bytes.Equal(l.Key, key):
		return nil, false
	case len(l.Value) < len(p.data)/2:
		// A copy, so that the caller does not keep the whole page alive.
		return bytes.Clone(l.Value), true
	}
	return l.Value[:len(l.Value):len(l.Value)], true
}

package server

import "hash/maphash"

// maxFresh limits the keys that a range remembers. The records of further keys count each time that
// they are written: what snapshots keep on disk is then estimated too high, up to all records.
const maxFresh = 1 << 16

// fresh remembers the sizes of the records that were written since the last height of a snapshot.
// No snapshot has them, so replacing one again keeps nothing more on disk.
type fresh struct {
	seed  maphash.Seed      // secret: nobody can choose keys that share a hash
	sizes map[uint64]uint64 // by the key's hash; nil: empty
}

func (f *fresh) clear() { clear(f.sizes) }

// put notes the size of a key's record (0: it was deleted), and returns that of the fresh record
// that it replaces; 0: there is none.
func (f *fresh) put(key []byte, size uint64) (replaced uint64) {
	if f.sizes == nil {
		f.seed, f.sizes = maphash.MakeSeed(), make(map[uint64]uint64)
	}
	id := maphash.Bytes(f.seed, key)
	replaced, has := f.sizes[id]
	switch {
	case size == 0:
		delete(f.sizes, id)
	case has || len(f.sizes) < maxFresh:
		f.sizes[id] = size
	}
	return replaced
}

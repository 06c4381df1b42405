package app

import "slices"

// usages counts the bytes of all leaf records under the prefixes whose quota mattered in this block. Each is summed up once and
// then follows every write (and every undo), so that a block of many writes under one quota stays linear.
type usages struct {
	bytes   map[string]*uint64 // by prefix
	lengths []int              // the lengths of these prefixes, ascending, each once
}

func newUsages() usages { return usages{bytes: make(map[string]*uint64)} }

// moved tells that the record of key went from old to new bytes (0: absent).
func (u *usages) moved(key []byte, old, new uint64) {
	if old == new || key[0] == reserved {
		return
	}
	for _, n := range u.lengths {
		if n > len(key) {
			return
		}
		if used, ok := u.bytes[string(key[:n])]; ok {
			*used += new - old // modulo 2⁶⁴: the sum is never negative
		}
	}
}

// usage returns the bytes of all leaf records under prefix, as of now. Bookkeeping records lie under no prefix.
func (o *overlay) usage(prefix []byte) uint64 {
	if used, ok := o.quotas.bytes[string(prefix)]; ok {
		return *used
	}
	start, end := prefix, prefixEnd(prefix)
	if len(start) == 0 {
		start = []byte{reserved + 1}
	}
	sum := o.base.RangeBytes(start, end)
	o.ascend(start, end, func(e *overlayEntry) {
		sum += recordBytes(e.key, e.value) - recordBytes(e.key, e.before)
	})
	o.quotas.bytes[string(prefix)] = &sum
	if at, found := slices.BinarySearch(o.quotas.lengths, len(prefix)); !found {
		o.quotas.lengths = slices.Insert(o.quotas.lengths, at, len(prefix))
	}
	return sum
}

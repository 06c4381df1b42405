package app

import (
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/keyspace"
	"github.com/starling-kv/starling/tx"
)

// usages counts the bytes of all leaf records under the prefixes whose quota was checked in this
// block. Each prefix is summed up once; later writes, and their undoing, are added. So a block with
// many writes under one quota takes linear time.
type usages struct {
	bytes   map[string]*uint64 // by prefix
	lengths []int              // lengths of these prefixes, ascending, without repetition
}

func newUsages() usages { return usages{bytes: make(map[string]*uint64)} }

// moved records that the length of key's record changed from old to new bytes (0: absent).
func (u *usages) moved(key []byte, old, new uint64) {
	if old == new || key[0] == reserved && !tx.IsProgramKey(key) {
		return
	}
	for _, n := range u.lengths {
		if n > len(key) {
			return
		}
		if key[0] == reserved && n == 0 {
			continue // the empty prefix does not cover records of programs
		}
		if used, ok := u.bytes[string(key[:n])]; ok {
			*used += new - old // modulo 2⁶⁴: the sum is never negative
		}
	}
}

// usage returns the total length of all leaf records under prefix in the current state. Records
// of programs count under prefixes of their own; no other system keys do.
func (o *overlay) usage(prefix []byte) (uint64, error) {
	if used, ok := o.quotas.bytes[string(prefix)]; ok {
		return *used, nil
	}
	start, end := prefix, keyspace.PrefixEnd(prefix)
	if len(start) == 0 {
		start = []byte{reserved + 1}
	}
	sum, err := o.baseBytes(start, end)
	if err != nil {
		return 0, err
	}
	o.ascend(start, end, func(e *overlayEntry) {
		sum += recordBytes(e.key, e.value) - recordBytes(e.key, e.before)
	})
	o.quotas.bytes[string(prefix)] = &sum
	if at, found := slices.BinarySearch(o.quotas.lengths, len(prefix)); !found {
		o.quotas.lengths = slices.Insert(o.quotas.lengths, at, len(prefix))
	}
	return sum, nil
}

// baseBytes returns the result of RangeBytes for base.
func (o *overlay) baseBytes(start, end []byte) (uint64, error) {
	sum, err := o.base.RangeBytes(start, end)
	if err != nil {
		// RangeBytes follows the paths to both ends.
		wants := []avlstar.Want{{Key: start, Written: true}}
		if end != nil {
			wants = append(wants, avlstar.Want{Key: end, Written: true})
		}
		return 0, o.lacked(err, wants...)
	}
	return sum, nil
}

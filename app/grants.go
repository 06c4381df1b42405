package app

import (
	"bytes"

	"github.com/starling-kv/starling/internal/keyspace"
)

// grant is a grant that applies to a key: its prefix, and its quota in bytes (0: no limit).
type grant struct {
	prefix []byte
	quota  uint64
}

// longestPrefix finds, among the records whose key is head ‖ prefix, the one with the longest
// prefix of key. It looks up the greatest record that is not above the probe, again and again: if
// the record's prefix is not a prefix of key, every prefix longer than the part that it shares with
// key is ruled out, because such a prefix would lie between the two.
func (o *overlay) longestPrefix(head, key []byte) (prefix, value []byte, ok bool, err error) {
	probe := append(bytes.Clone(head), key[:min(len(key), MaxPrefixBytes)]...)
	for {
		k, v, err := o.nearest(probe, false)
		if err != nil || k == nil || !bytes.HasPrefix(k, head) {
			return nil, nil, false, err
		}
		prefix := k[len(head):]
		shared := commonPrefix(prefix, key)
		if shared == len(prefix) {
			return prefix, v, true, nil
		}
		probe = probe[:len(head)+shared]
	}
}

func commonPrefix(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// grantFor returns the grant under which account may write key: the one with the longest prefix
// among its own grants and those to everyone. If two are equally long, its own applies.
func (o *overlay) grantFor(account, key []byte) (g grant, ok bool, err error) {
	own, ownQuota, hasOwn, err := o.longestPrefix(record(tagGrant, account), key)
	if err != nil {
		return grant{}, false, err
	}
	all, allQuota, hasAll, err := o.longestPrefix(record(tagGrant, everyone), key)
	if err != nil {
		return grant{}, false, err
	}
	if hasAll && (!hasOwn || len(all) > len(own)) {
		return grant{all, decodeUint64(allQuota)}, true, nil
	}
	return grant{own, decodeUint64(ownQuota)}, hasOwn, nil
}

// anyUnder reports whether there is a record whose key starts with head.
func (o *overlay) anyUnder(head []byte) (bool, error) {
	k, _, err := o.nearest(keyspace.PrefixEnd(head), true) // not nil: head starts with 0x00
	return k != nil && bytes.HasPrefix(k, head), err
}

// covered reports whether a grant of any account covers key. Text transactions may not write such a
// key.
func (o *overlay) covered(key []byte) (bool, error) {
	_, _, ok, err := o.longestPrefix(record(tagCover), key)
	return ok, err
}

// setGrant writes a grant or, with remove, deletes it, and updates the number of grants with its
// prefix. It returns the previous value of the record, and whether it changed.
func (o *overlay) setGrant(grantee, prefix []byte, quota uint64, remove bool) (old []byte, changed bool, err error) {
	key, value := GrantKey(grantee, prefix), encodeUint64(quota)
	if remove {
		value = nil
	}
	before, err := o.set(key, value)
	if err != nil {
		return nil, false, err
	}
	old = before.value // records are always read with their values
	if (old == nil) == (value == nil) {
		return old, !bytes.Equal(old, value), nil
	}
	return old, true, o.countCover(CoverKey(prefix), remove)
}

// countCover adds one to the number in the cover record key or, with remove, subtracts one.
func (o *overlay) countCover(key []byte, remove bool) error {
	record, err := o.get(key)
	if err != nil {
		return err
	}
	count := decodeUint64(record)
	if remove {
		count--
	} else {
		count++
	}
	record = nil
	if count > 0 {
		record = encodeUint64(count)
	}
	_, err = o.set(key, record)
	return err
}

package app

import "bytes"

// grant is one grant as it applies to a key: the prefix, and the quota in bytes (0: none).
type grant struct {
	prefix []byte
	quota  uint64
}

// longestPrefix finds, among the records whose key is head ‖ prefix, the longest prefix of key, by steps of "greatest record not
// above": a record that is no prefix of key rules out every prefix longer than what it shares with key, since those would sort
// between the two.
func (o *overlay) longestPrefix(head, key []byte) (prefix, value []byte, ok bool) {
	probe := append(bytes.Clone(head), key[:min(len(key), MaxPrefixBytes)]...)
	for {
		k, v := o.floor(probe)
		if k == nil || !bytes.HasPrefix(k, head) {
			return nil, nil, false
		}
		prefix := k[len(head):]
		shared := commonPrefix(prefix, key)
		if shared == len(prefix) {
			return prefix, v, true
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

// grantFor returns the grant under which account may write key: the longest prefix among its own and everyone's, its own on a tie.
func (o *overlay) grantFor(account, key []byte) (grant, bool) {
	own, ownQuota, hasOwn := o.longestPrefix(record(tagGrant, account), key)
	all, allQuota, hasAll := o.longestPrefix(record(tagGrant, everyone), key)
	if hasAll && (!hasOwn || len(all) > len(own)) {
		return grant{all, decodeUint64(allQuota)}, true
	}
	return grant{own, decodeUint64(ownQuota)}, hasOwn
}

// hasAnyGrant tells whether account holds a grant, or shares one of everyone.
func (o *overlay) hasAnyGrant(account []byte) bool {
	return o.anyUnder(record(tagGrant, account)) || o.anyUnder(record(tagGrant, everyone))
}

// anyUnder tells whether there is a record whose key starts with head.
func (o *overlay) anyUnder(head []byte) bool {
	end := prefixEnd(head) // never nil: head starts with 0x00
	k, _ := o.floor(predecessor(end))
	return k != nil && bytes.HasPrefix(k, head)
}

// covered tells whether anybody's grant covers key, which keeps text transactions out.
func (o *overlay) covered(key []byte) bool {
	_, _, ok := o.longestPrefix(record(tagCover), key)
	return ok
}

// setGrant writes or, with remove, deletes a grant, and keeps the count of grants by prefix. It returns the record's value before
// and whether that changed.
func (o *overlay) setGrant(grantee, prefix []byte, quota uint64, remove bool) (old []byte, changed bool) {
	key, value := GrantKey(grantee, prefix), encodeUint64(quota)
	if remove {
		value = nil
	}
	old = o.set(key, value)
	if (old == nil) == (value == nil) {
		return old, !bytes.Equal(old, value)
	}
	cover := CoverKey(prefix)
	count := decodeUint64(o.get(cover))
	if remove {
		count--
	} else {
		count++
	}
	if count == 0 {
		o.set(cover, nil)
	} else {
		o.set(cover, encodeUint64(count))
	}
	return old, true
}

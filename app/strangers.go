package app

import (
	"bytes"
	"math"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/keyspace"
	"github.com/starling-kv/starling/tx"
)

// A stranger is an account that may write only under a grant to everyone. Its first transaction
// leaves a nonce record. The record must stay, because otherwise the transaction could be repeated;
// but anybody can make any number of keys. So the records that strangers made are counted, and
// together they may take at most as many bytes as the quotas of all grants to everyone allow.
// Grants for records of programs do not count: if everyone may call programs, an admin decides with
// another grant to everyone how many strangers there may be.

// strangerBytes is the length of a nonce record.
var strangerBytes = avlstar.RecordBytes(2+AccountBytes, 8)

// standing describes an account before its operations are executed.
type standing struct {
	stranger bool // it is not an admin and has no grant of its own
	nonce    uint64
}

// standingOf returns a *tx.Error if the account may not send transactions at all.
func (o *overlay) standingOf(account []byte) (standing, error) {
	own, err := o.isAdmin(account)
	if err == nil && !own {
		own, err = o.anyUnder(record(tagGrant, account))
	}
	if err == nil && !own {
		var all bool
		if all, err = o.anyUnder(record(tagGrant, everyone)); err == nil && !all {
			err = tx.Errorf(tx.CodeUnauthorized, "account %x holds no grant: ask an admin for one", account)
		}
	}
	if err != nil {
		return standing{}, err
	}
	nonce, err := o.nonce(account)
	return standing{!own, nonce}, err
}

// newcomer reports whether the next transaction of the account counts as a stranger's first one.
func (s standing) newcomer() bool { return s.stranger && s.nonce == 0 }

// roomForStranger returns the number of strangers including a new one, or a *tx.Error if there is
// no room for it.
func (o *overlay) roomForStranger() (uint64, error) {
	value, err := o.get(StrangersKey())
	if err != nil {
		return 0, err
	}
	room, err := o.quotaOfEveryone()
	if err != nil {
		return 0, err
	}
	count := decodeUint64(value) + 1
	if count > room/strangerBytes {
		return 0, tx.Errorf(tx.CodeQuota, "the nonces of accounts without a grant of their own would take more than %d bytes, "+
			"the quotas of all grants to everyone: ask an admin for a grant, or for a larger quota", room)
	}
	return count, nil
}

// quotaOfEveryone returns the sum of the quotas of all grants to everyone for clients' keys, or
// MaxUint64 if one of them has no quota. It reads all of them, once in a block unless one changes.
func (o *overlay) quotaOfEveryone() (uint64, error) {
	if o.everyone != nil {
		return *o.everyone, nil
	}
	var sum uint64
	add := func(key, value []byte) {
		if tx.IsProgramKey(key[2+AccountBytes:]) {
			return // these bytes are those of programs
		}
		quota := decodeUint64(value)
		if quota == 0 || sum+quota < sum {
			quota = math.MaxUint64 - sum
		}
		sum += quota
	}
	start := record(tagGrant, everyone)
	end := keyspace.PrefixEnd(start)
	for kv, err := range o.base.Ascend(start, end) {
		if err != nil {
			return 0, o.lacked(err, avlstar.Want{Range: true, Key: start, After: end})
		}
		if _, written := o.entry(kv.Key); !written {
			add(kv.Key, kv.Value)
		}
	}
	o.ascend(start, end, func(e *overlayEntry) {
		if e.value.present() {
			add(e.key, e.value.value)
		}
	})
	o.everyone = &sum
	return sum, nil
}

// concernsEveryone reports whether key is that of a grant to everyone.
func concernsEveryone(key []byte) bool {
	return key[0] == reserved && len(key) >= 2+AccountBytes && key[1] == tagGrant && bytes.Equal(key[2:2+AccountBytes], everyone)
}

package nodedb

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// Commit is what the multi-store records for a height: cosmos.store.v1beta1.CommitInfo.
type Commit struct {
	Height int64
	Stores []CommitStore // sorted by name
}

// CommitStore is a store at a height.
type CommitStore struct {
	Name    string
	Version int64
	Hash    []byte // root hash
}

// Protobuf tags: field number ‖ wire type.
const (
	tagVarint1 = 1 << 3
	tagBytes1  = 1<<3 | 2
	tagBytes2  = 2<<3 | 2
	tagBytes3  = 3<<3 | 2
)

// fields calls number or message for each field of a protobuf message. They should ignore unknown
// fields, because the SDK adds some from time to time.
func fields(b []byte, number func(tag, v uint64), message func(tag uint64, b []byte) error) error {
	d := decoder{b: b}
	for len(d.b) > 0 && d.err == nil {
		switch tag := d.uvarint(); tag & 7 {
		case 0:
			if v := d.uvarint(); d.err == nil {
				number(tag, v)
			}
		case 2:
			m := d.bytes()
			if d.err != nil {
				break
			}
			if err := message(tag, m); err != nil {
				return err
			}
		default:
			d.fail("unknown field type")
		}
	}
	return d.err
}

// DecodeCommit decodes the record "s/<H>", and sorts its stores: older versions of the SDK did not.
func DecodeCommit(b []byte) (*Commit, error) {
	c := &Commit{}
	err := fields(b, func(tag, v uint64) {
		if tag == tagVarint1 {
			c.Height = int64(v)
		}
	}, func(tag uint64, m []byte) error {
		if tag != tagBytes2 {
			return nil
		}
		s := CommitStore{}
		err := fields(m, func(uint64, uint64) {}, func(tag uint64, m []byte) error {
			switch tag {
			case tagBytes1:
				s.Name = string(m)
			case tagBytes2:
				return s.id(m)
			}
			return nil
		})
		c.Stores = append(c.Stores, s)
		return err
	})
	slices.SortFunc(c.Stores, func(a, b CommitStore) int { return strings.Compare(a.Name, b.Name) })
	switch {
	case err != nil:
	case c.Height < 1:
		err = fmt.Errorf("%w: no height", ErrInvalidRecord)
	case len(c.Stores) > iavlsync.MaxStores:
		err = fmt.Errorf("%w: more than %d stores", ErrInvalidRecord, iavlsync.MaxStores)
	}
	for i, s := range c.Stores {
		if s.Name == "" || i > 0 && c.Stores[i-1].Name == s.Name {
			err = fmt.Errorf("%w: store %q has no name or is repeated", ErrInvalidRecord, s.Name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	return c, nil
}

// id decodes a CommitID.
func (s *CommitStore) id(b []byte) error {
	return fields(b, func(tag, v uint64) {
		if tag == tagVarint1 {
			s.Version = int64(v)
		}
	}, func(tag uint64, m []byte) error {
		if tag == tagBytes2 {
			s.Hash = m
		}
		return nil
	})
}

// zeroTime is google.protobuf.Timestamp of the year 1, which the SDK writes after a restore. The
// app hash does not cover the time.
var zeroTime = func() []byte {
	const seconds = -62135596800
	return binary.AppendUvarint([]byte{tagVarint1}, 1<<64+seconds)
}()

// Encode is the inverse of DecodeCommit. It returns the bytes that the SDK writes after a restore.
func (c *Commit) Encode() []byte {
	b := binary.AppendUvarint([]byte{tagVarint1}, uint64(c.Height))
	for _, s := range c.Stores {
		var id []byte
		if s.Version != 0 {
			id = binary.AppendUvarint([]byte{tagVarint1}, uint64(s.Version))
		}
		if len(s.Hash) > 0 {
			id = appendBytes(append(id, tagBytes2), s.Hash)
		}
		store := appendBytes([]byte{tagBytes1}, []byte(s.Name))
		store = appendBytes(append(store, tagBytes2), id)
		b = appendBytes(append(b, tagBytes2), store)
	}
	return appendBytes(append(b, tagBytes3), zeroTime)
}

// commitKey returns the key of a height's record.
func commitKey(height int64) []byte {
	return strconv.AppendInt([]byte(commitsPrefix), height, 10)
}

// SnapshotRecord returns the record of the last snapshot that a node at height has taken, or false
// if it has taken none. Without it, pruning stops after a join (docs/reference/cosmos-pruning.md):
// the SDK keeps all heights after the last snapshot, and in store v1 only a snapshot one interval
// later is the next one. So the height is a multiple of the interval.
func SnapshotRecord(height, interval int64) (Record, bool) {
	if interval < 1 || height < interval {
		return Record{}, false
	}
	return Record{[]byte(snapshotsKey), binary.BigEndian.AppendUint64(nil, uint64(height-height%interval))}, true
}

// DecodeLatest decodes the record "s/latest", a google.protobuf.Int64Value.
func DecodeLatest(b []byte) (int64, error) {
	d := decoder{b: b}
	tag, height := d.uvarint(), d.uvarint()
	if err := d.end(); err != nil {
		return 0, fmt.Errorf("latest height: %w", err)
	}
	if tag != tagVarint1 || height == 0 || height > math.MaxInt64 {
		return 0, fmt.Errorf("latest height: %w", ErrInvalidRecord)
	}
	return int64(height), nil
}

func encodeLatest(height int64) []byte {
	return binary.AppendUvarint([]byte{tagVarint1}, uint64(height))
}

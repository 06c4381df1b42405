package client

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/starling-kv/starling/avlstar"
)

// The two protobuf messages of queries of path /range (docs/spec/queries.md): RangeRequest{start,
// end, limit, keys_only, reverse} and RangeResponse{entries{key, value, value_hash, value_bytes},
// next}. They are encoded and decoded by hand, because their Go types belong to the application,
// which a client does not link.

func encodeRangeRequest(start, end []byte, o readOptions) []byte {
	var b []byte
	field := func(number protowire.Number, value []byte) {
		if len(value) > 0 {
			b = protowire.AppendTag(b, number, protowire.BytesType)
			b = protowire.AppendBytes(b, value)
		}
	}
	field(1, start)
	field(2, end)
	number := func(number protowire.Number, value uint64) {
		if value > 0 {
			b = protowire.AppendTag(b, number, protowire.VarintType)
			b = protowire.AppendVarint(b, value)
		}
	}
	number(3, uint64(min(o.limit, math.MaxUint32)))
	number(4, protowire.EncodeBool(o.keysOnly))
	number(5, protowire.EncodeBool(o.reverse))
	return b
}

// decodeRangeResponse refuses more entries than requested, before it allocates memory for them, and
// entries of another form, because a node ignores options that it does not know.
func decodeRangeResponse(b []byte, o readOptions) (entries []avlstar.KV, keys []avlstar.KeyEntry, next []byte, err error) {
	err = eachField(b, 0, func(number protowire.Number, value []byte, _ uint64) error {
		switch number {
		case 1:
			if len(entries) == o.limit {
				return fmt.Errorf("more than %d entries", o.limit)
			}
			entry, key, err := decodeEntry(value)
			switch {
			case err != nil:
				return err
			case o.keysOnly && (len(entry.Value) > 0 || key.ValueBytes == 0):
				return errors.New("entries have values that were not requested: the node is too old for this option")
			case o.keysOnly:
				keys = append(keys, key)
			}
			entries = append(entries, entry)
		case 2:
			next = value
		}
		return nil
	})
	if err == nil && o.reverse && !slices.IsSortedFunc(entries, func(a, b avlstar.KV) int { return bytes.Compare(b.Key, a.Key) }) {
		err = errors.New("entries are not in reverse order: the node is too old for this option")
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("the node's answer is not a RangeResponse: %w", err)
	}
	return entries, keys, next, nil
}

func decodeEntry(b []byte) (entry avlstar.KV, key avlstar.KeyEntry, err error) {
	err = eachField(b, 4, func(number protowire.Number, value []byte, n uint64) error {
		switch number {
		case 1:
			entry.Key, key.Key = value, value
		case 2:
			entry.Value = value
		case 3:
			if len(value) != len(key.ValueHash) {
				return fmt.Errorf("a hash of %d bytes", len(value))
			}
			key.ValueHash = avlstar.Hash(value)
		case 4:
			if n > avlstar.MaxValueBytes {
				return fmt.Errorf("a value of %d bytes", n)
			}
			key.ValueBytes = int(n)
		}
		return nil
	})
	return entry, key, err
}

// eachField calls visit for each field of a message, with its content. All fields are
// length-delimited except one, which is a varint: visit is called with its value.
func eachField(b []byte, varint protowire.Number, visit func(number protowire.Number, content []byte, n uint64) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var (
			content []byte
			value   uint64
		)
		switch {
		case kind == protowire.BytesType && number != varint:
			content, n = protowire.ConsumeBytes(b)
		case kind == protowire.VarintType && number == varint:
			value, n = protowire.ConsumeVarint(b)
		default:
			return fmt.Errorf("field %d has wire type %d", number, kind)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := visit(number, content, value); err != nil {
			return err
		}
	}
	return nil
}

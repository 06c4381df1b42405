package client

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/starling-kv/starling/avlstar"
)

// The two protobuf messages of queries of path /range (docs/spec/queries.md): RangeRequest{start,
// end, limit} and RangeResponse{entries{key, value}, next}. They are read and written by hand
// because their Go types belong to the application, which a client does not link.

func encodeRangeRequest(start, end []byte, limit int) []byte {
	var b []byte
	field := func(number protowire.Number, value []byte) {
		if len(value) > 0 {
			b = protowire.AppendTag(b, number, protowire.BytesType)
			b = protowire.AppendBytes(b, value)
		}
	}
	field(1, start)
	field(2, end)
	if limit > 0 {
		b = protowire.AppendTag(b, 3, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(limit))
	}
	return b
}

// decodeRangeResponse refuses more entries than were requested, before it allocates memory for
// them.
func decodeRangeResponse(b []byte, limit int) (entries []avlstar.KV, next []byte, err error) {
	err = eachBytesField(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			if len(entries) == limit {
				return fmt.Errorf("more than %d entries", limit)
			}
			var entry avlstar.KV
			err := eachBytesField(value, func(number protowire.Number, value []byte) error {
				switch number {
				case 1:
					entry.Key = value
				case 2:
					entry.Value = value
				}
				return nil
			})
			entries = append(entries, entry)
			return err
		case 2:
			next = value
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("the node's answer is not a RangeResponse: %w", err)
	}
	return entries, next, nil
}

// eachBytesField calls f for each field of a message whose fields are all length-delimited.
func eachBytesField(b []byte, visit func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if kind != protowire.BytesType {
			return fmt.Errorf("field %d has wire type %d", number, kind)
		}
		b = b[n:]
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := visit(number, value); err != nil {
			return err
		}
	}
	return nil
}

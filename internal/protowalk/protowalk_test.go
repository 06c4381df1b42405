package protowalk

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// Messages used by the tests:
//
//	tree { repeated leaf leaves = 1; bytes name = 2; uint64 n = 3; choice c = 4; fixed64 at = 5; fixed32 by = 6; }
//	leaf { bytes key = 1; }
//	choice { oneof { bytes a = 1; uint64 b = 2; } }
var (
	leafTable   = Message{Name: "leaf", Fields: []Field{{Number: 1, Name: "key", Kind: Bytes, Least: 1}}}
	choiceTable = Message{Name: "choice", OneOf: true, Fields: []Field{{Number: 1, Name: "a", Kind: Bytes}, {Number: 2, Name: "b", Kind: Varint}}}
	treeTable   = Message{
		Name: "tree",
		Fields: []Field{
			{Number: 1, Name: "leaves", Kind: Bytes, Of: &leafTable, Most: 3, Least: 3},
			{Number: 2, Name: "name", Kind: Bytes},
			{Number: 3, Name: "n", Kind: Varint},
			{Number: 4, Name: "c", Kind: Bytes, Of: &choiceTable},
			{Number: 5, Name: "at", Kind: Fixed64},
			{Number: 6, Name: "by", Kind: Fixed32},
		},
		Rule: func(b []byte) error {
			if Count(b, 1) == 2 {
				return errTwo
			}
			return nil
		},
	}
	errTwo = errors.New("two leaves")
)

func field(number int, content ...byte) []byte {
	b := binary.AppendUvarint(nil, uint64(number)<<3|uint64(Bytes))
	return append(binary.AppendUvarint(b, uint64(len(content))), content...)
}

func number(number int, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(number)<<3|uint64(Varint)), value)
}

func join(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func TestWalk(t *testing.T) {
	leaf := field(1, field(1, 'k')...)
	for name, test := range map[string]struct {
		body []byte
		want error
	}{
		"nothing":                       {nil, nil},
		"one of each":                   {join(leaf, field(2), number(3, 1<<63), field(4, number(2, 7)...)), nil},
		"as many as allowed":            {join(leaf, leaf, leaf), nil},
		"fields in another order":       {join(number(3, 1), leaf), nil},
		"unknown fields":                {join(field(99, 1, 2, 3), number(98, 5), []byte{7<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8}, []byte{8<<3 | 5, 1, 2, 3, 4}), nil},
		"an unknown field, repeated":    {join(number(98, 5), number(98, 5)), nil},
		"fixed lengths":                 {join([]byte{5<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8}, []byte{6<<3 | 5, 1, 2, 3, 4}), nil},
		"one more than allowed":         {join(leaf, leaf, leaf, leaf), ErrTooMany},
		"spread over others":            {join(leaf, number(3, 1), leaf, field(2), leaf, leaf), ErrTooMany},
		"an element that is too short":  {field(1), ErrMalformed},
		"its content is too short":      {field(1, field(1)...), ErrMalformed},
		"nested: its field is short":    {field(1, join(field(1), number(9, 1))...), ErrMalformed},
		"twice what is not repeated":    {join(field(2), field(2)), ErrMalformed},
		"twice a message":               {join(field(4), field(4)), ErrMalformed},
		"two of a choice":               {field(4, join(field(1), number(2, 1))...), ErrMalformed},
		"one of a choice twice":         {field(4, join(number(2, 1), number(2, 1))...), ErrMalformed},
		"a number where bytes should":   {number(1, 1), ErrMalformed},
		"bytes where a number should":   {field(3, 1), ErrMalformed},
		"a number of another width":     {[]byte{5<<3 | 5, 1, 2, 3, 4}, ErrMalformed},
		"cut off in a tag":              {[]byte{0x80}, ErrMalformed},
		"cut off after a tag":           {[]byte{3 << 3}, ErrMalformed},
		"cut off in a number":           {[]byte{3 << 3, 0x80}, ErrMalformed},
		"cut off in a length":           {[]byte{2<<3 | 2, 0x80}, ErrMalformed},
		"cut off in bytes":              {field(2, 1, 2, 3)[:4], ErrMalformed},
		"cut off in eight bytes":        {[]byte{5<<3 | 1, 1, 2, 3, 4, 5, 6, 7}, ErrMalformed},
		"cut off in four bytes":         {[]byte{6<<3 | 5, 1, 2, 3}, ErrMalformed},
		"an unknown field is cut off":   {field(99, 1, 2)[:3], ErrMalformed},
		"a length of 2^64-1":            {append([]byte{2<<3 | 2}, binary.AppendUvarint(nil, 1<<64-1)...), ErrMalformed},
		"a tag of more than 64 bits":    {append(binary.AppendUvarint(nil, 1<<64-1)[:9], 2), ErrMalformed},
		"field number 0":                {[]byte{2, 0}, ErrMalformed},
		"2^32 + 1, which is cut to 1":   {field(1<<32+1, field(1, 'k')...), ErrMalformed},
		"2^29 is too large a number":    {field(1 << 29), ErrMalformed},
		"2^29 - 1 is not":               {field(1<<29 - 1), nil},
		"a group":                       {[]byte{9<<3 | 3, 9<<3 | 4}, ErrMalformed},
		"the end of a group":            {[]byte{9<<3 | 4}, ErrMalformed},
		"wire type 6":                   {[]byte{9<<3 | 6}, ErrMalformed},
		"wire type 7, of a known field": {[]byte{2<<3 | 7}, ErrMalformed},
		"the rule is asked":             {join(leaf, leaf), errTwo},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, Walk(test.body, &treeTable), test.want)
		})
	}
}

func TestCount(t *testing.T) {
	leaf := field(1, join(field(1, 'k'), field(1, 'l'))...)
	b := join(leaf, number(3, 1), leaf, field(2, leaf...))
	require.Equal(t, 2, Count(b, 1))
	require.Equal(t, 4, Count(b, 1, 1))
	require.Equal(t, 1, Count(b, 2, 1))
	require.Equal(t, 2, Count(b, 2, 1, 1))
	require.Equal(t, 1, Count(b, 3))
	require.Zero(t, Count(b, 4))
	require.Equal(t, 1, Count(append(leaf, 0x80), 1), "up to the malformed part")
}

func TestWalkAllocatesNothing(t *testing.T) {
	body := join(field(1, field(1, 'k')...), field(2, make([]byte, 1000)...), field(4, number(2, 7)...))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if Walk(body, &treeTable) != nil {
			panic("it is refused")
		}
	}))
}

// FuzzWalk: an accepted message stays within the table's limits, according to an independent
// parser.
func FuzzWalk(f *testing.F) {
	leaf := field(1, field(1, 'k')...)
	for _, body := range [][]byte{
		nil, leaf, join(leaf, leaf, leaf), join(leaf, leaf, leaf, leaf), join(field(2), number(3, 1<<63), field(4, number(2, 7)...)),
		{9<<3 | 3, 9<<3 | 4}, field(1<<32+1, 1, 2, 3), {0x80}, field(4, join(field(1), number(2, 1))...), {5<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8},
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		err := Walk(body, &treeTable)
		if err != nil {
			require.True(t, errors.Is(err, ErrMalformed) || errors.Is(err, ErrTooMany) || errors.Is(err, errTwo), "%v", err)
			return
		}
		leaves := Count(body, 1)
		require.LessOrEqual(t, leaves, 3)
		require.LessOrEqual(t, Count(body, 1, 1), leaves)
		require.LessOrEqual(t, 5*leaves, len(body))
		for _, single := range []int{2, 3, 4, 5, 6} {
			require.LessOrEqual(t, Count(body, single), 1)
		}
		require.LessOrEqual(t, Count(body, 4, 1)+Count(body, 4, 2), 1)
	})
}

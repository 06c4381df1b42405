package ops

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Limits of the lengths in a change, as everywhere in Starling.
const (
	maxKey   = 4096
	maxValue = 1 << 20
)

// ReadChanges reads n times uvarint(len key) ‖ key ‖ uvarint(0 to delete it, otherwise 1 + len
// value) ‖ value.
func ReadChanges(in *bufio.Reader, n int) ([]Change, error) {
	var changes []Change
	for range n {
		key, err := readBytes(in, maxKey, 0)
		if err != nil {
			return nil, fmt.Errorf("key of change %d of %d: %w", len(changes)+1, n, err)
		}
		value, err := readBytes(in, maxValue, 1)
		if err != nil {
			return nil, fmt.Errorf("value of change %d of %d: %w", len(changes)+1, n, err)
		}
		changes = append(changes, Change{key, value})
	}
	return changes, nil
}

// readBytes reads a length, to which bias was added, and that many bytes; it returns nil if the
// length is below bias.
func readBytes(in *bufio.Reader, most, bias uint64) ([]byte, error) {
	length, err := binary.ReadUvarint(in)
	switch {
	case err != nil:
		return nil, err
	case length < bias:
		return nil, nil
	case length-bias > most:
		return nil, fmt.Errorf("%d bytes, the limit is %d", length-bias, most)
	}
	b := make([]byte, length-bias)
	_, err = io.ReadFull(in, b)
	return b, err
}

package dsm

import (
	"encoding/binary"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
)

// MethodLoads is the method for the sizes and the traffic of a storage node's ranges.
const MethodLoads = 22

// MaxLoadsBytes is the maximum length of an answer to MethodLoads.
const MaxLoadsBytes = 1 + 2 + MaxClaims*(3*(2+avlstar.MaxKeyBytes)+3*8)

const loadsVersion = 1

// Load is the size and the traffic of one range that a node keeps, as reported by that node. Loads
// are unverified.
type Load struct {
	Range avlstar.KeyRange
	// Middle is a key that divides the range's bytes into about equal parts, above First and
	// below After. Empty: there is none.
	Middle []byte
	Bytes  uint64 // of the leaf records
	// Reads counts the wants that the node answered since it opened the range, and Changes the keys
	// that blocks changed.
	Reads, Changes uint64
}

func (l Load) check() error {
	if err := checkRange(l.Range); err != nil {
		return err
	}
	if len(l.Middle) > 0 && (!l.Range.Contains(l.Middle) || string(l.Middle) == string(l.Range.First)) {
		return fmt.Errorf("the middle key %q does not divide range %v", l.Middle, l.Range)
	}
	return nil
}

// EncodeLoads encodes loads in the order of CompareRanges. It fails if they do not ascend, if there
// are more than MaxClaims, or if a middle key is not inside of its range.
//
//	version:u8 (1) ‖ n:u16be ‖ (range ‖ middle:key ‖ bytes:u64be ‖ reads:u64be ‖ changes:u64be) × n
func EncodeLoads(loads []Load) ([]byte, error) {
	if err := checkLoads(loads); err != nil {
		return nil, fmt.Errorf("dsm: loads: %w", err)
	}
	b := binary.BigEndian.AppendUint16([]byte{loadsVersion}, uint16(len(loads)))
	for _, l := range loads {
		b = appendKey(appendRange(b, l.Range), l.Middle)
		for _, n := range []uint64{l.Bytes, l.Reads, l.Changes} {
			b = binary.BigEndian.AppendUint64(b, n)
		}
	}
	return b, nil
}

func checkLoads(loads []Load) error {
	if len(loads) > MaxClaims {
		return fmt.Errorf("%d ranges, the limit is %d", len(loads), MaxClaims)
	}
	for i, l := range loads {
		if err := l.check(); err != nil {
			return fmt.Errorf("range %d: %w", i, err)
		}
		if i > 0 && CompareRanges(loads[i-1].Range, l.Range) >= 0 {
			return fmt.Errorf("%v does not follow %v", l.Range, loads[i-1].Range)
		}
	}
	return nil
}

// DecodeLoads is the inverse of EncodeLoads. The keys refer to b.
func DecodeLoads(b []byte) ([]Load, error) {
	r := newReader(b)
	if version := r.Byte("version"); r.Err() == nil && version != loadsVersion {
		return nil, fmt.Errorf("loads: version %d: %w", version, ErrMessage)
	}
	n := r.Count16("ranges", MaxClaims, 3*2+3*8)
	loads := make([]Load, 0, n)
	for range n {
		loads = append(loads, Load{Range: r.keyRange(), Middle: r.key("middle key"), Bytes: r.Uint64("bytes"),
			Reads: r.Uint64("reads"), Changes: r.Uint64("changes")})
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("loads: %w", err)
	}
	if err := checkLoads(loads); err != nil {
		return nil, fmt.Errorf("loads: %w: %w", err, ErrMessage)
	}
	return loads, nil
}

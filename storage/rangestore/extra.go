package rangestore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
)

// extra describes the state of a range in storage.Meta.Extra. It is encoded as
//
//	version:u8 (1) ‖ len:u16be ‖ First ‖ len:u16be ‖ After ‖ commitment:53 ‖ boundary proof
//
// First and After are the ends of the range, empty if open.
type extra struct {
	keys       avlstar.KeyRange
	commitment avlstar.Commitment
	boundary   []byte // Version.Boundary for keys
}

const extraVersion = 1

var errExtra = errors.New("malformed description of a key range")

func (e extra) encode() []byte {
	b := make([]byte, 0, 1+2+len(e.keys.First)+2+len(e.keys.After)+avlstar.CommitmentBytes+len(e.boundary))
	b = append(b, extraVersion)
	for _, key := range [][]byte{e.keys.First, e.keys.After} {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(key))), key...)
	}
	return append(append(b, e.commitment.Encode()...), e.boundary...)
}

// decodeExtra is the inverse of encode. Errors: errExtra, storage.ErrNewerFormat. It does not
// decode the boundary proof. The result refers to b.
func decodeExtra(b []byte) (e extra, err error) {
	switch {
	case len(b) == 0 || b[0] == 0:
		return extra{}, fmt.Errorf("%w: version", errExtra)
	case b[0] > extraVersion: // the record has a checksum
		return extra{}, fmt.Errorf("key range of version %d: %w", b[0], storage.ErrNewerFormat)
	}
	b = b[1:]
	for _, key := range []*[]byte{&e.keys.First, &e.keys.After} {
		if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
			return extra{}, fmt.Errorf("%w: keys", errExtra)
		}
		end := 2 + int(binary.BigEndian.Uint16(b))
		*key, b = b[2:end:end], b[end:]
	}
	if err := checkKeys(e.keys); err != nil {
		return extra{}, fmt.Errorf("%w: %w", errExtra, err)
	}
	if len(b) < avlstar.CommitmentBytes {
		return extra{}, fmt.Errorf("%w: commitment", errExtra)
	}
	if e.commitment, err = avlstar.DecodeCommitment(b[:avlstar.CommitmentBytes]); err != nil {
		return extra{}, fmt.Errorf("%w: %w", errExtra, err)
	}
	e.boundary = b[avlstar.CommitmentBytes:]
	return e, nil
}

func checkKeys(r avlstar.KeyRange) error {
	if len(r.First) > avlstar.MaxKeyBytes || len(r.After) > avlstar.MaxKeyBytes {
		return fmt.Errorf("keys of %d and %d bytes, want at most %d", len(r.First), len(r.After), avlstar.MaxKeyBytes)
	}
	return r.Check()
}

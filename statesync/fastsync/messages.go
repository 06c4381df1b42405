package fastsync

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// The methods that a Server answers (docs/spec/transport.md#methods).
const (
	MethodStatus      transport.Method = 1  // which blocks and snapshots a node has
	MethodCommitment  transport.Method = 2  // what an app hash commits to
	MethodManifest    transport.Method = 3  // the manifest of a snapshot
	MethodChunk       transport.Method = 4  // a range of a chunk, or all of it
	MethodSubManifest transport.Method = 5  // the manifest of a cut of a chunk
	MethodPeers       transport.Method = 9  // addresses of other nodes
	MethodGenesis     transport.Method = 10 // the genesis file
	MethodParts       transport.Method = 19 // of which snapshots a node has a part
)

// Limits of the messages.
const (
	maxStatusHeights = 256
	MaxPeers         = 64 // addresses that a node tells
	maxAddressBytes  = 128
	// entryBytes bounds a manifest (docs/spec/chunks.md#manifest): it is shorter than 70 bytes per
	// chunk, and at most 16 bytes long without chunks.
	entryBytes = 70

	maxStatusBytes = 2 + 8 + 8 + 2 + 8*maxStatusHeights
	maxPeersBytes  = 2 + MaxPeers*(2+maxAddressBytes)

	statusVersion = 1
)

var errMessage = errors.New("malformed message")

// Status is what a node claims to have. Nothing of it is proved. Of more than maxStatusHeights
// snapshots it names the newest.
//
//	version:u8 (1) ‖ first block:u64be ‖ last block:u64be ‖ n:u16be
//	‖ snapshot height:u64be × n, ascending
type Status struct {
	Base, Height int64   // first and last block
	Snapshots    []int64 // heights
	// Parts is what MethodParts says, and no part of this message.
	Parts []statesync.Part
}

func (s Status) encode() []byte {
	b := []byte{statusVersion}
	b = binary.BigEndian.AppendUint64(b, uint64(s.Base))
	b = binary.BigEndian.AppendUint64(b, uint64(s.Height))
	snapshots := s.Snapshots[max(0, len(s.Snapshots)-maxStatusHeights):]
	b = binary.BigEndian.AppendUint16(b, uint16(len(snapshots)))
	for _, h := range snapshots {
		b = binary.BigEndian.AppendUint64(b, uint64(h))
	}
	return b
}

func decodeStatus(b []byte) (Status, error) {
	const fixed = 1 + 8 + 8 + 2
	if len(b) < fixed || b[0] != statusVersion {
		return Status{}, fmt.Errorf("status: %w", errMessage)
	}
	base, height := binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:])
	n := int(binary.BigEndian.Uint16(b[17:]))
	if base > math.MaxInt64 || height > math.MaxInt64 || n > maxStatusHeights || len(b) != fixed+8*n {
		return Status{}, fmt.Errorf("status: %w", errMessage)
	}
	s := Status{Base: int64(base), Height: int64(height)}
	for i := range n {
		h := binary.BigEndian.Uint64(b[fixed+8*i:])
		if h == 0 || h > math.MaxInt64 || i > 0 && int64(h) <= s.Snapshots[i-1] {
			return Status{}, fmt.Errorf("status: snapshot heights: %w", errMessage)
		}
		s.Snapshots = append(s.Snapshots, int64(h))
	}
	return s, nil
}

// heightBody is the body of a request about a height: height:u64be.
func heightBody(height int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(height)) }

func decodeHeight(b []byte) (int64, error) {
	if len(b) != 8 || binary.BigEndian.Uint64(b) > math.MaxInt64 {
		return 0, fmt.Errorf("height: %w", errMessage)
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// manifestRequest asks for the range [offset, offset+length) of a manifest, or for what there is of
// it: only a range that reaches beyond the end has a shorter answer.
//
//	height:u64be ‖ offset:u64be ‖ length:u32be
//
// A body of the height alone asks for the whole manifest. A node of an older version answers that
// form only, and refuses a range.
type manifestRequest struct {
	height int64
	offset uint64
	length uint32
}

func (r manifestRequest) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(heightBody(r.height), r.offset), r.length)
}

func decodeManifestRequest(b []byte) (r manifestRequest, err error) {
	r.length = math.MaxUint32
	if len(b) == 8+8+4 {
		r.offset, r.length = binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint32(b[16:])
		b = b[:8]
	}
	r.height, err = decodeHeight(b)
	return r, err
}

// chunkRequest asks for the range [offset, offset+length) of the encoding of chunk k.
//
//	height:u64be ‖ k:u32be ‖ offset:u32be ‖ length:u32be
type chunkRequest struct {
	height         int64
	k              uint32
	offset, length uint32
}

func (r chunkRequest) encode() []byte {
	b := binary.BigEndian.AppendUint32(heightBody(r.height), r.k)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, r.offset), r.length)
}

func decodeChunkRequest(b []byte) (r chunkRequest, err error) {
	if len(b) != 8+3*4 {
		return r, fmt.Errorf("chunk request: %w", errMessage)
	}
	if r.height, err = decodeHeight(b[:8]); err != nil {
		return r, err
	}
	r.k, r.offset, r.length = binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint32(b[16:])
	return r, nil
}

// subManifestRequest asks for the sub-manifest of chunk k, cut into pieces of at most limit bytes.
//
//	height:u64be ‖ k:u32be ‖ limit:u32be
type subManifestRequest struct {
	height   int64
	k, limit uint32
}

func (r subManifestRequest) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(heightBody(r.height), r.k), r.limit)
}

func decodeSubManifestRequest(b []byte) (r subManifestRequest, err error) {
	if len(b) != 8+2*4 {
		return r, fmt.Errorf("sub-manifest request: %w", errMessage)
	}
	if r.height, err = decodeHeight(b[:8]); err != nil {
		return r, err
	}
	r.k, r.limit = binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	return r, nil
}

// encodePeers encodes addresses, up to MaxPeers; those without an ID are left out.
//
//	n:u16be ‖ (length:u16be ‖ address, as id@host:port) × n
func encodePeers(addresses []transport.Address) []byte {
	var list []string
	for _, a := range addresses {
		if s := a.String(); a.ID != "" && len(s) <= maxAddressBytes && len(list) < MaxPeers {
			list = append(list, s)
		}
	}
	b := binary.BigEndian.AppendUint16(nil, uint16(len(list)))
	for _, s := range list {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	return b
}

func decodePeers(b []byte) ([]transport.Address, error) {
	if len(b) < 2 {
		return nil, fmt.Errorf("peers: %w", errMessage)
	}
	n := int(binary.BigEndian.Uint16(b))
	if n > MaxPeers {
		return nil, fmt.Errorf("peers: %d of them: %w", n, errMessage)
	}
	b = b[2:]
	var list []transport.Address
	for range n {
		if len(b) < 2 {
			return nil, fmt.Errorf("peers: %w", errMessage)
		}
		length := int(binary.BigEndian.Uint16(b))
		if b = b[2:]; length > maxAddressBytes || length > len(b) {
			return nil, fmt.Errorf("peers: %w", errMessage)
		}
		a, err := transport.ParseAddress(string(b[:length]))
		if err != nil || a.ID == "" {
			return nil, fmt.Errorf("peers: an address: %w", errMessage)
		}
		list, b = append(list, a), b[length:]
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("peers: %w", errMessage)
	}
	return list, nil
}

// Package protocol holds the messages between joining and serving nodes: methods, requests and
// answers (docs/spec/transport.md#methods). It checks only their form; its user must verify the
// contents of answers.
package protocol

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/starling-kv/starling/internal/wire"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// The methods served by package serve (docs/spec/transport.md#methods).
const (
	MethodStatus      transport.Method = 1  // blocks and snapshots of a node
	MethodCommitment  transport.Method = 2  // commitment behind an app hash
	MethodManifest    transport.Method = 3  // manifest of a snapshot
	MethodChunk       transport.Method = 4  // a range of a chunk, or the whole chunk
	MethodSubManifest transport.Method = 5  // manifest of a chunk's pieces
	MethodPeers       transport.Method = 9  // addresses of other nodes
	MethodGenesis     transport.Method = 10 // genesis file
	MethodParts       transport.Method = 19 // parts of snapshots of a node
)

// Limits of the messages.
const (
	maxStatusHeights = 256
	MaxPeers         = 64 // addresses in an answer
	maxAddressBytes  = 128
	// EntryBytes bounds a manifest (docs/spec/chunks.md#manifest): fewer than 70 bytes per chunk,
	// and at most 16 bytes without chunks.
	EntryBytes = 70

	MaxStatusBytes = 2 + 8 + 8 + 2 + 8*maxStatusHeights
	MaxPeersBytes  = 2 + MaxPeers*(2+maxAddressBytes)

	statusVersion = 1
)

// ErrMessage: a message is malformed; no honest peer sends it.
var ErrMessage = wire.ErrMalformed

// Status is what a node claims to have. It is unverified. If there are more than maxStatusHeights
// snapshots, it lists the newest.
//
//	version:u8 (1) ‖ first block:u64be ‖ last block:u64be ‖ n:u16be
//	‖ snapshot height:u64be × n, ascending
type Status struct {
	Base, Height int64   // first and last block
	Snapshots    []int64 // heights
	// Parts is the answer to MethodParts; it is not part of this message.
	Parts []statesync.Part
}

// Encode encodes the message without Parts.
func (s Status) Encode() []byte {
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

// DecodeStatus is the inverse of Status.Encode.
func DecodeStatus(b []byte) (Status, error) {
	r := wire.NewReader(b)
	if version := r.Byte("version"); r.Err() == nil && version != statusVersion {
		return Status{}, fmt.Errorf("status: version %d: %w", version, ErrMessage)
	}
	s := Status{Base: r.Height("first block"), Height: r.Height("last block")}
	for i := range r.Count16("snapshots", maxStatusHeights, 8) {
		h := r.Height("snapshot height")
		if h == 0 || i > 0 && h <= s.Snapshots[i-1] {
			return Status{}, fmt.Errorf("status: snapshot heights do not ascend from 1: %w", ErrMessage)
		}
		s.Snapshots = append(s.Snapshots, h)
	}
	if err := r.End(); err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	return s, nil
}

// HeightBody encodes a request about a height: height:u64be.
func HeightBody(height int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(height)) }

// DecodeHeight is the inverse of HeightBody.
func DecodeHeight(b []byte) (int64, error) {
	r := wire.NewReader(b)
	height := r.Height("height")
	return height, r.End()
}

// ManifestRequest requests the range [offset, offset+length) of a manifest. The answer is shorter
// only if the manifest ends before the range does.
//
//	height:u64be ‖ offset:u64be ‖ length:u32be
//
// A body with only the height requests the whole manifest.
type ManifestRequest struct {
	Height int64
	Offset uint64
	Length uint32
}

// Encode encodes the request.
func (r ManifestRequest) Encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(HeightBody(r.Height), r.Offset), r.Length)
}

// DecodeManifestRequest decodes a request in either form.
func DecodeManifestRequest(b []byte) (ManifestRequest, error) {
	r := wire.NewReader(b)
	q := ManifestRequest{Height: r.Height("height"), Length: math.MaxUint32}
	if r.Len() > 0 {
		q.Offset, q.Length = r.Uint64("offset"), r.Uint32("length")
	}
	return q, r.End()
}

// ChunkRequest requests the range [offset, offset+length) of encoded chunk k.
//
//	height:u64be ‖ k:u32be ‖ offset:u32be ‖ length:u32be
type ChunkRequest struct {
	Height         int64
	K              uint32
	Offset, Length uint32
}

// Encode encodes the request.
func (r ChunkRequest) Encode() []byte {
	b := binary.BigEndian.AppendUint32(HeightBody(r.Height), r.K)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, r.Offset), r.Length)
}

// DecodeChunkRequest is the inverse of ChunkRequest.Encode.
func DecodeChunkRequest(b []byte) (ChunkRequest, error) {
	r := wire.NewReader(b)
	q := ChunkRequest{Height: r.Height("height"), K: r.Uint32("k"), Offset: r.Uint32("offset"), Length: r.Uint32("length")}
	return q, r.End()
}

// SubManifestRequest requests the sub-manifest of chunk k, cut into pieces of at most limit bytes.
//
//	height:u64be ‖ k:u32be ‖ limit:u32be
type SubManifestRequest struct {
	Height   int64
	K, Limit uint32
}

// Encode encodes the request.
func (r SubManifestRequest) Encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(HeightBody(r.Height), r.K), r.Limit)
}

// DecodeSubManifestRequest is the inverse of SubManifestRequest.Encode.
func DecodeSubManifestRequest(b []byte) (SubManifestRequest, error) {
	r := wire.NewReader(b)
	q := SubManifestRequest{Height: r.Height("height"), K: r.Uint32("k"), Limit: r.Uint32("limit")}
	return q, r.End()
}

// EncodePeers encodes up to MaxPeers addresses. It skips addresses without an ID.
//
//	n:u16be ‖ (length:u16be ‖ address, as id@host:port) × n
func EncodePeers(addresses []transport.Address) []byte {
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

// DecodePeers is the inverse of EncodePeers.
func DecodePeers(b []byte) ([]transport.Address, error) {
	r := wire.NewReader(b)
	var list []transport.Address
	for range r.Count16("peers", MaxPeers, 2) {
		a, err := transport.ParseAddress(string(r.Bytes16("address", maxAddressBytes)))
		if err != nil || a.ID == "" {
			return nil, fmt.Errorf("peers: an address: %w", ErrMessage)
		}
		list = append(list, a)
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	return list, nil
}

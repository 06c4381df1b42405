package protocol

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/starling-kv/starling/internal/wire"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
)

// Storage nodes of a sharded state have only a part of each snapshot: the chunks of their ranges.
// Their claims only decide which node is asked.

const (
	partsVersion = 1
	// maxSpans limits the spans of a snapshot, since each costs a joiner time whenever it chooses
	// what to request. A node reports only its first maxSpans spans.
	maxSpans      = 64
	maxPartHeight = 32
	partBytes     = 8 + 4 + 2
	// MaxPartsBytes is the maximum length of EncodeParts's result.
	MaxPartsBytes = 1 + 2 + maxPartHeight*(partBytes+8*maxSpans)
)

// EncodeParts encodes the newest parts, up to maxPartHeight.
//
//	version:u8 (1) ‖ n:u16be ‖ (height:u64be ‖ chunks:u32be ‖ s:u16be ‖ (from:u32be ‖ to:u32be) × s) × n
func EncodeParts(parts []statesync.Part) []byte {
	parts = parts[max(0, len(parts)-maxPartHeight):]
	b := binary.BigEndian.AppendUint16([]byte{partsVersion}, uint16(len(parts)))
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(p.Height))
		b = binary.BigEndian.AppendUint32(b, p.Chunks)
		spans := p.Spans[:min(len(p.Spans), maxSpans)]
		b = binary.BigEndian.AppendUint16(b, uint16(len(spans)))
		for _, s := range spans {
			b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, s.From), s.To)
		}
	}
	return b
}

// DecodeParts is the inverse of EncodeParts.
func DecodeParts(b []byte) ([]statesync.Part, error) {
	r := wire.NewReader(b)
	if version := r.Byte("version"); r.Err() == nil && version != partsVersion {
		return nil, fmt.Errorf("parts: version %d: %w", version, ErrMessage)
	}
	var parts []statesync.Part
	for i := range r.Count16("parts", maxPartHeight, partBytes) {
		p := statesync.Part{Height: r.Height("height"), Chunks: r.Uint32("chunks")}
		for range r.Count16("spans", maxSpans, 8) {
			p.Spans = append(p.Spans, scheduler.Span{From: r.Uint32("from"), To: r.Uint32("to")})
		}
		if r.Err() != nil {
			break
		}
		if p.Height == 0 || i > 0 && p.Height <= parts[i-1].Height {
			return nil, fmt.Errorf("parts: heights do not ascend from 1: %w", ErrMessage)
		}
		if err := p.Check(); err != nil {
			return nil, fmt.Errorf("parts: %w: %w", ErrMessage, err)
		}
		parts = append(parts, p)
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("parts: %w", err)
	}
	return parts, nil
}

// Heights returns the heights of all complete and partial snapshots of a node.
func (s Status) Heights() []int64 {
	heights := slices.Clone(s.Snapshots)
	for _, p := range s.Parts {
		if !slices.Contains(heights, p.Height) {
			heights = append(heights, p.Height)
		}
	}
	return heights
}

// SameSnapshots reports whether two statuses claim the same snapshots and parts.
func (s Status) SameSnapshots(o Status) bool {
	return slices.Equal(s.Snapshots, o.Snapshots) && slices.EqualFunc(s.Parts, o.Parts, func(a, b statesync.Part) bool {
		return a.Height == b.Height && a.Chunks == b.Chunks && slices.Equal(a.Spans, b.Spans)
	})
}

// Part returns which chunks a node has of a snapshot: all of them, or those of p. ok is false if it
// has none.
func (s Status) Part(height int64) (p statesync.Part, all, ok bool) {
	if slices.Contains(s.Snapshots, height) {
		return p, true, true
	}
	i := slices.IndexFunc(s.Parts, func(p statesync.Part) bool { return p.Height == height })
	if i < 0 {
		return p, false, false
	}
	return s.Parts[i], false, true
}

// Has reports whether a node has chunk k of a snapshot.
func (s Status) Has(height int64, k uint32) bool {
	p, all, ok := s.Part(height)
	return all || ok && p.Has(k)
}

package fastsync

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// Storage nodes of a sharded state have a part of each snapshot only: the chunks of their ranges.
// What they say of it is a claim, as a Status is: it decides whom to ask, and nothing else.

const (
	partsVersion = 1
	// maxSpans is the limit of the spans of a snapshot: each costs a joiner some time whenever it
	// looks for what to ask for. What a node has beyond the first ones it does not tell.
	maxSpans      = 64
	maxPartHeight = 32
	partBytes     = 8 + 4 + 2
	maxPartsBytes = 1 + 2 + maxPartHeight*(partBytes+8*maxSpans)
)

// encodeParts encodes the newest parts, up to maxPartHeight.
//
//	version:u8 (1) ‖ n:u16be ‖ (height:u64be ‖ chunks:u32be ‖ s:u16be ‖ (from:u32be ‖ to:u32be) × s) × n
func encodeParts(parts []statesync.Part) []byte {
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

func decodeParts(b []byte) ([]statesync.Part, error) {
	if len(b) < 3 || b[0] != partsVersion {
		return nil, fmt.Errorf("parts: %w", errMessage)
	}
	n := int(binary.BigEndian.Uint16(b[1:]))
	b = b[3:]
	if n > maxPartHeight {
		return nil, fmt.Errorf("parts: %d heights: %w", n, errMessage)
	}
	var parts []statesync.Part
	for i := range n {
		if len(b) < partBytes {
			return nil, fmt.Errorf("parts: %w", errMessage)
		}
		height := binary.BigEndian.Uint64(b)
		p := statesync.Part{Height: int64(height), Chunks: binary.BigEndian.Uint32(b[8:])} //nolint:gosec // checked below
		spans := int(binary.BigEndian.Uint16(b[12:]))
		b = b[partBytes:]
		if height == 0 || height > math.MaxInt64 || i > 0 && p.Height <= parts[i-1].Height || spans > maxSpans || 8*spans > len(b) {
			return nil, fmt.Errorf("parts: a height: %w", errMessage)
		}
		for range spans {
			p.Spans = append(p.Spans, statesync.Span{From: binary.BigEndian.Uint32(b), To: binary.BigEndian.Uint32(b[4:])})
			b = b[8:]
		}
		if err := p.Check(); err != nil {
			return nil, fmt.Errorf("parts: %w: %w", errMessage, err)
		}
		parts = append(parts, p)
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("parts: %w", errMessage)
	}
	return parts, nil
}

// heights returns those of the snapshots of which a node has all or a part.
func (s Status) heights() []int64 {
	heights := slices.Clone(s.Snapshots)
	for _, p := range s.Parts {
		if !slices.Contains(heights, p.Height) {
			heights = append(heights, p.Height)
		}
	}
	return heights
}

func (s Status) sameSnapshots(o Status) bool {
	return slices.Equal(s.Snapshots, o.Snapshots) && slices.EqualFunc(s.Parts, o.Parts, func(a, b statesync.Part) bool {
		return a.Height == b.Height && a.Chunks == b.Chunks && slices.Equal(a.Spans, b.Spans)
	})
}

// part returns which chunks a node has of a snapshot: all of them, or those of p. ok is false if it
// has none.
func (s Status) part(height int64) (p statesync.Part, all, ok bool) {
	if slices.Contains(s.Snapshots, height) {
		return p, true, true
	}
	i := slices.IndexFunc(s.Parts, func(p statesync.Part) bool { return p.Height == height })
	if i < 0 {
		return p, false, false
	}
	return s.Parts[i], false, true
}

// has reports whether a node has chunk k of a snapshot.
func (s Status) has(height int64, k uint32) bool {
	p, all, ok := s.part(height)
	return all || ok && p.Has(k)
}

// chunksOf returns what a peer has of a round, as the scheduler knows it.
func (s Status) chunksOf(r *round) (whole []scheduler.Group, parts []scheduler.Part) {
	p, all, ok := s.part(r.height)
	switch {
	case all:
		whole = []scheduler.Group{r.group}
	case ok && int64(p.Chunks) == int64(len(r.manifest.Entries)): // else it is of another snapshot
		part := scheduler.Part{Group: r.group}
		for _, s := range p.Spans {
			part.Spans = append(part.Spans, scheduler.Span(s))
		}
		parts = []scheduler.Part{part}
	}
	return whole, parts
}

// uncovered returns the chunks of a snapshot of so many that are in none of the parts.
func uncovered(parts []statesync.Part, chunks uint32) (rest []statesync.Span) {
	var spans []statesync.Span
	for _, p := range parts {
		if p.Chunks == chunks {
			spans = append(spans, p.Spans...)
		}
	}
	slices.SortFunc(spans, func(a, b statesync.Span) int { return cmp.Compare(a.From, b.From) })
	at := uint32(0)
	for _, s := range spans {
		if s.From > at {
			rest = append(rest, statesync.Span{From: at, To: s.From})
		}
		at = max(at, s.To)
	}
	if at < chunks {
		rest = append(rest, statesync.Span{From: at, To: chunks})
	}
	return rest
}

// incomplete returns an error if the parts of a snapshot that peers claim lack some of its chunks.
// Whoever claims another number of chunks than the others counts alone: it may be the liar.
func incomplete(height int64, claimed []statesync.Part) error {
	by := map[uint32][]statesync.Part{} // number of chunks
	for _, p := range claimed {
		by[p.Chunks] = append(by[p.Chunks], p)
	}
	var least []statesync.Span
	var chunks uint32
	for n, parts := range by {
		rest := uncovered(parts, n)
		if len(rest) == 0 {
			return nil
		}
		if least == nil || count(rest) < count(least) || count(rest) == count(least) && n < chunks {
			least, chunks = rest, n
		}
	}
	if least == nil {
		return nil // nobody claims anything
	}
	return fmt.Errorf("%w %d: nobody who is connected has %s of %d", errIncomplete, height, chunkNames(least), chunks)
}

var errIncomplete = errors.New("the peers have a part only of the snapshot at height")

func count(spans []statesync.Span) (n uint64) {
	for _, s := range spans {
		n += uint64(s.To - s.From)
	}
	return n
}

// chunkNames names chunks for the log: a few spans of them.
func chunkNames(spans []statesync.Span) string {
	const most = 4
	var names []string
	for i, s := range spans {
		switch {
		case i == most:
			names = append(names, fmt.Sprintf("%d more", count(spans[i:])))
			return "chunks " + strings.Join(names, ", ")
		case s.To-s.From == 1:
			names = append(names, fmt.Sprint(s.From))
		default:
			names = append(names, fmt.Sprintf("%d to %d", s.From, s.To-1))
		}
	}
	if len(spans) == 1 && spans[0].To-spans[0].From == 1 {
		return "chunk " + names[0]
	}
	return "chunks " + strings.Join(names, ", ")
}

// missing returns the chunks of a round that are not here and that no connected peer says it has.
func (j *joiner) missing(r *round) (spans []statesync.Span) {
	var parts []statesync.Part
	for _, s := range j.has {
		p, all, ok := s.part(r.height)
		if all {
			return nil
		}
		if ok {
			parts = append(parts, p)
		}
	}
	for _, s := range uncovered(parts, uint32(len(r.manifest.Entries))) {
		for k := s.From; k < s.To; k++ {
			if _, is := r.restorer.Want(k); !is {
				continue
			}
			if n := len(spans); n > 0 && spans[n-1].To == k {
				spans[n-1].To++
			} else {
				spans = append(spans, statesync.Span{From: k, To: k + 1})
			}
		}
	}
	return spans
}

// partsOf asks a peer that says that it has no whole snapshot for its parts. asks is false when it
// need not be asked again.
func partsOf(ask func(transport.Call) ([]byte, error)) (parts []statesync.Part, asks bool, err error) {
	b, err := ask(transport.Call{Method: MethodParts, Max: maxPartsBytes})
	if err != nil {
		return nil, !errors.Is(err, transport.ErrRefused), nil //nolint:nilerr // then it has none
	}
	parts, err = decodeParts(b)
	return parts, true, err
}

package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
)

// Uncovered returns the chunks that none of the parts contains, for a snapshot with the given
// number of chunks.
func Uncovered(parts []statesync.Part, chunks uint32) (rest []scheduler.Span) {
	var spans []scheduler.Span
	for _, p := range parts {
		if p.Chunks == chunks {
			spans = append(spans, p.Spans...)
		}
	}
	slices.SortFunc(spans, func(a, b scheduler.Span) int { return cmp.Compare(a.From, b.From) })
	at := uint32(0)
	for _, s := range spans {
		if s.From > at {
			rest = append(rest, scheduler.Span{From: at, To: s.From})
		}
		at = max(at, s.To)
	}
	if at < chunks {
		rest = append(rest, scheduler.Span{From: at, To: chunks})
	}
	return rest
}

// incomplete returns an error if the parts of a snapshot that peers claim do not cover all chunks.
// Claims with different numbers of chunks are not combined: one of the peers is Byzantine.
func incomplete(height int64, claimed []statesync.Part) error {
	by := map[uint32][]statesync.Part{} // number of chunks
	for _, p := range claimed {
		by[p.Chunks] = append(by[p.Chunks], p)
	}
	var least []scheduler.Span
	var chunks uint32
	for n, parts := range by {
		rest := Uncovered(parts, n)
		if len(rest) == 0 {
			return nil
		}
		if least == nil || Count(rest) < Count(least) || Count(rest) == Count(least) && n < chunks {
			least, chunks = rest, n
		}
	}
	if least == nil {
		return nil // there are no claims
	}
	return fmt.Errorf("%w %d: no connected peer has %s of %d", ErrIncomplete, height, ChunkNames(least), chunks)
}

// ErrIncomplete: the connected peers have only a part of a snapshot.
var ErrIncomplete = errors.New("peers have only a part of the snapshot at height")

// Count returns the total number of chunks in spans.
func Count(spans []scheduler.Span) (n uint64) {
	for _, s := range spans {
		n += uint64(s.To - s.From)
	}
	return n
}

// ChunkNames formats chunks for the log: the first few spans.
func ChunkNames(spans []scheduler.Span) string {
	const most = 4
	var names []string
	for i, s := range spans {
		switch {
		case i == most:
			names = append(names, fmt.Sprintf("%d more", Count(spans[i:])))
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

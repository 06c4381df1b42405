package storage

import (
	"bytes"
	"iter"
	"runtime"
	"slices"

	"github.com/starling-kv/starling/avlstar/record"
)

const (
	// Approximate size of the tables that one part of a scan covers: of leaves, and of the page
	// list.
	segmentBytes     = 4 << 20
	listSegmentBytes = 1 << 20

	pieceBytes  = 128 << 10 // size of the leaves that are passed on at a time
	piecesAhead = 64        // maximum number of pieces that a part reads ahead
	maxScanners = 4
)

// Scan yields all leaves of the durable state in key order, with the heights of their inner nodes.
// Key and Value are valid until the next iteration. An error is yielded last.
//
//	tables' bounds ──► part 0  part 1  part 2 …       read in parallel, a few ahead,
//	                     │       │       │            each into a queue of pieces
//	yield   ◄────────────┴───────┴───────┘            in order
func (s *Zone) Scan() iter.Seq2[record.Leaf, error] { return s.inParts("scan", s.parts) }

// inParts yields the records in the parts of the durable state, which are read in parallel.
func (s *Zone) inParts(doing string, parts func(*generation) ([]section, error)) iter.Seq2[record.Leaf, error] {
	return func(yield func(record.Leaf, error) bool) {
		if !s.users.enter() {
			yield(record.Leaf{}, s.closedErr(doing))
			return
		}
		defer s.users.leave()
		g := s.generations.newest()
		if g == nil {
			return
		}
		all, err := parts(g)
		if err != nil {
			_ = g.release()
			yield(record.Leaf{}, s.readErr(err))
			return
		}
		stopped := false
		err = scan(g, all, func(l record.Leaf) bool {
			stopped = !yield(l, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(record.Leaf{}, s.readErr(err))
		}
	}
}

// parts splits the state into parts that are read in parallel.
func (s *Zone) parts(g *generation) ([]section, error) {
	if g.reader == nil {
		return g.set.parts(), nil
	}
	cuts, err := s.cuts(kindLeaf, segmentBytes)
	return g.parts(cuts), err
}

// cuts returns keys, in ascending order, that split the records of a kind into parts. The tables
// that begin in a part, except in the last one, have at least that size together.
func (s *Zone) cuts(kind byte, least uint64) ([][]byte, error) {
	levels, err := s.db.SSTables()
	if err != nil {
		return nil, err
	}
	type start struct {
		key   []byte
		bytes uint64
	}
	var starts []start
	for _, level := range levels {
		for _, t := range level {
			if key := t.Smallest.UserKey; len(key) > 0 && key[0] == kind {
				starts = append(starts, start{key[1:], t.Size})
			}
		}
	}
	slices.SortFunc(starts, func(a, b start) int { return bytes.Compare(a.key, b.key) })
	var cuts [][]byte
	sum := uint64(0)
	for _, t := range starts {
		if sum >= least && (len(cuts) == 0 || !bytes.Equal(cuts[len(cuts)-1], t.key)) {
			cuts, sum = append(cuts, t.key), 0
		}
		sum += t.bytes
	}
	return cuts, nil
}

// piece is a sequence of leaves: data contains keys and values, ends their ends.
type piece struct {
	data []byte
	ends []pieceLeaf
	err  error
}

type pieceLeaf struct {
	key, value uint32
	height     uint8
}

// section calls take for each leaf of a part of a state, in key order, until it returns false.
// Slices are valid during the call.
type section func(take func(key, value []byte, height uint8) bool) error

// parts splits the state at the cuts, which must be in ascending order.
func (g *generation) parts(cuts [][]byte) []section { return partsBetween(cuts, g.leafPart) }

// partsBetween returns the parts between the cuts; part returns that between two keys, nil: open.
func partsBetween(cuts [][]byte, part func(first, after []byte) section) []section {
	parts := make([]section, len(cuts)+1)
	for i := range parts {
		var first, after []byte
		if i > 0 {
			first = cuts[i-1]
		}
		if i < len(cuts) {
			after = cuts[i]
		}
		parts[i] = part(first, after)
	}
	return parts
}

// leafPart returns the leaves with keys in [first, after).
func (g *generation) leafPart(first, after []byte) section {
	return func(take func(key, value []byte, height uint8) bool) error {
		c, err := g.newCursor(first, after)
		if err != nil {
			return err
		}
		c.first()
		err = c.read(nil, take)
		if closeErr := c.close(); err == nil {
			err = closeErr
		}
		return err
	}
}

// segment is a part and the queue of its pieces.
type segment struct {
	part   section
	pieces chan *piece // closed at the end, or after a piece with an error
}

// scan reads the parts of g and releases it.
func scan(g *generation, parts []section, yield func(record.Leaf) bool) error {
	segments := make([]segment, len(parts))
	for i, p := range parts {
		segments[i] = segment{p, make(chan *piece, piecesAhead)}
	}
	workers := min(len(segments), maxScanners, max(2, runtime.GOMAXPROCS(0)))
	stop := make(chan struct{})
	ahead := make(chan struct{}, workers+1) // parts that were started and are not consumed
	free := make(chan *piece, (workers+1)*piecesAhead)
	todo := make(chan segment)
	go func() {
		defer close(todo)
		for _, seg := range segments {
			select {
			case ahead <- struct{}{}:
			case <-stop:
				return
			}
			select {
			case todo <- seg:
			case <-stop:
				return
			}
		}
	}()
	finished := make(chan struct{}, workers)
	for range workers {
		go func() {
			for seg := range todo {
				seg.read(free, stop)
			}
			finished <- struct{}{}
		}()
	}
	defer func() {
		close(stop)
		for range workers {
			<-finished
		}
		_ = g.release()
	}()
	for _, seg := range segments {
		for p := range seg.pieces {
			if p.err != nil {
				return g.unlessRevoked(p.err)
			}
			at := uint32(0)
			for _, l := range p.ends {
				// Full slice expressions, so that an append does not overwrite the next leaf.
				if !yield(record.Leaf{Key: p.data[at:l.key:l.key], Value: p.data[l.key:l.value:l.value], Height: l.height}) {
					return nil
				}
				at = l.value
			}
			select {
			case free <- p:
			default:
			}
		}
		<-ahead
	}
	return nil
}

// read sends all leaves of the segment, and then an error if there was one.
func (seg segment) read(free chan *piece, stop <-chan struct{}) {
	defer close(seg.pieces)
	send := func(p *piece) bool {
		select {
		case seg.pieces <- p:
			return true
		case <-stop:
			return false
		}
	}
	p := newPiece(free)
	err := seg.part(func(key, value []byte, height uint8) bool {
		if len(p.data)+len(key)+len(value) > pieceBytes && len(p.ends) > 0 {
			if !send(p) {
				return false
			}
			p = newPiece(free)
		}
		p.data = append(append(p.data, key...), value...)
		end := uint32(len(p.data))
		p.ends = append(p.ends, pieceLeaf{end - uint32(len(value)), end, height})
		return true
	})
	if len(p.ends) > 0 && !send(p) {
		return
	}
	if err != nil {
		send(&piece{err: err})
	}
}

func newPiece(free chan *piece) *piece {
	select {
	case p := <-free:
		p.data, p.ends = p.data[:0], p.ends[:0]
		return p
	default:
		return &piece{data: make([]byte, 0, pieceBytes)}
	}
}

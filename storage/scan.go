package storage

import (
	"bytes"
	"iter"
	"runtime"
	"slices"

	"github.com/starling-kv/starling/avlstar/record"
)

const (
	segmentBytes = 4 << 20   // of tables that one part of a scan covers, about
	pieceBytes   = 128 << 10 // of leaves that are handed over at a time
	piecesAhead  = 64        // that one part may be ahead
	maxScanners  = 4
)

// Scan yields all leaves of the durable state in key order with the heights of their inner nodes.
// Key and Value are valid until the next one is asked for. An error is the last thing that it
// yields. It may be broken off.
//
//	tables' bounds ──► part 0  part 1  part 2 …       read in parallel, a few ahead,
//	                     │       │       │            each into a queue of pieces
//	yield   ◄────────────┴───────┴───────┘            in order
func (s *Zone) Scan() iter.Seq2[record.Leaf, error] {
	return func(yield func(record.Leaf, error) bool) {
		if !s.users.enter() {
			yield(record.Leaf{}, s.closedErr("scan"))
			return
		}
		defer s.users.leave()
		g := s.generations.newest()
		if g == nil {
			return
		}
		cuts, err := s.cuts()
		if err != nil {
			_ = g.release()
			yield(record.Leaf{}, s.readErr(err))
			return
		}
		stopped := false
		err = scan(g, cuts, func(l record.Leaf) bool {
			stopped = !yield(l, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(record.Leaf{}, s.readErr(err))
		}
	}
}

// cuts returns keys at which the state falls into parts of about the same size, in ascending order.
func (s *Zone) cuts() ([][]byte, error) {
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
			if key := t.Smallest.UserKey; len(key) > 0 && key[0] == kindLeaf {
				starts = append(starts, start{key[1:], t.Size})
			}
		}
	}
	slices.SortFunc(starts, func(a, b start) int { return bytes.Compare(a.key, b.key) })
	var cuts [][]byte
	sum := uint64(0)
	for _, t := range starts {
		if sum >= segmentBytes && (len(cuts) == 0 || !bytes.Equal(cuts[len(cuts)-1], t.key)) {
			cuts, sum = append(cuts, t.key), 0
		}
		sum += t.bytes
	}
	return cuts, nil
}

// piece is some leaves one after another: keys and values stand in data, ends says where each ends.
type piece struct {
	data []byte
	ends []pieceLeaf
	err  error
}

type pieceLeaf struct {
	key, value uint32
	height     uint8
}

// segment is the part with keys in [first, after).
type segment struct {
	first, after []byte
	pieces       chan *piece // closed at the end, or after one with an error
}

// scan releases g.
func scan(g *generation, cuts [][]byte, yield func(record.Leaf) bool) error {
	segments := make([]segment, len(cuts)+1)
	for i := range segments {
		segments[i].pieces = make(chan *piece, piecesAhead)
		if i > 0 {
			segments[i].first = cuts[i-1]
		}
		if i < len(cuts) {
			segments[i].after = cuts[i]
		}
	}
	workers := min(len(segments), maxScanners, max(2, runtime.GOMAXPROCS(0)))
	stop := make(chan struct{})
	ahead := make(chan struct{}, workers+1) // parts that were begun and are not consumed
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
				seg.read(g, free, stop)
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
				return p.err
			}
			at := uint32(0)
			for _, l := range p.ends {
				// Full slices, so that who appends does not write over the next one.
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
func (seg segment) read(g *generation, free chan *piece, stop <-chan struct{}) {
	defer close(seg.pieces)
	send := func(p *piece) bool {
		select {
		case seg.pieces <- p:
			return true
		case <-stop:
			return false
		}
	}
	c, err := g.newCursor(seg.first, seg.after)
	if err != nil {
		send(&piece{err: err})
		return
	}
	c.leaves.First()
	c.heights.First()
	p := newPiece(free)
	err = c.read(nil, func(key, value []byte, height uint8) bool {
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
	if closeErr := c.close(); err == nil {
		err = closeErr
	}
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

package nodedb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/internal/crc32c"
)

// errScan reports that the fast index and the tree belong to different states, or that a scan
// cannot follow the tree. The response is then made from the nodes.
var errScan = errors.New("the fast index cannot be used")

// scanned makes a response with one walk over the inner nodes and, if the fast index has this
// height (see index), one scan of the index. It returns nil if it cannot. Keys and values then come
// from the index. Versions come from the inner nodes, which reference their children by version,
// because the leaves' versions in the index are not reliable. The chunk is verified before it is
// returned. If mayPrepare is set, a comparison of trees or a pass over all records may precede it.
func (s *store) scanned(q *iavlsync.Request, mayPrepare bool) []byte {
	if q.Offset > 0 {
		return nil
	}
	if sh := s.shapes.get(q.First, q.Leaves); sh != nil {
		if b := s.shaped(sh, q.Leaves); b != nil {
			return b
		}
	}
	n, image, err := iavlsync.Subtree(q, s.root, s)
	if err != nil || n.Height == 0 {
		return nil
	}
	index := s.index(mayPrepare)
	if index != nil {
		if b := s.fromSweep(index, n, image, q, mayPrepare); b != nil {
			return b
		}
	}
	w := s.newScan(n, index)
	defer w.close()
	return s.proved(w, w.run(n), image, q)
}

// fromSweep makes a response from the fast index and the sweep of the store, or returns nil if it
// cannot.
func (s *store) fromSweep(x *index, n *iavlsync.Node, image *iavlsync.Image, q *iavlsync.Request, maySweep bool) []byte {
	size := n.Size
	if root, err := s.Node(s.root); err == nil {
		size = root.Size
	}
	sw := s.swept(size, q.Leaves, maySweep)
	if sw == nil {
		return nil
	}
	w := s.newScan(n, x)
	err := w.seek(n)
	if err == nil {
		err = errors.Join(w.lookup(sw, q.Leaves), w.it.Close())
	}
	return s.proved(w, err, image, q)
}

func (s *store) newScan(n *iavlsync.Node, x *index) *scan {
	return &scan{cursors: newCursors(s), index: x, version: n.Version, prefix: s.key(kindFast, nil), b: []byte{byte(iavlsync.AnswerWhole)}, indexRight: true}
}

// proved returns the chunk that a scan has written, and keeps its shape. It returns nil if the
// chunk does not match the subtree's image.
func (s *store) proved(w *scan, err error, image *iavlsync.Image, q *iavlsync.Request) []byte {
	if err != nil {
		return nil
	}
	if _, err := iavlsync.VerifyChunk(image, w.b[1:]); err != nil {
		return nil
	}
	if w.it != nil && q.Leaves >= leastShape && q.Leaves <= mostShape {
		sh := &shape{version: w.version, first: w.first, inner: bytes.Clone(w.inner), sum: crc32c.Sum(w.b)}
		if !w.indexRight {
			sh.versions = bytes.Clone(w.versions)
		}
		s.shapes.put(q.First, q.Leaves, sh)
	}
	return w.b
}

// scan writes a chunk.
type scan struct {
	*cursors
	index   *index   // nil: not usable
	version int64    // version of the chunk's root
	prefix  []byte   // prefix of the fast index
	it      Iterator // over the fast index; nil: not used
	b       []byte
	gap     inner // inner node before the next leaf; height 0: none

	// For a shape, if the fast index is used.
	first           []byte
	inner, versions []byte
	indexRight      bool // the versions in the index are the leaves'
}

// inner is the part of an inner node that is sent.
type inner struct {
	height uint8
	above  int64 // its version minus the greater version of its children
}

func (w *scan) run(n *iavlsync.Node) (err error) {
	if w.index == nil {
		return w.write(n)
	}
	if err := w.seek(n); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.it.Close()) }()
	return w.write(n)
}

// seek opens the fast index at the first leaf of a subtree.
func (w *scan) seek(n *iavlsync.Node) (err error) {
	first := n
	for first.Height > 0 {
		// Do not read through cursors: this read is out of the walk's order.
		below, err := w.store.Node(first.Left)
		if err != nil {
			return err
		}
		if below.Height >= first.Height {
			return errScan
		}
		first = below
	}
	w.first = bytes.Clone(first.Key)
	w.it, err = w.index.from(w.store, first.Key)
	return err
}

// write writes the subtree of an inner node. It reads strictly from left to right.
func (w *scan) write(n *iavlsync.Node) error {
	left, err := w.child(n, n.Left)
	if err != nil {
		return err
	}
	if err := w.subtree(left); err != nil {
		return err
	}
	right, err := w.child(n, n.Right)
	if err != nil {
		return err
	}
	w.gap = inner{n.Height, n.Version - max(left.Version, right.Version)}
	if w.gap.above < 0 {
		return errScan
	}
	return w.subtree(right)
}

// child returns a child of n. If the fast index is used, leaves below the lowest inner nodes are
// not read, because their versions are in their keys.
func (w *scan) child(n *iavlsync.Node, key []byte) (*iavlsync.Node, error) {
	if w.it != nil && n.Height == 1 {
		version, _ := splitNodeKey(key)
		return &iavlsync.Node{Version: version}, nil
	}
	c, err := w.Node(key)
	if err == nil && c.Height >= n.Height {
		err = errScan
	}
	return c, err
}

func (w *scan) subtree(n *iavlsync.Node) error {
	if n.Height > 0 {
		return w.write(n)
	}
	if w.it == nil {
		return w.leaf(n.Key, n.Version, n.Version, n.Value)
	}
	key, indexed, value, err := w.indexed()
	if err != nil {
		return err
	}
	return w.leaf(key, indexed, n.Version, value)
}

// leaf writes the next leaf, and the gap before it. indexed is the leaf's version in the fast
// index.
func (w *scan) leaf(key []byte, indexed, version int64, value []byte) error {
	if version < 1 || version > w.version || len(w.b)+len(key)+len(value) > 1+iavlsync.MaxAnswerBytes {
		return errScan
	}
	if w.gap.height > 0 {
		w.b = iavlsync.AppendInner(w.b, w.gap.height, w.gap.above)
		w.inner = iavlsync.AppendInner(w.inner, w.gap.height, w.gap.above)
	}
	w.b = iavlsync.AppendLeaf(w.b, w.version, version, key, value)
	if w.it != nil {
		w.indexRight = w.indexRight && indexed == version
		w.versions = binary.AppendUvarint(w.versions, uint64(w.version-version))
		w.it.Next()
	}
	return nil
}

// indexed returns the current leaf of the index scan.
func (w *scan) indexed() (key []byte, version int64, value []byte, err error) {
	if !w.it.Valid() {
		return nil, 0, nil, errors.Join(errScan, w.it.Error())
	}
	key, ok := bytes.CutPrefix(w.it.Key(), w.prefix)
	if !ok {
		return nil, 0, nil, errScan
	}
	if version, value, err = DecodeFast(w.it.Value()); err != nil {
		return nil, 0, nil, fmt.Errorf("key %.20x: %w", key, err)
	}
	return key, version, value, nil
}

package nodedb

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// errScan reports that the fast index and the tree are not of one state, or that the tree is not
// one that a scan can follow. The answer is then made from the nodes.
var errScan = errors.New("the fast index is of no use here")

// scanned answers a request with one scan of the fast index and a read for each inner node; nil if
// that is not possible. Keys and values come from the index, versions from the inner nodes, which
// name their children by version: the index does not reliably have those of the leaves. The chunk
// is proved before it is returned.
func (s *store) scanned(q *iavlsync.Request) []byte {
	if !s.fast || q.Offset > 0 {
		return nil
	}
	n, image, err := iavlsync.Subtree(q, s.root, s)
	if err != nil || n.Height == 0 {
		return nil
	}
	w := scan{store: s, version: n.Version, b: []byte{byte(iavlsync.AnswerWhole)}}
	if err := w.run(n); err != nil {
		return nil
	}
	if _, err := iavlsync.VerifyChunk(image, w.b[1:]); err != nil {
		return nil
	}
	return w.b
}

// scan writes a chunk.
type scan struct {
	*store
	version int64 // of the chunk's root
	it      Iterator
	b       []byte
	gap     *inner // before the next leaf
}

// inner is what travels of an inner node.
type inner struct {
	height uint8
	above  int64 // versions above its children's greater one
}

func (w *scan) run(n *iavlsync.Node) (err error) {
	first := n
	for first.Height > 0 {
		below, err := w.Node(first.Left)
		if err != nil {
			return err
		}
		if below.Height >= first.Height {
			return errScan
		}
		first = below
	}
	if w.it, err = w.db.Iterator(w.key(kindFast, first.Key), w.key(kindFast+1, nil)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.it.Close()) }()
	return w.write(n)
}

// write writes the subtree of an inner node.
func (w *scan) write(n *iavlsync.Node) error {
	left, err := w.child(n, n.Left)
	if err != nil {
		return err
	}
	right, err := w.child(n, n.Right)
	if err != nil {
		return err
	}
	above := inner{n.Height, n.Version - max(left.Version, right.Version)}
	if above.above < 0 {
		return errScan
	}
	if err := w.subtree(left); err != nil {
		return err
	}
	w.gap = &above
	return w.subtree(right)
}

// child returns a child of n. Of a leaf below the lowest inner nodes nothing is read: its version
// is in its key.
func (w *scan) child(n *iavlsync.Node, key []byte) (*iavlsync.Node, error) {
	if n.Height == 1 && len(key) == nodeKeyBytes {
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
	if !w.it.Valid() {
		return errors.Join(errScan, w.it.Error())
	}
	key, ok := bytes.CutPrefix(w.it.Key(), w.key(kindFast, nil))
	if !ok {
		return errScan
	}
	_, value, err := DecodeFast(w.it.Value())
	if err != nil {
		return fmt.Errorf("key %.20x: %w", key, err)
	}
	if w.gap != nil {
		w.b = iavlsync.AppendInner(w.b, w.gap.height, w.gap.above)
	}
	if n.Version < 1 || n.Version > w.version || len(w.b)+len(key)+len(value) > 1+iavlsync.MaxAnswerBytes {
		return errScan
	}
	w.b = iavlsync.AppendLeaf(w.b, w.version, n.Version, key, value)
	w.it.Next()
	return nil
}

package iavlsync

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrNoSubtree reports that no subtree has exactly the leaves of a request, or that the offset does
// not fit the leaf.
var ErrNoSubtree = errors.New("no subtree has these leaves")

// ErrDamagedStore is wrapped by errors about nodes of a Reader that do not form a valid IAVL tree.
var ErrDamagedStore = errors.New("damaged IAVL store")

// Reader reads the nodes of one IAVL tree of one version, which must not be pruned while the Reader
// is in use. Each call of Cut, Answer or Subtree uses it from one goroutine and wraps its errors.
// They do not modify the nodes it returns.
type Reader interface {
	// Node returns the node with a key: a root's, or a Left or Right of another node. A missing
	// node is an error.
	Node(key []byte) (*Node, error)
}

// Node is a node as it is stored in a database.
type Node struct {
	Height  uint8
	Size    int64
	Version int64
	// Hash is the hash of an inner node. It is not used for a leaf, whose hash is computed.
	Hash Hash
	// Left and Right are the keys with which a Reader finds the children of an inner node.
	Left, Right []byte
	// Key and Value are the key and the value of a leaf. They are not used for an inner node.
	Key, Value []byte
}

// hash returns the hash of n.
func (n *Node) hash() Hash {
	if n.Height > 0 {
		return n.Hash
	}
	im := n.leafImage()
	return im.Hash()
}

func (n *Node) leafImage() Image {
	return Image{Size: 1, Version: n.Version, Key: n.Key, ValueHash: sha256.Sum256(n.Value)}
}

// image returns the image of n. left and right are its children, and nil if n is a leaf.
func (n *Node) image(left, right *Node) Image {
	if n.Height == 0 {
		return n.leafImage()
	}
	return Image{Height: n.Height, Size: n.Size, Version: n.Version, Left: left.hash(), Right: right.hash()}
}

// cutter reads one store.
type cutter struct {
	r      Reader
	height int64
}

// node reads a node and checks that it is possible below parent. Heights must fall, so no walk is
// endless. parent is nil for the root.
func (c *cutter) node(key []byte, parent *Node) (*Node, error) {
	n, err := c.r.Node(key)
	if err != nil {
		return nil, fmt.Errorf("read node %x: %w", key, err)
	}
	im := Image{Height: n.Height, Size: n.Size, Version: n.Version, Key: n.Key}
	version := c.height
	if parent != nil {
		version = parent.Version
	}
	if err := im.check(version); err != nil {
		return nil, fmt.Errorf("%w: node %x: %w", ErrDamagedStore, key, err)
	}
	if parent != nil && n.Height >= parent.Height {
		return nil, fmt.Errorf("%w: node %x of height %d is below one of height %d", ErrDamagedStore, key, n.Height, parent.Height)
	}
	return n, nil
}

func (c *cutter) children(n *Node) (left, right *Node, err error) {
	if n.Height == 0 {
		return nil, nil, nil
	}
	if left, err = c.node(n.Left, n); err != nil {
		return nil, nil, err
	}
	if right, err = c.node(n.Right, n); err != nil {
		return nil, nil, err
	}
	if left.Size+right.Size != n.Size || 1+max(left.Height, right.Height) != n.Height {
		return nil, nil, fmt.Errorf("%w: node of height %d with %d leaves has children of height %d with %d and of height %d with %d",
			ErrDamagedStore, n.Height, n.Size, left.Height, left.Size, right.Height, right.Size)
	}
	return left, right, nil
}

// Cut returns the entries of a store for the manifest of a height. It reads the upper tree, the
// roots of the chunks and their children, which is four nodes per chunk. root is the key of the
// tree's root, or nil if the store is empty.
func Cut(f Format, height int64, name string, root []byte, r Reader) (Store, error) {
	s := Store{Name: name}
	limit, err := f.limit()
	if err != nil || root == nil {
		return s, err
	}
	c := cutter{r, height}
	n, err := c.node(root, nil)
	if err == nil {
		err = c.cut(&s, limit, n, Boundary{})
	}
	if err != nil {
		return Store{}, fmt.Errorf("cut store %q: %w", name, err)
	}
	return s, nil
}

func (c *cutter) cut(s *Store, limit int64, n *Node, b Boundary) error {
	left, right, err := c.children(n)
	switch {
	case err != nil:
		return err
	case n.Size <= limit:
		s.Entries = append(s.Entries, Entry{b, n.image(left, right)})
		return nil
	}
	if err := c.cut(s, limit, left, b); err != nil {
		return err
	}
	return c.cut(s, limit, right, Boundary{n.Height, n.Version})
}

// Answer returns the answer to a request for leaves of the store that r reads. root is the key of
// the tree's root. The error wraps ErrInvalidRequest or ErrNoSubtree for a request that an honest
// peer would not send.
func Answer(q *Request, root []byte, r Reader) ([]byte, error) {
	b, err := answer(q, root, r)
	if err != nil {
		return nil, fmt.Errorf("leaves %d to %d of store %q: %w", q.First, q.First+q.Leaves-1, q.Store, err)
	}
	return b, nil
}

func answer(q *Request, root []byte, r Reader) ([]byte, error) {
	if err := q.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidRequest, err)
	}
	c := cutter{r, q.Height}
	n, err := c.find(root, q.First, q.Leaves)
	if err != nil {
		return nil, err
	}
	if n.Height == 0 {
		return answerLeaf(q, n)
	}
	w := chunkWriter{cutter: c, version: n.Version, b: []byte{byte(AnswerWhole)}}
	switch err := w.write(n, nil); {
	case errors.Is(err, errTooLarge):
		left, right, err := c.children(n)
		if err != nil {
			return nil, err
		}
		l, err := c.imageOf(left)
		if err != nil {
			return nil, err
		}
		h, err := c.imageOf(right)
		if err != nil {
			return nil, err
		}
		return AppendHalves(nil, q.Height, &l, &h), nil
	case err != nil:
		return nil, err
	}
	return w.b, nil
}

// Subtree returns the root of the requested subtree and its image, without encoding an answer. Its
// errors are those of Answer.
func Subtree(q *Request, root []byte, r Reader) (*Node, *Image, error) {
	if err := q.check(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalidRequest, err)
	}
	c := cutter{r, q.Height}
	n, err := c.find(root, q.First, q.Leaves)
	if err != nil {
		return nil, nil, err
	}
	im, err := c.imageOf(n)
	if err != nil {
		return nil, nil, err
	}
	return n, &im, nil
}

func answerLeaf(q *Request, n *Node) ([]byte, error) {
	leaf := Leaf{n.Version, n.Key, n.Value}
	if err := leaf.check(nil); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamagedStore, err)
	}
	chunk := AppendLeaf(nil, n.Version, n.Version, n.Key, n.Value)
	total := int64(len(chunk))
	if total <= MaxAnswerBytes {
		if q.Offset > 0 {
			return nil, ErrNoSubtree
		}
		return append([]byte{byte(AnswerWhole)}, chunk...), nil
	}
	if q.Offset >= total {
		return nil, ErrNoSubtree
	}
	b := binary.AppendUvarint([]byte{byte(AnswerPart)}, uint64(total))
	return append(b, chunk[q.Offset:min(total, q.Offset+PartBytes)]...), nil
}

func (c *cutter) imageOf(n *Node) (Image, error) {
	left, right, err := c.children(n)
	if err != nil {
		return Image{}, err
	}
	return n.image(left, right), nil
}

// find returns the root of the subtree whose leaves are exactly the given ones.
func (c *cutter) find(root []byte, first, leaves int64) (*Node, error) {
	if root == nil {
		return nil, ErrNoSubtree
	}
	n, err := c.node(root, nil)
	if err != nil {
		return nil, err
	}
	for first != 0 || n.Size != leaves {
		if first+leaves > n.Size || n.Height == 0 {
			return nil, ErrNoSubtree
		}
		left, right, err := c.children(n)
		if err != nil {
			return nil, err
		}
		if n = left; first >= left.Size {
			n, first = right, first-left.Size
		}
	}
	return n, nil
}

// errTooLarge aborts the encoding of a chunk that must be sent in halves.
var errTooLarge = errors.New("too large")

// chunkWriter encodes a subtree by walking its nodes. A server that already has the leaves and
// inner nodes in key order uses AppendLeaf and AppendInner instead.
type chunkWriter struct {
	cutter
	version int64 // of the chunk's root
	b       []byte
}

// write appends the subtree n. before is the gap before its first leaf, or nil if that leaf is the
// first of the chunk.
func (w *chunkWriter) write(n *Node, before *gap) error {
	if n.Height > 0 {
		left, right, err := w.children(n)
		if err != nil {
			return err
		}
		if err := w.write(left, before); err != nil {
			return err
		}
		return w.write(right, &gap{n.Height, n.Version - max(left.Version, right.Version)})
	}
	if before != nil {
		w.b = AppendInner(w.b, before.height, before.version)
	}
	leaf := Leaf{n.Version, n.Key, n.Value}
	if err := leaf.check(nil); err != nil {
		return fmt.Errorf("%w: leaf %.20x: %w", ErrDamagedStore, n.Key, err)
	}
	if len(w.b)+len(n.Key)+len(n.Value) > 1+MaxAnswerBytes {
		return errTooLarge
	}
	if w.b = AppendLeaf(w.b, w.version, n.Version, n.Key, n.Value); len(w.b) > 1+MaxAnswerBytes {
		return errTooLarge
	}
	return nil
}

package avlstar

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sort"
)

// Undo leads from the version after a block back to the version before it: what its changes have
// replaced, and the heights that other inner nodes had. A tree is determined by its leaves and the
// heights between them (docs/spec/chunks.md#shape), and not by its leaves alone: to put the old
// values back by Apply would make another tree. Keys and values of one from Version.Undo are
// memory of its versions.
type Undo struct {
	// To is the version before the block. Nothing but a header commits to it: compare To.AppHash
	// with a proved one before the result of Version.Before is used.
	To      Commitment
	touched []touch // in ascending key order
}

// Changes is of how many keys the record says what they were: of leaves, and of inner nodes.
func (u *Undo) Changes() int { return len(u.touched) }

// ErrInvalidUndo is wrapped by the errors of DecodeUndo.
var ErrInvalidUndo = errors.New("invalid undo record")

// Undo returns what leads from v, the version after a block, back to base, the version that Apply
// was called on. changes are those of the block, in any order. Errors: ErrOtherState if v did not
// come from base, *PageError, *MissingNodeError.
func (v *Version) Undo(base *Version, changes []Change) (*Undo, error) {
	u := &Undo{To: base.Commitment()}
	if base.top == v.top {
		return u, nil
	}
	if base.tree != v.tree || v.from != base.epoch {
		return nil, fmt.Errorf("avlstar: undo: %w: it is not what applying a block to the base made", ErrOtherState)
	}
	defer runtime.KeepAlive(base)
	byKey := func(a, b Change) int { return bytes.Compare(a.Key, b.Key) }
	if !slices.IsSortedFunc(changes, byKey) {
		changes = slices.Clone(changes)
		slices.SortFunc(changes, byKey)
	}
	u.touched = make([]touch, 0, len(changes))
	if err := u.replaced(base, base.root, base.top, 0, changes); err != nil {
		return nil, fmt.Errorf("avlstar: undo: %w", err)
	}
	named := u.touched
	deletes := slices.ContainsFunc(changes, func(c Change) bool { return c.Value == nil })
	moved := func(key []byte, height uint8) error {
		if _, known := slices.BinarySearchFunc(named, key, touch.compare); known {
			return nil
		}
		_, before, ok, err := base.entry(key)
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("%w: the base has no key %s, and no change puts it", ErrOtherState, abbreviate(key))
		case before != height && before > 0: // 0: it was the least key of all
			u.touched = append(u.touched, touch{key: key, height: before})
		}
		return nil
	}
	for key, height := range v.NewInner(base) {
		if err := moved(key, height); err != nil {
			return nil, fmt.Errorf("avlstar: undo: %w", err)
		}
	}
	if deletes { // the least key of all may have had an inner node
		for l, err := range v.Leaves() {
			if err == nil {
				err = moved(l.Key, 0)
			}
			if err != nil {
				return nil, fmt.Errorf("avlstar: undo: %w", err)
			}
			break
		}
	}
	u.sort()
	return u, nil
}

// replaced appends what changes, in ascending order of their keys, replace in the subtree n of
// base, which has all of them that are there. least is the height of the inner node with its least
// key.
func (u *Undo) replaced(base *Version, n ref, s Stub, least uint8, changes []Change) error {
	switch {
	case len(changes) == 0:
		return nil
	case n.isInner():
		l, i := base.link(n), base.image(n)
		split := sort.Search(len(changes), func(i int) bool {
			key := changes[i].Key
			return !base.less(key, prefixOf(key), n, l)
		})
		if err := u.replaced(base, l.child[left], i.stub(left), least, changes[:split]); err != nil {
			return err
		}
		return u.replaced(base, l.child[right], i.stub(right), s.Height, changes[split:])
	}
	for _, c := range changes {
		value, height, ok := []byte(nil), least, false
		switch {
		case n.isLeaf():
			key, v := base.leaf(n)
			value, ok = v, bytes.Equal(key, c.Key)
		case s != emptyStub:
			var err error
			if value, height, ok, err = base.entry(c.Key); err != nil {
				return err
			}
		}
		if ok {
			u.touched = append(u.touched, touch{key: c.Key, value: value, height: height})
		} else if c.Value != nil {
			u.touched = append(u.touched, touch{key: c.Key, deleted: true})
		}
	}
	return nil
}

func (t touch) compare(key []byte) int { return bytes.Compare(t.key, key) }

func (u *Undo) sort() {
	slices.SortFunc(u.touched, func(a, b touch) int { return bytes.Compare(a.key, b.key) })
}

// entry returns the value of a key and the height of the inner node that has it: 0 if none does.
// The value may be the version's memory.
func (v *Version) entry(key []byte) (value []byte, height uint8, ok bool, err error) {
	v.inUse()
	defer runtime.KeepAlive(v)
	n, s, prefix := v.root, v.top, prefixOf(key)
	for n.isInner() {
		l, side := v.link(n), left
		if !v.less(key, prefix, n, l) {
			side = right
			if l.prefix == prefix && bytes.Equal(v.keyOf(n), key) {
				height = s.Height
			}
		}
		s, n = v.image(n).stub(side), l.child[side]
	}
	switch {
	case n.isLeaf():
		if k, value := v.leaf(n); bytes.Equal(k, key) {
			return value, height, true, nil
		}
		return nil, 0, false, nil
	case s == emptyStub:
		return nil, 0, false, nil
	}
	p, err := v.pageOn(key)
	if err != nil {
		return nil, 0, false, err
	}
	r, i := p.records(), p.below(key)
	if i == r.len() || !bytes.Equal(r.leaf(i).Key, key) {
		return nil, 0, false, nil
	}
	if i > 0 {
		height = r.leaf(i).Height
	}
	return r.leaf(i).Value, height, true, nil
}

// Len returns the number of keys that u names.
func (u *Undo) Len() int { return len(u.touched) }

// undoFormat is the first byte of an encoded Undo.
const undoFormat = 1

// Encode returns
//
//	1:u8 ‖ chunk limit:uvarint ‖ chunks:uvarint ‖ height:u8 ‖ bytes:uvarint ‖ root:32 ‖ keys:uvarint ‖ for each key, ascending:
//	  bytes shared with the key before:uvarint ‖ length of the rest:uvarint ‖ rest ‖ height:u8 ‖ what:uvarint [‖ value]
//
// What is 0 if the value is as it was, 1 if the key was absent, and otherwise 1 + the length of the
// value.
func (u *Undo) Encode() []byte {
	size := 64
	for i := range u.touched {
		size += len(u.touched[i].key) + len(u.touched[i].value) + 8
	}
	b := append(make([]byte, 0, size), undoFormat)
	b = binary.AppendUvarint(b, u.To.ChunkBytes)
	b = binary.AppendUvarint(b, uint64(u.To.Chunks))
	b = append(b, u.To.Root.Height)
	b = binary.AppendUvarint(b, u.To.Root.Bytes)
	b = append(b, u.To.Root.Hash[:]...)
	b = binary.AppendUvarint(b, uint64(len(u.touched)))
	var last []byte
	for i := range u.touched {
		t := &u.touched[i]
		shared := 0
		for shared < min(len(last), len(t.key)) && last[shared] == t.key[shared] {
			shared++
		}
		b = binary.AppendUvarint(b, uint64(shared))
		b = binary.AppendUvarint(b, uint64(len(t.key)-shared))
		b = append(b, t.key[shared:]...)
		b = append(b, t.height)
		switch {
		case t.deleted:
			b = append(b, 1)
		case t.value == nil:
			b = append(b, 0)
		default:
			b = binary.AppendUvarint(b, 1+uint64(len(t.value)))
			b = append(b, t.value...)
		}
		last = t.key
	}
	return b
}

// DecodeUndo decodes what Encode returned. The result refers to b. Of other bytes it makes an error
// that wraps ErrInvalidUndo, or an Undo that Before refuses; it takes memory in proportion to b.
func DecodeUndo(b []byte) (*Undo, error) {
	d := undoDecoder{b: b}
	u, err := d.decode()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrInvalidUndo, err)
	case d.short:
		return nil, fmt.Errorf("%w: it ends too early", ErrInvalidUndo)
	case len(d.b) > 0:
		return nil, fmt.Errorf("%w: %d bytes behind its end", ErrInvalidUndo, len(d.b))
	}
	return u, nil
}

// undoDecoder cuts fields off b. After the end, they are zeros and short is set.
type undoDecoder struct {
	b     []byte
	short bool
}

func (d *undoDecoder) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.short, d.b = true, nil
		return nil
	}
	field := d.b[:n:n]
	d.b = d.b[n:]
	return field
}

func (d *undoDecoder) byte() byte {
	if f := d.bytes(1); f != nil {
		return f[0]
	}
	return 0
}

func (d *undoDecoder) uvarint() uint64 {
	n, size := binary.Uvarint(d.b)
	if size <= 0 {
		d.short, d.b = true, nil
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *undoDecoder) decode() (*Undo, error) {
	if format := d.byte(); format != undoFormat {
		return nil, fmt.Errorf("format %d, this program knows %d", format, undoFormat)
	}
	u := &Undo{}
	u.To.ChunkBytes = d.uvarint()
	chunks := d.uvarint()
	u.To.Chunks = uint32(min(chunks, 1<<32-1))
	u.To.Root.Height = d.byte()
	u.To.Root.Bytes = d.uvarint()
	copy(u.To.Root.Hash[:], d.bytes(32))
	n := d.uvarint()
	switch {
	case d.short:
		return u, nil
	case chunks != uint64(u.To.Chunks) || (chunks == 0) != (u.To.Root == emptyStub):
		return nil, fmt.Errorf("a state of %d bytes in %d chunks", u.To.Root.Bytes, chunks)
	case checkChunkBytes(u.To.ChunkBytes) != nil:
		return nil, checkChunkBytes(u.To.ChunkBytes)
	case n > uint64(len(d.b))/4: // an entry has 4 bytes or more
		return nil, fmt.Errorf("%d keys in %d bytes", n, len(d.b))
	}
	u.touched = make([]touch, 0, n)
	var last []byte
	for range n {
		t, err := d.touch(last)
		if err != nil || d.short {
			return u, err
		}
		u.touched = append(u.touched, t)
		last = t.key
	}
	return u, nil
}

// touch decodes an entry; last is the key before, nil for the first one.
func (d *undoDecoder) touch(last []byte) (touch, error) {
	shared, rest := d.uvarint(), d.uvarint()
	if shared > uint64(len(last)) || rest > MaxKeyBytes {
		return touch{}, fmt.Errorf("a key that shares %d bytes with one of %d", shared, len(last))
	}
	t := touch{key: d.bytes(rest)}
	if shared > 0 { // at most MaxKeyBytes, for an entry of 4 bytes or more
		t.key = slices.Concat(last[:shared], t.key)
	}
	t.height = d.byte()
	switch what := d.uvarint(); what {
	case 0:
	case 1:
		t.deleted = true
	default:
		t.value = d.bytes(what - 1)
	}
	switch {
	case d.short:
		return t, nil
	case last != nil && bytes.Compare(t.key, last) <= 0:
		return t, fmt.Errorf("key %s does not ascend", abbreviate(t.key))
	case !t.changes() && t.height == 0 || t.deleted && t.height > 0:
		return t, fmt.Errorf("height %d at key %s", t.height, abbreviate(t.key))
	}
	return t, (Change{Key: t.key, Value: t.value}).check()
}

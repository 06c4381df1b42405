package avlstar

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
)

// Change puts a value or, if Value is nil, deletes a key.
type Change struct{ Key, Value []byte }

// ErrInvalidChange is wrapped by the errors of Apply about its input.
var ErrInvalidChange = errors.New("invalid change")

// Apply returns the version after one block of changes; v does not change. The changes may be in
// any order, but may contain each key only once; they are made in ascending key order. Deleting an
// absent key or putting the present value changes nothing. If nothing changes at all, the result is
// v itself with one more reference (with Paging perhaps another version of the same state). Keys
// and values are copied. With Paging, Apply fails with a *PageError if a page cannot be read. In a
// Partial where nodes are missing, it fails with a *MissingNodeError that names all nodes known to
// be missing.
//
// History is linear: all later versions of the tree must have been released, and are then dropped;
// otherwise the error is ErrNotLatest. A tree runs one Apply at a time; other calls wait. Readers
// never wait.
func (v *Version) Apply(changes []Change) (*Version, error) {
	g := v.tree.gate.begin()
	defer g.end()
	c := callCrew(len(changes))
	defer c.dismiss()
	ops, err := sortChanges(changes)
	if err != nil {
		return nil, err
	}
	t := v.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	v.inUse()
	defer runtime.KeepAlive(v)
	if t.paging != nil && v.full != nil {
		return nil, fmt.Errorf("avlstar: apply: the tree has pages of the range %s only; use Replay", v.full)
	}
	if err := t.rewind(v); err != nil {
		return nil, fmt.Errorf("avlstar: apply: %w", err)
	}
	var done Reclaimed
	t.reclaim(max(t.early(len(ops)), t.excess()), &done)
	nodes, held, filled := t.mu.nodes+t.mu.leaves, t.held(), 0
	base := t.fill(v)
	if base == v {
		base = t.evict(v)
	} else { // the nodes that fill makes and replaces do not count as usual
		filled = int(t.held() - held)
		nodes, held = t.mu.nodes+t.mu.leaves, t.held()
	}
	t.bring(base, func(yield func([]byte) bool) {
		for _, o := range ops {
			if !yield(changes[o.i].Key) {
				return
			}
		}
	}, g)
	next, err := t.apply(base, ops, changes, c)
	var missing *MissingNodeError
	if errors.As(err, &missing) {
		missing.see(v, ops, changes)
	}
	switch {
	case base == v:
	case next == nil && err == nil: // evicted pages stay evicted, and read ones in memory
		next = base
	default:
		base.Release()
	}
	if next != nil {
		next.parent = v.epoch // base and v differ only in the nodes in memory
		next.from = v.epoch
		if next.index != nil {
			next.index.open.Store(next.epoch)
		}
	}
	if t.paging != nil {
		t.paging.runs = nil
	}
	made, died := int(t.mu.nodes+t.mu.leaves)-int(nodes), int(t.held())-int(held)
	t.mu.usual.nodes, t.mu.usual.changes = max(made, died, 0), len(ops)
	t.reclaim(filled+2*t.mu.usual.nodes+tune.minReclaim-done.Freed-done.PassedOn, &done)
	t.mu.reclaimed = done
	t.account()
	if next == nil && err == nil {
		v.Retain()
		return v, nil
	}
	return next, err
}

// op is a change: its index, and the prefix of its key.
type op struct {
	prefix uint64
	i      uint32
}

// sortChanges checks changes and returns the order in which they are made.
func sortChanges(changes []Change) ([]op, error) {
	if uint64(len(changes)) > math.MaxUint32 {
		return nil, fmt.Errorf("%w: %d in one block", ErrInvalidChange, len(changes))
	}
	ops := make([]op, len(changes))
	compare := func(a, b op) int {
		if a.prefix != b.prefix {
			return cmp.Compare(a.prefix, b.prefix)
		}
		return bytes.Compare(changes[a.i].Key, changes[b.i].Key)
	}
	sorted := true
	for i, c := range changes {
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("%w of key %s: %w", ErrInvalidChange, abbreviate(c.Key), err)
		}
		ops[i] = op{prefixOf(c.Key), uint32(i)}
		sorted = sorted && (i == 0 || compare(ops[i-1], ops[i]) < 0)
	}
	if sorted {
		return ops, nil
	}
	slices.SortFunc(ops, compare)
	for i := 1; i < len(ops); i++ {
		if a, b := ops[i-1], ops[i]; a.prefix == b.prefix && compare(a, b) == 0 {
			return nil, fmt.Errorf("%w: key %s twice: give only its final change", ErrInvalidChange, abbreviate(changes[a.i].Key))
		}
	}
	return ops, nil
}

func (c Change) check() error {
	if err := checkKey(c.Key); err != nil || c.Value == nil {
		return err
	}
	return checkValue(c.Value)
}

// apply makes the version after v, or returns nil if ops change nothing. The caller holds t.mu.
func (t *tree) apply(v *Version, ops []op, changes []Change, c *crew) (*Version, error) {
	if err := t.room(changes, v); err != nil {
		t.reclaim(math.MaxInt, new(Reclaimed)) // free all dead nodes that wait
		if err := t.room(changes, v); err != nil {
			return nil, err
		}
	}
	if v.epoch+1 >= freed {
		return nil, fmt.Errorf("%w: %d versions", ErrTooLarge, v.epoch)
	}
	t.mu.epoch = max(t.mu.epoch, v.epoch) + 1
	next := &Version{
		chunkBytes: v.chunkBytes, epoch: t.mu.epoch, parent: v.epoch, partial: v.partial, upper: v.upper, leaves: v.leaves,
		uncounted: v.uncounted,
	}
	if !t.inParallel(v, next, ops, changes, c) {
		if err := t.inOrder(v, next, ops, changes, c); err != nil {
			return nil, fmt.Errorf("avlstar: apply: %w", err)
		}
	}
	if next.root == v.root && next.top == v.top { // every change would make another root
		return nil, nil
	}
	return t.publish(next)
}

// inOrder makes all changes in one walk.
func (t *tree) inOrder(v, next *Version, ops []op, changes []Change, c *crew) error {
	a := newAllocator(&t.mu.memory, false)
	e := t.newEdit(v, next, ops, changes, &a)
	e.canFail = v.partial
	e.top.link.child[left] = v.root
	e.top.image.setStub(left, v.top)
	e.run(nil)
	e.graftTop()
	if e.err != nil {
		a.close()
		e.undo(&t.mu.memory)
		return e.err
	}
	t.mu.work.share(e, next, c)
	t.mu.work.finish(e, next)
	return nil
}

// newEdit returns an edit that makes next.
func (t *tree) newEdit(v, next *Version, ops []op, changes []Change, a *allocator) *edit {
	return &edit{
		allocator: a, tree: t, epoch: next.epoch, changes: changes, ops: ops, chunkBytes: v.chunkBytes, before: v, stubs: v.partial,
		index: t.mu.index,
	}
}

// took makes the tree below e.top the state of next.
func (t *tree) took(e *edit, next *Version) {
	next.root, next.top = e.top.link.child[left], e.top.image.stub(left)
	e.close()
	t.settle(e, next)
}

// settle accounts for what an edit made and dropped. The edit's allocator must be closed.
func (t *tree) settle(e *edit, next *Version) {
	next.upper += uint64(e.upper) // both sums may be negative: they wrap around, and back
	next.leaves += uint64(e.leaves)
	latest := t.mu.alive[len(t.mu.alive)-1]
	if len(e.dead) > 0 {
		latest.held = append(latest.held, e.dead)
		latest.version.held.Add(t.mu.bytesOf(e.dead))
	}
	if len(e.indexed) > 0 {
		e.index.close()
		e.index.grow(&t.mu.memory, added(e.indexed))
		e.index.change(e.indexed, e.epoch)
	}
	e.clean(&t.mu.memory)
}

// added returns the net growth of the number of leaves in memory by ops, at least 0. An update
// whose old leaf had no entry is not counted, and waits for the next growth.
func added(ops []indexOp) (n int) {
	for _, op := range ops {
		switch {
		case op.old == 0:
			n++
		case op.now == 0:
			n--
		}
	}
	return max(n, 0)
}

package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// replica is a storage node's part of a tree: full in r. It replays every block, and keeps some
// versions, which it releases in any order.
type replica struct {
	r    KeyRange
	p    *Partial
	rnd  *rand.Rand
	kept []keptReplica
}

type keptReplica struct {
	p      *Partial
	root   Stub
	leaves []Leaf
}

// mustReplica makes a replica of r as a storage node does from the data of another one.
func mustReplica(t require.TestingT, v *Version, r KeyRange) *Partial {
	b, err := v.Boundary(r)
	p, err := FromRange(v.Commitment(), r, mustDecodeMultiproof(t, b, err), withoutError(slices.Values(leavesOf(t, v, r))))
	require.NoError(t, err)
	require.Equal(t, v.Commitment(), p.Commitment())
	return p
}

func leavesOf(t require.TestingT, v *Version, r KeyRange) (leaves []Leaf) {
	for l := range mustLeaves(t, v) {
		if r.Contains(l.Key) {
			leaves = append(leaves, Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: l.Height})
		}
	}
	return leaves
}

func mustReplicaLeaves(t require.TestingT, p *Partial, r KeyRange) (leaves []Leaf) {
	for l, err := range p.Leaves(r) {
		require.NoError(t, err)
		leaves = append(leaves, Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: l.Height})
	}
	return leaves
}

// mustUpdate makes an update, and sends it.
func mustUpdate(t require.TestingT, v, base *Version, r KeyRange, block []Change) Update {
	made, err := v.UpdateOf(base, r, block)
	require.NoError(t, err)
	b := made.Encode()
	u, err := DecodeUpdate(b)
	require.NoError(t, err)
	require.Equal(t, b, u.Encode())
	if base != nil && len(block) > 0 { // the limits for strangers hold
		from, err := DecodeUpdateFrom(base.Commitment(), v.AppHash(), uint64(len(block)), b)
		require.NoError(t, err)
		require.Equal(t, u, from)
	}
	return u
}

// replay replays a block, which made v from base.
func (r *replica) replay(t require.TestingT, v, base *Version, block []Change) {
	u := mustUpdate(t, v, base, r.r, block)
	if key := append(bytes.Clone(r.r.First), 0, 0, 1); r.r.Contains(key) && r.rnd.IntN(2) == 0 {
		wrong := u
		wrong.Changes = append(slices.Clone(u.Changes), UpdateChange{Change{key, []byte("no such change")}, 0})
		slices.SortFunc(wrong.Changes, func(a, b UpdateChange) int { return bytes.Compare(a.Key, b.Key) })
		before := r.p.v.Memory()
		_, err := r.p.Replay(r.r, wrong)
		require.ErrorIs(t, err, ErrOtherState)
		if now := r.p.v.Memory(); r.p.v.tree.paging == nil { // otherwise pages may have left
			require.Equal(t, before.InnerNodes+before.Leaves-before.Held, now.InnerNodes+now.Leaves-now.Held, "nodes are left")
		}
	}
	if r.rnd.IntN(3) == 0 { // a version that is given up
		fork, err := r.p.Replay(r.r, u)
		require.NoError(t, err)
		fork.Release()
	}
	next, err := r.p.Replay(r.r, u)
	require.NoError(t, err)
	require.Equal(t, v.Commitment(), next.Commitment())
	if r.rnd.IntN(4) == 0 {
		requireNewInner(t, next, r.p, r.r, u)
	}
	if r.rnd.IntN(4) == 0 {
		r.kept = append(r.kept, keptReplica{r.p, r.p.Commitment().Root, mustReplicaLeaves(t, r.p, r.r)})
	} else {
		r.p.Release()
	}
	if r.p = next; len(r.kept) > 5 {
		r.release(t)
	}
}

// requireNewInner checks that p's new nodes since base, from which u made p, are exactly those that
// a disk with base does not have.
func requireNewInner(t require.TestingT, p, base *Partial, r KeyRange, u Update) {
	before, puts := map[string]uint8{}, map[string]bool{}
	for _, l := range mustReplicaLeaves(t, base, r) {
		before[string(l.Key)] = l.Height
	}
	for _, c := range u.Changes {
		puts[string(c.Key)] = c.Value != nil
	}
	var want, got []string
	for _, l := range mustReplicaLeaves(t, p, r) {
		if was, there := before[string(l.Key)]; l.Height > 0 && (!there || was != l.Height || puts[string(l.Key)]) {
			want = append(want, fmt.Sprintf("%x %d", l.Key, l.Height))
		}
	}
	for key, height := range p.NewInner(base, r) {
		got = append(got, fmt.Sprintf("%x %d", key, height))
	}
	require.Equal(t, want, got)
}

// release releases any of the kept versions, which must be unchanged.
func (r *replica) release(t require.TestingT) {
	i := r.rnd.IntN(len(r.kept))
	k := r.kept[i]
	require.Equal(t, k.root, k.p.Commitment().Root)
	require.Equal(t, k.leaves, mustReplicaLeaves(t, k.p, r.r))
	k.p.Release()
	r.kept = slices.Delete(r.kept, i, i+1)
}

// require checks that its reads have the same results as those of v.
func (r *replica) require(t require.TestingT, v *Version, keys int) {
	want := leavesOf(t, v, r.r)
	require.Equal(t, want, mustReplicaLeaves(t, r.p, r.r))
	var wants []Want
	for i := range 12 {
		key := randomKey(r.rnd, keys)
		if len(want) > 0 && i%2 == 0 {
			key = want[r.rnd.IntN(len(want))].Key
		}
		value, ok, err := r.p.Get(key)
		var missing *MissingNodeError
		if !r.r.Contains(key) && errors.As(err, &missing) {
			continue
		}
		require.NoError(t, err)
		full, present := mustGet(t, v, key)
		require.Equal(t, present, ok)
		require.Equal(t, full, value)
		if r.r.Contains(key) {
			wants = append(wants, Want{Key: key})
		}
	}
	if len(wants) > 1 && bytes.Compare(wants[0].Key, wants[1].Key) < 0 {
		wants = append(wants, Want{Key: wants[0].Key, Range: true, After: wants[1].Key})
	}
	for _, below := range []Below{{}, {Depth: 3}} {
		full, err := v.Multiproof(wants, below)
		require.NoError(t, err)
		got, err := r.p.Multiproof(wants, below)
		require.NoError(t, err)
		require.Equal(t, full, got)
	}
}

// requireMemory checks that the tree of p holds p and nothing else, once all other versions are
// given up.
func requireMemory(t require.TestingT, p *Partial) {
	tr := p.v.tree
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.reclaim(math.MaxInt, new(Reclaimed))
	require.Len(t, tr.mu.alive, 1)
	var inner, leaves uint64
	var count func(n ref)
	count = func(n ref) {
		switch {
		case n.isLeaf():
			leaves++
		case n.isInner():
			inner++
			if p.v.standIn(p.v.image(n).leaf()) {
				leaves++
			}
			count(p.v.link(n).child[left])
			count(p.v.link(n).child[right])
		}
	}
	count(p.v.root)
	require.Equal(t, inner, tr.mu.nodes, "inner nodes")
	require.Equal(t, leaves, tr.mu.leaves, "leaves and stand-ins")
}

// randomRanges returns ranges that cover all keys; some of them are of one key.
func randomRanges(rnd *rand.Rand, n, keys int) (ranges []KeyRange) {
	edges := [][]byte{nil}
	for len(edges) < n {
		edge := randomKey(rnd, keys)
		switch rnd.IntN(4) {
		case 0: // a range of this key alone
			edges = append(edges, edge)
			edge = append(bytes.Clone(edge), 0)
		case 1: // no key
			edge = append(edge, 0, 0)
		}
		edges = append(edges, edge)
	}
	slices.SortFunc(edges, bytes.Compare)
	edges = slices.CompactFunc(edges, bytes.Equal)
	for i, edge := range edges {
		r := KeyRange{First: edge}
		if i+1 < len(edges) {
			r.After = edges[i+1]
		}
		ranges = append(ranges, r)
	}
	return ranges
}

// rangeBlock returns a block of a kind that concerns the edges of ranges, or a random one.
func rangeBlock(rnd *rand.Rand, v *Version, ranges []KeyRange, keys int, deletes float64) []Change {
	block := model{}
	put := func(key []byte) { block[string(key)] = randomValue(rnd, false) }
	r := ranges[rnd.IntN(len(ranges))]
	deleteAll := func(start, end []byte, limit int) {
		for kv, err := range v.Ascend(start, end) {
			if err != nil || limit == 0 {
				break
			}
			block[string(kv.Key)] = nil
			limit--
		}
	}
	switch rnd.IntN(14) {
	case 0: // all keys of a range
		deleteAll(r.First, r.After, math.MaxInt)
	case 1: // all keys
		if rnd.IntN(3) == 0 {
			deleteAll(nil, nil, math.MaxInt)
		}
	case 2: // the first keys of the tree
		deleteAll(nil, nil, 1+rnd.IntN(5))
	case 3:
		put([]byte{0})
		put([]byte{0, byte(rnd.IntN(256))})
	case 4: // nothing
	case 5: // right behind an edge
		for i := range 1 + rnd.IntN(20) {
			put(append(bytes.Clone(r.First), 0, byte(i)))
		}
	case 6:
		deleteAll(r.First, nil, 1+rnd.IntN(10))
	case 7: // an edge
		if len(r.First) > 0 {
			if block[string(r.First)] = nil; rnd.IntN(2) == 0 {
				put(r.First)
			}
		}
	default:
		return randomBlock(rnd, rnd.IntN(1<<rnd.IntN(9)), keys, deletes, rnd.IntN(10) == 0)
	}
	return sortedBlock(block)
}

// TestReplicas applies random blocks to a tree, and replays them in replicas of ranges that cover
// all keys. After each, every replica has the root of the tree, and reads in its range have the
// same results as in the tree.
func TestReplicas(t *testing.T) {
	rnd := seeds.Rand(t)
	for i := range scaled(20) {
		t.Run(fmt.Sprint("story ", i), func(t *testing.T) {
			if i%2 == 1 { // blocks are made in parallel
				usual := tune
				defer func() { tune = usual }()
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
				tune.minChanges, tune.minTask, tune.minTaskHeight, tune.maxBackoff = 4, 2, 2, 0
			}
			if i%4 > 1 {
				reclaimSlowly(t, 1+rnd.IntN(50))
			}
			replicasOf(t, rnd, 40)
		})
	}
}

func replicasOf(t *testing.T, rnd *rand.Rand, blocks int) {
	keys := 10 << rnd.IntN(8)
	v := mustEmpty(t, 1+rnd.Uint64N(1<<rnd.IntN(15)))
	if rnd.IntN(3) > 0 {
		v = advance(t, v, randomBlock(rnd, keys, keys, 0, false)...)
	}
	ranges := randomRanges(rnd, 1+rnd.IntN(16), keys)
	var replicas []*replica
	for _, r := range ranges {
		replicas = append(replicas, &replica{r: r, p: mustReplica(t, v, r), rnd: rnd})
	}
	deletes := 0.1
	for i := range blocks {
		if rnd.IntN(5) == 0 {
			deletes = []float64{0, 0.2, 0.5, 0.9}[rnd.IntN(4)]
		}
		block := rangeBlock(rnd, v, ranges, keys, deletes)
		next := mustApply(t, v, block...)
		for _, r := range replicas {
			r.replay(t, next, v, block)
			if i%4 == 3 || rnd.IntN(8) == 0 {
				r.require(t, next, keys)
			}
			if rnd.IntN(20) == 0 { // it is rebuilt from its own data
				for len(r.kept) > 0 {
					r.release(t)
				}
				b, err := r.p.Boundary(r.r)
				again, err := FromRange(r.p.Commitment(), r.r, mustDecodeMultiproof(t, b, err), r.p.Leaves(r.r))
				require.NoError(t, err)
				requireMemory(t, again)
				r.p.Release()
				r.p = again
			}
		}
		v.Release()
		v = next
	}
	for _, r := range replicas {
		r.require(t, v, keys)
		for len(r.kept) > 0 {
			r.release(t)
		}
		requireMemory(t, r.p)
		r.p.Release()
	}
	v.Release()
}

// TestReplayOfWrongUpdates: an update that does not lead to the named version is refused, whatever
// is wrong with it. Nothing of it is left then, and the correct update can be replayed.
func TestReplayOfWrongUpdates(t *testing.T) {
	v := stateOf(t, 50, 40)
	r := KeyRange{First: []byte("k20"), After: []byte("k50")}
	block := []Change{{[]byte("k07"), []byte("x")}, {Key: []byte("k24")}, {[]byte("k31"), []byte("y")}, {[]byte("k44"), []byte("z")}}
	next := mustApply(t, v, block...)
	boundary, err := v.Boundary(r)
	require.NoError(t, err)
	elsewhere, err := next.Boundary(KeyRange{First: []byte("k60")})
	require.NoError(t, err)
	leaf := appendLeafItem(nil, Leaf{Key: []byte("k"), Value: []byte("v")})
	for name, damage := range map[string]func(u *Update){
		"a change less": func(u *Update) { u.Changes = u.Changes[1:] },
		"no changes":    func(u *Update) { u.Changes = nil },
		"another value": func(u *Update) { u.Changes[1].Value = []byte("lie") },
		"a change more": func(u *Update) {
			u.Changes = append(u.Changes, UpdateChange{Change: Change{[]byte("k45"), []byte("lie")}})
		},
		"a height less":                func(u *Update) { u.Changes[1].Height = 0 },
		"a moved node less":            func(u *Update) { u.Moved = u.Moved[1:] },
		"no moved nodes":               func(u *Update) { u.Moved = nil },
		"another height":               func(u *Update) { u.Changes[1].Height++ },
		"the greatest height":          func(u *Update) { u.Changes[1].Height = 255 },
		"another height of a node":     func(u *Update) { u.Moved[0].Height++ },
		"height 0":                     func(u *Update) { u.Moved[0].Height = 0 },
		"a height of a deleted key":    func(u *Update) { u.Changes[0].Height = 1 },
		"a place below a leaf":         func(u *Update) { u.Moved[0].Place = u.Moved[0].Place<<20 | 1 },
		"a place outside of the range": func(u *Update) { u.Moved = []MovedNode{{2, 3}} },
		"the first key of the tree":    func(u *Update) { u.Moved = []MovedNode{{0, 3}} },
		"the place of a key that was put": func(u *Update) {
			place, _, err := v.place([]byte("k44"))
			require.NoError(t, err)
			u.Moved = []MovedNode{{place, 3}}
		},
		"places that do not ascend": func(u *Update) { u.Moved = append(u.Moved, u.Moved[0]) },
		"a deletion of an absent key": func(u *Update) {
			u.Changes = append(u.Changes, UpdateChange{Change: Change{Key: []byte("k47")}})
			u.To.Root.Hash[1]++
		},
		"a key outside of the range":          func(u *Update) { u.Changes = append(u.Changes, UpdateChange{Change: block[0]}) },
		"keys that do not ascend":             func(u *Update) { slices.Reverse(u.Changes) },
		"a key twice":                         func(u *Update) { u.Changes = append(u.Changes, u.Changes[len(u.Changes)-1]) },
		"an empty value":                      func(u *Update) { u.Changes[1].Value = []byte{} },
		"an old boundary proof":               func(u *Update) { u.Boundary = boundary },
		"the boundary proof of another range": func(u *Update) { u.Boundary = elsewhere },
		"an empty boundary proof":             func(u *Update) { u.Boundary = []byte{multiproofVersion} },
		"no boundary proof":                   func(u *Update) { u.Boundary = nil },
		"two trees":                           func(u *Update) { u.Boundary = appendTree(bytes.Clone(u.Boundary), 1, leaf) },
		"half a boundary proof":               func(u *Update) { u.Boundary = u.Boundary[:len(u.Boundary)/2] },
		"the old root":                        func(u *Update) { u.To.Root = v.Root() },
		"another root":                        func(u *Update) { u.To.Root.Hash[0]++ },
		"other chunks":                        func(u *Update) { u.To.ChunkBytes++ },
		"no chunks":                           func(u *Update) { u.To.Chunks = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			p := mustReplica(t, v, r)
			right, err := next.UpdateOf(v, r, block)
			require.NoError(t, err)
			require.Len(t, right.Changes, 3)
			u := right
			u.Changes, u.Moved = slices.Clone(right.Changes), slices.Clone(right.Moved)
			damage(&u)
			before := p.v.Memory()
			_, err = p.Replay(r, u)
			require.ErrorIs(t, err, ErrOtherState)
			require.Equal(t, before, p.v.Memory())
			require.Equal(t, leavesOf(t, v, r), mustReplicaLeaves(t, p, r))
			after, err := p.Replay(r, right)
			require.NoError(t, err)
			require.Equal(t, next.Commitment(), after.Commitment())
			p.Release()
			requireMemory(t, after)
		})
	}
}

// TestReplayOfHugeLies: a false update may name so many keys that no tree could hold the paths to
// them. It is refused as false, and not as too large, which would stop the replica.
func TestReplayOfHugeLies(t *testing.T) {
	v := stateOf(t, 50, 40)
	p := mustReplica(t, v, KeyRange{})
	to := mustApply(t, v, Change{[]byte("k31"), []byte("y")}).Commitment()
	for name, value := range map[string][]byte{"deletions of absent keys": nil, "new values": []byte("y")} {
		t.Run(name, func(t *testing.T) {
			u := Update{To: to, Boundary: []byte{multiproofVersion}}
			count := 700_000
			if testing.Short() { // the race detector takes a minute for that many
				count = 50_000
			}
			for i := range count {
				key := fmt.Appendf(nil, "k%07d", i)
				u.Changes = append(u.Changes, UpdateChange{Change: Change{key, value}})
			}
			before := p.v.Memory()
			_, err := p.Replay(KeyRange{}, u)
			require.ErrorIs(t, err, ErrOtherState)
			require.NotErrorIs(t, err, ErrTooLarge)
			now := p.v.Memory()
			require.Equal(t, before.InnerNodes+before.Leaves, now.InnerNodes+now.Leaves)
		})
	}
}

// TestLengthOfUpdates: blocks that are designed to have long updates stay within the limit that
// docs/spec/updates.md derives.
func TestLengthOfUpdates(t *testing.T) {
	rnd := seeds.Rand(t)
	for _, step := range []int{1, 7, 64} {
		// All keys of the tree have the maximum length. It is perfect, so that one insertion in
		// each of many subtrees makes the whole path to it higher.
		const n = 1 << 11
		key := func(i int) []byte {
			return append(fmt.Appendf(nil, "%06d", i), bytes.Repeat([]byte{'k'}, MaxKeyBytes-6)...)
		}
		var state []Change
		for i := range n {
			state = append(state, Change{key(i), []byte("v")})
		}
		v := mustApply(t, mustEmpty(t, DefaultChunkBytes), state...)
		var block []Change
		for i := rnd.IntN(step); i < n; i += step {
			// a short one before a long one
			block = append(block, Change{fmt.Appendf(nil, "%06d", i), []byte("w")})
		}
		next := mustApply(t, v, block...)
		u := mustUpdate(t, next, v, KeyRange{}, block)
		records := 0
		for _, c := range u.Changes {
			records += 1 + int(RecordBytes(len(c.Key), len(c.Value)))
		}
		m, h := len(u.Changes), int(next.Root().Height)
		nodes := 3 * (2*m + m*(h-bits.Len(uint(m))+1))
		got, limit := len(u.Encode()), 64+records+nodes*(2+h/7)+len(u.Boundary)
		require.LessOrEqual(t, got, limit)
		require.Positive(t, len(u.Moved))
		t.Logf("%d changes of %d bytes: %d moved nodes, an update of %d bytes, the limit is %d", m, records, len(u.Moved), got, limit)
		replica, err := mustReplica(t, v, KeyRange{}).Replay(KeyRange{}, u)
		require.NoError(t, err)
		require.Equal(t, next.Commitment(), replica.Commitment())
	}
}

// TestBoundaryCannotHideKeys: an update claims that keys of a range were deleted, and names a root
// that has them in a stub of the boundary proof. It is refused; otherwise the replica would have
// the correct root without the keys.
func TestBoundaryCannotHideKeys(t *testing.T) {
	v := stateOf(t, 50, 40)
	r := KeyRange{First: []byte("k20"), After: []byte("k50")}
	boundary, err := v.Multiproof([]Want{{Key: []byte("k36")}, {Key: r.After}}, Below{})
	multiproof := mustDecodeMultiproof(t, boundary, err)
	before, _, err := multiproof.outside(v.Commitment(), r)
	require.NoError(t, err)
	require.NotEmpty(t, before)
	var hidden []UpdateChange // keys of the stub that crosses the edge
	cut := before[len(before)-1].key
	for s := range prunedTo(t, v, multiproof).Stubs(cut) {
		require.Less(t, string(r.First), string(s.After), "no stub crosses the edge")
		for _, l := range leavesOf(t, v, KeyRange{First: r.First, After: s.After}) {
			hidden = append(hidden, UpdateChange{Change: Change{Key: l.Key}})
		}
		break
	}
	require.NotEmpty(t, hidden)
	p := mustReplica(t, v, r)
	u := Update{To: v.Commitment(), Changes: hidden, Boundary: boundary}
	_, err = p.Replay(r, u)
	require.ErrorIs(t, err, ErrOtherState)
	require.ErrorContains(t, err, "a stub of the boundary proof can have keys of the range")
	rest := slices.DeleteFunc(leavesOf(t, v, r), func(l Leaf) bool { return string(l.Key) <= string(hidden[len(hidden)-1].Key) })
	_, err = FromRange(v.Commitment(), r, multiproof, withoutError(slices.Values(rest)))
	require.ErrorIs(t, err, ErrOtherState)
	require.ErrorContains(t, err, "a stub of the boundary proof can have keys of the range")
}

// TestBoundaryOpensTheNextRange: a boundary proof with the correct root that has a stub where the
// next range begins is refused, because the replica could not make its own boundary proof from it.
func TestBoundaryOpensTheNextRange(t *testing.T) {
	v := stateOf(t, 50, 40)
	tried := 0
	for _, after := range leavesOf(t, v, KeyRange{First: []byte("k21")}) {
		r := KeyRange{First: []byte("k20"), After: after.Key}
		below := append(bytes.Clone(after.Key[:len(after.Key)-1]), after.Key[len(after.Key)-1]-1, 0xff)
		boundary, err := v.Multiproof([]Want{{Key: r.First}, {Key: below}}, Below{})
		multiproof := mustDecodeMultiproof(t, boundary, err)
		_, behind, err := multiproof.outside(v.Commitment(), r)
		require.NoError(t, err)
		if len(behind) == 0 || behind[0].value != nil || !bytes.Equal(behind[0].key, r.After) {
			continue
		}
		tried++
		p := mustReplica(t, v, r)
		_, err = p.Replay(r, Update{To: v.Commitment(), Changes: []UpdateChange{{Change: Change{Key: []byte("k200")}}}, Boundary: boundary})
		require.ErrorIs(t, err, ErrOtherState)
		require.ErrorContains(t, err, "with which the next range begins")
		_, err = FromRange(v.Commitment(), r, multiproof, withoutError(slices.Values(leavesOf(t, v, r))))
		require.ErrorIs(t, err, ErrOtherState)
	}
	require.NotZero(t, tried)
}

// prunedTo returns the part of v that a multiproof contains.
func prunedTo(t require.TestingT, v *Version, b *Multiproof) *Partial {
	p, err := NewPartial(v.Commitment())
	require.NoError(t, err)
	p, _, err = p.Graft(b)
	require.NoError(t, err)
	return p
}

// TestDamagedUpdate changes every byte of an update: the result never has another root.
func TestDamagedUpdate(t *testing.T) {
	v := stateOf(t, 50, 40)
	r := KeyRange{First: []byte("k20"), After: []byte("k50")}
	block := []Change{{Key: []byte("k19")}, {Key: []byte("k24")}, {[]byte("k31"), []byte("y")}, {[]byte("k44"), []byte("z")}}
	next := mustApply(t, v, block...)
	b := mustUpdate(t, next, v, r, block).Encode()
	p := mustReplica(t, v, r)
	before := p.v.Memory()
	invalid, other := 0, 0
	try := func(b []byte) (done bool) {
		u, err := DecodeUpdate(b)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidUpdate)
			invalid++
			return false
		}
		require.Equal(t, b, u.Encode())
		after, err := p.Replay(r, u)
		if err != nil {
			require.ErrorIs(t, err, ErrOtherState)
			require.Equal(t, before, p.v.Memory())
			other++
			return false
		}
		require.Equal(t, next.Root(), after.Commitment().Root)
		require.Equal(t, u.To.AppHash(), after.AppHash())
		after.Release()
		p.Release()
		p = mustReplica(t, v, r)
		return true
	}
	same := 0
	for i := range b {
		for _, flip := range []byte{1, 0x80, 0xff} {
			damaged := bytes.Clone(b)
			damaged[i] ^= flip
			switch done := try(damaged); {
			case i >= 1+8 && i < 1+12:
				require.True(t, done, "only a header commits to the number of chunks")
			case done:
				same++
			}
		}
	}
	require.LessOrEqual(t, same, 1, "the height of a leaf that was put can be left out where it did not change")
	for n := range b {
		require.False(t, try(b[:n]))
	}
	require.Positive(t, invalid)
	require.Positive(t, other)
}

// TestReplayOfAnyPartial: a partial tree need not come from FromRange. If a node of the range is
// needed and missing, the error names it.
func TestReplayOfAnyPartial(t *testing.T) {
	rnd := seeds.Rand(t)
	done, lacking := 0, 0
	for range scaled(150) {
		keys := 10 << rnd.IntN(6)
		v := randomState(t, rnd, keys)
		r := randomRanges(rnd, 1+rnd.IntN(4), keys)[0]
		block := randomBlock(rnd, 5, keys, 0.3, false)
		next := mustApply(t, v, block...)
		rate := rnd.Float64()
		p, err := v.Prune(func(s Subtree) bool {
			outside := r.After != nil && bytes.Compare(s.First, r.After) >= 0
			return (outside || s.Height < 4) && rnd.Float64() < rate/4
		})
		require.NoError(t, err)
		after, err := p.Replay(r, mustUpdate(t, next, v, r, block))
		if err != nil {
			lacking++
			require.ErrorAs(t, err, new(*MissingNodeError))
			requireMemory(t, p)
			p.Release()
			continue
		}
		done++
		p.Release()
		require.Equal(t, next.Commitment(), after.Commitment())
		requireMemory(t, after)
		after.Release()
	}
	require.Positive(t, done)
	require.Positive(t, lacking)
}

// TestReplayKeepsHistoryLinear: a version can be replayed on only while no later version is in use.
func TestReplayKeepsHistoryLinear(t *testing.T) {
	v := stateOf(t, 50, 40)
	r := KeyRange{First: []byte("k20")}
	block := []Change{{[]byte("k31"), []byte("y")}}
	next := mustApply(t, v, block...)
	u := mustUpdate(t, next, v, r, block)
	p := mustReplica(t, v, r)
	after, err := p.Replay(r, u)
	require.NoError(t, err)
	_, err = p.Replay(r, u)
	require.ErrorIs(t, err, ErrNotLatest)
	_, ok := after.Len()
	require.False(t, ok, "nothing commits to the number of leaves outside")
	same, err := after.Replay(r, mustUpdate(t, next, next, r, nil))
	require.NoError(t, err)
	require.Same(t, after.v, same.v, "nothing changed")
	same.Release()
	after.Release()
	again, err := p.Replay(r, u)
	require.NoError(t, err)
	require.Equal(t, next.AppHash(), again.AppHash())
	_, err = p.Replay(KeyRange{First: []byte("b"), After: []byte("a")}, u)
	require.ErrorContains(t, err, "no key is in the range")
}

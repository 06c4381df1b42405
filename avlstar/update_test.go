package avlstar

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/internal/spectest"
)

// TestUpdateHasNewInner: an update contains the nodes that NewInner yields and that are in its
// range, and the changes that have an effect.
func TestUpdateHasNewInner(t *testing.T) {
	rnd := seeds.Rand(t)
	for range scaled(30) {
		keys := 10 << rnd.IntN(7)
		first := randomState(t, rnd, keys)
		base := mustApply(t, first, randomBlock(rnd, 1+rnd.IntN(50), keys, 0.3, false)...)
		block := randomBlock(rnd, 1+rnd.IntN(50), keys, 0.3, true)
		v := mustApply(t, base, block...)
		for _, r := range randomRanges(rnd, 1+rnd.IntN(6), keys) {
			heights, changes := map[string]uint8{}, map[string]bool{}
			for key, height := range v.NewInner(base) {
				if r.Contains(key) {
					heights[string(key)] = height
				}
			}
			for _, c := range block {
				before, there := mustGet(t, base, c.Key)
				if r.Contains(c.Key) && (c.Value != nil || there) && !(c.Value != nil && bytes.Equal(before, c.Value)) {
					changes[string(c.Key)] = true
				}
			}
			u, err := v.UpdateOf(base, r, block)
			require.NoError(t, err)
			require.Equal(t, v.Commitment(), u.To)
			require.Len(t, u.Changes, len(changes))
			for _, c := range u.Changes {
				require.True(t, changes[string(c.Key)])
				require.Equal(t, heights[string(c.Key)], c.Height)
				delete(heights, string(c.Key))
			}
			for key, height := range heights { // some have only another leaf
				if _, before, err := base.place([]byte(key)); err == nil && before == height {
					delete(heights, key)
				}
			}
			require.Len(t, u.Moved, len(heights))
			for _, m := range u.Moved {
				key, err := base.keyAt(m, KeyRange{}, nil)
				require.NoError(t, err)
				require.Equal(t, heights[string(key)], m.Height)
			}
			u, err = v.UpdateOf(v, r, block)
			require.NoError(t, err)
			require.Empty(t, append(u.Changes, changesOf(u.Moved)...), "nothing changed")
		}
		again, err := FromLeaves(v.ChunkBytes(), v.Leaves())
		require.NoError(t, err)
		var all []Change
		for l := range mustLeaves(t, again) {
			all = append(all, Change{bytes.Clone(l.Key), bytes.Clone(l.Value)})
		}
		u, err := again.UpdateOf(nil, KeyRange{}, all)
		require.NoError(t, err)
		require.Empty(t, u.Moved)
		require.Len(t, u.Changes, len(all))
		if v != base && base != first {
			_, err = v.UpdateOf(first, KeyRange{}, nil)
			require.ErrorIs(t, err, ErrOtherState, "an older version")
		}
		_, err = v.UpdateOf(again, KeyRange{}, nil)
		require.ErrorIs(t, err, ErrOtherState, "another tree")
		if len(all) > 1 {
			_, err = again.UpdateOf(nil, KeyRange{}, all[:len(all)-1])
			require.ErrorIs(t, err, ErrOtherState, "a key that is not put")
		}
	}
}

func changesOf(moved []MovedNode) []UpdateChange { return make([]UpdateChange, len(moved)) }

// TestPlaces: each inner node has a place, and the places have the order of the keys.
func TestPlaces(t *testing.T) {
	rnd := seeds.Rand(t)
	for range scaled(20) {
		v := randomState(t, rnd, 1<<rnd.IntN(9))
		last, i := MovedNode{}, 0
		for l := range mustLeaves(t, v) {
			place, height, err := v.place(l.Key)
			require.NoError(t, err)
			require.Equal(t, l.Height, height)
			m := MovedNode{place, 1}
			require.Equal(t, i == 0, place == 0)
			if i > 0 {
				require.Greater(t, m.order(), last.order())
			}
			key, err := v.keyAt(MovedNode{Place: place}, KeyRange{}, nil)
			require.NoError(t, err)
			require.Equal(t, l.Key, key)
			if absent := append(bytes.Clone(l.Key), 0); !mustHas(t, v, absent) {
				_, _, err = v.place(absent)
				require.ErrorIs(t, err, ErrOtherState)
			}
			last, i = m, i+1
		}
		for range 50 {
			if place := rnd.Uint64() >> rnd.IntN(64); place>>v.Root().Height > 1 {
				_, err := v.keyAt(MovedNode{Place: place}, KeyRange{}, nil)
				require.ErrorIs(t, err, ErrOtherState, "%b", place)
			}
		}
	}
}

// TestUpdateOfGrafted: a version that was grafted after the block has the same update.
func TestUpdateOfGrafted(t *testing.T) {
	rnd := seeds.Rand(t)
	for range scaled(30) {
		keys := 10 << rnd.IntN(7)
		v := randomState(t, rnd, keys)
		block := randomBlock(rnd, 1+rnd.IntN(20), keys, 0.3, false)
		full := mustApply(t, v, block...)
		r := randomRanges(rnd, 1+rnd.IntN(6), keys)[0]
		if len(r.First) == 0 {
			r.First = []byte{0}
		}
		want, err := full.UpdateOf(v, r, block)
		require.NoError(t, err)
		receiver := multiproofReceiver{depth: rnd.IntN(4), rnd: rnd}
		p, err := NewPartial(v.Commitment())
		require.NoError(t, err)
		receiver.p = p
		b, err := v.Upper(receiver.depth)
		receiver.graft(t, mustDecodeMultiproof(t, b, err))
		b, err = v.Multiproof(wantsOf(block), Below{})
		receiver.graft(t, mustDecodeMultiproof(t, b, err))
		base := receiver.p
		next, err := base.Apply(block)
		var missing *MissingNodeError
		if errors.As(err, &missing) {
			continue // several deletions
		}
		require.NoError(t, err)
		receiver.p = next
		next.Retain()
		for range 3 {
			wants := []Want{{Key: r.First}, {Key: randomKey(rnd, keys)}}
			if r.After != nil {
				wants = append(wants, Want{Key: r.After})
			}
			b, err = full.Multiproof(wants, Below{})
			receiver.graft(t, mustDecodeMultiproof(t, b, err))
		}
		u, err := receiver.p.UpdateOf(base, r, block)
		require.NoError(t, err)
		require.Equal(t, want.Boundary, u.Boundary)
		require.Equal(t, want.Moved, u.Moved)
		require.Len(t, u.Changes, len(want.Changes))
		after, err := mustReplica(t, v, r).Replay(r, u)
		require.NoError(t, err)
		require.Equal(t, full.Commitment(), after.Commitment())
	}
}

// TestUpdateOfOtherVersions: a version that Apply did not make from the base is refused. Otherwise
// nodes could be missing in the update.
func TestUpdateOfOtherVersions(t *testing.T) {
	v := stateOf(t, 50, 40)
	p, err := v.Prune(func(Subtree) bool { return false })
	require.NoError(t, err)
	p.EnableRetention(Retention{Depth: 1, Window: 0})
	block := []Change{{[]byte("k44"), []byte("z")}}
	next, err := p.Apply(block)
	require.NoError(t, err)
	_, err = next.UpdateOf(p, KeyRange{}, block)
	require.NoError(t, err)
	shed, err := next.Shed()
	require.NoError(t, err)
	require.NotSame(t, next.v, shed.v)
	_, err = shed.UpdateOf(p, KeyRange{}, block)
	require.ErrorIs(t, err, ErrOtherState)
	u, err := shed.UpdateOf(next, KeyRange{}, nil)
	require.NoError(t, err, "nothing changed")
	require.Empty(t, append(u.Changes, changesOf(u.Moved)...))
	var missing *MissingNodeError
	var all []Change
	for l := range mustLeaves(t, mustApply(t, v, block...)) {
		all = append(all, Change{l.Key, l.Value})
	}
	_, err = shed.UpdateOf(nil, KeyRange{}, all)
	require.ErrorAs(t, err, &missing)
}

// TestUpdateOfAPartial: a validator that has the paths to the changes and to the edges of a range
// makes the same updates.
func TestUpdateOfAPartial(t *testing.T) {
	v := stateOf(t, 50, 40)
	r := KeyRange{First: []byte("k20"), After: []byte("k50")}
	block := []Change{{[]byte("k44"), []byte("z")}, {[]byte("k31"), []byte("y")}, {[]byte("k07"), []byte("x")}}
	want, err := mustApply(t, v, block...).UpdateOf(v, r, block)
	require.NoError(t, err)
	require.True(t, slices.IsSortedFunc(want.Changes, func(a, b UpdateChange) int { return bytes.Compare(a.Key, b.Key) }))
	p := pruneTo(t, v, []byte("k44"), []byte("k31"), []byte("k07"), r.First, r.After)
	next, err := p.Apply(block)
	require.NoError(t, err)
	u, err := next.UpdateOf(p, r, block)
	require.NoError(t, err)
	require.Equal(t, want, u)
	before := mustReplica(t, v, r)
	replica, err := before.Replay(r, u)
	require.NoError(t, err)
	again, err := replica.UpdateOf(before, r, block) // for other replicas of the range
	require.NoError(t, err)
	require.Equal(t, u.Changes[0].Key, again.Changes[0].Key)
	same, err := mustReplica(t, v, r).Replay(r, again)
	require.NoError(t, err)
	require.Equal(t, next.Commitment(), same.Commitment())

	_, err = next.UpdateOf(p, KeyRange{First: []byte("k70")}, block)
	var missing *MissingNodeError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []byte("k70"), missing.Key)
	_, err = v.UpdateOf(v, KeyRange{First: []byte("b"), After: []byte("a")}, nil)
	require.ErrorContains(t, err, "no key is in the range")
	_, err = next.UpdateOf(p, r, append(block, block[0]))
	require.ErrorIs(t, err, ErrInvalidChange)
}

// updateFile is testdata/updates.json; docs/spec/updates.md explains its fields.
type updateFile struct {
	Format string         `json:"format"`
	About  string         `json:"about"`
	B      uint64         `json:"B"`
	Leaves []rangeLeaf    `json:"entries"`
	Valid  []updateVector `json:"valid"`
	Lies   []updateVector `json:"invalid"`
}

type updateVector struct {
	Name    string         `json:"name"`
	First   hexBytes       `json:"first,omitempty"`
	After   *hexBytes      `json:"after,omitempty"`
	Changes []updateChange `json:"changes,omitempty"`
	Update  hexBytes       `json:"update"`
	AppHash hexBytes       `json:"app_hash,omitempty"`
	Reason  string         `json:"reason,omitempty"`
}

type updateChange struct {
	Key   hexBytes  `json:"key"`
	Value *hexBytes `json:"value,omitempty"` // absent: deleted
}

func (u *updateVector) keyRange() (r KeyRange) {
	r.First = u.First
	if u.After != nil {
		r.After = *u.After
	}
	return r
}

func (u *updateVector) changes() (changes []Change) {
	for _, c := range u.Changes {
		change := Change{Key: c.Key}
		if c.Value != nil {
			change.Value = *c.Value
		}
		changes = append(changes, change)
	}
	return changes
}

// updateVectors makes the content of testdata/updates.json.
func updateVectors(t *testing.T) updateFile {
	f := updateFile{
		Format: "starling-update-1",
		About: "updates of replicas of key ranges. The state before is one block of puts applied to the empty tree; changes is one block " +
			"applied to it. Valid updates are what a node must send for this block and range, byte for byte; invalid ones must be refused " +
			"whatever the state is.",
		B: 50, Leaves: []rangeLeaf{},
	}
	v := mustEmpty(t, f.B)
	var state []Change
	for i := range 20 {
		c := Change{Key: fmt.Appendf(nil, "k%02d", 2*i), Value: fmt.Appendf(nil, "value %d", i)}
		state = append(state, c)
		f.Leaves = append(f.Leaves, rangeLeaf{c.Key, c.Value})
	}
	v = mustApply(t, v, state...)
	put := func(key, value string) updateChange { b := hexBytes(value); return updateChange{hexBytes(key), &b} }
	deleted := func(key string) updateChange { return updateChange{Key: hexBytes(key)} }
	var all []updateChange
	for _, c := range state {
		all = append(all, deleted(string(c.Key)))
	}
	mixed := []updateChange{put("k05", "new"), deleted("k12"), put("k14", "other"), put("k39", "last")}
	for _, c := range []struct {
		name, first, after string
		changes            []updateChange
	}{
		{"nothing, of all keys", "", "", nil},
		{"nothing, of a range", "k10", "k20", nil},
		{"all keys", "", "", mixed},
		{"the first keys", "", "k10", mixed},
		{"a range", "k10", "k20", mixed},
		{"a range whose edges are absent", "k11", "k19", mixed},
		{"the last keys", "k20", "", mixed},
		{"a range in which nothing changes", "k20", "k30", mixed},
		{"a range of one key", "k14", "k140", mixed},
		{"a range without keys", "k15", "k16", mixed},
		{"the first key of the tree", "", "k10", []updateChange{put("a", "first")}},
		{"a key that becomes the first", "", "k10", []updateChange{deleted("k00")}},
		{"deletions behind a range", "k22", "k34", []updateChange{deleted("k34"), deleted("k36"), deleted("k38")}},
		{"everything deleted", "k10", "k20", all},
		{"what changes nothing", "k10", "k20", []updateChange{deleted("k11"), put("k12", "value 6")}},
	} {
		u := updateVector{Name: c.name, First: hexBytes(c.first), Changes: c.changes}
		if c.after != "" {
			after := hexBytes(c.after)
			u.After = &after
		}
		next := mustApply(t, v, u.changes()...)
		made, err := next.UpdateOf(v, u.keyRange(), u.changes())
		require.NoError(t, err)
		appHash := next.AppHash()
		u.Update, u.AppHash = made.Encode(), appHash[:]
		next.Release()
		f.Valid = append(f.Valid, u)
	}
	good := []byte(f.Valid[4].Update)
	head := 1 + CommitmentBytes
	to := func(changes int, rest ...byte) []byte {
		return append(append(bytes.Clone(good[:head]), byte(changes)), rest...)
	}
	moved := func(nodes int, rest ...byte) []byte { return to(0, append([]byte{byte(nodes)}, rest...)...) }
	boundary := func(rest ...byte) []byte { return moved(0, append([]byte{multiproofVersion}, rest...)...) }
	leaf := appendLeafItem(nil, Leaf{Key: []byte("k"), Value: []byte("v")})
	commitment := bytes.Clone(good)
	clear(commitment[1+8 : 1+12])
	for _, c := range []struct {
		name, reason string
		b            []byte
	}{
		{"empty", "no version", nil},
		{"version 2", "only version 1 is known", append([]byte{2}, good[1:]...)},
		{"half a commitment", "it is cut", good[:40]},
		{"a state without chunks", "only the empty tree has none", commitment},
		{"no moved nodes", "their number is cut", to(0)},
		{"no boundary proof", "it is cut", moved(0)},
		{"more changes than bytes", "there is no room for so many", to(100, 0, multiproofVersion)},
		{"a number of changes in two bytes", "not in its shortest form", append(append(bytes.Clone(good[:head]), 0x80, 0, 0), multiproofVersion)},
		{"an unknown kind", "kinds are 0 and 1", to(1, 2, 1, 'k', 0, multiproofVersion)},
		{"an empty key", "it has 1 to 4096 bytes", to(1, updateDeleted, 0, 0, multiproofVersion)},
		{"an empty value", "it has 1 to 1048576 bytes", to(1, updatePut, 1, 1, 'k', 0, 0, multiproofVersion)},
		{"keys that do not ascend", "the second is the first again", to(2, updateDeleted, 1, 'k', updateDeleted, 1, 'k', 0, multiproofVersion)},
		{"more moved nodes than bytes", "there is no room for so many", moved(100, multiproofVersion)},
		{"a number of moved nodes in two bytes", "not in its shortest form", to(0, 0x80, 0, multiproofVersion)},
		{"a place in two bytes", "not in its shortest form", moved(1, 0x81, 0, 1, multiproofVersion)},
		{"a place without a height", "it is cut", moved(1, 5)},
		{"a height of 0", "no inner node has it", moved(1, 1, 0, multiproofVersion)},
		{"places that do not ascend", "the root's key is above those on its left", moved(2, 1, 3, 2, 2, multiproofVersion)},
		{"a place twice", "keys ascend", moved(2, 5, 3, 5, 3, multiproofVersion)},
		{"a boundary proof of version 2", "only version 1 of multiproofs is known", moved(0, 2)},
		{"a boundary proof of two trees", "a boundary proof has one", boundary(append(appendTree(nil, 1, leaf), appendTree(nil, 1, leaf)...)...)},
		{"a boundary proof of too many items", "two ways have at most 512", boundary(0x81, 4)},
		{"a boundary proof that is cut", "its last item", good[:len(good)-1]},
	} {
		f.Lies = append(f.Lies, updateVector{Name: c.name, Update: c.b, Reason: c.reason})
	}
	return f
}

// TestUpdateVectors checks that this package makes exactly testdata/updates.json, and replays it
// from the file alone.
func TestUpdateVectors(t *testing.T) {
	f := requireVectors(t, "testdata/updates.json", updateVectors(t))
	v := mustEmpty(t, f.B)
	var state []Change
	for _, l := range f.Leaves {
		state = append(state, Change{l.Key, l.Value})
	}
	v = mustApply(t, v, state...)
	for _, c := range f.Valid {
		u, err := DecodeUpdate(c.Update)
		require.NoError(t, err, c.Name)
		require.Equal(t, []byte(c.Update), u.Encode(), c.Name)
		p, err := mustReplica(t, v, c.keyRange()).Replay(c.keyRange(), u)
		require.NoError(t, err, c.Name)
		appHash := p.AppHash()
		require.Equal(t, []byte(c.AppHash), appHash[:], c.Name)
	}
	for _, c := range f.Lies {
		_, err := DecodeUpdate(c.Update)
		require.ErrorIs(t, err, ErrInvalidUpdate, c.Name)
	}
}

// TestUpdateSpecExample checks that the worked example of docs/spec/updates.md is a vector.
func TestUpdateSpecExample(t *testing.T) {
	example := updateVectors(t).Valid[8]
	require.Equal(t, "a range of one key", example.Name)
	spectest.Require(t, "updates.md", example.Update)
}

// TestDecodeUpdateFrom: an update from a stranger takes no memory if it leads to another version,
// or has more changes or moved nodes than a block makes.
func TestDecodeUpdateFrom(t *testing.T) {
	v := mustEmpty(t, DefaultChunkBytes)
	base := mustApply(t, v, Change{[]byte("a"), []byte("1")}, Change{[]byte("b"), []byte("1")})
	next := mustApply(t, base, Change{[]byte("a"), []byte("2")})
	head := append([]byte{updateVersion}, next.Commitment().Encode()...)
	const many = 1 << 18
	changes := binary.AppendUvarint(bytes.Clone(head), many)
	for i := range many {
		changes = append(changes, updateDeleted, 3, byte(i>>16), byte(i>>8), byte(i))
	}
	changes = append(changes, 0, multiproofVersion) // no moved node, a boundary proof of no tree
	moved := binary.AppendUvarint(append(binary.AppendUvarint(bytes.Clone(head), 1), updateDeleted, 1, 'a'), many)
	for i := range many {
		moved = append(binary.AppendUvarint(moved, uint64(i+1)), 1)
	}
	for _, c := range []struct {
		name    string
		update  []byte
		appHash Hash
		most    uint64
		err     error
		text    string
	}{
		{"another version", changes, base.AppHash(), many, ErrOtherState, "app hash"},
		{"too many changes", changes, next.AppHash(), many - 1, ErrInvalidUpdate, "262144 changes, a block makes at most 262143"},
		{"too many moved nodes", moved, next.AppHash(), 10_000, ErrInvalidUpdate, "262144 moved nodes, a block moves at most 60000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := DecodeUpdateFrom(base.Commitment(), c.appHash, c.most, c.update)
			runtime.ReadMemStats(&after)
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, c.text)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
		})
	}
	u, err := DecodeUpdateFrom(base.Commitment(), next.AppHash(), many, changes)
	require.NoError(t, err)
	require.Len(t, u.Changes, many)
	_, err = DecodeUpdateFrom(v.Commitment(), next.AppHash(), 1, changes)
	require.NoError(t, err, "the state before is empty")
}

// FuzzDecodeUpdate: a decoded update has one encoding. Replayed, it leads to the state that it
// names or to an error. The seeds are the vectors.
func FuzzDecodeUpdate(f *testing.F) {
	b, err := os.ReadFile("testdata/updates.json")
	require.NoError(f, err)
	var file updateFile
	require.NoError(f, json.Unmarshal(b, &file))
	for _, c := range append(file.Valid, file.Lies...) {
		f.Add([]byte(c.Update), []byte(c.First), c.keyRange().After)
	}
	var state []Change
	for _, l := range file.Leaves {
		state = append(state, Change{l.Key, l.Value})
	}
	v := mustApply(f, mustEmpty(f, file.B), state...)
	f.Fuzz(func(t *testing.T, b, first, after []byte) {
		u, err := DecodeUpdate(b)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidUpdate)
			return
		}
		require.Equal(t, b, u.Encode())
		r := KeyRange{First: first}
		if len(after) > 0 {
			r.After = after
		}
		if r.Check() != nil {
			return
		}
		p := mustReplica(t, v, r)
		next, err := p.Replay(r, u)
		if err != nil {
			require.ErrorIs(t, err, ErrOtherState)
			require.Equal(t, leavesOf(t, v, r), mustReplicaLeaves(t, p, r))
			requireMemory(t, p)
			return
		}
		require.Equal(t, u.To, next.Commitment())
		p.Release()
		requireMemory(t, next)
	})
}

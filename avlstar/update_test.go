package avlstar

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestUpdateHasNewInner: an update has, of all that NewInner yields, what is in its range.
func TestUpdateHasNewInner(t *testing.T) {
	rnd := seeds.Rand(t)
	for range scaled(30) {
		keys := 10 << rnd.IntN(7)
		first := randomState(t, rnd, keys)
		block := randomBlock(rnd, 1+rnd.IntN(50), keys, 0.3, false)
		base := mustApply(t, first, block...)
		v := mustApply(t, base, randomBlock(rnd, 1+rnd.IntN(50), keys, 0.3, false)...)
		bases := map[*Version]bool{base: true, first: true, nil: true, v: true}
		for _, r := range randomRanges(rnd, 1+rnd.IntN(6), keys) {
			for base := range bases {
				u, err := v.UpdateOf(base, r, nil)
				require.NoError(t, err)
				var want []KeyHeight
				for key, height := range v.NewInner(base) {
					if r.Contains(key) {
						want = append(want, KeyHeight{key, height})
					}
				}
				require.Len(t, u.Heights, len(want))
				for i := range want {
					require.Equal(t, want[i], u.Heights[i])
				}
				require.Equal(t, v.Commitment(), u.To)
			}
		}
		again, err := FromLeaves(v.ChunkBytes(), v.Leaves())
		require.NoError(t, err)
		u, err := again.UpdateOf(base, KeyRange{}, nil)
		require.NoError(t, err)
		require.Len(t, u.Heights, max(1, int(v.Len()))-1, "a base of another tree is none")
	}
}

// TestUpdateOfAPartial: a validator that has the ways to the changes and to the edges of a range
// makes the same updates.
func TestUpdateOfAPartial(t *testing.T) {
	v := stateOf(t, 50, 40)
	r := KeyRange{First: []byte("k20"), After: []byte("k50")}
	block := []Change{{[]byte("k44"), []byte("z")}, {[]byte("k31"), []byte("y")}, {[]byte("k07"), []byte("x")}}
	want, err := mustApply(t, v, block...).UpdateOf(v, r, block)
	require.NoError(t, err)
	require.True(t, slices.IsSortedFunc(want.Changes, func(a, b Change) int { return bytes.Compare(a.Key, b.Key) }))
	p := pruneTo(t, v, []byte("k44"), []byte("k31"), []byte("k07"), r.First, r.After)
	next, err := p.Apply(block)
	require.NoError(t, err)
	u, err := next.UpdateOf(p, r, block)
	require.NoError(t, err)
	require.Equal(t, want, u)
	replica, err := mustReplica(t, v, r).Replay(r, u)
	require.NoError(t, err)
	again, err := replica.UpdateOf(nil, r, block) // with all heights of the range
	require.NoError(t, err)
	require.Equal(t, u.Seam, again.Seam)
	require.Greater(t, len(again.Heights), len(u.Heights))

	_, err = next.UpdateOf(p, KeyRange{First: []byte("k70")}, block)
	var missing *MissingNodeError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []byte("k70"), missing.Key)
	_, err = v.UpdateOf(v, KeyRange{First: []byte("b"), After: []byte("a")}, nil)
	require.ErrorContains(t, err, "no key is in the range")
	_, err = v.UpdateOf(v, r, append(block, block[0]))
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
	to := func(entries int, rest ...byte) []byte {
		return append(append(bytes.Clone(good[:head]), byte(entries)), rest...)
	}
	seam := func(rest ...byte) []byte { return to(0, append([]byte{bagVersion}, rest...)...) }
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
		{"no seam", "it is cut", to(0)},
		{"more entries than bytes", "there is no room for so many", to(100, bagVersion)},
		{"a number of entries in two bytes", "not in its shortest form", append(append(bytes.Clone(good[:head]), 0x80, 0), bagVersion)},
		{"an unknown kind", "kinds are 0 to 2", to(1, 3, 1, 'k', bagVersion)},
		{"a height of 0", "no inner node has it", to(1, updateHeight, 0, 1, 'k', bagVersion)},
		{"an empty key", "it has 1 to 4096 bytes", to(1, updateDeleted, 0, bagVersion)},
		{"an empty value", "it has 1 to 1048576 bytes", to(1, updatePut, 1, 1, 'k', 0, bagVersion)},
		{"keys that do not ascend", "the second is the first again", to(2, updateDeleted, 1, 'k', updateHeight, 1, 1, 'k', bagVersion)},
		{"a seam of version 2", "only version 1 of bags is known", to(0, 2)},
		{"a seam of two trees", "a seam has one", seam(append(appendTree(nil, 1, leaf), appendTree(nil, 1, leaf)...)...)},
		{"a seam of too many items", "two ways have at most 512", seam(0x81, 4)},
		{"a seam that is cut", "its last item", good[:len(good)-1]},
	} {
		f.Lies = append(f.Lies, updateVector{Name: c.name, Update: c.b, Reason: c.reason})
	}
	return f
}

// TestUpdateVectors checks that testdata/updates.json is what this package makes, and replays it
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
	require.Equal(t, hex.EncodeToString(example.Update), exampleDigits(t, "../docs/spec/updates.md"))
}

// FuzzDecodeUpdate: what is decoded has one encoding and, replayed, leads to what it names or to an
// error. The seeds are the vectors.
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

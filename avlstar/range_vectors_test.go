package avlstar

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/spectest"
)

var update = flag.Bool("update", false, "write the vectors in testdata again")

// rangeFile is testdata/range.json; docs/spec/proofs.md explains its fields.
type rangeFile struct {
	Format string        `json:"format"`
	About  string        `json:"about"`
	States []rangeState  `json:"states"`
	Valid  []rangeVector `json:"valid"`
	Lies   []rangeVector `json:"invalid"`
}

type rangeState struct {
	Name    string      `json:"name"`
	B       uint64      `json:"B"`
	Entries []rangeLeaf `json:"entries"`
	AppHash hexBytes    `json:"app_hash"`
}

type rangeLeaf struct {
	Key   hexBytes `json:"key"`
	Value hexBytes `json:"value"`
}

type rangeVector struct {
	Name    string      `json:"name"`
	State   string      `json:"state"`
	Start   hexBytes    `json:"start"`
	End     hexBytes    `json:"end"`
	Limit   int         `json:"limit"`
	Entries []rangeLeaf `json:"entries"`
	Next    hexBytes    `json:"next"`
	Tree    hexBytes    `json:"tree"`
	Map     hexBytes    `json:"map"`
	Reason  string      `json:"reason,omitempty"`
}

func newRangeVector(name, state string, l *lie, reason string) rangeVector {
	r := rangeVector{Name: name, State: state, Start: l.start, End: l.end, Limit: l.limit, Next: l.next, Map: l.m, Reason: reason}
	r.Entries = []rangeLeaf{}
	for _, e := range l.entries {
		r.Entries = append(r.Entries, rangeLeaf{e.Key, e.Value})
	}
	if l.tree != nil {
		r.Tree = l.tree.encode()
	}
	return r
}

func (r rangeVector) entries() (entries []KV) {
	for _, e := range r.Entries {
		entries = append(entries, KV{e.Key, e.Value})
	}
	return entries
}

// rangeVectors makes the content of testdata/range.json.
func rangeVectors(t *testing.T) rangeFile {
	f := rangeFile{
		Format: "starling-range-1",
		About: "answers of range queries with their proofs: valid ones are what a server must send, byte for byte; " +
			"invalid ones must be refused. A state is one block of puts applied to the empty tree.",
	}
	versions := map[string]*Version{}
	for _, s := range []struct {
		name       string
		chunkBytes uint64
		leaves     int
	}{{"empty", 1 << 20, 0}, {"one leaf", 1 << 20, 1}, {"three leaves", 40, 3}, {"twenty leaves", 50, 20}} {
		v, err := Empty(s.chunkBytes)
		require.NoError(t, err)
		var changes []Change
		state := rangeState{Name: s.name, B: s.chunkBytes, Entries: []rangeLeaf{}}
		for i := range s.leaves {
			c := Change{Key: fmt.Appendf(nil, "k%02d", 2*i), Value: fmt.Appendf(nil, "value %d", i)}
			changes = append(changes, c)
			state.Entries = append(state.Entries, rangeLeaf{c.Key, c.Value})
		}
		v = mustApply(t, v, changes...)
		h := v.AppHash()
		state.AppHash = h[:]
		versions[s.name] = v
		f.States = append(f.States, state)
	}
	for _, q := range []struct {
		name, state, start, end string
		limit                   int
	}{
		{"nothing in the empty tree", "empty", "", "", 10},
		{"the one leaf", "one leaf", "", "", 10},
		{"below the one leaf", "one leaf", "a", "b", 10},
		{"above the one leaf", "one leaf", "x", "", 10},
		{"the middle of three", "three leaves", "k01", "k03", 10},
		{"from a start to the last of three", "three leaves", "k03", "", 10},
		{"a gap between three", "three leaves", "k01", "k02", 10},
		{"the first of three, cut by the limit", "three leaves", "", "", 1},
		{"the whole tree", "twenty leaves", "", "", math.MaxInt32},
		{"from the first key to an end", "twenty leaves", "", "k07", 10},
		{"from a start to the last key", "twenty leaves", "k33", "", 10},
		{"a range", "twenty leaves", "k05", "k15", 10},
		{"bounds that are keys", "twenty leaves", "k06", "k16", 10},
		{"a range cut by the limit", "twenty leaves", "k05", "k15", 3},
		{"a range with as many entries as the limit", "twenty leaves", "k05", "k15", 5},
		{"a gap", "twenty leaves", "k05", "k06", 10},
		{"above all", "twenty leaves", "x", "y", 10},
	} {
		f.Valid = append(f.Valid, newRangeVector(q.name, q.state, honestOrEmpty(t, versions[q.state], q.start, q.end, q.limit), ""))
	}

	v := versions["twenty leaves"]
	for _, c := range []struct {
		name, reason string
		limit        int
		change       func(l *lie)
	}{
		{"a result in a stub", "a stub stands between results", 10, func(l *lie) { l.hide("k10") }},
		{"no left neighbour", "stubs on the left, but no neighbour below start", 10, func(l *lie) { l.hide("k04") }},
		{"no right neighbour", "the item after the results is a stub", 10, func(l *lie) { l.hide("k16") }},
		{"a result as neighbour", "the neighbour after the results lies in the range", 10, func(l *lie) {
			l.tree.items[l.at("k14")].kind = neighbourKind
			l.entries = l.entries[:len(l.entries)-1]
		}},
		{"a next key further on", "the neighbour after the results is not the next key", 3, func(l *lie) { l.next = []byte("k14") }},
		{"more than the limit", "more entries than the limit", 10, func(l *lie) { l.limit = 4 }},
		{"a stub split", "two stubs are the halves of one: not the one encoding", 10, func(l *lie) { l.split(v, 0) }},
		{"value changed", "the items do not hash to the state's root", 10, func(l *lie) { l.entries[1].Value = []byte("lie") }},
		{"number of chunks", "not that of the app hash", 10, func(l *lie) { l.tree.chunks++ }},
	} {
		l := honest(t, v, "k05", "k15", c.limit)
		c.change(l)
		f.Lies = append(f.Lies, newRangeVector(c.name, "twenty leaves", l, c.reason))
	}
	one := honest(t, versions["one leaf"], "x", "", 10)
	one.tree.items[0].valueLen++
	f.Lies = append(f.Lies, newRangeVector("value length of the only leaf", "one leaf", one, "bytes of the root are not those of the app hash"))
	return f
}

func honestOrEmpty(t *testing.T, v *Version, start, end string, limit int) *lie {
	if v.Len() > 0 {
		return honest(t, v, start, end, limit)
	}
	return &lie{start: []byte(start), end: []byte(end), limit: limit, m: v.proveMap()}
}

// TestSpecExamples checks that this package makes exactly the worked examples of
// docs/spec/proofs.md.
func TestSpecExamples(t *testing.T) {
	hexes := spectest.Digits(t, "proofs.md")
	f := rangeVectors(t)
	v, err := Empty(40)
	require.NoError(t, err)
	for _, e := range f.States[2].Entries {
		v = mustApply(t, v, Change{Key: e.Key, Value: e.Value})
	}
	appHash := v.AppHash()
	require.Equal(t, f.States[2].AppHash, hexBytes(appHash[:]))
	key := []byte("k02")
	p, err := v.Prove(key)
	require.NoError(t, err)
	l := honest(t, v, "k03", "", 10)
	for what, b := range map[string][]byte{"state": p.State, "map": p.Map, "app hash": appHash[:], "tree": l.tree.encode()} {
		require.Contains(t, hexes, fmt.Sprintf("%x", b), what)
	}
}

// requireVectors checks that this package makes exactly the file, and returns its content. With
// -update, it writes the file.
func requireVectors[T any](t *testing.T, path string, vectors T) (read T) {
	t.Helper()
	made, err := json.MarshalIndent(vectors, "", " ")
	require.NoError(t, err)
	made = append(made, '\n')
	if *update {
		require.NoError(t, os.WriteFile(path, made, 0o644))
	}
	again := fmt.Sprintf("go test ./avlstar -run %s -update", t.Name())
	b, err := os.ReadFile(path)
	require.NoError(t, err, "make it with: %s", again)
	require.Equal(t, string(b), string(made), "after an intended change: %s", again)
	require.NoError(t, json.Unmarshal(b, &read))
	return read
}

// TestRangeVectors checks that this package makes exactly testdata/range.json, and verifies it from
// the file alone.
func TestRangeVectors(t *testing.T) {
	f := requireVectors(t, "testdata/range.json", rangeVectors(t))
	verify := func(r rangeVector) error {
		i := slices.IndexFunc(f.States, func(s rangeState) bool { return s.Name == r.State })
		return VerifyRange(Hash(f.States[i].AppHash), r.Start, r.End, r.Limit, r.entries(), r.Next, RangeProof{r.Tree, r.Map})
	}
	for _, r := range f.Valid {
		require.NoError(t, verify(r), r.Name)
	}
	for _, r := range f.Lies {
		require.ErrorIs(t, verify(r), ErrInvalidProof, r.Name)
	}
}

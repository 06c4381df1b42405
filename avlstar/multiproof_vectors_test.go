package avlstar

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/spectest"
)

// multiproofFile is testdata/multiproofs.json; docs/spec/multiproofs.md explains its fields.
type multiproofFile struct {
	Format string             `json:"format"`
	About  string             `json:"about"`
	B      uint64             `json:"B"`
	Leaves []rangeLeaf        `json:"entries"`
	Valid  []multiproofVector `json:"valid"`
	Lies   []multiproofVector `json:"invalid"`
}

type multiproofVector struct {
	Name       string           `json:"name"`
	Wants      []multiproofWant `json:"wants,omitempty"`
	Depth      int              `json:"depth"`
	Upper      bool             `json:"upper,omitempty"`
	Multiproof hexBytes         `json:"multiproof"`
	Roots      []hexBytes       `json:"roots,omitempty"`
	Reason     string           `json:"reason,omitempty"`
}

type multiproofWant struct {
	Key     hexBytes  `json:"key"`
	Range   bool      `json:"range,omitempty"`
	After   *hexBytes `json:"after,omitempty"`
	Next    bool      `json:"next,omitempty"`
	Deleted bool      `json:"deleted,omitempty"`
}

func (w multiproofWant) want() Want {
	want := Want{Key: w.Key, Range: w.Range, Next: w.Next, Deleted: w.Deleted}
	if w.After != nil {
		want.After = *w.After
	}
	return want
}

// multiproofVectors makes the content of testdata/multiproofs.json.
func multiproofVectors(t *testing.T) multiproofFile {
	f := multiproofFile{
		Format: "starling-multiproof-1",
		About: "multiproofs of one state, which is one block of puts applied to the empty tree: valid ones are what a node must send for " +
			"these wants to a receiver that has so many inner nodes of each way, byte for byte; invalid ones must be refused.",
		B: 50, Leaves: []rangeLeaf{},
	}
	v := mustEmpty(t, f.B)
	var changes []Change
	for i := range 20 {
		c := Change{Key: fmt.Appendf(nil, "k%02d", 2*i), Value: fmt.Appendf(nil, "value %d", i)}
		changes = append(changes, c)
		f.Leaves = append(f.Leaves, rangeLeaf{c.Key, c.Value})
	}
	v = mustApply(t, v, changes...)
	after := hexBytes("k09")
	for _, c := range []struct {
		name  string
		depth int
		wants []multiproofWant
	}{
		{"nothing", 0, nil},
		{"a key from the root", 0, []multiproofWant{{Key: hexBytes("k06")}}},
		{"a key below depth 2", 2, []multiproofWant{{Key: hexBytes("k06")}}},
		{"an absent key", 2, []multiproofWant{{Key: hexBytes("k07")}}},
		{"keys in two trees, one twice", 2, []multiproofWant{{Key: hexBytes("k30")}, {Key: hexBytes("k06")}, {Key: hexBytes("k30")}}},
		{"a key to be deleted", 1, []multiproofWant{{Key: hexBytes("k36"), Deleted: true}}},
		{"a range", 2, []multiproofWant{{Key: hexBytes("k05"), Range: true, After: &after}}},
		{"the key after one", 2, []multiproofWant{{Key: hexBytes("k06"), Next: true}}},
		{"the key after the last", 2, []multiproofWant{{Key: hexBytes("k38"), Next: true}}},
		{"deeper than the tree", 9, []multiproofWant{{Key: hexBytes("k06")}}},
	} {
		var wants []Want
		for _, w := range c.wants {
			wants = append(wants, w.want())
		}
		b, err := v.Multiproof(wants, Below{Depth: c.depth})
		f.Valid = append(f.Valid, newMultiproofVector(t, multiproofVector{Name: c.name, Wants: c.wants, Depth: c.depth}, b, err))
	}
	for _, depth := range []int{1, 3} {
		b, err := v.Upper(depth)
		f.Valid = append(f.Valid, newMultiproofVector(t, multiproofVector{Name: fmt.Sprint("the upper tree to depth ", depth), Depth: depth, Upper: true}, b, err))
	}
	good := f.Valid[2].Multiproof
	leaf := Leaf{Key: []byte("k"), Value: []byte("v")}
	stub := Stub{Stat{Height: 1, Bytes: 26}, Hash{1}}
	tree := func(items int, b ...byte) []byte { return append([]byte{multiproofVersion, byte(items)}, b...) }
	for _, c := range []struct {
		name, reason string
		b            []byte
	}{
		{"empty", "no version", nil},
		{"version 2", "only version 1 is known", append([]byte{2}, good[1:]...)},
		{"an end too early", "the last item is cut", good[:len(good)-1]},
		{"bytes left over", "half a tree", append(good[:len(good):len(good)], 1)},
		{"a tree without items", "it has 1 or more", tree(0)},
		{"more items than bytes", "there is no room for so many", tree(100, appendLeafItem(nil, leaf)...)},
		{"one stub", "it opens nothing", tree(1, appendStubItem(nil, 0, nil, stub)...)},
		{"a boundary before the first leaf", "nothing commits to it", tree(1, appendLeafItem(nil, Leaf{Key: leaf.Key, Value: leaf.Value, Height: 1})...)},
		{"a key before the first stub", "nothing commits to it", tree(2, appendLeafItem(appendStubItem(nil, 0, []byte("a"), stub), leaf)...)},
		{"no balance", "children whose heights differ by 2 or more", tree(2, appendStubItem(appendLeafItem(nil, leaf), 4, []byte("l"), Stub{Stat{3, 99}, Hash{1}})...)},
		{"keys that do not ascend", "the second is the first again", tree(2, appendLeafItem(appendLeafItem(nil, leaf), Leaf{Key: leaf.Key, Value: leaf.Value, Height: 1})...)},
		{"unknown kind", "kinds are 0 and 1", tree(1, append([]byte{2}, appendLeafItem(nil, leaf)[1:]...)...)},
	} {
		f.Lies = append(f.Lies, multiproofVector{Name: c.name, Multiproof: c.b, Reason: c.reason})
	}
	return f
}

func newMultiproofVector(t *testing.T, vector multiproofVector, b []byte, err error) multiproofVector {
	vector.Multiproof = b
	for _, root := range mustDecodeMultiproof(t, b, err).Roots() {
		vector.Roots = append(vector.Roots, root.Hash[:])
	}
	return vector
}

// TestMultiproofVectors checks that this package makes exactly testdata/multiproofs.json, and
// decodes it from the file alone.
func TestMultiproofVectors(t *testing.T) {
	f := requireVectors(t, "testdata/multiproofs.json", multiproofVectors(t))
	for _, c := range f.Valid {
		multiproof, err := DecodeMultiproof(c.Multiproof)
		require.NoError(t, err, c.Name)
		require.Equal(t, []byte(c.Multiproof), multiproof.encode(), c.Name)
		require.Len(t, multiproof.Roots(), len(c.Roots), c.Name)
		for i, root := range multiproof.Roots() {
			require.Equal(t, []byte(c.Roots[i]), root.Hash[:], c.Name)
		}
	}
	for _, c := range f.Lies {
		_, err := DecodeMultiproof(c.Multiproof)
		require.ErrorIs(t, err, ErrInvalidMultiproof, c.Name)
	}
}

// TestMultiproofSpecExample checks that the worked example of docs/spec/multiproofs.md is a vector.
func TestMultiproofSpecExample(t *testing.T) {
	spectest.Require(t, "multiproofs.md", multiproofVectors(t).Valid[2].Multiproof)
}

// encode returns the bytes that the multiproof was decoded from.
func (b *Multiproof) encode() []byte {
	out := []byte{multiproofVersion}
	for _, t := range b.trees {
		var items []byte
		for k := t.from; k < t.to; k++ {
			it := b.item(int(k))
			if it.value != nil {
				items = appendLeafItem(items, Leaf{Key: it.key, Value: it.value, Height: it.boundary})
			} else {
				items = appendStubItem(items, it.boundary, it.key, it.stub)
			}
		}
		out = appendTree(out, int(t.to-t.from), items)
	}
	return out
}

// FuzzDecodeMultiproof: a decoded multiproof has one encoding, and other input neither panics nor
// is kept. The seeds are the vectors.
func FuzzDecodeMultiproof(f *testing.F) {
	b, err := os.ReadFile("testdata/multiproofs.json")
	require.NoError(f, err)
	var file multiproofFile
	require.NoError(f, json.Unmarshal(b, &file))
	for _, c := range append(file.Valid, file.Lies...) {
		f.Add([]byte(c.Multiproof))
	}
	var state []Change
	for _, l := range file.Leaves {
		state = append(state, Change{l.Key, l.Value})
	}
	v := mustApply(f, mustEmpty(f, file.B), state...)
	f.Fuzz(func(t *testing.T, b []byte) {
		multiproof, err := DecodeMultiproof(b)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidMultiproof)
			return
		}
		require.Equal(t, b, multiproof.encode())
		r := multiproofReceiver{}
		r.start(t, v)
		r.graft(t, multiproof)
		for _, c := range state {
			if value, ok, err := r.p.Get(c.Key); err == nil {
				require.True(t, ok)
				require.Equal(t, c.Value, value)
			}
		}
		r.p.Release()
	})
}

package avlstar

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The families of false proofs are those of go-ethereum's TestBadRangeProof and
// TestGappedRangeProof, for this encoding.

// lie is a correct response and its proof in parts, which a test falsifies. Unless the test changes
// hashes, the items still match those of the tree, so that only the named check can refuse them.
type lie struct {
	start, end, next []byte
	limit            int
	entries          []KV
	tree             *rangeTree
	m                []byte
}

func (l *lie) verify(appHash Hash) error {
	return VerifyRange(appHash, l.start, l.end, l.limit, l.entries, l.next, RangeProof{l.tree.encode(), l.m})
}

func honest(t testing.TB, v *Version, start, end string, limit int) *lie {
	t.Helper()
	l := &lie{start: []byte(start), end: []byte(end), limit: limit}
	entries, next, p, err := v.ProveRange(l.start, l.end, limit)
	require.NoError(t, err)
	l.entries, l.next, l.m = entries, next, p.Map
	l.tree, err = decodeRangeTree(p.Tree, keysOf(entries))
	require.NoError(t, err)
	require.NoError(t, l.verify(v.AppHash()))
	return l
}

// at returns the index of the item that is the leaf of key.
func (l *lie) at(key string) int {
	return slices.IndexFunc(l.tree.items, func(it rangeItem) bool { return string(it.key) == key })
}

// hide makes a stub of the leaf of key and drops its entry.
func (l *lie) hide(key string) {
	it := &l.tree.items[l.at(key)]
	it.kind = stubKind
	l.entries = slices.DeleteFunc(l.entries, func(e KV) bool { return string(e.Key) == key })
}

// split replaces item i by the stubs of its children.
func (l *lie) split(v *Version, i int) {
	it := l.tree.items[i]
	n := findNode(v, sub{v.top, v.root}, it.stub.Hash)
	l1 := rangeItem{kind: stubKind, boundary: it.boundary, keyHash: it.keyHash, stub: v.child(n.n, left).Stub}
	l2 := rangeItem{kind: stubKind, boundary: n.Height, keyHash: sha256.Sum256(v.keyOf(n.n)), stub: v.child(n.n, right).Stub}
	l.tree.items = slices.Replace(l.tree.items, i, i+1, l1, l2)
}

func findNode(v *Version, s sub, h Hash) *sub {
	if s.Hash == h {
		return &s
	}
	if s.n.isInner() {
		for side := range 2 {
			if found := findNode(v, v.child(s.n, side), h); found != nil {
				return found
			}
		}
	}
	return nil
}

func TestHostileRangeProofs(t *testing.T) {
	v := stateOf(t, 50, 20) // k00 to k38
	older := stateOf(t, 50, 19)
	lastStub := func(l *lie) *rangeItem { return &l.tree.items[len(l.tree.items)-1] }
	for _, c := range []struct {
		name, reason string
		limit        int
		change       func(l *lie)
	}{
		// The response.
		{"key changed", "do not hash", 9, func(l *lie) { l.entries[1].Key = []byte("k081") }},
		{"value changed", "do not hash", 9, func(l *lie) { l.entries[1].Value = []byte("value 5") }},
		{"value emptied", "value of 0 bytes", 9, func(l *lie) { l.entries[1].Value = nil }},
		{"key emptied", "key of 0 bytes", 9, func(l *lie) { l.entries[0].Key = nil }},
		{"value too long", "value of", 9, func(l *lie) { l.entries[1].Value = make([]byte, MaxValueBytes+1) }},
		{"two entries swapped", "out of order", 9, func(l *lie) { l.entries[0], l.entries[1] = l.entries[1], l.entries[0] }},
		{"an entry twice", "out of order", 9, func(l *lie) { l.entries = slices.Insert(l.entries, 1, l.entries[1]) }},
		{"an entry invented", "not in the tree", 9, func(l *lie) {
			l.entries = slices.Insert(l.entries, 1, KV{[]byte("k07"), []byte("v")})
		}},
		{"an entry too few", "without an entry", 9, func(l *lie) { l.entries = slices.Delete(l.entries, 1, 2) }},
		{"an entry below start", "below start", 9, func(l *lie) {
			l.tree.items[l.at("k04")].kind = resultKind
			l.entries = slices.Insert(l.entries, 0, KV{[]byte("k04"), []byte("value 2")})
		}},
		{"an entry at the end", "not below end", 9, func(l *lie) {
			l.tree.items[l.at("k16")].kind = resultKind
			l.entries = append(l.entries, KV{[]byte("k16"), []byte("value 8")})
		}},
		{"more than the limit", "more than the limit", 9, func(l *lie) { l.limit = 4 }},
		// Completeness.
		{"a result in a stub", "out of place", 9, func(l *lie) { l.hide("k10") }},
		{"the first result in a stub", "out of place", 9, func(l *lie) { l.hide("k06") }},
		{"the last result in a stub", "out of place", 9, func(l *lie) { l.hide("k14") }},
		{"the left neighbour in a stub", "no neighbour below", 9, func(l *lie) { l.hide("k04") }},
		{"the right neighbour in a stub", "out of place", 9, func(l *lie) { l.hide("k16") }},
		{"everything in one stub", "no neighbour below", 9, func(l *lie) {
			l.entries = nil
			l.tree.items = []rangeItem{{kind: stubKind, stub: v.Root()}}
		}},
		{"the first result as neighbour", "lies in the range", 9, func(l *lie) {
			l.tree.items[l.at("k06")].kind = neighbourKind
			l.entries = l.entries[1:]
		}},
		{"the last result as neighbour", "lies in the range", 9, func(l *lie) {
			l.tree.items[l.at("k14")].kind = neighbourKind
			l.entries = l.entries[:len(l.entries)-1]
		}},
		{"a result in the middle as neighbour", "lies in the range", 9, func(l *lie) {
			l.tree.items[l.at("k10")].kind = neighbourKind
			l.entries = slices.Delete(l.entries, 2, 3)
		}},
		{"a neighbour beyond a hidden result", "out of place", 9, func(l *lie) {
			l.hide("k14")
			l.hide("k16")
			l.tree.items = slices.DeleteFunc(l.tree.items, func(it rangeItem) bool { return string(it.key) == "k16" })
		}},
		// The next key.
		{"a next key that is no leaf", "not the next key", 3, func(l *lie) { l.next = []byte("k11") }},
		{"a next key further on", "not the next key", 3, func(l *lie) { l.next = []byte("k14") }},
		{"a next key beyond the end", "not below end", 3, func(l *lie) { l.next = []byte("k16") }},
		{"a next key among the entries", "not above the last", 3, func(l *lie) { l.next = []byte("k08") }},
		{"no next key", "lies in the range", 3, func(l *lie) { l.next = nil }},
		{"a next key where the range is exhausted", "not the next key", 9, func(l *lie) { l.next = []byte("k141") }},
		{"a next key without entries", "would not advance", 3, func(l *lie) { l.entries = nil }},
		// Stubs.
		{"height", "inner node", 9, func(l *lie) { lastStub(l).stub.Height++ }},
		{"bytes", "do not hash", 9, func(l *lie) { lastStub(l).stub.Bytes++ }},
		{"bytes that overflow", "overflow", 9, func(l *lie) { lastStub(l).stub.Bytes = math.MaxUint64 }},
		{"bytes of no leaf", "bytes of a stub", 9, func(l *lie) { lastStub(l).stub.Bytes = 1 }},
		{"hash", "do not hash", 9, func(l *lie) { lastStub(l).stub.Hash[0]++ }},
		{"hash of a boundary key", "do not hash", 9, func(l *lie) { lastStub(l).keyHash[0]++ }},
		{"height of a boundary", "inner node", 9, func(l *lie) { l.tree.items[3].boundary++ }},
		{"a boundary of height 0", "inner node", 9, func(l *lie) { l.tree.items[3].boundary = 0 }},
		{"a stub split", "halves of one stub", 9, func(l *lie) { l.split(v, 0) }},
		{"the last stub split", "halves of one stub", 9, func(l *lie) { l.split(v, len(l.tree.items)-1) }},
		{"a stub left out", "inner node", 9, func(l *lie) { l.tree.items = l.tree.items[:len(l.tree.items)-1] }},
		{"a stub twice", "inner node", 9, func(l *lie) { l.tree.items = append(l.tree.items, *lastStub(l)) }},
		{"more stubs than heights", "more than 510", 9, func(l *lie) {
			for range 520 {
				l.tree.items = append(l.tree.items, *lastStub(l))
			}
		}},
		// Everything else.
		{"chunk limit", "those of the app hash", 9, func(l *lie) { l.tree.chunkBytes++ }},
		{"chunk limit 0", "chunk limit", 9, func(l *lie) { l.tree.chunkBytes = 0 }},
		{"number of chunks", "those of the app hash", 9, func(l *lie) { l.tree.chunks++ }},
		{"value length of a neighbour", "do not hash", 9, func(l *lie) { l.tree.items[l.at("k04")].valueLen += 200 }},
		{"key of a neighbour", "do not hash", 9, func(l *lie) { l.tree.items[l.at("k04")].key = []byte("k03") }},
		{"kind unknown", "unknown kind", 9, func(l *lie) { lastStub(l).kind = 3 }},
		{"no items", "without items", 9, func(l *lie) { l.tree.items, l.entries = nil, nil }},
		{"map of an older state", "app hash", 9, func(l *lie) { l.m = older.proveMap() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := honest(t, v, "k05", "k15", c.limit)
			c.change(l)
			err := l.verify(v.AppHash())
			require.ErrorIs(t, err, ErrInvalidProof)
			require.ErrorContains(t, err, c.reason)
		})
	}
	l := honest(t, v, "k05", "k15", 9)
	require.ErrorIs(t, l.verify(older.AppHash()), ErrInvalidProof)
	for what, change := range map[string]func(*lie){
		"earlier start": func(l *lie) { l.start = []byte("k03") },
		"later start":   func(l *lie) { l.start = []byte("k07") },
		"open start":    func(l *lie) { l.start = nil },
		"later end":     func(l *lie) { l.end = []byte("k17") },
		"open end":      func(l *lie) { l.end = nil },
		"earlier end":   func(l *lie) { l.end = []byte("k13") },
	} {
		l := honest(t, v, "k05", "k15", 9)
		change(l)
		require.ErrorIs(t, l.verify(v.AppHash()), ErrInvalidProof, what)
	}
}

// In a tree of one leaf, only the other leaf of the map commits to the length of a neighbour's
// value.
func TestHostileRangeOfOneLeaf(t *testing.T) {
	v := stateOf(t, 50, 1)
	l := honest(t, v, "x", "", 9)
	l.tree.items[0].valueLen++
	require.ErrorContains(t, l.verify(v.AppHash()), "those of the app hash")
}

// TestEveryTrueTree gives the verifier, for small trees, every tree of items whose hashes are
// correct: each subtree as a stub or opened, each leaf as neighbour or result, for every query and
// every next key. It must accept only the proof of the correct response.
func TestEveryTrueTree(t *testing.T) {
	for n := 1; n <= 4; n++ {
		v := stateOf(t, 20, n)
		var kvs []KV
		for key, value := range mustAscend(t, v, nil, nil) {
			kvs = append(kvs, KV{key, value})
		}
		bounds := [][]byte{nil}
		for i := range 2 * n {
			bounds = append(bounds, fmt.Appendf(nil, "k%02d", i))
		}
		// Every key, every gap, beyond all keys, none.
		nexts := append(slices.Clone(bounds), []byte("k99"))
		c, m := v.Commitment(), v.proveMap()
		accepted := 0
		for _, items := range trueTrees(v, sub{v.top, v.root}, 0, nil) {
			tree := rangeTree{chunkBytes: c.ChunkBytes, chunks: c.Chunks, items: items}
			p := RangeProof{tree.encode(), m}
			var entries []KV
			for _, it := range items {
				if it.kind == resultKind {
					value, _ := mustGet(t, v, it.key)
					entries = append(entries, KV{it.key, value})
				}
			}
			for _, start := range bounds {
				for _, end := range bounds {
					for _, next := range nexts {
						limit := n + 1
						if next != nil {
							limit = len(entries)
						}
						if VerifyRange(v.AppHash(), start, end, n+1, entries, next, p) != nil {
							continue
						}
						accepted++
						want, wantNext, honest, err := v.ProveRange(start, end, limit)
						require.NoError(t, err)
						require.Equal(t, want, entries)
						require.Equal(t, wantNext, next)
						require.Equal(t, honest, p)
					}
				}
			}
		}
		questions := 0 // queries, each with a response for every limit that makes a difference
		for _, start := range bounds {
			for _, end := range bounds {
				if end == nil || bytes.Compare(start, end) < 0 {
					all, _ := naiveRange(kvs, start, end, n)
					questions += max(1, len(all))
				}
			}
		}
		require.Equal(t, questions, accepted)
	}
}

// trueTrees returns every list of items for the subtree s that has its hash.
func trueTrees(v *Version, s sub, boundary uint8, first []byte) [][]rangeItem {
	lists := [][]rangeItem{{{kind: stubKind, boundary: boundary, keyHash: sha256.Sum256(first), stub: s.Stub}}}
	if s.n.isLeaf() {
		key, value := v.leaf(s.n)
		for _, kind := range []byte{neighbourKind, resultKind} {
			lists = append(lists, []rangeItem{newRangeLeaf(kind, boundary, key, len(value), sha256.Sum256(value))})
		}
		return lists
	}
	for _, l := range trueTrees(v, v.child(s.n, left), boundary, first) {
		for _, r := range trueTrees(v, v.child(s.n, right), s.Height, v.keyOf(s.n)) {
			lists = append(lists, slices.Concat(l, r))
		}
	}
	return lists
}

func FuzzVerifyRange(f *testing.F) {
	v := stateOf(f, 50, 9)
	for _, q := range []struct {
		start, end string
		limit      int
	}{{"", "", 99}, {"k03", "k08", 9}, {"k03", "", 2}, {"", "k05", 1}, {"k05", "k06", 1}, {"x", "", 1}} {
		l := honest(f, v, q.start, q.end, q.limit)
		f.Add(l.start, l.end, q.limit, len(l.entries), l.next, l.tree.encode(), l.m)
	}
	f.Add([]byte{}, []byte{}, 1, 0, []byte{}, []byte{1, 50, 1, 0, 0, 5}, []byte{})
	f.Fuzz(func(t *testing.T, start, end []byte, limit, n int, next, tree, m []byte) {
		// The entries are correct, because a fuzzer cannot guess hashes. It chooses their number,
		// the proof and the query.
		entries, _ := naiveRange(slices.Collect(ascending(t, v)), start, end, min(max(n, 0), 99))
		if t, err := decodeRangeTree(tree, keysOf(entries)); err == nil && !bytes.Equal(t.encode(), tree) {
			panic("a second encoding")
		}
		if VerifyRange(v.AppHash(), start, end, limit, entries, next, RangeProof{tree, m}) != nil {
			return
		}
		if len(next) != 0 {
			limit = len(entries)
		}
		want, wantNext, p, err := v.ProveRange(start, end, limit)
		require.NoError(t, err)
		require.Equal(t, want, entries)
		require.True(t, bytes.Equal(wantNext, next))
		require.Equal(t, p, RangeProof{tree, m}, "a second proof of the same")
	})
}

// ascending yields the entries of v.
func ascending(t *testing.T, v *Version) iter.Seq[KV] {
	return func(yield func(KV) bool) {
		for key, value := range mustAscend(t, v, nil, nil) {
			if !yield(KV{key, value}) {
				return
			}
		}
	}
}

package dsm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
)

// TestScripts runs the files in testdata/scripts. A key is a word; "-" is an open end; a suffix
// "+0" appends a zero byte:
//
//	ranges            one per line: FIRST AFTER NODE...; prints them, or the error
//	route             one want per line: [delete] (KEY | next KEY | range KEY AFTER); prints the parts
//	find FIRST AFTER  prints the number of the range with these keys
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var ranges *Ranges
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			switch d.Cmd {
			case "ranges":
				r, err := NewRanges(scriptShards(d.Input))
				if err != nil {
					require.ErrorIs(t, err, ErrRanges)
					return err.Error() + "\n"
				}
				ranges = r
				for i := range r.Len() {
					fmt.Fprintf(&out, "%d: %v %v\n", i, r.Shard(i).Range, r.Shard(i).Replicas)
				}
				for _, n := range r.Nodes() {
					fmt.Fprintf(&out, "%s: %v\n", n, r.Of(n))
				}
			case "route":
				parts, err := ranges.Route(scriptWants(t, d.Input))
				if err != nil {
					return err.Error() + "\n"
				}
				for _, p := range parts {
					fmt.Fprintf(&out, "%d %v:", p.Shard, ranges.Shard(p.Shard).Range)
					for _, w := range p.Wants {
						fmt.Fprintf(&out, " %s,", describe(w))
					}
					out.WriteString("\n")
				}
			case "find":
				i, ok := ranges.Find(avlstar.KeyRange{First: scriptKey(d.CmdArgs[0].Key), After: scriptKey(d.CmdArgs[1].Key)})
				fmt.Fprintln(&out, i, ok)
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return out.String()
		})
	})
}

func scriptKey(word string) []byte {
	if word == "-" {
		return nil
	}
	if base, is := strings.CutSuffix(word, "+0"); is {
		return append([]byte(base), 0)
	}
	return []byte(word)
}

func scriptShards(input string) (shards []Placement) {
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		s := Placement{Range: avlstar.KeyRange{First: scriptKey(f[0]), After: scriptKey(f[1])}}
		for _, n := range f[2:] {
			s.Replicas = append(s.Replicas, NodeID(n))
		}
		shards = append(shards, s)
	}
	return shards
}

func scriptWants(t *testing.T, input string) (wants []avlstar.Want) {
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		var w avlstar.Want
		if f[0] == "delete" {
			w.Deleted, f = true, f[1:]
		}
		switch f[0] {
		case "next":
			w.Next, w.Key = true, scriptKey(f[1])
		case "range":
			w.Range, w.Key, w.After = true, scriptKey(f[1]), scriptKey(f[2])
		default:
			require.Len(t, f, 1, line)
			w.Key = scriptKey(f[0])
		}
		wants = append(wants, w)
	}
	return wants
}

func describe(w avlstar.Want) string {
	s := fmt.Sprintf("%q", w.Key)
	switch {
	case w.Next:
		s = "next " + s
	case w.Range:
		s = avlstar.KeyRange{First: w.Key, After: w.After}.String()
	}
	if w.Deleted {
		s = "delete " + s
	}
	return s
}

// TestRouteRandom compares Route with a check of each single key: a range is asked for a key
// exactly if it contains the key and some want covers it.
func TestRouteRandom(t *testing.T) {
	rng := seeds.Rand(t)
	for range 300 {
		ranges := randomRanges(t, rng)
		var wants []avlstar.Want
		for range rng.IntN(30) {
			wants = append(wants, randomWant(rng))
		}
		parts, err := ranges.Route(wants)
		require.NoError(t, err)
		require.True(t, slices.IsSortedFunc(parts, func(a, b Part) int { return a.Shard - b.Shard }))
		for key := range universe {
			owner := ranges.Index(key)
			require.True(t, ranges.Shard(owner).Range.Contains(key))
			for _, deleted := range []bool{false, true} {
				require.Equal(t, wanted(wants, key, deleted), wantedOf(parts, owner, key, deleted), "key %q, deleted %t", key, deleted)
				for i := range ranges.Len() {
					if i != owner {
						require.False(t, wantedOf(parts, i, key, deleted), "key %q of range %d", key, i)
					}
				}
			}
		}
		require.Equal(t, nexts(wants), nextsOf(t, ranges, parts))
		for _, p := range parts {
			require.Equal(t, p.Wants, Normal(p.Wants))
			requireSplit(t, p.Wants, 1+rng.IntN(8))
		}
	}
}

func requireSplit(t *testing.T, wants []avlstar.Want, most int) {
	var joined []avlstar.Want
	for _, run := range Split(wants, most, MaxHeld) {
		require.NotEmpty(t, run)
		require.LessOrEqual(t, len(run), most)
		joined = append(joined, run...)
	}
	require.Equal(t, wants, joined)
}

// A want that does not fit into a request becomes a run of its own, which does not encode.
func TestSplitWithoutRoom(t *testing.T) {
	wants := []avlstar.Want{{Key: []byte("a")}, {Key: []byte("b")}}
	require.Equal(t, [][]avlstar.Want{wants[:1:1], wants[1:]}, Split(wants, 10, MaxBodyBytes))
}

// universe yields keys of up to two letters of a … d.
func universe(yield func([]byte) bool) {
	for a := 'a'; a <= 'd'; a++ {
		if !yield([]byte{byte(a)}) {
			return
		}
		for b := 'a'; b <= 'd'; b++ {
			if !yield([]byte{byte(a), byte(b)}) {
				return
			}
		}
	}
}

func randomKey(rng *rand.Rand) []byte {
	all := slices.Collect(universe)
	return all[rng.IntN(len(all))]
}

func randomRanges(t *testing.T, rng *rand.Rand) *Ranges {
	var edges [][]byte
	for range rng.IntN(6) {
		edges = append(edges, randomKey(rng))
	}
	slices.SortFunc(edges, bytes.Compare)
	edges = slices.CompactFunc(edges, bytes.Equal)
	var shards []Placement
	for i := range len(edges) + 1 {
		s := Placement{Replicas: []NodeID{"a", "b"}}
		if i > 0 {
			s.Range.First = edges[i-1]
		}
		if i < len(edges) {
			s.Range.After = edges[i]
		}
		shards = append(shards, s)
	}
	rng.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
	r, err := NewRanges(shards)
	require.NoError(t, err)
	return r
}

func randomWant(rng *rand.Rand) avlstar.Want {
	w := avlstar.Want{Key: randomKey(rng), Deleted: rng.IntN(4) == 0}
	switch rng.IntN(3) {
	case 0:
		w.Next = true
	case 1:
		w.Range = true
		if after := randomKey(rng); bytes.Compare(after, w.Key) > 0 {
			w.After = after
		}
	}
	return w
}

func wanted(wants []avlstar.Want, key []byte, deleted bool) bool {
	return slices.ContainsFunc(wants, func(w avlstar.Want) bool {
		return w.Deleted == deleted && (w.Range && avlstar.KeyRange{First: w.Key, After: w.After}.Contains(key) || !w.Range && !w.Next && bytes.Equal(w.Key, key))
	})
}

func wantedOf(parts []Part, shard int, key []byte, deleted bool) bool {
	return slices.ContainsFunc(parts, func(p Part) bool { return p.Shard == shard && wanted(p.Wants, key, deleted) })
}

func nexts(wants []avlstar.Want) (keys []string) {
	for _, w := range Normal(wants) {
		if w.Next {
			keys = append(keys, describe(w))
		}
	}
	slices.Sort(keys)
	return keys
}

func nextsOf(t *testing.T, ranges *Ranges, parts []Part) (keys []string) {
	for _, p := range parts {
		for _, w := range p.Wants {
			if w.Next {
				require.Equal(t, p.Shard, ranges.Index(append(bytes.Clone(w.Key), 0)))
				keys = append(keys, describe(w))
			}
		}
	}
	slices.Sort(keys)
	return keys
}

func TestRangesLimits(t *testing.T) {
	long := bytes.Repeat([]byte{'a'}, avlstar.MaxKeyBytes+1)
	_, err := NewRanges([]Placement{{Range: avlstar.KeyRange{After: long}, Replicas: []NodeID{"a"}}, {Range: avlstar.KeyRange{First: long}, Replicas: []NodeID{"a"}}})
	require.ErrorIs(t, err, ErrRanges)
	_, err = NewRanges(make([]Placement, MaxShards+1))
	require.ErrorIs(t, err, ErrRanges)
	var replicas []NodeID
	for i := range MaxReplicas + 1 {
		replicas = append(replicas, NodeID(fmt.Sprint(i)))
	}
	_, err = NewRanges([]Placement{{Replicas: replicas}})
	require.ErrorIs(t, err, ErrRanges)
	shards := []Placement{{Range: avlstar.KeyRange{First: []byte{}, After: []byte("m")}, Replicas: []NodeID{"a"}}, {Range: avlstar.KeyRange{First: []byte("m"), After: []byte{}}, Replicas: []NodeID{"b"}}}
	r, err := NewRanges(shards)
	require.NoError(t, err)
	shards[0].Range.After[0], shards[0].Replicas[0] = 'z', "z"
	require.Equal(t, Placement{avlstar.KeyRange{First: nil, After: []byte("m")}, []NodeID{"a"}}, r.Shard(0), "it is a copy, and open ends are nil")
	require.Nil(t, r.Shard(1).Range.After)
	var gaps *UncoveredError
	_, err = NewRanges(shards[1:])
	require.True(t, errors.As(err, &gaps))
	require.Equal(t, []avlstar.KeyRange{{After: []byte("m")}}, gaps.Gaps)
}

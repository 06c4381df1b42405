package app

import (
	"bytes"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/starling-kv/starling/avlstar"
)

// shortKeys are keys over a small alphabet, so that prefixes, neighbours and collisions are
// frequent.
var shortKeys = rapid.Custom(func(t *rapid.T) string {
	return string(rapid.SliceOfN(rapid.SampledFrom([]byte{0x01, 'a', 'b', 0xff}), 1, 5).Draw(t, "key"))
})

func newBase(t require.TestingT, state map[string]string) *avlstar.Version {
	empty, err := avlstar.Empty(100)
	require.NoError(t, err)
	var changes []avlstar.Change
	for _, k := range slices.Sorted(maps.Keys(state)) {
		changes = append(changes, avlstar.Change{Key: []byte(k), Value: []byte(state[k])})
	}
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	return v
}

// The overlay behaves like a map: get, floor, undo, usage under a prefix, and the final changes.
func TestOverlayIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringN(1, 20, 40)
		base := rapid.MapOfN(shortKeys, value, 0, 20).Draw(t, "base")
		o := newOverlay(newBase(t, base))
		model, kept := maps.Clone(base), maps.Clone(base)
		mark := 0
		get := func(m map[string]string, k string) []byte {
			if v, ok := m[k]; ok {
				return []byte(v)
			}
			return nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				k, v := shortKeys.Draw(t, "key"), value.Draw(t, "value")
				require.Equal(t, get(model, k), must(o.set([]byte(k), []byte(v))).value)
				model[k] = v
			},
			"delete": func(t *rapid.T) {
				k := shortKeys.Draw(t, "key")
				require.Equal(t, get(model, k), must(o.set([]byte(k), nil)).value)
				delete(model, k)
			},
			"undo": func(*rapid.T) {
				o.undo(mark)
				model = maps.Clone(kept)
			},
			"keep": func(*rapid.T) {
				o.keep(0)
				mark, kept = o.mark(), maps.Clone(model)
			},
			"get": func(t *rapid.T) {
				k := shortKeys.Draw(t, "key")
				require.Equal(t, get(model, k), must(o.get([]byte(k))))
			},
			"nearest": func(t *rapid.T) {
				k, below := shortKeys.Draw(t, "key"), rapid.Bool().Draw(t, "below")
				var want []byte
				for have := range model {
					if (have < k || have == k && !below) && (want == nil || have > string(want)) {
						want = []byte(have)
					}
				}
				got, v, err := o.nearest([]byte(k), below)
				require.NoError(t, err)
				require.Equal(t, want, got)
				require.Equal(t, get(model, string(want)), v)
			},
			"usage": func(t *rapid.T) {
				prefix := rapid.OneOf(shortKeys, rapid.Just("")).Draw(t, "prefix")
				var want uint64
				for k, v := range model {
					if strings.HasPrefix(k, prefix) {
						want += avlstar.RecordBytes(len(k), len(v))
					}
				}
				require.Equal(t, want, must(o.usage([]byte(prefix))))
			},
			"": func(t *rapid.T) {
				var want []avlstar.Change
				keys := maps.Clone(base)
				maps.Copy(keys, model)
				for _, k := range slices.Sorted(maps.Keys(keys)) {
					if before, after := get(base, k), get(model, k); !bytes.Equal(before, after) {
						want = append(want, avlstar.Change{Key: []byte(k), Value: after})
					}
				}
				require.Equal(t, want, o.changes())
			},
		})
	})
}

// Overwritten values are not copied: otherwise a block that deletes many large values would need
// twice their memory.
func TestOverlayCopiesNoLargeValues(t *testing.T) {
	state := map[string]string{}
	for i := range 16 {
		state[string(rune('a'+i))] = strings.Repeat("v", avlstar.MaxValueBytes)
	}
	o := newOverlay(newBase(t, state))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for k := range state {
		require.Len(t, must(o.get([]byte(k))), avlstar.MaxValueBytes)
		require.Len(t, must(o.set([]byte(k), nil)).value, avlstar.MaxValueBytes)
	}
	require.Len(t, o.changes(), len(state))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(avlstar.MaxValueBytes))
}

// longestPrefix finds the prefix that trying every prefix finds.
func TestLongestPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inBase := rapid.SliceOfN(shortKeys, 0, 10).Draw(t, "in base")
		inBlock := rapid.SliceOfN(shortKeys, 0, 10).Draw(t, "in block")
		removed := rapid.SliceOfN(shortKeys, 0, 10).Draw(t, "removed")
		grantee := account("alice")
		state := map[string]string{}
		prefixes := map[string]bool{}
		for _, p := range inBase {
			state[string(GrantKey(grantee, []byte(p)))] = "x"
			prefixes[p] = true
		}
		// Neighbours in key order that are not alice's grants.
		state[string(GrantKey(nil, []byte("a")))] = "x"
		state[string(CoverKey([]byte("a")))] = "x"
		state[string(NonceKey(grantee))] = "x"
		o := newOverlay(newBase(t, state))
		for _, p := range inBlock {
			must(o.set(GrantKey(grantee, []byte(p)), []byte("y")))
			prefixes[p] = true
		}
		for _, p := range removed {
			must(o.set(GrantKey(grantee, []byte(p)), nil))
			delete(prefixes, p)
		}
		key := shortKeys.Draw(t, "key")
		var want []byte
		for n := range len(key) + 1 {
			if prefixes[key[:n]] {
				want = []byte(key[:n])
			}
		}
		got, _, ok, err := o.longestPrefix(record(tagGrant, grantee), []byte(key))
		require.NoError(t, err)
		require.Equal(t, want != nil, ok)
		require.Equal(t, want, got)
		require.Equal(t, len(prefixes) > 0, must(o.anyUnder(record(tagGrant, grantee))))
	})
}

package events

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/internal/keyspace"
	"github.com/starling-kv/starling/internal/seeds"
)

// The requests that a block wakes are those with a range that has one of its keys, however many
// lengths their prefixes have.
func TestMatching(t *testing.T) {
	rng := seeds.Rand(t)
	word := func(most int) string {
		var b strings.Builder
		for range rng.IntN(most + 1) {
			b.WriteByte("ab\xff"[rng.IntN(3)])
		}
		return b.String()
	}
	both := map[bool]int{}
	for round := range 300 {
		s := newWaiters()
		most := 1 + rng.IntN(30)
		var all []*waiter
		for range rng.IntN(60) {
			w := &waiter{keys: event.Keys{Start: []byte(word(most))}}
			switch rng.IntN(3) {
			case 0:
				w.keys.End = append(slices.Clone(w.keys.Start), 0)
			case 1:
				w.keys.End = keyspace.PrefixEnd(w.keys.Start)
			default:
				w.keys.End = []byte(word(most))
			}
			all = append(all, w)
			s.add(w)
		}
		var keys []string
		for range 1 + rng.IntN(300) {
			keys = append(keys, word(most)+"a") // no key is empty
		}
		b := put(1, keys...)
		n := &block{from: &b}
		n.encode()
		both[len(n.byKey)*len(s.lengths) > searches*len(s.prefixes)]++
		var want []*waiter
		for _, w := range all {
			if slices.ContainsFunc(keys, func(key string) bool { return w.keys.Contains([]byte(key)) }) {
				want = append(want, w)
			}
		}
		require.ElementsMatch(t, want, s.matching(n), fmt.Sprint("round ", round))
	}
	require.Len(t, both, 2, "prefixes are found by their lengths and by searches")
}

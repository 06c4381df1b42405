package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// writesOf returns the wants of a block that reads no values.
func writesOf(block []Change) []Want {
	wants := wantsOf(block)
	for i := range wants {
		wants[i].Written = true
	}
	return wants
}

// TestWritesNeedNoValues: with all leaves as stubs, Peek, Holds, Has, Apply and UpdateOf have the
// results of the full tree, and no value is fetched for them, whatever the number of goroutines.
func TestWritesNeedNoValues(t *testing.T) {
	defer func(n uint64) { maxWrittenRecord = n }(maxWrittenRecord)
	maxWrittenRecord = 0
	rnd := seeds.Rand(t)
	usual := tune
	defer func() { tune = usual }()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	over, deleted, again := 0, 0, 0
	for range scaled(60) {
		tune = usual
		tune.minChanges, tune.minTask, tune.minTaskHeight, tune.maxBackoff = 4, 1+rnd.IntN(3), uint8(1+rnd.IntN(3)), 0
		runtime.GOMAXPROCS(1 + rnd.IntN(3))
		keys := 1 << (1 + rnd.IntN(9))
		v := randomState(t, rnd, keys)
		p, err := NewPartial(v.Commitment())
		require.NoError(t, err)
		receiver := multiproofReceiver{rnd: rnd, p: p}
		for range 1 + rnd.IntN(4) {
			block := randomBlock(rnd, 1+rnd.IntN(40), 2*keys, []float64{0, 0.3, 0.9}[rnd.IntN(3)], rnd.IntN(4) == 0)
			for i := range block { // some puts change nothing
				if value, ok, err := v.Get(block[i].Key); err == nil && ok && rnd.IntN(4) == 0 {
					block[i].Value = value
				}
			}
			wants, held := receiver.p.v.Missing(writesOf(block))
			if len(wants) > 0 {
				b, err := v.Multiproof(wants, Below{Depth: 1 << 20, Held: held})
				multiproof := mustDecodeMultiproof(t, b, err)
				require.LessOrEqual(t, multiproof.Leaves(), 1, "only the least leaf of all has a key that no inner node has")
				for _, w := range wants {
					require.False(t, multiproof.Omits(w))
				}
				receiver.graft(t, multiproof)
			}
			wants, _ = receiver.p.v.Missing(writesOf(block))
			require.Empty(t, wants)
			for _, c := range block {
				want, ok, err := v.Get(c.Key)
				require.NoError(t, err)
				value, length, err := receiver.p.v.Peek(c.Key)
				require.NoError(t, err)
				require.Equal(t, len(want), length)
				if value != nil {
					require.Equal(t, want, value)
				}
				has, err := receiver.p.v.Has(c.Key)
				require.NoError(t, err)
				require.Equal(t, ok, has)
				for _, candidate := range [][]byte{want, c.Value, append(bytes.Clone(want), 1)} {
					if candidate != nil {
						holds, err := receiver.p.v.Holds(c.Key, candidate)
						require.NoError(t, err)
						require.Equal(t, ok && bytes.Equal(want, candidate), holds)
					}
				}
				if ok && value == nil {
					if over++; c.Value == nil {
						deleted++
					}
				}
			}
			start, end := randomKey(rnd, keys), randomKey(rnd, keys)
			wants = []Want{{Range: true, Key: start, After: end, Written: true}}
			if bytes.Compare(start, end) < 0 {
				wants, held = receiver.p.v.Missing(wants)
				b, err := v.Multiproof(wants, Below{Depth: 1 << 20, Held: held})
				receiver.graft(t, mustDecodeMultiproof(t, b, err))
				var peeked []Peeked
				for p, err := range receiver.p.v.PeekRange(start, end) {
					require.NoError(t, err)
					peeked = append(peeked, p)
				}
				for kv, err := range v.Ascend(start, end) {
					require.NoError(t, err)
					p := peeked[0]
					peeked = peeked[1:]
					require.Equal(t, kv.Key, p.Key)
					require.Len(t, kv.Value, p.Length)
					if p.Value != nil {
						require.Equal(t, kv.Value, p.Value)
					}
				}
				require.Empty(t, peeked)
			}
			next, err := receiver.p.Apply(block)
			var missing *MissingNodeError
			for errors.As(err, &missing) { // several deletions below one node
				require.NotEmpty(t, missing.Held())
				again++
				receiver.ask(t, v, missing, block)
				next, err = receiver.p.Apply(block)
			}
			require.NoError(t, err)
			full := mustApply(t, v, block...)
			require.Equal(t, full.Commitment(), next.Commitment())
			block = slices.DeleteFunc(block, func(c Change) bool {
				same, err := v.Holds(c.Key, c.Value)
				require.NoError(t, err)
				return same && c.Value != nil
			})
			r := randomRanges(rnd, 1+rnd.IntN(4), keys)[0]
			base := receiver.p
			receiver.p = next
			u, err := next.UpdateOf(base, r, block)
			if errors.As(err, &missing) { // the paths to the edges
				edges := []Want{{Key: r.First}}
				if r.After != nil {
					edges = append(edges, Want{Key: r.After})
				}
				next.Retain()
				b, err := full.Multiproof(edges, Below{})
				receiver.graft(t, mustDecodeMultiproof(t, b, err))
				u, err = receiver.p.UpdateOf(base, r, block)
				require.NoError(t, err)
				next.Release()
			} else {
				require.NoError(t, err)
			}
			want, err := full.UpdateOf(v, r, block)
			require.NoError(t, err)
			require.Equal(t, want.Changes, u.Changes)
			require.Equal(t, want.Moved, u.Moved)
			require.Equal(t, want.Boundary, u.Boundary)
			base.Release()
			v.Release()
			v = full
		}
		receiver.p.Release()
		v.Release()
	}
	require.Positive(t, over)
	require.Positive(t, deleted)
	t.Logf("%d keys without values, %d of them deleted, %d further requests", over, deleted, again)
}

// TestPutsBehindDeletionsNeedFewRequests: a block that deletes many keys and puts one right behind
// each needs two requests, although each put goes to a subtree to which no key of the block leads,
// and it brings no long value.
func TestPutsBehindDeletionsNeedFewRequests(t *testing.T) {
	const keys, pairs = 8192, 128
	name := func(i int) []byte { return fmt.Appendf(nil, "k%06d", i) }
	var changes, block []Change
	for i := range keys {
		changes = append(changes, Change{name(i), bytes.Repeat([]byte{byte(i)}, 1500)})
	}
	v := mustApply(t, mustEmpty(t, 1<<14), changes...)
	for i := 1; i <= pairs; i++ {
		k := name(i * keys / (pairs + 1) / 32 * 32) // keys of high inner nodes
		block = append(block, Change{k, nil}, Change{append(bytes.Clone(k), 0), []byte("x")})
	}
	p, err := NewPartial(v.Commitment())
	require.NoError(t, err)
	receiver := multiproofReceiver{p: p}
	wants, held := p.v.Missing(writesOf(block))
	b, err := v.Multiproof(wants, Below{Depth: 1 << 20, Held: held})
	receiver.graft(t, mustDecodeMultiproof(t, b, err))
	var missing *MissingNodeError
	rounds := 0
	next, err := receiver.p.Apply(block)
	for ; errors.As(err, &missing); next, err = receiver.p.Apply(block) {
		rounds++
		b, err := v.Multiproof(missing.Wants(block), Below{Held: missing.Held(), Depth: 1 << 20})
		multiproof := mustDecodeMultiproof(t, b, err)
		require.Zero(t, multiproof.Leaves())
		receiver.graft(t, multiproof)
	}
	require.NoError(t, err)
	require.LessOrEqual(t, rounds, 2)
	require.Equal(t, mustApply(t, v, block...).Commitment(), next.Commitment())
}

// TestOnlyLongRecordsStayStubs: the multiproof of a write contains the leaf if its record is short.
func TestOnlyLongRecordsStayStubs(t *testing.T) {
	v := mustApply(t, mustEmpty(t, 512), Change{[]byte("a"), []byte("first")},
		Change{[]byte("long"), bytes.Repeat([]byte{7}, 5000)}, Change{[]byte("short"), bytes.Repeat([]byte{8}, 900)})
	for _, c := range []struct {
		key     string
		written bool
		leaves  int
	}{{"long", true, 0}, {"long", false, 1}, {"short", true, 1}} {
		b, err := v.Multiproof([]Want{{Key: []byte(c.key), Written: c.written}}, Below{})
		require.Equal(t, c.leaves, mustDecodeMultiproof(t, b, err).Leaves(), c.key)
	}
	// One want that reads the key is enough.
	b, err := v.Multiproof([]Want{{Key: []byte("long"), Written: true}, {Key: []byte("long")}}, Below{})
	require.Equal(t, 1, mustDecodeMultiproof(t, b, err).Leaves())
	p := pruneTo(t, v)
	receiver := multiproofReceiver{p: p}
	b, err = v.Multiproof([]Want{{Key: []byte("long"), Written: true}}, Below{})
	receiver.graft(t, mustDecodeMultiproof(t, b, err))
	value, length, err := receiver.p.v.Peek([]byte("long"))
	require.NoError(t, err)
	require.Nil(t, value)
	require.Equal(t, 5000, length)
	// Every length of a length has its own form.
	for _, n := range []int{1, 127, 128, 16383, 16384, MaxValueBytes} {
		key := []byte("key")
		require.Equal(t, n, Stub{Stat: Stat{0, RecordBytes(len(key), n)}}.valueBytes(key))
	}
}

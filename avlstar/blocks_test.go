package avlstar

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/stretchr/testify/require"
)

// scaled returns how often a test repeats a slow step: fewer times if each step is checked (debug)
// or instrumented.
func scaled(n int) int {
	switch {
	case debug && underRace:
		return max(1, n/20)
	case debug, underRace:
		return max(1, n/8)
	}
	return n
}

// model is the expected content of a version.
type model map[string][]byte

func (m model) apply(block []Change) {
	for _, c := range block {
		if c.Value == nil {
			delete(m, string(c.Key))
		} else {
			m[string(c.Key)] = c.Value
		}
	}
}

func (m model) keys() []string { return slices.Sorted(maps.Keys(m)) }

// requireContent checks that a version has exactly the entries of m, by iteration and by Get.
func (m model) requireContent(t require.TestingT, v *Version) {
	require.Equal(t, uint64(len(m)), v.Len())
	n := 0
	var last []byte
	for key, value := range mustAscend(t, v, nil, nil) {
		want, ok := m[string(key)]
		if !ok || !bytes.Equal(want, value) || n > 0 && bytes.Compare(last, key) >= 0 {
			require.Fail(t, "wrong entry", "key %x", key)
		}
		last = key
		n++
	}
	require.Equal(t, len(m), n)
	for key, value := range m {
		if got, ok := mustGet(t, v, []byte(key)); !ok || !bytes.Equal(got, value) {
			require.Fail(t, "wrong value", "key %x", key)
		}
	}
}

// randomKey draws from about n keys for each of several kinds. These cover all cases in which the
// first 8 bytes of keys, which inner nodes keep, do not help much.
func randomKey(rnd *rand.Rand, n int) []byte {
	x := rnd.IntN(n)
	switch rnd.IntN(6) {
	case 0: // shorter than 8 bytes
		return fmt.Append(nil, x)
	case 1: // zeros at the end, as prefixOf pads
		return append(fmt.Append(nil, x%9), make([]byte, x%11)...)
	case 2: // equal 8 bytes
		return fmt.Appendf(nil, "equal 8 %d", x)
	case 3: // exactly the equal 8 bytes, and continuations of them
		return []byte("equal 8 \x00\x00\xff\xff\x01")[:8+x%6]
	case 4:
		return fmt.Appendf(nil, "shared/prefix/that/is/long/%06d", x)
	}
	key := sha256.Sum256(fmt.Append(nil, x))
	return key[:20]
}

// randomValue is usually short. With large set, some values exceed the size classes of a page (8
// KiB) or the page itself (64 KiB).
func randomValue(rnd *rand.Rand, large bool) []byte {
	n := 1 + rnd.IntN(1<<rnd.IntN(9))
	if large {
		switch rnd.IntN(200) {
		case 0:
			n = 65_000 + rnd.IntN(3_000)
		case 1, 2:
			n = 8_000 + rnd.IntN(1_000)
		}
	}
	value := make([]byte, n)
	for i := range value {
		value[i] = byte(rnd.Uint32())
	}
	return value
}

// randomBlock returns a block of about n changes in key order.
func randomBlock(rnd *rand.Rand, n, keys int, deletes float64, large bool) []Change {
	block := map[string][]byte{}
	for range n {
		key := string(randomKey(rnd, keys))
		if rnd.Float64() < deletes {
			block[key] = nil
		} else {
			block[key] = randomValue(rnd, large)
		}
	}
	return sortedBlock(block)
}

func sortedBlock(m map[string][]byte) (block []Change) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		block = append(block, Change{[]byte(key), m[key]})
	}
	return block
}

// mustEmpty returns the empty tree.
func mustEmpty(t require.TestingT, chunkBytes uint64) *Version {
	v, err := Empty(chunkBytes)
	require.NoError(t, err)
	return withIndex(v)
}

// advance applies a block and releases the previous version.
func advance(t require.TestingT, v *Version, block ...Change) *Version {
	next := mustApply(t, v, block...)
	v.Release()
	return next
}

// refApply makes a block's changes in the naive reference tree, one after another.
func refApply(n *refNode, block []Change) *refNode {
	for _, c := range block {
		if c.Value == nil {
			n = refDelete(n, c.Key)
		} else {
			n = refPut(n, c.Key, c.Value)
		}
	}
	return n
}

// refCommit computes the root of the naive reference tree, in one pass.
func refCommit(n *refNode) Stub {
	if n == nil {
		return Stub{Hash: Hash(refSHA())}
	}
	var commit func(n *refNode) (s Stub, least []byte)
	commit = func(n *refNode) (Stub, []byte) {
		if n.leaf() {
			return Stub{Stat{0, uint64(len(n.records()))}, Hash(n.hash())}, n.key
		}
		l, least := commit(n.left)
		r, key := commit(n.right)
		h := refSHA([]byte{1}, l.append(nil), r.append(nil), refSHA(key), l.Hash[:], r.Hash[:])
		return Stub{Stat{1 + max(l.Height, r.Height), l.Bytes + r.Bytes}, Hash(h)}, least
	}
	s, _ := commit(n)
	return s
}

package avlstar

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"

	ics23 "github.com/cosmos/ics23/go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawState draws a version made by a few blocks, and its keys and values in order. It is small,
// because the shapes matter and not the size.
func drawState(t *rapid.T) (*Version, []KV) {
	v, err := Empty(rapid.Uint64Range(1, 300).Draw(t, "B"))
	require.NoError(t, err)
	model := map[string][]byte{}
	key, value := rapid.StringMatching(`[a-d]{1,4}`), rapid.SliceOfN(rapid.Byte(), 1, 12)
	for range rapid.IntRange(0, 4).Draw(t, "blocks") {
		var changes []Change
		for k := range rapid.MapOfN(key, rapid.Bool(), 0, 40).Draw(t, "changes") {
			if c := (Change{Key: []byte(k)}); rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
				delete(model, k)
				changes = append(changes, c)
			} else {
				c.Value = value.Draw(t, "value")
				model[k] = c.Value
				changes = append(changes, c)
			}
		}
		v, err = v.Apply(changes)
		require.NoError(t, err)
	}
	kvs := []KV{}
	for k, value := range model {
		kvs = append(kvs, KV{[]byte(k), value})
	}
	slices.SortFunc(kvs, func(a, b KV) int { return bytes.Compare(a.Key, b.Key) })
	return v, kvs
}

// stateOf returns a version of n leaves "k00", "k02", "k04" ..., put one in each block.
func stateOf(t testing.TB, chunkBytes uint64, n int) *Version {
	t.Helper()
	v, err := Empty(chunkBytes)
	require.NoError(t, err)
	for i := range n {
		v, err = v.Apply([]Change{{Key: fmt.Appendf(nil, "k%02d", 2*i), Value: fmt.Appendf(nil, "value %d", i)}})
		require.NoError(t, err)
	}
	return v
}

// requireICS23 checks a proof with ics23/go alone, as a light client in another program would.
func requireICS23(t require.TestingT, v *Version, key, value []byte, p Proof) {
	root, appHash := v.Root().Hash, v.AppHash()
	var m ics23.CommitmentProof
	require.NoError(t, m.Unmarshal(p.Map))
	require.True(t, ics23.VerifyMembership(MapSpec, appHash[:], &m, []byte(MapKey), root[:]), "map")
	if p.State == nil {
		require.Equal(t, Hash(sha256.Sum256(nil)), root)
		return
	}
	var s ics23.CommitmentProof
	require.NoError(t, s.Unmarshal(p.State))
	if value != nil {
		require.True(t, ics23.VerifyMembership(StateSpec, root[:], &s, key, value), "presence of %q", key)
	} else {
		require.True(t, ics23.VerifyNonMembership(StateSpec, root[:], &s, key), "absence of %q", key)
	}
}

func TestProofsOfRandomStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, kvs := drawState(t)
		present := map[string][]byte{}
		asked := []string{"a", "dddd0", "\x00", "\xff", "c"}
		for _, e := range kvs {
			present[string(e.Key)] = e.Value
			asked = append(asked, string(e.Key), string(e.Key)+"\x00", string(e.Key[:len(e.Key)-1])+"Z")
		}
		for _, k := range asked {
			key, value := []byte(k), present[k]
			p, err := v.Prove(key)
			require.NoError(t, err)
			require.NoError(t, VerifyProof(v.AppHash(), key, value, p), "%q", k)
			requireICS23(t, v, key, value, p)

			other := []byte("other")
			if value != nil {
				other = nil
			}
			require.ErrorIs(t, VerifyProof(v.AppHash(), key, other, p), ErrInvalidProof, "%q", k)
		}
	})
}

func TestProofOfEmptyTree(t *testing.T) {
	v := stateOf(t, 100, 0)
	p, err := v.Prove([]byte("absent"))
	require.NoError(t, err)
	require.Nil(t, p.State)
	require.NoError(t, VerifyProof(v.AppHash(), []byte("absent"), nil, p))
	requireICS23(t, v, []byte("absent"), nil, p)
	require.ErrorIs(t, VerifyProof(v.AppHash(), []byte("absent"), []byte("value"), p), ErrInvalidProof)

	full := stateOf(t, 100, 3)
	q, err := full.Prove([]byte("absent"))
	require.NoError(t, err)
	require.ErrorContains(t, VerifyProof(full.AppHash(), []byte("absent"), nil, Proof{Map: q.Map}), "not empty")
	require.ErrorIs(t, VerifyProof(v.AppHash(), []byte("absent"), nil, Proof{State: q.State, Map: p.Map}), ErrInvalidProof)
}

func TestProveRefusesImpossibleKeys(t *testing.T) {
	v := stateOf(t, 100, 3)
	for _, n := range []int{0, MaxKeyBytes + 1} {
		_, err := v.Prove(make([]byte, n))
		require.Error(t, err)
		require.ErrorIs(t, VerifyProof(v.AppHash(), make([]byte, n), nil, Proof{}), ErrInvalidProof)
	}
	longest := make([]byte, MaxKeyBytes)
	p, err := v.Prove(longest)
	require.NoError(t, err)
	require.NoError(t, VerifyProof(v.AppHash(), longest, nil, p))
}

// A proof is valid for one key, one value and one app hash.
func TestProofOfSomethingElse(t *testing.T) {
	v, older := stateOf(t, 50, 20), stateOf(t, 50, 19)
	for _, k := range []string{"k06", "k07"} { // present, absent
		key := []byte(k)
		value, _ := mustGet(t, v, key)
		p, err := v.Prove(key)
		require.NoError(t, err)
		require.NoError(t, VerifyProof(v.AppHash(), key, value, p))
		for name, err := range map[string]error{
			"key":      VerifyProof(v.AppHash(), []byte("k08"), value, p),
			"gap":      VerifyProof(v.AppHash(), []byte("k061"), nil, p),
			"value":    VerifyProof(v.AppHash(), key, []byte("value 4"), p),
			"longer":   VerifyProof(v.AppHash(), key, append(bytes.Clone(value), 0), p),
			"app hash": VerifyProof(older.AppHash(), key, value, p),
			"no map":   VerifyProof(v.AppHash(), key, value, Proof{State: p.State}),
			"no state": VerifyProof(v.AppHash(), key, value, Proof{Map: p.Map}),
			"swapped":  VerifyProof(v.AppHash(), key, value, Proof{State: p.Map, Map: p.State}),
		} {
			require.ErrorIs(t, err, ErrInvalidProof, "%s: %s", k, name)
		}
	}
}

// damages yields every copy of b with one bit flipped, or one byte inverted, removed, inserted,
// doubled or swapped with the next.
func damages(b []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for i := range b {
			for bit := range 9 {
				c := bytes.Clone(b)
				if bit < 8 {
					c[i] ^= 1 << bit
				} else {
					c[i] ^= 0xff
				}
				if !yield(fmt.Sprintf("byte %d: bit %d flipped", i, bit), c) {
					return
				}
			}
			if i+1 < len(b) && b[i] != b[i+1] {
				c := bytes.Clone(b)
				c[i], c[i+1] = c[i+1], c[i]
				if !yield(fmt.Sprintf("byte %d: swapped with the next", i), c) {
					return
				}
			}
			if !yield(fmt.Sprintf("byte %d: removed", i), slices.Delete(bytes.Clone(b), i, i+1)) {
				return
			}
		}
		for i := range len(b) + 1 {
			for _, x := range []byte{0, 1, 0x80, 0xff} {
				if !yield(fmt.Sprintf("%#x inserted at %d", x, i), slices.Insert(bytes.Clone(b), i, x)) {
					return
				}
			}
			if i < len(b) {
				if !yield(fmt.Sprintf("byte %d: doubled", i), slices.Insert(bytes.Clone(b), i, b[i])) {
					return
				}
			}
			if i > 0 && !yield(fmt.Sprintf("cut to %d", len(b)-i), bytes.Clone(b[:len(b)-i])) {
				return
			}
		}
	}
}

func TestDamagedProofs(t *testing.T) {
	for _, n := range []int{0, 1, 2, 12} {
		v := stateOf(t, 50, n)
		for _, k := range []string{"k00", "k01", "k06", "k07", "a", "z"} {
			key := []byte(k)
			value, _ := mustGet(t, v, key)
			p, err := v.Prove(key)
			require.NoError(t, err)
			for what, b := range damages(p.State) {
				if err := VerifyProof(v.AppHash(), key, value, Proof{State: b, Map: p.Map}); err == nil {
					t.Fatalf("%d leaves, %s, state operator, %s: accepted", n, k, what)
				}
			}
			for what, b := range damages(p.Map) {
				if err := VerifyProof(v.AppHash(), key, value, Proof{State: p.State, Map: b}); err == nil {
					t.Fatalf("%d leaves, %s, map operator, %s: accepted", n, k, what)
				}
			}
		}
	}
}

// The longest possible proofs are within the limits of the decoders.
func TestProofsOfLargestKeysAndValues(t *testing.T) {
	v, err := Empty(DefaultChunkBytes)
	require.NoError(t, err)
	var changes []Change
	for i := range byte(4) {
		key := bytes.Repeat([]byte{0xff}, MaxKeyBytes)
		key[MaxKeyBytes-1] = 2 * i
		changes = append(changes, Change{Key: key, Value: bytes.Repeat([]byte{i}, MaxValueBytes)})
	}
	v, err = v.Apply(changes)
	require.NoError(t, err)
	absent := bytes.Clone(changes[0].Key)
	absent[MaxKeyBytes-1] = 3
	for _, c := range append(changes, Change{Key: absent}) {
		p, err := v.Prove(c.Key)
		require.NoError(t, err)
		require.LessOrEqual(t, len(p.State), maxStateProofBytes)
		require.NoError(t, VerifyProof(v.AppHash(), c.Key, c.Value, p))
	}
	entries, next, p, err := v.ProveRange(absent, nil, 1)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NoError(t, VerifyRange(v.AppHash(), absent, nil, 1, entries, next, p))
}

// ics23/go appends to the byte strings that it is given, so two verifications must not share a
// string that has spare capacity.
func TestVerifyProofConcurrently(t *testing.T) {
	v := stateOf(t, 50, 20)
	var wg sync.WaitGroup
	for _, k := range []string{"k06", "k07"} {
		value, _ := mustGet(t, v, []byte(k))
		p, err := v.Prove([]byte(k))
		require.NoError(t, err)
		before := bytes.Clone(p.State)
		for range 8 {
			wg.Go(func() {
				if err := VerifyProof(v.AppHash(), []byte(k), value, p); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, before, p.State, "verifying changed the proof")
	}
}

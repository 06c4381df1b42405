package iavlsynctest

import (
	"crypto/rand"
	"encoding/binary"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// Rand returns randomness from a seed, which a failing test prints: another one in each run, unless
// STARLING_SEED gives it.
func Rand(t testing.TB) *mathrand.Rand {
	t.Helper()
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails (Go 1.24)
	seed := binary.BigEndian.Uint64(b[:])
	if text := os.Getenv("STARLING_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("STARLING_SEED: %v", err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat, in the package's folder: STARLING_SEED=%d go test -run '^%s$'", seed, t.Name())
		}
	})
	return mathrand.New(mathrand.NewPCG(seed, 0)) //nolint:gosec // it is to be repeatable
}

// Op is an operation on a store. Without a value it removes the key.
type Op struct {
	Key, Value []byte
}

// Apply applies operations to a naive tree.
func (t *Tree) Apply(ops []Op) {
	for _, op := range ops {
		if op.Value == nil {
			t.Remove(op.Key)
		} else {
			t.Set(op.Key, op.Value)
		}
	}
}

// RandomOps returns operations on at most keys different keys of 1 to 4 bytes, of which a share
// removes. The same key may come several times; values may be empty.
func RandomOps(rnd *mathrand.Rand, keys, n int, removes float64) (ops []Op) {
	for range n {
		var key [4]byte
		binary.BigEndian.PutUint32(key[:], uint32(rnd.IntN(keys)))
		op := Op{Key: key[rnd.IntN(2)*rnd.IntN(4):]}
		if rnd.Float64() >= removes {
			op.Value = binary.AppendUvarint(nil, rnd.Uint64())[rnd.IntN(2):]
			if rnd.IntN(50) == 0 {
				op.Value = []byte{}
			}
		}
		ops = append(ops, op)
	}
	return ops
}

// RandomState makes a multi-store of several versions: a large store, one with rotations, one that
// is unchanged for long, one that was added late, one with a single leaf and an empty one. It
// returns the state at each height, from 1 to versions.
func RandomState(rnd *mathrand.Rand, keys, versions int) (states []State) {
	trees := map[string]*Tree{"bank": {}, "gov": {}, "upgrade": {}, "icahost": {}, "mint": {}, "params": {}}
	next := 0
	for v := 1; v <= versions; v++ {
		removes := []float64{0.1, 0.3, 0.6, 0.9}[rnd.IntN(4)]
		if v <= 2 {
			removes = 0.05
			trees["bank"].Apply(RandomOps(rnd, keys, keys, removes))
		}
		trees["bank"].Apply(RandomOps(rnd, keys, rnd.IntN(1+keys/20), removes))
		for range rnd.IntN(20) { // ascending keys make rotations
			trees["gov"].Set(binary.BigEndian.AppendUint32(nil, uint32(next)), []byte{byte(v)})
			next++
		}
		trees["gov"].Apply(RandomOps(rnd, 1+next, rnd.IntN(10), removes))
		if v == 1 {
			trees["upgrade"].Apply(RandomOps(rnd, 100, 100, 0))
			trees["mint"].Set([]byte("minter"), []byte("0.13"))
		}
		if v == versions/2 {
			trees["icahost"].Apply(RandomOps(rnd, 50, 50, 0))
		}
		state := State{}
		for name, tree := range trees {
			if name == "icahost" && v < versions/2 {
				continue
			}
			tree.SaveAs(int64(v))
			state[name] = tree.Root
		}
		states = append(states, state)
	}
	return states
}

// Keys returns the names in a map, ascending.
func Keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

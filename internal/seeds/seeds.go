// Package seeds gives tests reproducible randomness.
package seeds

import (
	"crypto/rand"
	"encoding/binary"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// New returns a seed that a failing test prints. It is different in each run, unless STARLING_SEED
// sets it. It does not come from the clock, which stands still in a bubble of testing/synctest.
func New(t testing.TB) uint64 {
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
	return seed
}

// Rand returns a random generator with a seed from New.
func Rand(t testing.TB) *mathrand.Rand {
	t.Helper()
	return mathrand.New(mathrand.NewPCG(New(t), 0)) //nolint:gosec // it must be reproducible
}

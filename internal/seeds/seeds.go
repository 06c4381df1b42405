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

// Variable is the environment variable that sets the seed of every test. .ci/run sets it, so that
// no run of the gate depends on luck; elsewhere each run tries another seed.
const Variable = "STARLING_SEED"

// New returns a seed that a failing test prints. It is different in each run, unless Variable sets
// it. It does not come from the clock, which stands still in a bubble of testing/synctest.
func New(t testing.TB) uint64 {
	t.Helper()
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails (Go 1.24)
	seed := binary.BigEndian.Uint64(b[:])
	if text := os.Getenv(Variable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", Variable, err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat, in the package's folder: %s=%d go test -run '^%s$'", Variable, seed, t.Name())
		}
	})
	return seed
}

// Rand returns a random generator with a seed from New.
func Rand(t testing.TB) *mathrand.Rand {
	t.Helper()
	return mathrand.New(mathrand.NewPCG(New(t), 0)) //nolint:gosec // it must be reproducible
}

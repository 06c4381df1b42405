package event

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/spectest"
)

// TestSpecExample makes the request and the answer in docs/spec/events.md.
func TestSpecExample(t *testing.T) {
	t.Parallel()
	r := Request{From: Token{5, 1}, Keys: Keys{[]byte("a"), []byte("c")}, Previous: true, WaitMS: 1000, MaxBytes: 65_536}
	omitted := sample(6, 3, "b", "", "")
	omitted.Omitted = true
	a := Answer{Events: []Event{sample(5, 1, "a", "new", "old"), omitted}, Next: Token{9, 2}, Head: 9, Least: 2}
	_, err := DecodeAnswer(a.Encode(), &r)
	require.NoError(t, err)
	spectest.Require(t, "events.md", r.Encode(), a.Encode())
}

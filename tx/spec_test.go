package tx

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/spectest"
)

// TestSpecExample makes the transaction in docs/spec/transactions.md from its seed. The page has
// the bytes before the body that is signed, and the body only in the transaction.
func TestSpecExample(t *testing.T) {
	signed, err := Sign(key("alice"), "starling-1", &Body{Nonce: 5, Operations: parseOperations(t, "put key value")})
	require.NoError(t, err)
	spectest.Require(t, "transactions.md", key("alice")[:32], SignBytes("starling-1", nil), signed)
}

package dsm

import (
	"crypto/sha256"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/hexruns"
	"github.com/starling-kv/starling/internal/spectest"
)

// TestSpecExample makes the messages in docs/spec/dsm.md. The claims are a vector.
func TestSpecExample(t *testing.T) {
	all := validMessages(t)
	i := slices.IndexFunc(all, func(v vector) bool { return v.Name == "two ranges, the second fetches chunks" })
	claims, err := hexruns.Decode(all[i].Bytes)
	require.NoError(t, err)
	request, err := Witness{Height: 103, Depth: 12, MaxBytes: 4 << 20, Held: [][32]byte{sha256.Sum256(key("a stub"))}, Wants: []avlstar.Want{
		{Key: key("b")}, {Key: key("c"), Range: true, After: key("d"), Deleted: true},
	}}.Encode()
	require.NoError(t, err)
	spectest.Require(t, "dsm.md", claims, request)
}

package spectest_test

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/spectest"
)

// TestDigits: fields, comments and the text around an example are not part of its bytes.
func TestDigits(t *testing.T) {
	digits := spectest.Digits(t, "multiproofs.md")
	require.Regexp(t, "^0103000000011a15b184c0.*033$", digits)
	b, err := hex.DecodeString(digits)
	require.NoError(t, err)
	spectest.Require(t, "multiproofs.md", b[:5], b[5:])
}

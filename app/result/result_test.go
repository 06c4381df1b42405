package result

import (
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"
)

// What decodes is in its only encoding.
func FuzzDecodeRequest(f *testing.F) {
	f.Add(Request{ID: sha256.Sum256([]byte("a")), WaitMS: 5000}.Encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRequest(b)
		if err != nil {
			require.NotEqual(t, sha256.Size+4, len(b))
			return
		}
		require.Equal(t, b, r.Encode())
	})
}

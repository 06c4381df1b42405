package avlstar

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTreeSpecExample computes every value of the worked examples in docs/spec from the vector that
// they name.
func TestTreeSpecExample(t *testing.T) {
	var v *Version
	for _, f := range loadVectors(t, "starling-vectors-1") {
		if f.Name == "rotations" {
			var err error
			v, err = Empty(f.B)
			require.NoError(t, err)
			for _, block := range f.Blocks[:4] {
				v = mustApply(t, v, block.changes(t)...)
			}
		}
	}
	require.NotNil(t, v)
	c := v.Commitment()
	appHash, chunksHash, stateHash := v.AppHash(), hashMapLeaf("chunks", c.chunksValue()), hashMapLeaf("state", c.Root.Hash[:])
	tree := [][]byte{appHash[:], chunksHash[:], stateHash[:], c.Root.Hash[:], c.chunksValue()}
	for l := range mustLeaves(t, v) {
		keyHash := Hash(sha256.Sum256(l.Key))
		leafHash := hashLeaf(keyHash, sha256.Sum256(l.Value))
		tree = append(tree, l.Key, l.Value, keyHash[:], leafHash[:])
	}
	l, r, keyHash := v.child(v.root, left), v.child(v.root, right), Hash(sha256.Sum256(v.keyOf(v.root)))
	tree = append(tree, l.append(nil), r.append(nil), keyHash[:], l.Hash[:], r.Hash[:])
	requireInExample(t, "../docs/spec/tree.md", tree...)
	requireInExample(t, "../docs/spec/chunks.md", append(encodeChunks(t, v), v.Manifest().Encode(), appHash[:])...)
}

// requireInExample searches the example of a specification for byte strings, whose fields may have
// spaces, line breaks and comments between them.
func requireInExample(t *testing.T, path string, want ...[]byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	_, example, ok := strings.Cut(string(b), "## Example")
	require.True(t, ok, path)
	comment := regexp.MustCompile(`   .*`)
	var digits strings.Builder
	for line := range strings.Lines(example) {
		line = comment.ReplaceAllString(strings.TrimPrefix(line, "    "), "")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	for _, w := range want {
		require.Contains(t, digits.String(), hex.EncodeToString(w), path)
	}
}

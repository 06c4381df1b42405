package cosmos

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFewImports: the formats can be used by any program, and the records with any database, with
// any version of the SDK or without it. So both import only the standard library and this
// repository's helpers that do so, too.
func TestFewImports(t *testing.T) {
	const ours = "github.com/starling-kv/starling/"
	out, err := exec.Command("go", "list", "-f", "{{range .Deps}}{{println .}}{{end}}", "./iavlsync", "./nodedb").Output()
	require.NoError(t, err)
	require.NotEmpty(t, out)
	for path := range strings.FieldsSeq(string(out)) {
		domain, _, _ := strings.Cut(path, "/")
		if strings.Contains(domain, ".") && !strings.HasPrefix(path, "vendor/") && !strings.HasPrefix(path, ours+"internal/") && path != ours+"cosmos/iavlsync" {
			t.Errorf("iavlsync or nodedb depends on %s", path)
		}
	}
}

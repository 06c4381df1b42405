package cosmos

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStandardLibraryOnly: the formats are for any program, and the records for any database, in
// the SDK's version of the day or none.
func TestStandardLibraryOnly(t *testing.T) {
	const ours = "github.com/starling-kv/starling/cosmos/"
	out, err := exec.Command("go", "list", "-f", "{{range .Deps}}{{println .}}{{end}}", "./iavlsync", "./nodedb").Output()
	require.NoError(t, err)
	require.NotEmpty(t, out)
	for path := range strings.FieldsSeq(string(out)) {
		domain, _, _ := strings.Cut(path, "/")
		if strings.Contains(domain, ".") && !strings.HasPrefix(path, "vendor/") && path != ours+"iavlsync" {
			t.Errorf("iavlsync or nodedb depends on %s", path)
		}
	}
}

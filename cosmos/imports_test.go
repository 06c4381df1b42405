package cosmos

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStandardLibraryOnly: the formats are for any program, in the SDK's version of the day or
// none.
func TestStandardLibraryOnly(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{range .Deps}}{{println .}}{{end}}", "./iavlsync").Output()
	require.NoError(t, err)
	require.NotEmpty(t, out)
	for path := range strings.FieldsSeq(string(out)) {
		domain, _, _ := strings.Cut(path, "/")
		if strings.Contains(domain, ".") && !strings.HasPrefix(path, "vendor/") {
			t.Errorf("iavlsync depends on %s", path)
		}
	}
}

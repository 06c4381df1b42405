package lint

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	namedTest   = regexp.MustCompile("`([a-z0-9/]+|\\.)\\.((?:Test|Fuzz)[A-Za-z0-9_]+)`")
	anyTestName = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z][A-Za-z0-9_]*`)
)

// TestSecurityNamesTests: every test that docs/explanation/threat-model.md names exists in the
// folder that it names.
func TestSecurityNamesTests(t *testing.T) {
	text, err := os.ReadFile("docs/explanation/threat-model.md")
	require.NoError(t, err)
	var named []string
	for _, match := range namedTest.FindAllStringSubmatch(string(text), -1) {
		folder, name := path.Clean(match[1]), match[2]
		named = append(named, name)
		require.True(t, hasTest(t, folder, name), "docs/explanation/threat-model.md names %s.%s, but no test file of that folder has it", match[1], name)
	}
	require.NotEmpty(t, named)
	for _, name := range anyTestName.FindAllString(string(text), -1) {
		require.Contains(t, named, name, "docs/explanation/threat-model.md names %s without its folder", name)
	}
}

func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.Contains(string(content), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}

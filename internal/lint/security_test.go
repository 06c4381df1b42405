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

// securityPages name the tests that show what stops an attack.
var securityPages = []string{"docs/explanation/threat-model.md", "docs/reference/threats.md"}

// TestSecurityNamesTests: every test that securityPages name exists in the folder that they name.
func TestSecurityNamesTests(t *testing.T) {
	for _, page := range securityPages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		var named []string
		for _, match := range namedTest.FindAllStringSubmatch(string(text), -1) {
			folder, name := path.Clean(match[1]), match[2]
			named = append(named, name)
			require.True(t, hasTest(t, folder, name), "%s names %s.%s, but no test file of that folder has it", page, match[1], name)
		}
		require.NotEmpty(t, named, page)
		for _, name := range anyTestName.FindAllString(string(text), -1) {
			require.Contains(t, named, name, "%s names %s without its folder", page, name)
		}
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

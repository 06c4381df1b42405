package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testHelpers are the packages that only tests use, in addition to the files *_test.go.
var testHelpers = []string{
	"transport/rdma/internal/verbs/verbstest", "transport/rdma/rdmatest", "transport/transporttest", "node/internal/nodetest", "e2e/browser", "e2e/history", "e2e/manifest", "e2e/runner", "e2e/testnet",
	"internal/ports",
}

// A test that waits for the clock is slow on a fast machine and fails on a slow one. Tests wait for
// the event, poll (require.Eventually, runner.Poll) or end with a context's deadline. In a bubble
// of testing/synctest the clock is the test's own: there time.Sleep and time.After are allowed;
// functions outside the test's body use internal/bubble.
func TestNobodyWaitsOnTheClock(t *testing.T) {
	for path, source := range testSources(t) {
		found, err := clockWaits(path, source)
		require.NoError(t, err)
		for _, wait := range found {
			t.Errorf("%s outside of synctest.Test: wait for the event, poll, or use a context's deadline", wait)
		}
	}
}

// testSources reads the test files and their helpers in all modules.
func testSources(t *testing.T) map[string][]byte {
	t.Helper()
	sources := map[string][]byte{}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "build", ".tools", "testdata"}, entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		helper := slices.ContainsFunc(testHelpers, func(dir string) bool { return strings.HasPrefix(path, dir+"/") })
		if !helper && !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		sources[path], err = os.ReadFile(path)
		return err
	}))
	return sources
}

// clockWaits finds calls of time.Sleep and time.After outside of functions passed to synctest.Test.
func clockWaits(path string, source []byte) (found []string, _ error) {
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, path, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	timeName := importedAs(file, "time")
	ast.Inspect(file, func(n ast.Node) bool {
		if call, is := n.(*ast.CallExpr); is && calls(call, importedAs(file, "testing/synctest"), "Test") {
			return false
		}
		if selector, is := n.(*ast.SelectorExpr); is && timeName != "" {
			x, _ := selector.X.(*ast.Ident)
			if x != nil && x.Name == timeName && (selector.Sel.Name == "Sleep" || selector.Sel.Name == "After") {
				found = append(found, fmt.Sprintf("%v: time.%s", positions.Position(selector.Pos()), selector.Sel.Name))
			}
		}
		return true
	})
	return found, nil
}

// importedAs returns the local name of an imported package; empty if it is not imported.
func importedAs(file *ast.File, path string) string {
	for _, spec := range file.Imports {
		if imported, _ := strconv.Unquote(spec.Path.Value); imported == path {
			if spec.Name != nil {
				return spec.Name.Name
			}
			return path[strings.LastIndex(path, "/")+1:]
		}
	}
	return ""
}

// calls reports whether a call is of pkg.name.
func calls(call *ast.CallExpr, pkg, name string) bool {
	selector, is := call.Fun.(*ast.SelectorExpr)
	if !is || selector.Sel.Name != name {
		return false
	}
	x, is := selector.X.(*ast.Ident)
	return is && pkg != "" && x.Name == pkg
}

package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// state lists the packages whose functions read the state. If an error of theirs is dropped, an
// unreadable key looks absent, and the node computes a different AppHash.
var state = []string{module + "/avlstar", module + "/app"}

// TestNoReadOfTheStateIsUnchecked: outside of tests, errors of functions that read the state are
// not dropped, neither by
//
//	value, ok, _ := v.Get(key)
//
// nor by omitting the second variable of a loop: for kv := range v.Ascend(nil, nil).
func TestNoReadOfTheStateIsUnchecked(t *testing.T) {
	packages, exports := exportData(t)
	fset := token.NewFileSet()
	compiled := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		file, ok := exports[path]
		if !ok {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(file) //nolint:gosec // go list named it
	})
	checked := 0
	for _, p := range packages {
		if !slices.ContainsFunc(state, func(s string) bool { return p.ImportPath == s || slices.Contains(p.Deps, s) }) {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, f)
		}
		d := dropped{info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}}
		_, err := (&types.Config{Importer: compiled}).Check(p.ImportPath, fset, files, d.info)
		require.NoError(t, err)
		for _, f := range files {
			ast.Inspect(f, d.visit)
		}
		for _, at := range d.found {
			t.Errorf("%s: an error of a function that reads the state is dropped: an unreadable value would look absent", fset.Position(at))
		}
		checked++
	}
	require.Greater(t, checked, 5)
}

// TestDroppedErrorsAreFound checks the check itself.
func TestDroppedErrorsAreFound(t *testing.T) {
	const source = `package avlstar
type V struct{}
func (V) Get() (int, bool, error) { return 0, false, nil }
func (V) All() func(func(int, error) bool) { return nil }
func check() error { return nil }
func f(v V) {
	_, _, err := v.Get()
	for _, err := range v.All() { _ = err }
	_ = err
	_, _, _ = v.Get()  // dropped
	a, b, _ := v.Get() // dropped
	v.Get()            // dropped
	defer v.Get()      // dropped
	_ = check()        // dropped
	for range v.All() { // dropped
	}
	for c := range v.All() { // dropped
		_ = c
	}
	for _, _ = range v.All() { // dropped
	}
	_, _ = a, b
}
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "source.go", source, parser.SkipObjectResolution)
	require.NoError(t, err)
	d := dropped{info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}}
	_, err = (&types.Config{}).Check(state[0], fset, []*ast.File{f}, d.info)
	require.NoError(t, err)
	ast.Inspect(f, d.visit)
	var want, got []int
	for i, line := range strings.Split(source, "\n") {
		if strings.HasSuffix(line, "// dropped") {
			want = append(want, i+1)
		}
	}
	for _, at := range d.found {
		got = append(got, fset.Position(at).Line)
	}
	require.Equal(t, want, got)
}

// dropped finds dropped errors.
type dropped struct {
	info  *types.Info
	found []token.Pos
}

func (d *dropped) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		if call, ok := n.Rhs[0].(*ast.CallExpr); ok && len(n.Rhs) == 1 && d.readsState(call) && isBlank(n.Lhs[len(n.Lhs)-1]) {
			d.found = append(d.found, n.Pos())
		}
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && d.readsState(call) {
			d.found = append(d.found, n.Pos())
		}
	case *ast.DeferStmt:
		if d.readsState(n.Call) {
			d.found = append(d.found, n.Pos())
		}
	case *ast.GoStmt:
		if d.readsState(n.Call) {
			d.found = append(d.found, n.Pos())
		}
	case *ast.RangeStmt:
		if d.yieldsErrors(n.X) && (n.Value == nil || isBlank(n.Value)) {
			d.found = append(d.found, n.Pos())
		}
	}
	return true
}

// readsState reports whether a call is of a function of one of the state packages whose last result
// is an error.
func (d *dropped) readsState(call *ast.CallExpr) bool {
	var name *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		name = f
	case *ast.SelectorExpr:
		name = f.Sel
	default:
		return false
	}
	f, ok := d.info.Uses[name].(*types.Func)
	if !ok || f.Pkg() == nil || !slices.Contains(state, f.Pkg().Path()) {
		return false
	}
	results := f.Signature().Results()
	return results.Len() > 0 && isError(results.At(results.Len()-1).Type())
}

// yieldsErrors reports whether x is an iterator over pairs of a value and an error.
func (d *dropped) yieldsErrors(x ast.Expr) bool {
	f, ok := d.info.Types[x].Type.Underlying().(*types.Signature)
	if !ok || f.Params().Len() != 1 {
		return false
	}
	yield, ok := f.Params().At(0).Type().Underlying().(*types.Signature)
	return ok && yield.Params().Len() == 2 && isError(yield.Params().At(1).Type())
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

func isBlank(e ast.Expr) bool {
	name, ok := e.(*ast.Ident)
	return ok && name.Name == "_"
}

// exportData returns our packages, and the file with the compiler's export data of each package.
func exportData(t *testing.T) (ours []exported, files map[string]string) {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Dir,GoFiles,Deps,Export", "./...").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("go list: %v\n%s", err, exit.Stderr)
	}
	require.NoError(t, err)
	files = map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p exported
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return ours, files
		} else {
			require.NoError(t, err)
		}
		if p.Export != "" {
			files[p.ImportPath] = p.Export
		}
		if p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/") {
			ours = append(ours, p)
		}
	}
}

type exported struct {
	ImportPath, Dir, Export string
	GoFiles, Deps           []string
}

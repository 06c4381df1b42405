// Package upstream runs the tests of another module against our code. It reads them from the module
// cache, at the version in go.mod, so no part of them is copied into this repository.
//
//	module cache: x_test.go ──► rewrite: names, imports, dropped tests ──► temporary folder
//	                                                                           │ go test -overlay
//	our package: code, and helpers with the build tag "upstream" ◄─────────────┘ adds the files
//
// A rewrite or drop that matches nothing is an error, so a new version of the module cannot
// silently reduce a suite.
package upstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Suite describes tests of another module and how to turn them into tests of our package.
type Suite struct {
	Module string   // a dependency of the module under test
	Files  []string // test files and files with their helpers, in its folder
	// Package is the name of our package, which they become part of.
	Package string
	// Replace maps expressions in the files to replacements. Nothing is replaced inside a replaced
	// expression.
	Replace map[string]string
	// Drop maps top-level declarations of the files, tests or helpers, to the reason why they are
	// dropped.
	Drop map[string]string
}

// Run runs the suite as tests of the package in the working folder, which may have helpers with the
// build tag "upstream". It is skipped with -short, since it compiles the package again.
func Run(t *testing.T, s Suite) {
	t.Helper()
	if testing.Short() {
		t.Skip("compiles the package again")
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", s.Module).Output() //nolint:gosec // from the suite
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	r := rewriter{suite: s, used: map[string]bool{}}
	temporary, overlay := t.TempDir(), struct{ Replace map[string]string }{map[string]string{}}
	for i, name := range s.Files {
		source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := r.file(name, source)
		if err != nil {
			t.Fatal(err)
		}
		base := strings.TrimSuffix(strings.TrimSuffix(path.Base(name), ".go"), "_test")
		to := filepath.Join(temporary, fmt.Sprintf("%d_%s_test.go", i, base))
		if err := os.WriteFile(to, b, 0o600); err != nil { //nolint:gosec // in the test's own folder
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(here, "upstream_"+filepath.Base(to))] = to
	}
	if unused := r.unused(); len(unused) > 0 {
		t.Fatalf("these match nothing in %s: %q", s.Module, unused)
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(temporary, "overlay.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	//nolint:gosec // from the files
	test := exec.CommandContext(t.Context(), "go", "test", "-overlay="+file, "-tags=upstream", "-vet=off", "-count=1", "-v",
		"-run=^("+strings.Join(r.tests, "|")+")$", ".")
	said, err := test.CombinedOutput()
	for _, name := range r.tests {
		if !bytes.Contains(said, []byte("--- PASS: "+name+" ")) && err == nil {
			err = fmt.Errorf("%s did not run", name)
		}
	}
	if err != nil || len(r.tests) == 0 {
		t.Fatalf("%v: %v\n%s", test, err, said)
	}
	t.Logf("%s: %d tests passed", s.Module, len(r.tests))
}

// rewriter turns a suite's files into tests of our package.
type rewriter struct {
	suite Suite
	used  map[string]bool // keys of Replace and Drop that matched
	tests []string        // names of the tests to run
}

type edit struct {
	from, to int
	text     string
}

// file returns a file of the suite as it will be compiled.
func (r *rewriter) file(name string, source []byte) ([]byte, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var edits []edit
	put := func(n ast.Node, text string) {
		edits = append(edits, edit{set.Position(n.Pos()).Offset, set.Position(n.End()).Offset, text})
	}
	put(f.Name, r.suite.Package)
	for _, d := range f.Decls {
		if r.drops(d) {
			put(d, "")
			continue
		}
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
			r.tests = append(r.tests, fn.Name.Name)
		}
		ast.Inspect(d, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			old := string(source[set.Position(e.Pos()).Offset:set.Position(e.End()).Offset])
			text, ok := r.suite.Replace[old]
			if ok {
				r.used[old] = true
				put(e, text)
			}
			return !ok
		})
	}
	slices.SortFunc(edits, func(a, b edit) int { return b.from - a.from })
	for _, e := range edits {
		source = slices.Replace(slices.Clone(source), e.from, e.to, []byte(e.text)...)
	}
	return withoutUnusedImports(name, source)
}

// drops reports whether a declaration is dropped. Methods are dropped with their type.
func (r *rewriter) drops(d ast.Decl) bool {
	var name string
	switch d := d.(type) {
	case *ast.FuncDecl:
		name = d.Name.Name
		if d.Recv != nil {
			of := d.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			name = fmt.Sprint(of)
		}
	case *ast.GenDecl:
		if len(d.Specs) != 1 {
			return false
		}
		switch s := d.Specs[0].(type) {
		case *ast.TypeSpec:
			name = s.Name.Name
		case *ast.ValueSpec:
			name = s.Names[0].Name
		}
	}
	_, ok := r.suite.Drop[name]
	if ok {
		r.used[name] = true
	}
	return ok
}

// unused returns the keys that matched nothing in any file.
func (r *rewriter) unused() (names []string) {
	for name := range r.suite.Replace {
		names = append(names, name)
	}
	for name := range r.suite.Drop {
		names = append(names, name)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return r.used[name] })
	slices.Sort(names)
	return names
}

var version = regexp.MustCompile(`^v[0-9]+$`)

// withoutUnusedImports formats a file and removes imports that are unused after rewriting.
func withoutUnusedImports(name string, source []byte) ([]byte, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("after rewriting: %w", err)
	}
	used := map[string]bool{"_": true, ".": true}
	for _, d := range f.Decls {
		local := map[string]bool{} // variables that shadow an import
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				for _, v := range n.Names {
					local[v.Name] = true
				}
			case *ast.AssignStmt:
				for _, e := range n.Lhs {
					if v, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
						local[v.Name] = true
					}
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && !local[x.Name] {
					used[x.Name] = true
				}
			}
			return true
		})
	}
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			g.Specs = slices.DeleteFunc(g.Specs, func(s ast.Spec) bool { return !used[importName(s.(*ast.ImportSpec))] })
		}
	}
	var b bytes.Buffer
	err = format.Node(&b, set, f)
	return b.Bytes(), err
}

func importName(s *ast.ImportSpec) string {
	if s.Name != nil {
		return s.Name.Name
	}
	p, err := strconv.Unquote(s.Path.Value)
	if err != nil {
		return ""
	}
	if version.MatchString(path.Base(p)) {
		p = path.Dir(p)
	}
	return path.Base(p)
}

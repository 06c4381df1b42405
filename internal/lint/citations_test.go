package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// textFiles returns the contents of source files and documents, by slash-separated path.
func textFiles(t *testing.T, extensions ...string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == "build" || name == ".tools"):
			return fs.SkipDir
		case !entry.Type().IsRegular() || !slices.Contains(extensions, filepath.Ext(name)):
			return nil
		}
		content, err := os.ReadFile(name)
		files[filepath.ToSlash(name)] = string(content)
		return err
	}))
	require.NotEmpty(t, files)
	return files
}

// lineOf returns the line number of an offset in text.
func lineOf(text string, offset int) int { return 1 + strings.Count(text[:offset], "\n") }

var (
	fencePattern   = regexp.MustCompile("^ {0,3}(```|~~~)")
	headingPattern = regexp.MustCompile(`^#{1,6} +(.*?)[ #]*$`)
	linkPattern    = regexp.MustCompile(`\[([^][]*)\]\(([^)]*)\)`)
	sourcePattern  = regexp.MustCompile(`()\bsrc(?:set)?="([^"]*)"`) // of a picture in HTML
	codePattern    = regexp.MustCompile("`[^`]*`")
)

// prose returns the lines of a Markdown document, with fenced and indented code blocks replaced by
// empty lines.
func prose(markdown string) []string {
	lines := strings.Split(markdown, "\n")
	fenced, indented := false, false
	for i, line := range lines {
		fence := fencePattern.MatchString(line)
		blank := strings.TrimSpace(line) == ""
		afterBlank := i == 0 || lines[i-1] == ""
		indented = strings.HasPrefix(line, "    ") && (indented || afterBlank) || blank && indented
		if fence {
			fenced = !fenced
		}
		if fenced || fence || indented {
			lines[i] = ""
		}
	}
	return lines
}

// anchor returns the fragment that GitHub generates for a heading: lower case, hyphens for spaces,
// no punctuation.
func anchor(heading string) string {
	heading = linkPattern.ReplaceAllString(heading, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// anchorsOf returns the fragments of a document's headings. The second heading with a name gets -1,
// the third -2.
func anchorsOf(markdown string) map[string]bool {
	anchors := map[string]bool{}
	for _, line := range prose(markdown) {
		if m := headingPattern.FindStringSubmatch(line); m != nil {
			base := anchor(m[1])
			name := base
			for n := 1; anchors[name]; n++ {
				name = fmt.Sprintf("%s-%d", base, n)
			}
			anchors[name] = true
		}
	}
	return anchors
}

func TestAnchors(t *testing.T) {
	require.Equal(t, map[string]bool{
		"a-join-starling-bench-sync-byzantine": true, "hashes": true, "hashes-1": true, "what-trust-remains": true, "_x_-y": true,
	}, anchorsOf("# A join: `starling-bench sync`, `byzantine`\n```\n# not one\n```\n## Hashes\n\n    # code\n\n### Hashes ##\n"+
		"## [What trust](x.md) remains\n## `_x_` (y)\n#no heading\n"))
}

// documents resolves links and citations among the repository's files.
type documents struct {
	markdown map[string]string
	anchors  map[string]map[string]bool
}

func newDocuments(t *testing.T) *documents {
	t.Helper()
	d := &documents{textFiles(t, ".md"), map[string]map[string]bool{}}
	for name, text := range d.markdown {
		d.anchors[name] = anchorsOf(text)
	}
	return d
}

// broken returns what is wrong with a target, which is a path from the root with an optional
// #fragment; "" if nothing.
func (d *documents) broken(target string) string {
	file, fragment, has := strings.Cut(target, "#")
	if _, err := os.Stat(filepath.FromSlash(file)); err != nil {
		return fmt.Sprintf("there is no %s", file)
	}
	if anchors, is := d.anchors[file]; has && !is {
		return fmt.Sprintf("%s is not a Markdown document, so it has no headings", file)
	} else if has && !anchors[fragment] {
		return fmt.Sprintf("%s has no heading #%s", file, fragment)
	}
	return ""
}

// TestLinks resolves every relative link of every document, with its heading, and every picture.
func TestLinks(t *testing.T) {
	d := newDocuments(t)
	for name, text := range d.markdown {
		for i, line := range prose(text) {
			line = codePattern.ReplaceAllString(line, "`")
			for _, m := range append(linkPattern.FindAllStringSubmatch(line, -1), sourcePattern.FindAllStringSubmatch(line, -1)...) {
				target, _, _ := strings.Cut(strings.TrimSpace(m[2]), " ")
				switch {
				case strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:"):
					continue
				case strings.HasPrefix(target, "#"):
					target = name + target
				default:
					target = path.Join(path.Dir(name), target)
				}
				if wrong := d.broken(target); wrong != "" {
					t.Errorf("%s:%d: link to %s: %s", name, i+1, m[2], wrong)
				}
			}
		}
	}
}

var (
	citationPattern = regexp.MustCompile(`\bdocs/[A-Za-z0-9_/-]+\.md(#[A-Za-z0-9_-]+)?`)
	designPattern   = regexp.MustCompile(`(?i)\bdesign,?[\s/#*]+section\b`)
)

// TestCitations resolves every docs/FILE.md#heading in sources and documents, and refuses citations
// of unpublished documents.
func TestCitations(t *testing.T) {
	d := newDocuments(t)
	for name, text := range textFiles(t, ".go", ".md", ".py", ".js", ".html", ".proto", ".s", ".sh", ".toml", ".yml", ".yaml", ".json", ".txt", ".service") {
		for _, at := range citationPattern.FindAllStringIndex(text, -1) {
			if name == "internal/lint/citations_test.go" {
				continue
			}
			if wrong := d.broken(text[at[0]:at[1]]); wrong != "" {
				t.Errorf("%s:%d: cites %s: %s", name, lineOf(text, at[0]), text[at[0]:at[1]], wrong)
			}
		}
		if name == "internal/lint/citations_test.go" {
			continue
		}
		for _, at := range designPattern.FindAllStringIndex(text, -1) {
			t.Errorf("%s:%d: cite a heading of docs/, as docs/spec/tree.md#hashes, instead of a section of the design", name, lineOf(text, at[0]))
		}
	}
}

var (
	// filePattern matches a file of this repository in a document, placePattern one followed by a
	// function, method or type in it.
	filePattern  = regexp.MustCompile("`([a-z0-9_./-]+/[a-z0-9_.-]+\\.go)`")
	placePattern = regexp.MustCompile("`([a-z0-9_./-]+\\.go)`\\s+`([A-Za-z0-9_.]+)`")
)

// TestPlacesInDocuments resolves every `folder/file.go` in a document, and every `folder/file.go`
// `Function` or `Type.Method`. It ignores files whose folders do not exist here: they belong to
// other repositories.
func TestPlacesInDocuments(t *testing.T) {
	declared := map[string]map[string]bool{}
	places := 0
	for name, text := range textFiles(t, ".md") {
		for _, at := range filePattern.FindAllStringSubmatchIndex(text, -1) {
			file := text[at[2]:at[3]]
			first, _, _ := strings.Cut(file, "/")
			if _, err := os.Stat(first); err != nil {
				continue
			}
			if _, err := os.Stat(filepath.FromSlash(file)); err != nil {
				t.Errorf("%s:%d: there is no %s", name, lineOf(text, at[0]), file)
			}
		}
		for _, at := range placePattern.FindAllStringSubmatchIndex(text, -1) {
			file, what := text[at[2]:at[3]], text[at[4]:at[5]]
			if declared[file] == nil {
				declared[file] = declarations(t, file)
			}
			places++
			if !declared[file][what] {
				t.Errorf("%s:%d: %s does not declare %s", name, lineOf(text, at[0]), file, what)
			}
		}
	}
	require.Positive(t, places)
}

// declarations returns the names of the functions, methods (as Type.Method) and types of a Go file.
func declarations(t *testing.T, file string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(file), nil, parser.SkipObjectResolution)
	if !assert.NoError(t, err) {
		return names
	}
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			names[name] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if s, is := spec.(*ast.TypeSpec); is {
					names[s.Name.Name] = true
				}
			}
		}
	}
	return names
}

// receiver returns the type name of a method's receiver, which may be a pointer or generic.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

package lint

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	commentColumns = 100
	tabColumns     = 4
)

// columns is the width of a line with tabs of tabColumns.
func columns(line string) (n int) {
	for _, r := range line {
		if n++; r == '\t' {
			n += tabColumns - 1 - (n-1)%tabColumns
		}
	}
	return n
}

// wrappable reports whether a comment of one line is prose: no directive, indented block, table or
// address.
func wrappable(comment string) bool {
	text, is := strings.CutPrefix(comment, "// ")
	return is && !strings.HasPrefix(text, " ") && !strings.HasPrefix(text, "|") && !strings.Contains(text, "://")
}

// overlong returns the lines, of a Go file, with comments that run past commentColumns.
func overlong(t *testing.T, name, text string) (lines []int) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	if ast.IsGenerated(f) {
		return nil
	}
	all := strings.Split(text, "\n")
	for _, group := range f.Comments {
		for _, comment := range group.List {
			at := fset.Position(comment.Pos()).Line
			if wrappable(comment.Text) && columns(all[at-1]) > commentColumns {
				lines = append(lines, at)
			}
		}
	}
	return lines
}

// TestCommentsFit keeps comments within a width that is read at a glance, and beside other windows.
func TestCommentsFit(t *testing.T) {
	for name, text := range textFiles(t, ".go") {
		if strings.Contains(name, "/testdata/") {
			continue
		}
		for _, line := range overlong(t, name, text) {
			t.Errorf("%s:%d: wrap the comment at %d columns (a tab is %d)", name, line, commentColumns, tabColumns)
		}
	}
}

func TestOverlong(t *testing.T) {
	long := strings.Repeat("word ", 25)
	source := "package p\n\n// " + long + "\n//\n//\t" + long + "\n//go:generate " + long + "\n// https://" + long + "\n// | " + long +
		"\nvar a = 1 // " + long + "\n"
	require.Equal(t, []int{3, 9}, overlong(t, "p.go", source))
	require.Equal(t, 8, columns("\tabcd"))
	require.Equal(t, 5, columns("ab\tc"))
}

// grammar has the patterns that make a native reader read a sentence twice: clauses without a noun,
// fronted objects, translated prepositions, quaint words. They are searched for in lower case, with
// all white space, line ends and comment marks between words as one space. Between two texts, and
// where Go has code, stands a bar.
var grammar = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?:[.;:(|] *|\b(?:and|or|but|that|of|to|by|from|with|for|than|as|only|if|where|when|on|in|at) +)who(?:ever)? +[a-z]+`),
		`name the actor: "a peer that …", "the caller that …"`},
	{regexp.MustCompile(`[.;(|] *of +(?:how +many|which|what|whom|those|these|that|them|the|a|an|its|their|each|all|every|several|two|three)\b`),
		`put the subject first: "number of …", "a key of a … has"`},
	{regexp.MustCompile(`\bbesides?\b`), `"next to", "alongside", "compared with" or "in addition to"`},
	{regexp.MustCompile(`\bby +rdma\b`), `"over RDMA"`},
	{regexp.MustCompile(`\bpast +(?:tls|p2p)\b`), `"bypassing TLS"`},
	{regexp.MustCompile(`\bmend(?:s|ed|ing)?\b`), `"fix" or "repair"`},
	{regexp.MustCompile(`\banew\b`), `"again"`},
	{regexp.MustCompile(`\black(?:s|ed|ing)?\b`), `"is missing", "does not have" or "without"`},
	{regexp.MustCompile(`\bbut +for\b`), `"except" or "except for"`},
	{regexp.MustCompile(`\b(?:is|are) +none +of\b`), `"is not a …", or name the set`},
	{regexp.MustCompile(`\b(?:do|does) +not +do\b`), `"is not supported", "does not work"`},
	{regexp.MustCompile(`\bgiv(?:e|es|en|ing) +way\b`), `"yield"; "backpressure"`},
	{regexp.MustCompile(`\btold +(?:of|by|peer|address|node)|\bteller`), `"reported by", "discovered peer", "advertiser"`},
}

var (
	blankLine = regexp.MustCompile(`\n[ \t]*(?://+|#+|\*|>)?[ \t]*\n`)
	lineStart = regexp.MustCompile(`\n[ \t]*(?://+|#+|\*|>)?[ \t]*`)
)

// prosaic returns a text of the same length in which each byte of Go code, which is neither comment
// nor string, is a bar or a space.
func prosaic(name, text string) string {
	if !strings.HasSuffix(name, ".go") {
		return text
	}
	var (
		s    scanner.Scanner
		fset = token.NewFileSet()
		out  = []byte(strings.Map(func(r rune) rune {
			if r == '\n' || r == '\t' {
				return r
			}
			return ' '
		}, text))
	)
	if len(out) != len(text) { // letters of several bytes
		out = []byte(blank(text))
	}
	file := fset.AddFile(name, fset.Base(), len(text))
	s.Init(file, []byte(text), nil, scanner.ScanComments)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return string(out)
		}
		at := file.Offset(pos)
		if tok == token.COMMENT || tok == token.STRING {
			copy(out[at:], text[at:at+len(literal)])
		} else if at+1 < len(out) && !(tok == token.SEMICOLON && literal == "\n") {
			out[at] = '|'
		}
	}
}

// blank returns a text of the same length with spaces in place of everything but line ends.
func blank(text string) string {
	out := []byte(text)
	for i, c := range out {
		if c != '\n' {
			out[i] = ' '
		}
	}
	return string(out)
}

// flat joins the lines of a text to one of the same length, in lower case, where comment marks and
// line ends are spaces, and blank lines begin with a bar.
func flat(text string) string {
	text = blankLine.ReplaceAllStringFunc(text, func(s string) string { return "|" + strings.Repeat(" ", len(s)-2) + "\n" })
	return strings.ToLower(lineStart.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat(" ", len(s)) }))
}

// awkward returns the places of a text that match grammar, by lines.
func awkward(name, text string) map[int]string {
	found, one := map[int]string{}, "|"+flat("\n" + prosaic(name, text))[1:]
	if len(one) != len(text)+1 { // a letter whose lower case has another length
		one = "|" + text
	}
	for _, g := range grammar {
		for _, at := range g.pattern.FindAllStringIndex(one, -1) {
			words := strings.Trim(one[at[0]:at[1]], "|.;:,( ")
			if !strings.Contains(words, "|") {
				found[lineOf(text, max(at[1]-2, 0))] = `"` + strings.Join(strings.Fields(words), " ") + `": write rather: ` + g.instead
			}
		}
	}
	return found
}

// TestPlainWords keeps grammar out that readers would read twice.
func TestPlainWords(t *testing.T) {
	for name, text := range textFiles(t, ".go", ".md", ".py", ".js", ".html", ".proto", ".sh", ".toml", ".yml", ".yaml", ".txt", ".txtar") {
		if name == "internal/lint/words_test.go" || strings.HasPrefix(name, "LICENSES/") {
			continue
		}
		for line, found := range awkward(name, text) {
			t.Errorf("%s:%d: %s", name, line, found)
		}
	}
}

func TestAwkward(t *testing.T) {
	require.Equal(t, map[int]string{
		1: `"who encodes": write rather: name the actor: "a peer that …", "the caller that …"`,
		3: `"of those": write rather: put the subject first: "number of …", "a key of a … has"`,
		6: `"by rdma": write rather: "over RDMA"`,
		8: `"anew": write rather: "again"`,
	}, awkward("p.go", "// Who encodes yields\n//\n// Of those.\n// the peer who sends, which says who may; all of the keys\n// It comes by\n// RDMA.\nvar anew = lacks(who) // one\nvar a = \"anew\"\n"))
}

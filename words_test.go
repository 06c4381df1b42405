package starling

import (
	"go/ast"
	"go/parser"
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

// phrases are words that make readers whose mother tongue is English stop, and what to write
// instead. They are searched for in lower case, with all white space, line ends and comment marks
// between words as one space.
var phrases = []struct{ pattern, instead string }{
	{`(say|tell)s? whether`, "reports whether"},
	{`for nothing`, "wasted"},
	{`ask(s|ed)? for again`, "re-requested"},
	{`may be ago`, "maximum age of …"},
	{`as long as \w+ likes?`, "until … returns false; for as long as it needs"},
	{`(go|goes|going|gone) on (with|from|where|as|at|by|in|without|until|while|for|to|after|there|here|again|alone|instead|all|and)\b`, "continues, resumes"},
	{`(go|goes|going|gone|went) on[.,;:)]`, "continues, resumes"},
	{`so many (blocks|bytes)`, "a limit in blocks or bytes"},
	{`may fall behind`, "maximum backlog of …"},
	{`a start after it`, "the next start"},
	{`\bsome (two|three|four|five|six|seven|eight|nine|ten|fifteen|twenty|\d[\d,.]*) `, "about"},
	{`nobody waits`, "nothing blocks; readers never block writers"},
	{`the room of`, "space freed by …"},
	{`you believe`, "you trust"},
	{`of the last days`, "a few days old at most"},
	{`in the midst of`, "during"},
	{`holds? (nobody|anybody|it|them) up`, "delays"},
	{`is amiss`, "is wrong"},
	{`in vain`, "without success"},
	{`for want of`, "without"},
	{`hang together`, "are consistent"},
	{`from its command to following`, "from the command until it follows"},
	{`who lies, is`, "peers that send false data are …"},
}

// mayHavePattern finds a limit that is worded as a permission: "the calls that a peer may have" are
// the limit of calls of a peer. A past participle is another thing: "the block that they may have
// pruned".
var (
	mayHavePattern = regexp.MustCompile(`(?:that|which|how many) +(?:[\w\']+ +){1,4}may +have( +\w+|[^\w ])`)
	participle     = regexp.MustCompile(`^ +(\w+ed|been|begun|come|gone|got|had|left|lost|made|met|put|read|seen|sent|set|shown|taken|told|written|to)$`)
)

// flat joins the lines of a text to one of the same length, in lower case, where comment marks and
// line ends are spaces.
func flat(text string) string {
	marks := regexp.MustCompile(`\n[ \t]*(//+|#+|\*|>)?[ \t]*`)
	return strings.ToLower(marks.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat(" ", len(s)) }))
}

// awkward returns what is found of phrases in a text, by lines.
func awkward(text string) map[int]string {
	found, one := map[int]string{}, flat(text)
	if len(one) != len(text) { // a letter whose lower case has another length
		one = text
	}
	for _, p := range phrases {
		pattern := regexp.MustCompile(strings.ReplaceAll(p.pattern, " ", " +"))
		for _, at := range pattern.FindAllStringIndex(one, -1) {
			found[lineOf(text, at[0])] = `"` + strings.Join(strings.Fields(one[at[0]:at[1]]), " ") + `": write rather: ` + p.instead
		}
	}
	for _, at := range mayHavePattern.FindAllStringSubmatchIndex(one, -1) {
		if !participle.MatchString(one[at[2]:at[3]]) {
			found[lineOf(text, at[0])] = `"` + one[at[0]:at[1]] + `": write rather: at most; limit`
		}
	}
	return found
}

// TestPlainWords keeps phrases out that readers would read twice.
func TestPlainWords(t *testing.T) {
	for name, text := range textFiles(t, ".go", ".md", ".py", ".js", ".html", ".proto", ".sh", ".toml", ".yml", ".yaml") {
		if name == "words_test.go" {
			continue
		}
		for line, found := range awkward(text) {
			t.Errorf("%s:%d: %s", name, line, found)
		}
	}
}

func TestAwkward(t *testing.T) {
	require.Equal(t, map[int]string{
		1: `"tells whether": write rather: reports whether`, 3: `"that a peer may have.": write rather: at most; limit`,
		5: `"goes on with": write rather: continues, resumes`,
	}, awkward("// f tells\n//\twhether it is.\n// Those that a peer may have. Those which it may have lost.\n\n// It goes on\n// with the next.\n"))
}

package lint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// maxDocumentWords bounds what a reader has to search: see CONTRIBUTING.md.
const maxDocumentWords = 75_000

// generatedPages are written by `starlingd docs` and by a test of the metrics, and do not count.
var generatedPages = []string{"docs/reference/commands.md", "docs/reference/settings.md", "docs/reference/metrics.md", "docs/reference/errors.md"}

// words counts the words of a Markdown document that contain a letter from a to z, outside of code
// blocks: fenced ones, and those that are indented after an empty line.
func words(markdown string) (n int) {
	var fenced, indented bool
	empty := true
	for line := range strings.Lines(markdown) {
		if strings.HasPrefix(strings.TrimLeftFunc(line, unicode.IsSpace), "```") {
			fenced, empty = !fenced, false
			continue
		}
		indented = strings.HasPrefix(line, "    ") && (empty || indented)
		empty = strings.TrimSpace(line) == ""
		for word := range strings.FieldsSeq(line) {
			if !fenced && !indented && strings.ContainsFunc(word, func(r rune) bool { return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' }) {
				n++
			}
		}
	}
	return n
}

// TestWordsOfDocuments keeps the documents short enough to be read.
func TestWordsOfDocuments(t *testing.T) {
	type page struct {
		name  string
		words int
	}
	var (
		pages []page
		total int
	)
	for name, text := range textFiles(t, ".md") {
		if !strings.HasPrefix(name, "docs/") || slices.Contains(generatedPages, name) {
			continue
		}
		n := words(text)
		total += n
		pages = append(pages, page{name, n})
	}
	if total <= maxDocumentWords {
		return
	}
	slices.SortFunc(pages, func(a, b page) int { return cmp.Or(b.words-a.words, strings.Compare(a.name, b.name)) })
	var longest strings.Builder
	for _, p := range pages[:10] {
		fmt.Fprintf(&longest, "\n%6d  %s", p.words, p.name)
	}
	t.Errorf("docs has %d words, and may have %d: remove repetition. The longest pages:%s", total, maxDocumentWords, longest.String())
}

func TestWords(t *testing.T) {
	text := "# Two words\n\n| a | 12 ms | – |\n```\nnot these\n```\n  ```sh\nnor these\n  ```\n`code` 3.5 é\n    too\n\n    nor\n    these\n"
	if n := words(text); n != 6 {
		t.Errorf("%d words", n)
	}
}

package harness

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
)

// PrintAligned writes a table whose first column is aligned to the left, the others to the right.
func PrintAligned(out io.Writer, cells [][]string) {
	widths := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, c := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for _, line := range cells {
		var b strings.Builder
		for i, c := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i == 0 {
				b.WriteString(c + pad)
			} else {
				b.WriteString("  " + pad + c)
			}
		}
		fmt.Fprintln(out, strings.TrimRight(b.String(), " "))
	}
}

// Group writes a number with commas between its thousands.
func Group(n int) string { return humanize.Comma(int64(n)) }

// Count writes a number with its noun, in the plural where there is not exactly one: "1 chunk",
// "2,000 chunks".
func Count(n int, noun string) string { return Group(n) + " " + english.PluralWord(n, noun, "") }

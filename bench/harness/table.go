package harness

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
)

// PrintAligned writes a table. The first column is aligned left, the others right.
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

// Group formats a number with commas between thousands.
func Group(n int) string { return humanize.Comma(int64(n)) }

// Count formats a number with its noun, in the plural unless n is one: "1 chunk", "2,000 chunks".
func Count(n int, noun string) string { return Group(n) + " " + english.PluralWord(n, noun, "") }

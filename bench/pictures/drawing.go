package pictures

import (
	"bytes"
	"fmt"
	"html"
)

// Style has the colors of pictures for light and dark pages.
const Style = `<style>
  svg { --ink: #24292f; --faint: #afb8c1; --a: #0969da; --b: #bc4c00; --c: #1a7f37; --d: #8250df; --e: #cf222e; --f: #6e7781; background: #ffffff; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6edf3; --faint: #484f58; --a: #58a6ff; --b: #f0883e; --c: #3fb950; --d: #bc8cff; --e: #ff7b72; --f: #9198a1; background: #0d1117; }
  }
</style>
`

// Measures of a drawing, in pixels.
const (
	pageWidth = 960
	margin    = 10
	rowHeight = 26
	barHeight = 18
	baseline  = 14 // of the text of a row, below its top
)

// drawing is a picture that grows downwards.
type drawing struct {
	bytes.Buffer
	y int // the top of the next row
}

// row ends a row.
func (d *drawing) row(height int) { d.y += height }

// text draws a text in the present row. attributes begin with a space, or are empty.
func (d *drawing) text(x float64, attributes, text string) {
	fmt.Fprintf(d, `<text x="%.1f" y="%d"%s>%s</text>`+"\n", x, d.y+baseline, attributes, html.EscapeString(text))
}

// bar draws a bar in the present row.
func (d *drawing) bar(x, width float64, class, title string) {
	fmt.Fprintf(d, `<rect x="%.1f" y="%d" width="%.1f" height="%d" class="%s"><title>%s</title></rect>`+"\n", x, d.y, width, barHeight, class, html.EscapeString(title))
}

// svg returns the picture. classes are CSS rules.
func (d *drawing) svg(title, classes string) []byte {
	height := d.y + margin
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="13">`+"\n", pageWidth, height)
	fmt.Fprintf(&b, "<title>%s</title>\n%s<style>\n%s</style>\n", html.EscapeString(title), Style, classes)
	b.Write(d.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}

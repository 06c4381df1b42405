package clientbench

import (
	"bytes"
	"fmt"
)

// stepColours are the colours of the steps: waiting in greys, votes in blues, work in greens.
var stepColours = [numSteps]string{"#b0b0b0", "#d9d9d9", "#fdae61", "#abd9e9", "#74add1", "#5e8fc4", "#4575b4", "#1b7837"}

// Measures of the drawing, in pixels.
const (
	svgWidth, svgLabels, svgRow, svgBar, svgLegend = 960, 210, 34, 22, 46
)

// drawTimeline draws a bar for each time line, of one segment for each step. The bars of networks
// with and without delays differ by a factor of ten, so each has a scale of its own: the segments
// show shares, and the labels the whole.
func drawTimeline(r *TimelineResult) []byte {
	var b bytes.Buffer
	height := svgLegend + svgRow*len(r.Lines) + 24
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		svgWidth, height, svgWidth, height)
	fmt.Fprintf(&b, `<title>Where the time of a put goes (--network %s)</title>`+"\n", r.Network)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", svgWidth, height)
	for i, name := range stepNames {
		x := 10 + i*104
		fmt.Fprintf(&b, `<rect x="%d" y="10" width="12" height="12" fill="%s"/><text x="%d" y="20">%s</text>`+"\n", x, stepColours[i], x+16, name)
	}
	for i, l := range r.Lines {
		y := svgLegend + i*svgRow
		fmt.Fprintf(&b, `<text x="10" y="%d">%s: %s ms</text>`+"\n", y+15, l.name(), milliseconds(l.PutMS))
		var whole float64 // without negative means
		for _, name := range stepNames {
			whole += max(l.Steps[name], 0)
		}
		x := float64(svgLabels)
		for step, name := range stepNames {
			if l.Steps[name] <= 0 {
				continue
			}
			width := l.Steps[name] / whole * (svgWidth - svgLabels - 10)
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s %s ms</title></rect>`+"\n",
				x, y, width, svgBar, stepColours[step], name, milliseconds(l.Steps[name]))
			if width > 40 {
				fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x+width/2, y+15, milliseconds(l.Steps[name]))
			}
			x += width
		}
	}
	fmt.Fprintf(&b, `<text x="10" y="%d" fill="#666">means of %d s each, %d puts at a time; %d CPUs, %s/%s</text>`+"\n</svg>\n",
		height-8, r.Seconds, r.Workers, r.Machine.CPUs, r.Machine.OS, r.Machine.Arch)
	return b.Bytes()
}

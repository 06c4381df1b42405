package pictures

import "fmt"

// steps are the rows of the output of timeline, with a class of color each: waiting in greys, votes
// in blues, work in orange and green. Texts on them are dark on every page.
var steps = []string{"accept", "propose", "spread", "prevote", "polka", "precommit", "decide", "answer"}

const stepClasses = `  text { fill: var(--ink); }
  .note { fill: var(--f); }
  text.on { fill: #1f2328; text-anchor: middle; font-size: 12px; }
  .accept { fill: #b0b0b0; }
  .propose { fill: #d4d4d4; }
  .spread { fill: #fdae61; }
  .prevote { fill: #c3e0f0; }
  .polka { fill: #9dcbe5; }
  .precommit { fill: #77b3d9; }
  .decide { fill: #5399cc; }
  .answer { fill: #66bd7c; }
`

// stepsLeft is the left end of the bars, in pixels.
const stepsLeft = 260

// drawTimeline draws a bar for each network in the output of timeline, of one segment for each
// step. The bars of networks with and without delays differ by a factor of ten, so each has a scale
// of its own: the segments show shares, and the labels the whole.
func drawTimeline(runs map[string]string) ([]byte, error) {
	const file = "latency.txt"
	t, err := readTable(runs[file], "mean of a put, ms")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	d := &drawing{y: margin}
	for i, name := range steps {
		x := float64(margin + i*(pageWidth-margin)/len(steps))
		d.bar(x, barHeight, name, name)
		d.text(x+barHeight+6, "", name)
	}
	d.row(rowHeight + margin)
	for _, network := range t.head[1:] {
		if err := drawPut(d, t, network.text); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	d.text(margin, ` class="note"`, "Means of a put, in ms. Each bar has its own scale. Drawn from docs/runs/"+file+".")
	d.row(rowHeight)
	return d.svg("Where the time of a put goes", stepClasses), nil
}

// drawPut draws the bar of one network.
func drawPut(d *drawing, t *table, network string) error {
	var whole float64 // without negative means
	took := make([]figure, len(steps))
	for i, name := range steps {
		var err error
		if took[i], err = t.figure(name, network); err != nil {
			return err
		}
		whole += max(took[i].value, 0) // a node may report the end of a step late
	}
	put, err := t.cell("put", network)
	if err != nil {
		return err
	}
	d.text(margin, "", fmt.Sprintf("%s: %s ms", network, put))
	x := float64(stepsLeft)
	for i, name := range steps {
		width := took[i].value / whole * (pageWidth - stepsLeft - margin)
		if !(width > 0) { // or there is no step
			continue
		}
		d.bar(x, width, name, name+" "+took[i].text+" ms")
		if width > 40 {
			d.text(x+width/2, ` class="on"`, took[i].text)
		}
		x += width
	}
	d.row(rowHeight + 6)
	return nil
}

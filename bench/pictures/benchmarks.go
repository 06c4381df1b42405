package pictures

import (
	"fmt"
	"strconv"
)

// Measures of the bars, in pixels.
const (
	barsLeft  = 280
	barsRight = 170 // room for the figures, right of the longest bar
)

const barClasses = `  text { fill: var(--ink); }
  .note { fill: var(--f); }
  .head { font-weight: bold; }
  .own { fill: var(--a); }
  .other { fill: var(--f); }
  .lies { fill: var(--b); }
`

// bar is one figure.
type bar struct {
	label, class string
	row, column  string    // of the figure
	over         [2]string // row and column of the ratio to Starling's, or to honest peers'
}

// panel is a group of bars with one scale.
type panel struct {
	title, unit string
	file, table string
	bars        []bar
}

const million = "1,000,000 keys"

// joins compares joins.
func joins() panel {
	const row = "join, s"
	return panel{"Join with a million keys, until they are durable", "s", "join.txt", million, []bar{
		{"Starling, over loopback, verified", "own", row, "starling", [2]string{}},
		{"Starling, paged", "own", row, "paged", [2]string{ratio, "paged"}},
		{"memiavl imports, without a network", "other", row, "memiavl", [2]string{ratio, "memiavl"}},
		{"Cosmos SDK restores, without a network", "other", row, "sdk-iavl", [2]string{ratio, "sdk-iavl"}},
	}}
}

// commits compares commits at one size.
func commits(title, table string) panel {
	const two, one = "commit p50, ms", "on one core p50, ms"
	return panel{title, "ms", "tree.txt", table, []bar{
		{"Starling, two cores", "own", two, "starling", [2]string{}},
		{"memiavl, one of two cores", "other", two, "memiavl", [2]string{two, "memiavl " + ratio}},
		{"Starling, one core", "own", one, "starling", [2]string{}},
		{"memiavl, one core", "other", one, "memiavl", [2]string{one, "memiavl " + ratio}},
	}}
}

// liars compares joins by the number of Byzantine peers.
func liars(numbers ...int) panel {
	const column = "join, s"
	p := panel{"Join with a million keys from 80 peers", "s", "join.txt", million + ", of 80 peers lie", nil}
	for _, n := range numbers {
		row := strconv.Itoa(n)
		b := bar{"none Byzantine", "own", row, column, [2]string{}}
		if n > 0 {
			b.label, b.class, b.over = row+" Byzantine", "lies", [2]string{row, column + " " + ratio}
		}
		p.bars = append(p.bars, b)
	}
	return p
}

var panels = []panel{
	joins(),
	commits("Commit of 1,000 operations, a million keys", million),
	commits("Commit of 1,000 operations, ten million keys", "10,000,000 keys"),
	liars(0, 1, 5, 10, 20, 26, 79),
}

// drawBenchmarks draws a bar for each figure of panels. runs has the output of runs by file.
func drawBenchmarks(runs map[string]string) ([]byte, error) {
	d := &drawing{y: margin}
	for _, p := range panels {
		if err := p.draw(d, runs[p.file]); err != nil {
			return nil, fmt.Errorf("%s: %w", p.file, err)
		}
	}
	d.text(margin, ` class="note"`, "Medians; ×: over Starling's, or over that with honest peers. Each group has its own scale. Drawn from docs/runs/join.txt and tree.txt.")
	d.row(rowHeight)
	return d.svg("Benchmarks: joins, commits, and joins among Byzantine peers", barClasses), nil
}

func (p *panel) draw(d *drawing, output string) error {
	t, err := readTable(output, p.table)
	if err != nil {
		return err
	}
	var longest float64
	figures := make([]figure, len(p.bars))
	for i, b := range p.bars {
		if figures[i], err = t.figure(b.row, b.column); err != nil {
			return err
		}
		longest = max(longest, figures[i].value)
	}
	if longest == 0 {
		return fmt.Errorf("table %q: the bars have no length", p.table)
	}
	d.text(margin, ` class="head"`, p.title)
	d.row(rowHeight)
	for i, b := range p.bars {
		text := figures[i].text + " " + p.unit
		if b.over[0] != "" {
			over, err := t.cell(b.over[0], b.over[1])
			if err != nil {
				return err
			}
			text += ", " + over + ratio
		}
		width := figures[i].value / longest * (pageWidth - barsLeft - barsRight)
		d.text(margin, "", b.label)
		d.bar(barsLeft, width, b.class, b.label+": "+text)
		d.text(barsLeft+width+8, "", text)
		d.row(rowHeight)
	}
	d.row(margin)
	return nil
}

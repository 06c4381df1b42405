package pictures

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// table is a table of a run's output, as harness.PrintAligned prints it: a cell ends where the name
// of its column ends.
type table struct {
	name string
	head []cell
	rows [][]cell
}

// ratio is the name of a column with ratios of the column before it, for which readTable calls it
// "memiavl ×".
const ratio = "×"

// cell is a text, and the number of characters before its end in its line.
type cell struct {
	text string
	end  int
}

// texts are the cells of a line, with single spaces in them.
var texts = regexp.MustCompile(`\S+( \S+)*`)

func cellsOf(line string) (cells []cell) {
	for _, at := range texts.FindAllStringIndex(line, -1) {
		cells = append(cells, cell{line[at[0]:at[1]], utf8.RuneCountInString(line[:at[1]])})
	}
	return cells
}

// readTable returns the first table with that name, which is its first cell. The table ends with an
// empty line.
func readTable(output, name string) (*table, error) {
	var t *table
	for line := range strings.Lines(output) {
		cells := cellsOf(line)
		switch {
		case t != nil && len(cells) == 0:
			return t, nil
		case t != nil:
			t.rows = append(t.rows, cells)
		case len(cells) > 0 && cells[0].text == name:
			t = &table{name: name, head: cells}
			for i := range cells {
				if cells[i].text == ratio {
					cells[i].text = cells[i-1].text + " " + ratio
				}
			}
		}
	}
	if t == nil {
		return nil, fmt.Errorf("there is no table %q", name)
	}
	return t, nil
}

// cell returns the text in the first row and the first column with these names.
func (t *table) cell(row, column string) (string, error) {
	for _, head := range t.head[1:] {
		if head.text != column {
			continue
		}
		for _, cells := range t.rows {
			if cells[0].text != row {
				continue
			}
			for _, c := range cells[1:] {
				if c.end == head.end {
					return c.text, nil
				}
			}
			break
		}
		break
	}
	return "", fmt.Errorf("table %q has no %q of %q", t.name, row, column)
}

// figure is a cell with a number.
type figure struct {
	text  string
	value float64
}

// figure returns the figure in the first row and the first column with these names.
func (t *table) figure(row, column string) (f figure, err error) {
	if f.text, err = t.cell(row, column); err != nil {
		return f, err
	}
	if f.value, err = strconv.ParseFloat(strings.ReplaceAll(f.text, ",", ""), 64); err != nil {
		return f, fmt.Errorf("table %q: %q of %q: %w", t.name, row, column, err)
	}
	return f, nil
}

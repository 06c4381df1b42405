package papersbench

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/starling-kv/starling/bench/pictures"
)

// The colors of a picture are placeholders, which picture replaces by the variables of
// pictures.Style: a page's reader may prefer dark colors.
var (
	ink    = color.RGBA{1, 2, 3, 255}
	faint  = color.RGBA{4, 5, 6, 255}
	series = []color.RGBA{{7, 1, 1, 255}, {7, 2, 2, 255}, {7, 3, 3, 255}, {7, 4, 4, 255}, {7, 5, 5, 255}, {7, 6, 6, 255}}
)

const (
	width  = 7 * vg.Inch
	height = 4 * vg.Inch
	margin = 6 // points
)

// picture returns a chart as SVG, with a label that says where and when it was measured. It depends
// on nothing else.
func picture(c chart, label string) ([]byte, error) {
	p := plot.New()
	p.BackgroundColor = nil // pictures.Style has it
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X+"\n"+label, c.Y
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(10)}
	for _, s := range []*draw.TextStyle{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		s.Font, s.Color = sans, ink
	}
	p.Title.TextStyle.Font.Size = vg.Points(12)
	p.Title.Padding = vg.Points(6)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Color, a.Tick.LineStyle.Color = ink, ink
		a.Tick.Marker = ticks{}
	}
	if len(c.Names) > 0 {
		p.X.Min, p.X.Max, p.X.Tick.Marker = -0.5, float64(len(c.Names))-0.5, nameTicks(c.Names)
		p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = math.Pi/7, draw.XRight, draw.YTop
	}
	if c.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, logTicks{}
	}
	if c.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, logTicks{}
	} else {
		p.Y.Min = 0
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, faint
	p.Add(grid)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(2)
	next := 0
	for i, l := range c.Lines {
		col := ink
		if !l.Paper {
			col = series[next%len(series)]
			next++
		}
		add := func() error { return addLine(p, l, col, next) }
		if len(c.Names) > 0 {
			add = func() error { return addBars(p, l, col, i, len(c.Lines), len(c.Names)) }
		}
		if err := add(); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", c.Title, l.Name, err)
		}
	}
	room := 0.08 * float64(len(c.Lines)) // for the legend
	if c.LogY {
		p.Y.Max *= math.Pow(p.Y.Max/p.Y.Min, room)
	} else {
		p.Y.Max += (p.Y.Max - p.Y.Min) * room
	}
	canvas := vgsvg.New(width, height)
	p.Draw(draw.Crop(draw.New(canvas), margin, -2*margin, margin, -margin))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	return finish(out.String(), c.Title), nil
}

func addLine(p *plot.Plot, l line, col color.Color, number int) error {
	points := slices.Clone(l.Points)
	slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.X, b.X) })
	xys := make(plotter.XYs, len(points))
	whiskers := struct {
		plotter.XYs
		plotter.YErrors
	}{}
	for i, q := range points {
		xys[i] = plotter.XY{X: q.X, Y: q.Y}
		if q.High > 0 {
			whiskers.XYs = append(whiskers.XYs, xys[i])
			whiskers.YErrors = append(whiskers.YErrors, struct{ Low, High float64 }{q.Y - q.Low, q.High - q.Y})
		}
	}
	drawn, dots, err := plotter.NewLinePoints(xys)
	if err != nil {
		return err
	}
	drawn.Color, drawn.Width = col, vg.Points(1.5)
	shapes := []draw.GlyphDrawer{draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.PyramidGlyph{}}
	dots.Color, dots.Radius, dots.Shape = col, vg.Points(2.5), shapes[number%len(shapes)]
	if l.Paper {
		drawn.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		dots.Shape = draw.CrossGlyph{}
	}
	p.Add(drawn, dots)
	p.Legend.Add(l.Name, drawn, dots)
	if len(whiskers.XYs) == 0 {
		return nil
	}
	bars, err := plotter.NewYErrorBars(whiskers)
	if err != nil {
		return err
	}
	bars.Color = col
	p.Add(bars)
	return nil
}

// addBars adds the bars of a line. Those of all lines stand next to each other above each name.
func addBars(p *plot.Plot, l line, col color.Color, number, lines, names int) error {
	values := make(plotter.Values, names)
	for _, q := range l.Points {
		values[int(q.X)] = q.Y
	}
	thick := width * 0.7 / vg.Length(names*lines)
	bars, err := plotter.NewBarChart(values, thick)
	if err != nil {
		return err
	}
	bars.Color, bars.LineStyle.Width = col, 0
	bars.Offset = thick * (vg.Length(number) - vg.Length(lines-1)/2)
	p.Add(bars)
	p.Legend.Add(l.Name, bars)
	return nil
}

// nameTicks has a name at each of 0, 1, ….
type nameTicks []string

func (n nameTicks) Ticks(float64, float64) (all []plot.Tick) {
	for i, name := range n {
		all = append(all, plot.Tick{Value: float64(i), Label: name})
	}
	return all
}

// finish replaces the placeholders by the variables of pictures.Style.
func finish(svg, title string) []byte {
	swap := []string{"\n<g transform", "\n<title>" + html.EscapeString(title) + "</title>\n" + pictures.Style + "<g transform"}
	hex := func(c color.RGBA) string { return fmt.Sprintf("#%02X%02X%02X", c.R, c.G, c.B) }
	swap = append(swap, hex(ink), "var(--ink)", hex(faint), "var(--faint)", "Liberation Sans", "Liberation Sans, Arial, sans-serif")
	for i, c := range series {
		swap = append(swap, hex(c), "var(--"+string(rune('a'+i))+")")
	}
	head, body, _ := strings.Cut(svg, "\n<g transform")
	body = strings.NewReplacer(swap[2:]...).Replace("\n<g transform" + body)
	return []byte(head + strings.Replace(body, swap[0], swap[1], 1))
}

// ticks are those of gonum with numbers that are easy to read.
type ticks struct{}

func (ticks) Ticks(low, high float64) []plot.Tick {
	all := plot.DefaultTicks{}.Ticks(low, high)
	for i, t := range all {
		if t.Label != "" {
			all[i].Label = short(t.Value)
		}
	}
	return all
}

// logTicks has labels at the powers of ten, and at 2 and 5 times them if the range is short.
type logTicks struct{}

func (logTicks) Ticks(low, high float64) (all []plot.Tick) {
	labels := []float64{1}
	if high/low < 300 {
		labels = []float64{1, 2, 5}
	}
	for power := math.Floor(math.Log10(low)); power <= math.Ceil(math.Log10(high)); power++ {
		for m := 1.0; m < 10; m++ {
			t := plot.Tick{Value: m * math.Pow(10, power)}
			if t.Value < low*0.999 || t.Value > high*1.001 {
				continue
			}
			if slices.Contains(labels, m) {
				t.Label = short(t.Value)
			}
			all = append(all, t)
		}
	}
	return all
}

// short formats a number of an axis: 20k, 1.5M, 0.02.
func short(v float64) string {
	unit := ""
	switch a := math.Abs(v); {
	case a >= 1e9:
		v, unit = v/1e9, "G"
	case a >= 1e6:
		v, unit = v/1e6, "M"
	case a >= 1e4:
		v, unit = v/1e3, "k"
	}
	return strconv.FormatFloat(v, 'g', 4, 64) + unit
}

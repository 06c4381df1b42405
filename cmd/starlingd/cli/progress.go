package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

const (
	// progressEvery is the time between two lines in a log.
	progressEvery = 5 * time.Second
	// drawEvery is the time between two changes of a bar on a terminal.
	drawEvery = 100 * time.Millisecond
)

// bytesUnit is the unit whose counts are shown as KiB, MiB, …
const bytesUnit = "bytes"

// progress shows the progress of a long command: a bar on a terminal, periodic lines in a log.
type progress struct {
	out          io.Writer
	screen       *screen // nil: not a terminal
	unit         string
	total, first int
	start, last  time.Time
}

func newProgress(out io.Writer, unit string, total, first int) *progress {
	s, ok := out.(*screen)
	if !ok {
		s = onTerminal(out)
	}
	now := time.Now()
	p := &progress{out: out, screen: s, unit: unit, total: total, first: first, start: now, last: now}
	if s != nil {
		s.show(p.line(first, now))
	}
	return p
}

// at sets the number of units done.
func (p *progress) at(done int) {
	now := time.Now()
	switch since := now.Sub(p.last); {
	case p.screen != nil && (since >= drawEvery || done >= p.total):
		p.screen.show(bar(float64(done)/float64(max(p.total, 1))) + "  " + p.line(done, now))
	case p.screen == nil && since >= progressEvery:
		fmt.Fprintln(p.out, p.line(done, now))
	default:
		return
	}
	p.last = now
}

// line labels each figure.
func (p *progress) line(done int, now time.Time) string {
	rate := 0.0
	if since := now.Sub(p.start).Seconds(); since > 0 {
		rate = float64(done-p.first) / since
	}
	left := "?"
	if rate > 0 {
		left = time.Duration(float64(p.total-done) / rate * float64(time.Second)).Round(time.Second).String()
	}
	if p.unit == bytesUnit {
		return fmt.Sprintf("%s of %s, %s/s, %s left", humanize.IBytes(uint64(done)), humanize.IBytes(uint64(p.total)), humanize.IBytes(uint64(rate)), left)
	}
	return fmt.Sprintf("%d of %d %s, %.0f/s, %s left", done, p.total, p.unit, rate, left)
}

// end ends the bar's line.
func (p *progress) end() {
	if p.screen != nil {
		p.screen.end()
	}
}

// barCells is the length of a bar, in characters.
const barCells = 20

// bar draws a fraction from 0 to 1.
func bar(share float64) string {
	filled := min(max(int(share*barCells+0.5), 0), barCells)
	head := ""
	if filled < barCells {
		head = ">"
	}
	return fmt.Sprintf("[%-*s] %3.0f %%", barCells, strings.Repeat("=", filled)+head, share*100)
}

package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progressEvery is the time between two lines in a log; a terminal has a bar.
const progressEvery = 5 * time.Second

// bytesUnit is the unit whose counts are shown as KiB, MiB, …
const bytesUnit = "bytes"

// progress shows the progress of a long command: a bar on a terminal, a line now and then in a log.
type progress struct {
	out          io.Writer
	unit         string
	total, first int
	start, last  time.Time
	bar          *progressbar.ProgressBar // nil: not a terminal
}

func newProgress(out io.Writer, unit string, total, first int) *progress {
	now := time.Now()
	p := &progress{out: out, unit: unit, total: total, first: first, start: now, last: now}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(out), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
			progressbar.OptionShowBytes(unit == bytesUnit), progressbar.OptionSetItsString(unit), progressbar.OptionSetWidth(24),
			progressbar.OptionThrottle(100*time.Millisecond))
		_ = p.bar.Set(first) // a bar that cannot be drawn is not a reason to stop
	}
	return p
}

// at sets the total number that is done.
func (p *progress) at(done int) {
	if p.bar != nil {
		_ = p.bar.Set(done) // see newProgress
		return
	}
	now := time.Now()
	if now.Sub(p.last) < progressEvery {
		return
	}
	p.last = now
	rate := float64(done-p.first) / now.Sub(p.start).Seconds()
	left := "?"
	if rate > 0 {
		left = time.Duration(float64(p.total-done) / rate * float64(time.Second)).Round(time.Second).String()
	}
	if p.unit == bytesUnit {
		fmt.Fprintf(p.out, "%s of %s, %s/s, %s left\n", humanize.IBytes(uint64(done)), humanize.IBytes(uint64(p.total)), humanize.IBytes(uint64(rate)), left)
		return
	}
	fmt.Fprintf(p.out, "%d of %d %s, %.0f/s, %s left\n", done, p.total, p.unit, rate, left)
}

// end ends the bar's line.
func (p *progress) end() {
	if p.bar != nil {
		fmt.Fprintln(p.out)
	}
}

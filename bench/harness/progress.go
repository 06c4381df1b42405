package harness

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// logEvery is the interval between lines if the output is not a terminal.
const logEvery = 5 * time.Second

// Progress shows the progress of a run: as a bar on a terminal, otherwise as a line every few
// seconds. Its methods are safe for concurrent use.
type Progress struct {
	// Dir is the parent of a run's folder (see InFolder); "": the system's temporary folder.
	Dir string

	out      *os.File
	terminal bool
	start    time.Time

	mu    sync.Mutex // guards phase and its fields
	phase *phase     // nil: between phases
}

// phase is work of known size.
type phase struct {
	name, unit  string
	who         string
	done, total int
	start, said time.Time
	bar         *progressbar.ProgressBar // on a terminal
}

// NewProgress returns a Progress that writes to out.
func NewProgress(out *os.File) *Progress {
	return &Progress{out: out, terminal: term.IsTerminal(int(out.Fd())), start: time.Now()}
}

// Run keeps the display up to date during long steps, until end is called.
func (p *Progress) Run() (end func()) {
	every := time.NewTicker(250 * time.Millisecond)
	stop := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-every.C:
				p.show()
			}
		}
	})
	return func() {
		every.Stop()
		close(stop)
		ended.Wait()
		p.finish()
	}
}

// Begin starts the next phase.
func (p *Progress) Begin(name, unit string, total int) {
	p.finish()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.phase = &phase{name: name, unit: unit, total: total, start: now, said: now}
	if p.terminal {
		p.phase.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(p.out), progressbar.OptionSetWidth(24),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString(unit),
			progressbar.OptionSetElapsedTime(false), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
}

// Working sets the name of the contestant whose turn it is.
func (p *Progress) Working(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase.who = who
}

// Add counts n more units as done.
func (p *Progress) Add(n int) {
	p.mu.Lock()
	p.phase.done += n
	p.mu.Unlock()
	p.show()
}

func (p *Progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase == nil {
		return
	}
	if p.phase.bar != nil {
		p.phase.bar.Describe(fmt.Sprintf("%5.0f s  %s: %s", time.Since(p.start).Seconds(), p.phase.name, p.phase.who))
		if p.phase.done < p.phase.total { // a full bar would end the line
			_ = p.phase.bar.Set(p.phase.done)
		}
		return
	}
	if time.Since(p.phase.said) < logEvery {
		return
	}
	note := ""
	if took := time.Since(p.phase.start); p.phase.done > 0 {
		left := time.Duration(float64(took) * float64(p.phase.total-p.phase.done) / float64(p.phase.done))
		note = fmt.Sprintf(", %s left", left.Round(time.Second))
	}
	if p.phase.who != "" {
		note += ", now " + p.phase.who
	}
	p.line(note)
}

// line writes the progress of the phase. The caller holds p.mu.
func (p *Progress) line(note string) {
	f := p.phase
	f.said = time.Now()
	rate, digits := float64(f.done)/max(time.Since(f.start).Seconds(), 1e-3), 0
	if rate < 10 {
		digits = 2
	}
	fmt.Fprintf(p.out, "%6.1f s  %s: %s of %s %s, %.*f/s%s\n",
		time.Since(p.start).Seconds(), f.name, Group(f.done), Group(f.total), f.unit, digits, rate, note)
}

// Say ends the phase, and writes a line.
func (p *Progress) Say(format string, args ...any) {
	p.finish()
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "%6.1f s  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

// finish ends the phase with a line.
func (p *Progress) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase == nil {
		return
	}
	if p.phase.bar != nil {
		_ = p.phase.bar.Clear()
		fmt.Fprint(p.out, "\r")
	}
	p.line("")
	p.phase = nil
}

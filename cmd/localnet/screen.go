package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// lineEvery is the interval of progress lines without a terminal.
const lineEvery = 2 * time.Second

// screen shows progress: with moving bars on a terminal, with plain lines elsewhere (a log, CI).
// Every line shows the seconds since the clock was started.
type screen struct {
	out      io.Writer
	terminal bool
	start    time.Time
}

func newScreen(out *os.File) *screen {
	return &screen{out: out, terminal: term.IsTerminal(int(out.Fd())), start: time.Now()}
}

// restartClock resets the time shown on lines to zero.
func (s *screen) restartClock() { s.start = time.Now() }

// say prints a line with the time.
func (s *screen) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%6.1f s  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// plain prints without the time.
func (s *screen) plain(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// meter shows the progress of one thing.
type meter struct {
	screen *screen
	what   string

	mu   sync.Mutex
	bar  *progressbar.ProgressBar // on a terminal
	next time.Time                // elsewhere: when the next line is due
}

// meter begins to show the progress of what, in total units (0: unknown). Call end before the next
// line is printed.
func (s *screen) meter(what string, total int64) *meter {
	m := &meter{screen: s, what: what, next: time.Now().Add(lineEvery)}
	if s.terminal {
		look := []progressbar.Option{
			progressbar.OptionSetWriter(s.out),
			progressbar.OptionSetDescription(m.describe("")),
			progressbar.OptionSetWidth(24),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionSetElapsedTime(false),
			progressbar.OptionThrottle(60 * time.Millisecond),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetTheme(progressbar.Theme{Saucer: "█", SaucerPadding: "░", BarStart: "", BarEnd: ""}),
		}
		if total > 0 {
			look = append(look, progressbar.OptionShowCount())
		} else {
			total = -1 // a spinner
			look = append(look, progressbar.OptionSpinnerType(14),
				// Only set advances it: its own clock would continue after end.
				progressbar.OptionSetSpinnerChangeInterval(0))
		}
		m.bar = progressbar.NewOptions64(total, look...)
	}
	return m
}

func (m *meter) describe(note string) string {
	text := fmt.Sprintf("%6.1f s  %s", time.Since(m.screen.start).Seconds(), m.what)
	if note != "" {
		text += ", " + note
	}
	return text
}

// set says that n of total units are done.
func (m *meter) set(n, total int64, note string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bar != nil {
		m.bar.Describe(m.describe(note))
		if n < total { // a full bar would end it
			_ = m.bar.Set64(n)
		}
		return // Describe has drawn it
	}
	if now := time.Now(); now.After(m.next) {
		m.next = now.Add(lineEvery)
		count := ""
		if total > 0 {
			count = fmt.Sprintf(": %s of %s", group(n), group(total))
		}
		fmt.Fprintf(m.screen.out, "%s\n", m.describe("")+count+prefixed(", ", note))
	}
}

// end removes the bar.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bar != nil {
		_ = m.bar.Clear()
		m.bar = nil
		fmt.Fprint(m.screen.out, "\r")
	}
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// group writes a number with commas between its thousands.
func group(n int64) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// count writes a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return group(int64(n)) + " " + many
}

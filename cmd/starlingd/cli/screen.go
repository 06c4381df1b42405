package cli

import (
	"bytes"
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// screen is a terminal whose last line shows a bar, while all other output scrolls above it:
//
//	log ──► Write ──► erase the last line ─► what was written ─► the last line again
//	bar ──► show  ──► erase the last line ─► the new one
type screen struct {
	out   io.Writer
	width func() int // terminal width in columns; 0: unknown

	mu      sync.Mutex
	line    []byte // without the line end; guarded by mu
	pending bool   // the last write did not end its line; guarded by mu
}

// eraseLine moves to the beginning of the line and erases it (ECMA-48, CR and EL).
const eraseLine = "\r\x1b[K"

// onTerminal returns a screen if out is a terminal, nil otherwise.
func onTerminal(out io.Writer) *screen {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &screen{out: out, width: func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return width
	}}
}

// Write writes b above the last line.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var whole []byte
	if len(s.line) > 0 && !s.pending {
		whole = append(whole, eraseLine...)
	}
	whole = append(whole, b...)
	if len(b) > 0 {
		s.pending = b[len(b)-1] != '\n'
	}
	if !s.pending {
		whole = append(whole, s.line...)
	}
	if _, err := s.out.Write(whole); err != nil {
		return 0, err
	}
	return len(b), nil
}

// show replaces the last line. It is truncated at the terminal's width, because a wrapped line
// cannot be erased. Errors are ignored: failing to draw a bar is not a reason to stop.
func (s *screen) show(line string) {
	runes := []rune(line)
	if width := s.width(); width > 1 && len(runes) > width-1 {
		runes = runes[:width-1]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := []byte(string(runes)); !bytes.Equal(next, s.line) {
		s.line = next
		if !s.pending {
			_, _ = s.out.Write(append([]byte(eraseLine), next...))
		}
	}
}

// end keeps the last line: further output begins below it.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.line) > 0 {
		s.line = nil
		_, _ = s.out.Write([]byte("\n"))
	}
}

// Command copied finds source text that also occurs in other projects: it compares every source
// file of this repository with every module in the module cache, by runs of equal lines. It prints
// each run that is too long to be a coincidence, and exits with status 1 if there is one.
//
//	go run ./internal/copied            # checks the repository in this folder
//
// Leading and trailing spaces and blank lines are ignored. A run needs five equal lines with 120
// letters in total (-lines, -letters). Generated files and imports are ignored. Text with renamed
// identifiers is not found.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

var (
	minLines   = flag.Int("lines", 5, "number of equal lines in a run")
	minLetters = flag.Int("letters", 120, "number of letters in these lines")
)

var (
	sourceFile = regexp.MustCompile(`\.(go|s|S|c|h|cc|py|js|css|html|sh|proto)$`)
	generated  = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	importLine = regexp.MustCompile(`^(import )?\(?[\w.]* ?"[^"]*"\)?$`)
)

func main() {
	flag.Parse()
	found, err := run()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "copied:", err)
		os.Exit(2)
	case found > 0:
		os.Exit(1)
	}
}

func run() (found int, err error) {
	tracked, err := exec.CommandContext(context.Background(), "git", "ls-files").Output()
	if err != nil {
		return 0, fmt.Errorf("git ls-files: %w", err)
	}
	cache, err := exec.CommandContext(context.Background(), "go", "env", "GOMODCACHE").Output()
	if err != nil {
		return 0, fmt.Errorf("go env: %w", err)
	}
	ours := newIndex(*minLines, *minLetters)
	for name := range strings.Lines(string(tracked)) {
		if name = strings.TrimSpace(name); !sourceFile.MatchString(name) {
			continue
		}
		source, err := os.ReadFile(name) //nolint:gosec // a file of this repository
		if err != nil {
			return 0, err
		}
		ours.add(name, source)
	}
	root, others := strings.TrimSpace(string(cache)), 0
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !sourceFile.MatchString(name) {
			return err
		}
		source, err := os.ReadFile(name) //nolint:gosec // a file of the module cache
		if err != nil {
			return err
		}
		others++
		ours.compare(strings.TrimPrefix(name, root+"/"), source)
		return nil
	})
	if err != nil {
		return 0, err
	}
	matches := ours.matches()
	for _, m := range matches {
		fmt.Printf("%s:%d: %d lines equal to %s\n", m.name, m.line, m.lines, m.other)
	}
	fmt.Printf("%d files compared with %d: %d runs\n", ours.files, others, len(matches))
	return len(matches), nil
}

// index holds the runs of this repository's files.
type index struct {
	lines, letters int
	files          int
	seed           maphash.Seed
	at             map[uint64][]place
	other          map[place]string // where the run also occurs
}

type place struct {
	name string
	line int // first line of the run, from 1
}

type match struct {
	place
	lines int
	other string
}

func newIndex(lines, letters int) *index {
	return &index{lines: lines, letters: letters, seed: maphash.MakeSeed(), at: map[uint64][]place{}, other: map[place]string{}}
}

func (x *index) add(name string, source []byte) {
	if generated.Match(source) {
		return
	}
	x.files++
	x.runs(source, func(line int, hash uint64) { x.at[hash] = append(x.at[hash], place{name, line}) })
}

func (x *index) compare(name string, source []byte) {
	x.runs(source, func(_ int, hash uint64) {
		for _, p := range x.at[hash] {
			if _, ok := x.other[p]; !ok {
				x.other[p] = name
			}
		}
	})
}

// runs calls visit for each run of a file, with its first line.
func (x *index) runs(source []byte, visit func(line int, hash uint64)) {
	type text struct {
		line    int
		text    []byte
		letters int
	}
	var last []text
	n := 0
	for line := range bytes.Lines(source) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || importLine.Match(line) {
			continue
		}
		letters := 0
		for _, r := range string(line) {
			if unicode.IsLetter(r) {
				letters++
			}
		}
		if last = append(last, text{n, line, letters}); len(last) > x.lines {
			last = last[1:]
		}
		if len(last) < x.lines {
			continue
		}
		var h maphash.Hash
		h.SetSeed(x.seed)
		all := 0
		for _, l := range last {
			all += l.letters
			_, _ = h.Write(l.text)
			_ = h.WriteByte('\n')
		}
		if all >= x.letters {
			visit(last[0].line, h.Sum64())
		}
	}
}

// matches returns the runs that also occur elsewhere, with adjacent runs merged.
func (x *index) matches() (all []match) {
	places := make([]place, 0, len(x.other))
	for p := range x.other {
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b place) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return a.line - b.line
	})
	for _, p := range places {
		if n := len(all) - 1; n >= 0 && all[n].name == p.name && p.line <= all[n].line+all[n].lines {
			all[n].lines = p.line + x.lines - all[n].line
			continue
		}
		all = append(all, match{p, x.lines, x.other[p]})
	}
	return all
}

package runner

import (
	"os"
	"regexp"
	"strconv"
	"strings"
)

// LogLine is a line of a node's log in CometBFT's plain-text format.
type LogLine struct {
	Message string
	Fields  map[string]string
}

// Int returns a field that is a number, or the first number of one such as 12/40; 0 if there is
// none.
func (l LogLine) Int(field string) int64 {
	first, _, _ := strings.Cut(l.Fields[field], "/")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

var (
	linePattern  = regexp.MustCompile(`^[A-Z]\[[^\]]*\] (.*?)((?:\s+[\w.]+=(?:"(?:[^"\\]|\\.)*"|\S*))*)\s*$`)
	fieldPattern = regexp.MustCompile(`([\w.]+)=("(?:[^"\\]|\\.)*"|\S*)`)
)

// Logged returns the lines of a log that begin with one of the messages, in order. A log that is
// not there has none.
func Logged(path string, messages ...string) []LogLine {
	lines, err := LoggedFrom(path, 0, messages...)
	if err != nil {
		return nil
	}
	return lines
}

// LoggedFrom is Logged, starting at an offset of the file.
func LoggedFrom(path string, offset int64, messages ...string) (found []LogLine, _ error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	content = content[min(offset, int64(len(content))):]
	for line := range strings.Lines(string(content)) {
		if !strings.HasSuffix(line, "\n") {
			break // the node is still writing it
		}
		if l, ok := ParseLine(strings.TrimSuffix(line, "\n")); ok && hasAnyPrefix(l.Message, messages) {
			found = append(found, l)
		}
	}
	return found, nil
}

// ParseLine parses a line of a log. It returns false if it is not one.
func ParseLine(line string) (LogLine, bool) {
	parts := linePattern.FindStringSubmatch(line)
	if parts == nil {
		return LogLine{}, false
	}
	l := LogLine{Message: strings.TrimSpace(parts[1]), Fields: map[string]string{}}
	for _, field := range fieldPattern.FindAllStringSubmatch(parts[2], -1) {
		value := field[2]
		if text, err := strconv.Unquote(value); err == nil {
			value = text
		}
		l.Fields[field[1]] = value
	}
	return l, true
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}

// Messages of a node that joins over the transport.
const (
	LogRestoring = "Joining: restoring a snapshot"  // with height and chunks
	LogRestored  = "Joining: the state is restored" // with all fields
	LogBanned    = "Banned a peer that sent invalid data"
)

// LogInvalid are the messages of nodes that use storage nodes, about one that sent a false answer,
// with node.
var LogInvalid = []string{"a node sent an invalid answer", "A node sent an invalid response"}

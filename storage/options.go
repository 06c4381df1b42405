package storage

import (
	"fmt"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Logger takes what the zone and the database under it have to say, as a message with pairs of keys and values. *slog.Logger
// and CometBFT's logger are ones. It is called concurrently.
type Logger interface {
	Info(msg string, keyvals ...any)
	Error(msg string, keyvals ...any)
}

// Options of a state zone; the zero value is usable.
type Options struct {
	FS     vfs.FS // default: the operating system's
	Logger Logger // default: silent
	// Fatal is called, after the error was logged, when the database cannot go on (its log or its list of files cannot be
	// written: a full or broken disk). It must not return. Default: end the process with exit status 1; nothing that a Write
	// has confirmed is lost by that.
	Fatal func(error)

	memTableBytes uint64 // small in tests, so that Pebble flushes and compacts in them
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = nopLogger{}
	}
	if o.Fatal == nil {
		o.Fatal = func(error) { os.Exit(1) }
	}
	if o.memTableBytes == 0 {
		o.memTableBytes = 16 << 20
	}
	return o
}

type nopLogger struct{}

func (nopLogger) Info(string, ...any)  {}
func (nopLogger) Error(string, ...any) {}

// pebbleLogger hands Pebble's errors to our log. Its information (each compaction, each flush) is left out.
type pebbleLogger struct {
	dir   string
	log   Logger
	fatal func(error)
}

func (pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Error("state database", "folder", l.dir, "err", fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	err := fmt.Errorf("state folder %s: the database cannot go on: %s: check the disk (space, permissions), then start again", l.dir, fmt.Sprintf(format, args...))
	l.log.Error("state database failed", "folder", l.dir, "err", err)
	l.fatal(err)
	panic(err) // Pebble is in no state to go on
}

// Package engine is shared by the zones. It opens a Pebble database, and adds remedies to its
// errors.
//
//	Folder ──Open──► *pebble.DB
//	   ▲                 │ error, background error, Fatalf
//	   └── Err ◄─────────┘
//	        ├── ErrLocked     another process has it
//	        ├── ErrCorrupt    names the damaged file and a remedy
//	        ├── ErrDiskFull   ENOSPC, EDQUOT
//	        └── any other
package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

var (
	// ErrLocked: another process has the folder open.
	ErrLocked = errors.New("in use by another process")
	// ErrCorrupt: the data on disk is damaged.
	ErrCorrupt = errors.New("damaged")
	// ErrNewerFormat: a newer version of this program wrote the data.
	ErrNewerFormat = errors.New("written by a newer version")
	// ErrClosed: the zone is closed.
	ErrClosed = errors.New("closed")
	// ErrDiskFull: the disk is full, or the quota is used up.
	ErrDiskFull = errors.New("disk full")
)

// Format is fixed, so that a newer Pebble does not make the data unreadable for older programs.
const Format = pebble.FormatValueSeparation

// BaseLevelBytes returns the size of the level into which L0 is compacted, for flushes of that many
// bytes. With random keys, a compaction of L0 rewrites most of that level, so it must not be many
// times larger than L0. docs/decisions/0042-small-base-level.md has measurements.
func BaseLevelBytes(flush uint64) int64 { return int64(min(8*flush, 64<<20)) }

// Logger receives the messages of a zone and of its database, with alternating keys and values.
// *slog.Logger and CometBFT's logger implement it. It is called concurrently.
type Logger interface {
	Info(msg string, keyvals ...any)
	Error(msg string, keyvals ...any)
}

// NopLogger discards all messages.
type NopLogger struct{}

// Info does nothing.
func (NopLogger) Info(string, ...any) {}

// Error does nothing.
func (NopLogger) Error(string, ...any) {}

// Folder is the folder of a zone's database, with the texts for its messages.
type Folder struct {
	Zone   string // "state" or "blocks": begins every message
	Dir    string
	WayOut string // remedy for damage, as the end of a sentence
	FS     vfs.FS // default: the operating system's
	Logger Logger // default: silent
	// Fatal is called, after the error was logged, when the database cannot continue because its
	// log or its list of files cannot be written. It must not return. Default: exit with status 1.
	Fatal func(error)
	// Background is called with each failure of a flush or compaction, with a remedy, and before
	// each call of Fatal. Pebble holds its locks meanwhile, so Background must neither block nor
	// call the database. If it returns, Pebble tries again at once. Default: no call.
	Background func(error)
}

// WithDefaults returns f with defaults for unset fields.
func (f Folder) WithDefaults() Folder {
	if f.FS == nil {
		f.FS = vfs.Default
	}
	if f.Logger == nil {
		f.Logger = NopLogger{}
	}
	if f.Fatal == nil {
		f.Fatal = func(error) { os.Exit(1) }
	}
	if f.Background == nil {
		f.Background = func(error) {}
	}
	return f
}

// Open opens the database in the folder, and creates it if necessary. It sets the options shared by
// all zones in o. A listener in o is called, too.
func (f Folder) Open(o *pebble.Options) (*pebble.DB, error) {
	f = f.WithDefaults()
	ordered := &folderFS{FS: f.FS, fatalf: pebbleLogger{f}.Fatalf, logged: !o.DisableWAL}
	o.FS, o.FormatMajorVersion, o.Logger = ordered, Format, pebbleLogger{f}
	// Pebble's own listener ends the process. Damage found by a reader is returned as an error with
	// a remedy.
	listener := pebble.EventListener{
		BackgroundError: func(err error) {
			err = advised(f.Err("background work", err))
			f.Logger.Error("database", "zone", f.Zone, "folder", f.Dir, "err", err)
			f.Background(err)
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			f.Logger.Error("damaged file", "zone", f.Zone, "file", info.Path, "err", info.Details)
		},
	}
	if o.EventListener != nil {
		listener = pebble.TeeEventListener(listener, *o.EventListener)
	}
	o.EventListener = &listener
	there, err := f.check()
	if err != nil {
		return nil, f.openErr(there, err)
	}
	if name := f.merger(); o.Merger != nil && name != o.Merger.Name && ours.MatchString(name) {
		return nil, f.newer(fmt.Sprintf("merger %s, this program knows %s", name, o.Merger.Name))
	}
	db, err := open(f.Dir, o)
	if err != nil {
		if damaged := f.damagedOptions(o.Merger); damaged != nil {
			return nil, damaged
		}
		return nil, f.openErr(there, err)
	}
	ordered.opened.Store(true)
	return db, nil
}

// openErr is Err for a database that cannot be opened. Most of Pebble's errors about existing files
// have no type. So all errors except those of the operating system count as damage, and so does a
// missing file.
func (f Folder) openErr(there bool, err error) error {
	known := errors.Is(err, ErrLocked) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat)
	var system syscall.Errno
	if there && !known && (!errors.As(err, &system) || errors.Is(err, fs.ErrNotExist)) {
		return f.Corrupt(err)
	}
	return f.Err("open", err)
}

// damagedOptions returns an ErrCorrupt if the database's newest options file cannot be decoded.
// Pebble compares this file with the options that it is given. The file contains no data.
func (f Folder) damagedOptions(merger *pebble.Merger) error {
	path, text := f.options()
	if path == "" {
		return nil
	}
	known := &pebble.Options{Merger: merger} // zones change no other compared options
	known.EnsureDefaults()
	if err := known.CheckCompatibility(f.Dir, text); err != nil {
		return fmt.Errorf("%s folder %s is %w: file %s: %w: remove that file, which contains no data, and start again", f.Zone, f.Dir, ErrCorrupt, path, err)
	}
	return nil
}

// options returns path and contents of the database's newest options file; empty if there is none
// or it cannot be read.
func (f Folder) options() (path, text string) {
	names, err := f.FS.List(f.Dir)
	if err != nil {
		return "", ""
	}
	newest := ""
	for _, name := range names {
		if strings.HasPrefix(name, "OPTIONS-") && (len(name) > len(newest) || len(name) == len(newest) && name > newest) {
			newest = name
		}
	}
	path = f.FS.PathJoin(f.Dir, newest)
	file, err := f.FS.Open(path)
	if newest == "" || err != nil {
		return "", ""
	}
	defer file.Close()
	b, err := io.ReadAll(file)
	if err != nil {
		return "", ""
	}
	return path, string(b)
}

// merger returns the name of the database's merger; empty if there is no database yet, or its
// options file does not name one.
func (f Folder) merger() string {
	_, text := f.options()
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "merger="); ok {
			return name
		}
	}
	return ""
}

// check refuses a database with a newer format than Format. Pebble's own error for an unknown
// format has no type, and a newer format that Pebble knows was not written by this program. It also
// refuses a database whose list of files has lost its marker: Pebble would begin a new list and
// remove the tables, and the values in segments would be lost. there is false if there is no
// database yet.
func (f Folder) check() (there bool, err error) {
	names, err := f.FS.List(f.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	format, err := atomicfs.ReadMarker(f.FS, f.Dir, formatMarker)
	if err != nil {
		return true, err
	}
	list, err := atomicfs.ReadMarker(f.FS, f.Dir, listMarker)
	if err != nil {
		return true, err
	}
	// In a new database, the marker of the list becomes durable before the format marker, and
	// before tables and segments.
	data := slices.ContainsFunc(names, func(name string) bool {
		return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, SegmentSuffix)
	})
	switch {
	case list == "" && (format != "" || data):
		return true, f.Corrupt(errors.New("the file marker.manifest.… is missing, which names the list of files"))
	case format == "" && data:
		return true, f.Corrupt(errors.New("the file marker.format-version.… is missing, which has the format version"))
	case format == "":
		return false, nil
	}
	version, err := strconv.ParseUint(format, 10, 64)
	if err != nil {
		return true, f.Corrupt(fmt.Errorf("the database's format is %q, which is not a number", format))
	}
	if version > uint64(Format) {
		return true, f.Newer("database format", version, uint64(Format))
	}
	return true, nil
}

// SegmentSuffix is the suffix of the files in which package segments stores large values of a
// database, in its folder.
const SegmentSuffix = ".seg"

// Pebble stores the format of a database (format_major_version.go) and the name of its list of
// files (version_set.go) in the names of files marker.NAME.COUNT.VALUE.
const (
	formatMarker = "format-version"
	listMarker   = "manifest"
)

// Newer returns an ErrNewerFormat about a part of the folder.
func (f Folder) Newer(what string, found, known uint64) error {
	return f.newer(fmt.Sprintf("%s %d, this program knows up to %d", what, found, known))
}

func (f Folder) newer(what string) error {
	return fmt.Errorf("%s folder %s was %w: %s: use the starlingd that wrote it, or a newer one (`starlingd version --long` "+
		"shows what one knows), or remove the home's data with `starlingd unsafe-reset-all` and join again", f.Zone, f.Dir, ErrNewerFormat, what)
}

// ours matches the names of mergers of this program and of newer versions.
var ours = regexp.MustCompile(`^starling\.[a-z]+\.v[0-9]+$`)

// open returns Pebble's panics as errors.
func open(dir string, o *pebble.Options) (_ *pebble.DB, err error) {
	defer func() {
		r := recover()
		switch failed, is := r.(error); {
		case is && errors.As(failed, new(syncError)):
			err = failed
		case r != nil:
			panic(r)
		}
	}()
	return pebble.Open(dir, o)
}

// Err wraps an error of an operation, so that errors.Is finds the errors of this package and the
// message includes a remedy. It returns nil if err is nil.
func (f Folder) Err(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrLocked):
		return fmt.Errorf("%s folder %s: %w: stop the other starlingd that runs on this home, or give this one another home", f.Zone, f.Dir, err)
	case errors.Is(err, ErrDiskFull), errors.Is(err, ErrCorrupt), errors.Is(err, ErrNewerFormat):
		return err // already wrapped
	case IsDiskFull(err):
		return fmt.Errorf("%s folder %s: %s: %w: %w: make room on the disk, then start again", f.Zone, f.Dir, doing, ErrDiskFull, err)
	case pebble.IsCorruptionError(err), errors.Is(err, pebble.ErrCorruption):
		return f.Corrupt(err)
	case errors.Is(err, syscall.EIO):
		return fmt.Errorf("%s folder %s: %s: %w: check the disk, then start again", f.Zone, f.Dir, doing, err)
	}
	return fmt.Errorf("%s folder %s: %s: %w", f.Zone, f.Dir, doing, err)
}

// Fail is called by a zone that cannot continue because one of its own files cannot be written. It
// logs the error of the operation, and calls Background and Fatal. If they return, it returns the
// error.
func (f Folder) Fail(doing string, err error) error {
	err = advised(f.Err(doing, err))
	f.Logger.Error("zone failed", "zone", f.Zone, "folder", f.Dir, "err", err)
	f.Background(err)
	f.Fatal(err)
	return err
}

// Corrupt returns an ErrCorrupt with the remedy, and with the file if Pebble knows it.
func (f Folder) Corrupt(err error) error {
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		return fmt.Errorf("%s folder %s is %w: file %s: %w: %s", f.Zone, f.Dir, ErrCorrupt, info.Path, info.Details, f.WayOut)
	}
	return fmt.Errorf("%s folder %s is %w: %w: %s", f.Zone, f.Dir, ErrCorrupt, err, f.WayOut)
}

// advised adds a remedy to an error of Err without one.
func advised(err error) error {
	if errors.Is(err, ErrDiskFull) || errors.Is(err, ErrCorrupt) || errors.Is(err, syscall.EIO) {
		return err
	}
	return fmt.Errorf("%w: check the disk (space, permissions), then start again", err)
}

// IsDiskFull reports whether err is an operating system error for a full disk or quota.
func IsDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// pebbleLogger logs Pebble's errors, and discards its information about each compaction and flush.
type pebbleLogger struct{ f Folder }

func (pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.f.Logger.Error("database", "zone", l.f.Zone, "folder", l.f.Dir, "err", fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	err := advised(l.f.Err("the database cannot continue", fatalError{fmt.Sprintf(format, args...), args}))
	l.f.Logger.Error("database failed", "zone", l.f.Zone, "folder", l.f.Dir, "err", err)
	l.f.Background(err)
	l.f.Fatal(err)
	panic(err) // Pebble cannot continue
}

// fatalError is a formatted message that wraps the errors in its arguments.
type fatalError struct {
	text string
	args []any
}

func (e fatalError) Error() string { return e.text }

func (e fatalError) Unwrap() []error {
	var all []error
	for _, a := range e.args {
		if err, is := a.(error); is {
			all = append(all, err)
		}
	}
	return all
}

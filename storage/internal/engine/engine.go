// Package engine is what the zones share: opening a Pebble database, and the reasons why one cannot
// continue.
//
//	Folder ──Open──► *pebble.DB
//	   ▲                 │ error, background error, Fatalf
//	   └── Err ◄─────────┘
//	        ├── ErrLocked     another process has it
//	        ├── ErrCorrupt    names the damaged file, and the way out
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
	// ErrCorrupt: what is on disk cannot be read as what was written.
	ErrCorrupt = errors.New("damaged")
	// ErrNewerFormat: a later version of this program wrote the data.
	ErrNewerFormat = errors.New("written by a newer version")
	// ErrClosed: the zone is closed.
	ErrClosed = errors.New("closed")
	// ErrDiskFull: no space, or the quota is used up.
	ErrDiskFull = errors.New("disk full")
)

// Format is pinned, so that a newer Pebble does not make data unreadable for the program that wrote
// it.
const Format = pebble.FormatValueSeparation

// BaseLevelBytes is the size of the level that L0 is compacted into, for flushes of that many
// bytes: a compaction out of L0 rewrites most of that level where keys are random, so it must not
// be many times what comes from L0. docs/decisions/0042-small-base-level.md has figures.
func BaseLevelBytes(flush uint64) int64 { return int64(min(8*flush, 64<<20)) }

// Logger takes what a zone and the database under it have to say, as a message with pairs of keys
// and values. *slog.Logger and CometBFT's logger are ones. It is called concurrently.
type Logger interface {
	Info(msg string, keyvals ...any)
	Error(msg string, keyvals ...any)
}

// NopLogger drops all messages.
type NopLogger struct{}

// Info does nothing.
func (NopLogger) Info(string, ...any) {}

// Error does nothing.
func (NopLogger) Error(string, ...any) {}

// Folder is where a zone's database lies, and what its messages say.
type Folder struct {
	Zone   string // "state", "blocks": begins every message
	Dir    string
	WayOut string // what to do about damage, as the end of a sentence
	FS     vfs.FS // default: the operating system's
	Logger Logger // default: silent
	// Fatal is called, after the error was logged, when the database cannot continue (its log or
	// its list of files cannot be written). It must not return. Default: end the process with exit
	// status 1.
	Fatal func(error)
	// Background is told of each failure of flushing or compacting, with what to do about it, and
	// of what Fatal is told, before that. Pebble holds its locks meanwhile: it must neither block
	// nor call the database. Unless it ends the process, Pebble tries again at once. Default:
	// nobody.
	Background func(error)
}

// WithDefaults fills in what is not set.
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

// Open opens the database in the folder, and creates it if need be. It sets what all zones have in
// common in o; a listener that is there already is called too.
func (f Folder) Open(o *pebble.Options) (*pebble.DB, error) {
	f = f.WithDefaults()
	ordered := &folderFS{FS: f.FS, fatalf: pebbleLogger{f}.Fatalf, logged: !o.DisableWAL}
	o.FS, o.FormatMajorVersion, o.Logger = ordered, Format, pebbleLogger{f}
	// Pebble's own listener ends the process. Damage that a reader meets comes back as an error,
	// with the way out.
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
	if name := f.Merger(); o.Merger != nil && name != o.Merger.Name && ours.MatchString(name) {
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

// openErr is Err for a database that cannot be opened. Pebble gives most of its complaints about
// the files of one that is there no kind: what is not an error of the operating system, and a file
// that is missing, is damage.
func (f Folder) openErr(there bool, err error) error {
	known := errors.Is(err, ErrLocked) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat)
	var system syscall.Errno
	if there && !known && (!errors.As(err, &system) || errors.Is(err, fs.ErrNotExist)) {
		return f.Corrupt(err)
	}
	return f.Err("open", err)
}

// damagedOptions returns an ErrCorrupt if the database's newest file of options, which Pebble
// compares with those that it is given, cannot be read as one. No data are in it.
func (f Folder) damagedOptions(merger *pebble.Merger) error {
	path, text := f.options()
	if path == "" {
		return nil
	}
	known := &pebble.Options{Merger: merger} // no zone changes what else is compared
	known.EnsureDefaults()
	if err := known.CheckCompatibility(f.Dir, text); err != nil {
		return fmt.Errorf("%s folder %s is %w: file %s: %w: remove that file, in which there are no data, and start again", f.Zone, f.Dir, ErrCorrupt, path, err)
	}
	return nil
}

// options returns path and contents of the database's newest file of options; empty: it cannot be
// read, or there is none.
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

// Merger returns the name of the database's merger, by which its layout can be told before it is
// opened; empty: there is no database yet, or its file of options does not say.
func (f Folder) Merger() string {
	f = f.WithDefaults()
	_, text := f.options()
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "merger="); ok {
			return name
		}
	}
	return ""
}

// check refuses a database of a newer format than the pinned one: Pebble's own error for what it
// does not know is of no kind, and what it does know beyond ours was not written by this program.
// It also refuses one whose list of files is not named any more: Pebble would begin a new one, and
// remove the tables; the values in segments would be lost with it. there is false if there is no
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
	// A new database has the list's marker, durably, before the other one, and before tables and
	// segments.
	data := slices.ContainsFunc(names, func(name string) bool {
		return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, SegmentSuffix)
	})
	switch {
	case list == "" && (format != "" || data):
		return true, f.Corrupt(errors.New("the file marker.manifest.… is missing, which says what its list of files is"))
	case format == "" && data:
		return true, f.Corrupt(errors.New("the file marker.format-version.… is missing, which says how it is to be read"))
	case format == "":
		return false, nil
	}
	version, err := strconv.ParseUint(format, 10, 64)
	if err != nil {
		return true, f.Corrupt(fmt.Errorf("the database's format is %q, which is no number", format))
	}
	if version > uint64(Format) {
		return true, f.Newer("database format", version, uint64(Format))
	}
	return true, nil
}

// SegmentSuffix ends the names of the files in which package segments keeps large values of a
// database, in its folder.
const SegmentSuffix = ".seg"

// The files in which Pebble keeps the format of a database (format_major_version.go) and the name
// of its list of files (version_set.go) are called marker.NAME.COUNT.VALUE.
const (
	formatMarker = "format-version"
	listMarker   = "manifest"
)

// Newer is an ErrNewerFormat about something in the folder.
func (f Folder) Newer(what string, found, known uint64) error {
	return f.newer(fmt.Sprintf("%s %d, this program knows up to %d", what, found, known))
}

func (f Folder) newer(what string) error {
	return fmt.Errorf("%s folder %s was %w: %s: use the starlingd that wrote it, or a newer one (`starlingd version --long` "+
		"shows what one knows), or remove the home's data with `starlingd unsafe-reset-all` and join again", f.Zone, f.Dir, ErrNewerFormat, what)
}

// ours are the names of mergers that programs like this one give, or will.
var ours = regexp.MustCompile(`^starling\.[a-z]+\.v[0-9]+$`)

// open returns the errors that Pebble panics with.
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

// Err says what went wrong doing something, so that errors.Is finds which of this package's errors
// it is. It is nil if err is.
func (f Folder) Err(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrLocked):
		return fmt.Errorf("%s folder %s: %w: stop the other starlingd that runs on this home, or give this one another home", f.Zone, f.Dir, err)
	case errors.Is(err, ErrDiskFull), errors.Is(err, ErrCorrupt), errors.Is(err, ErrNewerFormat):
		return err // was here before
	case IsDiskFull(err):
		return fmt.Errorf("%s folder %s: %s: %w: %w: make room on the disk, then start again", f.Zone, f.Dir, doing, ErrDiskFull, err)
	case pebble.IsCorruptionError(err), errors.Is(err, pebble.ErrCorruption):
		return f.Corrupt(err)
	case errors.Is(err, syscall.EIO):
		return fmt.Errorf("%s folder %s: %s: %w: check the disk, then start again", f.Zone, f.Dir, doing, err)
	}
	return fmt.Errorf("%s folder %s: %s: %w", f.Zone, f.Dir, doing, err)
}

// Fail is for a zone that cannot continue since a file of its own cannot be written: it logs the
// error of doing something, tells Background and calls Fatal. It returns the error if they return.
func (f Folder) Fail(doing string, err error) error {
	err = advised(f.Err(doing, err))
	f.Logger.Error("zone failed", "zone", f.Zone, "folder", f.Dir, "err", err)
	f.Background(err)
	f.Fatal(err)
	return err
}

// Corrupt is an ErrCorrupt that names the file where Pebble knows it, and the way out.
func (f Folder) Corrupt(err error) error {
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		return fmt.Errorf("%s folder %s is %w: file %s: %w: %s", f.Zone, f.Dir, ErrCorrupt, info.Path, info.Details, f.WayOut)
	}
	return fmt.Errorf("%s folder %s is %w: %w: %s", f.Zone, f.Dir, ErrCorrupt, err, f.WayOut)
}

// advised says what to do about an error of Err that does not say so itself.
func advised(err error) error {
	if errors.Is(err, ErrDiskFull) || errors.Is(err, ErrCorrupt) || errors.Is(err, syscall.EIO) {
		return err
	}
	return fmt.Errorf("%w: check the disk (space, permissions), then start again", err)
}

// IsDiskFull tells the operating system's errors for lack of space.
func IsDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// pebbleLogger hands Pebble's errors to our log. Its information (each compaction, each flush) is
// left out.
type pebbleLogger struct{ f Folder }

func (pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.f.Logger.Error("database", "zone", l.f.Zone, "folder", l.f.Dir, "err", fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	err := advised(l.f.Err("the database cannot go on", fatalError{fmt.Sprintf(format, args...), args}))
	l.f.Logger.Error("database failed", "zone", l.f.Zone, "folder", l.f.Dir, "err", err)
	l.f.Background(err)
	l.f.Fatal(err)
	panic(err) // Pebble cannot continue
}

// fatalError is a formatted message that keeps the errors in it.
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

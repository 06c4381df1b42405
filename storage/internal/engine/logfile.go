package engine

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// logSuffix is the suffix of the names of Pebble's write-ahead logs.
const logSuffix = ".log"

// logFile is a write-ahead log. It reports errors to Fatalf before Pebble sees them: in the next
// write, or when it begins another log, Pebble would panic and unlock a lock that it does not hold,
// which ends the process without a readable reason. Pebble creates such a file even if the
// write-ahead log is disabled, and only writes its end. Those errors are not fatal.
type logFile struct {
	vfs.File
	fs *folderFS
}

// fatal reports an error to Fatalf. Before the database is open, Open returns the error instead.
func (f *logFile) fatal(err error) error {
	if err != nil && f.fs.opened.Load() {
		f.fs.fatalf("log: %v", err)
	}
	return err
}

func (f *logFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.fatal(err)
}

func (f *logFile) Preallocate(offset, length int64) error {
	return f.fatal(f.File.Preallocate(offset, length))
}

func (f *logFile) Sync() error     { return f.fatal(f.File.Sync()) }
func (f *logFile) SyncData() error { return f.fatal(f.File.SyncData()) }

func (f *logFile) SyncTo(length int64) (fullSync bool, err error) {
	fullSync, err = f.File.SyncTo(length)
	return fullSync, f.fatal(err)
}

// begun handles the result of creating a log, or of reusing an old one.
func (f *folderFS) begun(file vfs.File, err error) (vfs.File, error) {
	log := &logFile{file, f}
	if err != nil {
		return nil, log.fatal(err)
	}
	f.unsynced.Store(true)
	return log, nil
}

// ReuseForWrite is used only for logs.
func (f *folderFS) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !f.logged {
		return f.FS.ReuseForWrite(old, name, category)
	}
	return f.begun(f.FS.ReuseForWrite(old, name, category))
}

func isLog(name string) bool { return strings.HasSuffix(name, logSuffix) }

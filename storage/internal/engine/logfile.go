package engine

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// logSuffix ends the names of Pebble's write-ahead logs.
const logSuffix = ".log"

// logFile is a write-ahead log. What fails there goes to Fatalf before Pebble hears of it: in the
// next write, or when it begins another log, Pebble would panic, and unlock what it has not locked,
// which ends the process without a reason that anybody can read. Pebble has such a file, too, where
// nothing is logged, and writes its end only: that is no reason to stop.
type logFile struct {
	vfs.File
	fs *folderFS
}

// fatal hands an error to Fatalf. Until the database is open, Open returns it.
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

// begun is what creating a log, or using an old one again, has come to.
func (f *folderFS) begun(file vfs.File, err error) (vfs.File, error) {
	log := &logFile{file, f}
	if err != nil {
		return nil, log.fatal(err)
	}
	f.unsynced.Store(true)
	return log, nil
}

// ReuseForWrite is of logs alone.
func (f *folderFS) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !f.logged {
		return f.FS.ReuseForWrite(old, name, category)
	}
	return f.begun(f.FS.ReuseForWrite(old, name, category))
}

func isLog(name string) bool { return strings.HasSuffix(name, logSuffix) }

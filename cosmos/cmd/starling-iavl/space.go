package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// recordsBytes is about the size of a leaf's records without its key and value: keys, headers and
// hashes of the leaf, of an inner node and of a record of the fast index, before the engine
// compresses them.
const recordsBytes = 160

// needs is what a join still has to write, in bytes.
type needs struct{ chunks, database int64 }

// estimate returns roughly what the join of a state with this number of leaves still has to write.
// It is unknown before the first chunk. It is not exact, because no hash covers lengths, and
// databases compress.
func estimate(dir string, leaves int64) (n needs, known bool) {
	bytes, have := kept(dir)
	if have == 0 {
		return needs{}, false
	}
	all := int64(float64(bytes) * float64(leaves) / float64(have))
	// A database has each key and value twice: as a leaf, and in the fast index.
	return needs{max(0, all-bytes), 2*all + recordsBytes*leaves}, true
}

// kept returns the bytes and the leaves of the chunks in a folder of nodedb.Spool, whose files are
// named STORE-FIRST-LEAVES.
func kept(dir string) (bytes, leaves int64) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var store, first, n int64
		if err != nil || e.IsDir() {
			return nil //nolint:nilerr // unreadable files are not counted
		}
		if _, err := fmt.Sscanf(e.Name(), "%d-%d-%d", &store, &first, &n); err != nil {
			return nil //nolint:nilerr // the manifest
		}
		info, err := e.Info()
		if err == nil && isWhole(path) {
			bytes, leaves = bytes+info.Size(), leaves+n
		}
		return nil
	})
	return bytes, leaves
}

// isWhole reports whether a file has leaves, as opposed to halves in other files.
func isWhole(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // only read from
	var kind [1]byte
	n, _ := f.Read(kind[:])
	return n == 1 && iavlsync.AnswerKind(kind[0]) == iavlsync.AnswerWhole
}

// explainFull adds to the error of a full disk how much space the join still needs, and what to do.
// It removes the unfinished database, which is rebuilt in any case.
func explainFull(err error, home string, leaves int64) error {
	if !full(err) {
		return err
	}
	err = errors.Join(err, os.RemoveAll(dbDir(home, joiningDB)))
	n, known := estimate(filepath.Join(joiningDir(home), chunksFolder), leaves)
	how := "The space needed is known after the first chunk"
	if known {
		how = fmt.Sprintf("The join still writes about %s: %s of chunks and %s of the database",
			megabytes(n.chunks+n.database), megabytes(n.chunks), megabytes(n.database))
	}
	return fmt.Errorf("%w\nThe disk of %s is full. %s, and it has %s.\nMake space and run the same command again: it resumes",
		err, dataDir(home), how, freeSpace(home))
}

// cometBytes is more than CometBFT's two databases need, for a state with some hundred validators.
const cometBytes = 16 << 20

// explainFullComet is explainFull for a complete application database, which it keeps.
func explainFullComet(err error, home string) error {
	if !full(err) {
		return err
	}
	err = errors.Join(err, os.RemoveAll(filepath.Join(joiningDir(home), cometFolder)))
	return fmt.Errorf("%w\nThe disk of %s is full. The application's database is complete; CometBFT's databases need less than %s, and there are %s.\n"+
		"Make space and run the same command again: it resumes", err, dataDir(home), megabytes(cometBytes), freeSpace(home))
}

// openBytes is enough to open and rename a database.
const openBytes = 1 << 20

// room fails unless bytes are free. Engines write even when they open a database, and Pebble ends
// the process if it cannot write.
func room(home string, bytes int64) error {
	usage, err := vfs.Default.GetDiskUsage(dataDir(home))
	if err != nil || usage.AvailBytes >= uint64(bytes) {
		return nil //nolint:nilerr // the free space is unknown
	}
	return tooLittle(fmt.Sprintf("the disk of %s has too little space. Resuming needs at least %s, and there are %s.\nMake space and run the same command again: it resumes",
		dataDir(home), megabytes(bytes), freeSpace(home)))
}

// tooLittle is an error with its own text that matches syscall.ENOSPC.
type tooLittle string

func (e tooLittle) Error() string { return string(e) }
func (tooLittle) Unwrap() error   { return syscall.ENOSPC }

func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

func freeSpace(home string) string {
	usage, err := vfs.Default.GetDiskUsage(dataDir(home))
	if err != nil {
		return "an unknown number of bytes free"
	}
	return fmt.Sprintf("%s free", megabytes(int64(usage.AvailBytes)))
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// Package disk ends a node before its disk is full, and knows which errors a full disk is the cause
// of.
//
// CometBFT does not report a full disk: a write-ahead log or a block that it cannot write ends one
// of its goroutines, or the process. So the node stops before:
//
//	free space, four times a second ── less than [storage] min_free_bytes ──┐
//	the state zone ── could not write ──────────────────────────────────────┼──► Failed ──► Stop ──► exit status 5
//	CometBFT's log ── consensus has ended because it could not write ───────┘
//	the block zone, the log of events ── could not write, and would hold up ───► EndProcess ───────► exit status 5
//
// Nothing is lost in any of these cases: what was not written is replayed, or comes from the other
// nodes.
package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/dustin/go-humanize"

	"github.com/starling-kv/starling/storage"
)

// ErrFull is wrapped by the errors of what failed, or was not begun, for lack of disk space.
var ErrFull = storage.ErrDiskFull

// poll is the time between two checks of the free space. It is too short for the fastest disks to
// write min_free_bytes.
const poll = 250 * time.Millisecond

// IsFull reports whether an error is due to a lack of disk space, or to a quota.
func IsFull(err error) bool {
	return errors.Is(err, ErrFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Advice returns what to do about an IsFull error of a node with this data folder.
func Advice(dataDir string) string {
	return fmt.Sprintf("make space on the disk of %q (or move the folder to a larger one and leave a link in its place) and start again: nothing that was committed is lost", dataDir)
}

// Watch checks the free space of some folders. It is not changed after NewWatch.
type Watch struct {
	folders []string
	minimum int64                               // bytes; 0: nothing is checked
	free    func(folder string) (uint64, error) // replaced in tests
}

// NewWatch watches folders, whose disks are to have at least minimum bytes free; 0: nothing is
// checked.
func NewWatch(minimum int64, folders ...string) Watch {
	slices.Sort(folders)
	return Watch{slices.Compact(folders), minimum, freeBytes}
}

func freeBytes(folder string) (uint64, error) {
	usage, err := vfs.Default.GetDiskUsage(folder)
	return usage.AvailBytes, err
}

// Check returns an error that wraps ErrFull if a folder has less free space than the minimum. A
// folder that does not exist yet, or whose file system does not tell, has enough.
func (w Watch) Check() error {
	if w.minimum <= 0 {
		return nil
	}
	for _, folder := range w.folders {
		if free, err := w.free(folder); err == nil && free < uint64(w.minimum) {
			return fmt.Errorf("%w: %s are free in %q, and [storage] min_free_bytes of app.toml asks for %s",
				ErrFull, humanize.IBytes(free), folder, humanize.IBytes(uint64(w.minimum)))
		}
	}
	return nil
}

// Run checks until ctx ends or a disk is full, which it reports by calling full once.
func (w Watch) Run(ctx context.Context, full func(error)) {
	if w.minimum <= 0 {
		return
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := w.Check(); err != nil {
			full(err)
			return
		}
	}
}

// EndProcess ends the process, with err as the reason on the standard error, for a database that
// can neither continue nor close, because it cannot write its log, its tables or its list of files,
// or cannot read them. What was durable is there after a restart, and the rest is executed again
// from the blocks.
func EndProcess(err error) {
	fmt.Fprintf(os.Stderr, "starlingd: %v\n", err)
	os.Exit(ExitStatus(err))
}

// ExitStatus returns starlingd's exit status for a failure of the disk.
func ExitStatus(err error) int {
	switch {
	case IsFull(err):
		return ExitFull
	case errors.Is(err, storage.ErrCorrupt):
		return ExitDamaged
	default:
		return 1
	}
}

// Exit statuses of starlingd.
const (
	ExitFull    = 5 // there is no space
	ExitDamaged = 6 // what is on the disk is not what was written
)

// LeastFree returns the free bytes of the folder that has least; known is false if no file system
// tells.
func LeastFree(folders []string) (least uint64, known bool) {
	for _, folder := range folders {
		if free, err := freeBytes(folder); err == nil && (!known || free < least) {
			least, known = free, true
		}
	}
	return least, known
}

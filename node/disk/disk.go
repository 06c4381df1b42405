// Package disk stops a node before its disk is full, and recognises errors that a full disk causes.
//
// CometBFT does not report a full disk: if it cannot write a write-ahead log or a block, one of its
// goroutines ends, or the process. The node therefore stops earlier:
//
//	free space, four times a second ── less than [disk] min_free_bytes ──┐
//	the state zone ── could not write ──────────────────────────────────────┼──► Failed ──► Stop ──► exit status 5
//	CometBFT's log ── consensus has ended because it could not write ───────┘
//	the block zone, the log of events ── could not write, and would hold up ───► EndProcess ───────► exit status 5
//
// No data are lost in any of these cases: unwritten blocks are replayed, or fetched from other
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

// ErrFull is wrapped by the errors of operations that failed or were not started because the disk
// is full.
var ErrFull = storage.ErrDiskFull

// poll is the interval of the checks of free space. Even the fastest disks cannot write
// min_free_bytes in this time.
const poll = 250 * time.Millisecond

// IsFull reports whether an error is due to a full disk or a quota.
func IsFull(err error) bool {
	return errors.Is(err, ErrFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Advice returns the hint for an IsFull error of a node with this data folder.
func Advice(dataDir string) string {
	return fmt.Sprintf("make space on the disk of %q (or move the folder to a larger disk and leave a link) and start again: committed data are not lost", dataDir)
}

// Watch checks the free space of folders. It is immutable.
type Watch struct {
	folders []string
	minimum int64                               // bytes; 0: nothing is checked
	free    func(folder string) (uint64, error) // replaced in tests
}

// NewWatch watches the disks of folders, which must have at least minimum bytes free; 0: no check.
func NewWatch(minimum int64, folders ...string) Watch {
	slices.Sort(folders)
	return Watch{slices.Compact(folders), minimum, freeBytes}
}

func freeBytes(folder string) (uint64, error) {
	usage, err := vfs.Default.GetDiskUsage(folder)
	return usage.AvailBytes, err
}

// Check returns an error that wraps ErrFull if a folder has less free space than the minimum. A
// folder that does not exist yet, or whose file system does not report free space, passes.
func (w Watch) Check() error {
	if w.minimum <= 0 {
		return nil
	}
	for _, folder := range w.folders {
		if free, err := w.free(folder); err == nil && free < uint64(w.minimum) {
			return fmt.Errorf("%w: %s are free in %q, below the %s of [disk] min_free_bytes in app.toml",
				ErrFull, humanize.IBytes(free), folder, humanize.IBytes(uint64(w.minimum)))
		}
	}
	return nil
}

// Run checks until ctx ends or a disk is full; then it calls full once.
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

// EndProcess ends the process and prints err to standard error. It is for a database that can
// neither continue nor close, because it cannot write its log, its tables or its file list, or
// cannot read them. Durable data survive; after the restart the node executes the later blocks
// again.
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
	ExitFull    = 5 // the disk is full
	ExitDamaged = 6 // data on disk are damaged
)

// LeastFree returns the free bytes of the folder that has the least; known is false if no file
// system reports them.
func LeastFree(folders []string) (least uint64, known bool) {
	for _, folder := range folders {
		if free, err := freeBytes(folder); err == nil && (!known || free < least) {
			least, known = free, true
		}
	}
	return least, known
}

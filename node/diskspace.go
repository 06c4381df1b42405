package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/storage"
)

// What a full disk does to a node. CometBFT does not tell anybody: a write-ahead log or a block that it cannot write ends a goroutine
// of it, or the process. So the node ends before:
//
//	free space, four times a second ── less than [storage] min_free_bytes ──┐
//	the state zone, the block zone ── could not write ──────────────────────┼──► Failed ──► Stop ──► exit status 5
//	CometBFT's log ── consensus has ended because it could not write ───────┘
//
// Nothing is lost by either of them: what was not written is replayed, or comes from the other nodes.

// ErrDiskFull is wrapped by what failed, or was not begun, for lack of disk space.
var ErrDiskFull = storage.ErrDiskFull

// diskPoll is the time between two looks at the free space: short enough that the fastest disks do not write min_free_bytes in it.
const diskPoll = 250 * time.Millisecond

// IsDiskFull tells whether an error is due to a lack of disk space, or of the share that a quota leaves.
func IsDiskFull(err error) bool {
	return errors.Is(err, ErrDiskFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// FullDiskAdvice says what to do about an IsDiskFull error of a node with this data folder.
func FullDiskAdvice(dataDir string) string {
	return fmt.Sprintf("make space on the disk of %s (or move the folder to a larger one and leave a link in its place) and start again: nothing that was committed is lost", dataDir)
}

// diskWatch looks after the free space under some folders.
type diskWatch struct {
	folders []string
	minimum int64                               // bytes, 0: do not look
	free    func(folder string) (uint64, error) // replaced in tests
}

func newDiskWatch(minimum int64, folders ...string) diskWatch {
	slices.Sort(folders)
	return diskWatch{slices.Compact(folders), minimum, freeBytes}
}

// dataFolders are those of a node that may lie on disks of their own, if only by links.
func dataFolders(c *cfg.Config) []string {
	dir := c.DBDir()
	return []string{
		dir, StateDir(dir), SnapshotsDir(dir), BlocksDir(dir), filepath.Dir(c.Consensus.WalFile()), filepath.Dir(c.PrivValidatorStateFile()),
	}
}

func freeBytes(folder string) (uint64, error) {
	usage, err := vfs.Default.GetDiskUsage(folder)
	return usage.AvailBytes, err
}

// check returns an ErrDiskFull if a folder has less free space than it must have. One that does not exist yet, or whose file system
// does not say, has enough.
func (w diskWatch) check() error {
	if w.minimum <= 0 {
		return nil
	}
	for _, folder := range w.folders {
		if free, err := w.free(folder); err == nil && free < uint64(w.minimum) {
			return fmt.Errorf("%w: %s are free in %s, and [storage] min_free_bytes of app.toml asks for %s",
				ErrDiskFull, mebibytes(free), folder, mebibytes(uint64(w.minimum)))
		}
	}
	return nil
}

// run checks until ctx ends, and reports once.
func (w diskWatch) run(ctx context.Context, full func(error)) {
	if w.minimum <= 0 {
		return
	}
	ticker := time.NewTicker(diskPoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := w.check(); err != nil {
			full(err)
			return
		}
	}
}

func mebibytes(bytes uint64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// consensusLog is the log of a CometBFT instance. It hears when consensus has ended because something could not be written: CometBFT
// logs the panic and goes on as a shell (consensus/state.go, receiveRoutine).
type consensusLog struct {
	log.Logger
	full  func(error)
	ended func(error) // of whatever cause; nil: nobody
}

const consensusEnded = "CONSENSUS FAILURE!!!"

func (l consensusLog) With(keyvals ...any) log.Logger {
	return consensusLog{l.Logger.With(keyvals...), l.full, l.ended}
}

func (l consensusLog) Error(message string, keyvals ...any) {
	if message == consensusEnded && isShut(keyvals) {
		return // the node ended it, and says why
	}
	l.Logger.Error(message, keyvals...)
	if message != consensusEnded {
		return
	}
	// The cause is a panic's argument, and most of those are texts.
	for i := 0; i+1 < len(keyvals); i += 2 {
		if keyvals[i] != "err" {
			continue
		}
		cause := fmt.Sprint(keyvals[i+1])
		err, _ := keyvals[i+1].(error)
		if IsDiskFull(err) || strings.Contains(cause, syscall.ENOSPC.Error()) || strings.Contains(cause, syscall.EDQUOT.Error()) {
			l.full(fmt.Errorf("%w: consensus has ended: %s", ErrDiskFull, lastLine(cause)))
		}
		if l.ended != nil {
			l.ended(errors.New(lastLine(cause)))
		}
	}
}

// lastLine is where a panic of CometBFT's names its cause: it begins with the message that was to be written, which may be a block.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimLeft(text[strings.LastIndexByte(text, '\n')+1:], "}] ")
}

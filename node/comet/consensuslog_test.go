package comet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	sm "github.com/cometbft/cometbft/state"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/signer"
)

// consensus/state.go panics with texts, the write-ahead log's own functions with errors.
func TestConsensusThatEndsOnAFullDiskIsHeard(t *testing.T) {
	for _, c := range []struct {
		message string
		cause   any
		full    bool
	}{
		{consensusEnded, fmt.Sprintf("failed to write {} msg to consensus WAL due to %v; check your file system and restart the node", syscall.ENOSPC), true},
		{consensusEnded, &os.PathError{Op: "write", Path: "wal", Err: syscall.EDQUOT}, true},
		{consensusEnded, "conflicting votes", false},
		{"cannot write", syscall.ENOSPC, false},
		{logFailed, &os.PathError{Op: "write", Path: "wal", Err: syscall.ENOSPC}, true},
		{logFailed, io.ErrClosedPipe, false},
	} {
		var heard, ended []error
		logger := consensusLog{log.NewNopLogger(), func(err error) { heard = append(heard, err) }, func(err error) { ended = append(ended, err) }, nil}
		logger.With("module", "consensus").Error(c.message, "err", c.cause, "stack", "…")
		require.Equal(t, c.message == consensusEnded, len(ended) == 1)
		if c.full {
			require.Len(t, heard, 1)
			require.ErrorIs(t, heard[0], disk.ErrFull)
		} else {
			require.Empty(t, heard)
		}
	}
}

// An end of consensus that a Halter caused is not a failure. A vote that a stopping node does not
// sign is not an error.
func TestShutIsNotLogged(t *testing.T) {
	var logged bytes.Buffer
	logger := consensusLog{log.NewTMLogger(&logged), func(error) { t.Error("the disk is not full") }, func(error) { t.Error("consensus has not failed") }, nil}
	logger.Error(consensusEnded, "err", shut{errors.New("halted")}, "stack", "…")
	require.NotContains(t, logged.String(), "FAILURE")
	logger.Error("failed signing vote", "height", 7, "err", fmt.Errorf("sign a vote: %w", signer.ErrClosed))
	require.Empty(t, logged.String())
	logger.Error("failed signing vote", "height", 7, "err", signer.ErrConflict)
	require.Contains(t, logged.String(), "failed signing vote")
}

// A decided block whose evidence cannot be looked up is detected in the log of consensus and of
// block sync. Other messages, and undecided proposals, are not.
func TestMissingHeaderIsHeard(t *testing.T) {
	for _, c := range []struct {
		message string
		cause   any
		height  int64
	}{
		{consensusEnded, errors.New("+2/3 committed an invalid block: don't have header #17"), 17},
		{blockRefused, errors.New("don't have header #17"), 17},
		{blockRefused, errors.New("don't have header at height #5"), 5},
		{blockRefused, errors.New("don't have commit at height #5"), 5},
		{blockRefused, sm.ErrNoValSetForHeight{Height: 9}, 9},
		{blockRefused, errors.New("wrong signature (#0)"), 0},
		{blockRefused, errors.New("don't have header #99999999999999999999"), 0},
		{consensusEnded, "conflicting votes", 0},
		{"prevote step: consensus deems this block invalid; prevoting nil", errors.New("don't have header #17"), 0},
	} {
		var missing int64
		logger := consensusLog{log.NewNopLogger(), nil, nil, func(height int64) { missing = height }}
		logger.With("module", "consensus").Error(c.message, "height", 20, "err", c.cause)
		require.Equal(t, c.height, missing, "%s: %v", c.message, c.cause)
	}
}

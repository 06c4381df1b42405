package comet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/disk"
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
	} {
		var heard, ended []error
		logger := consensusLog{log.NewNopLogger(), func(err error) { heard = append(heard, err) }, func(err error) { ended = append(ended, err) }}
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

// What a Halter does to consensus is no failure that anybody has to look into.
func TestShutIsNotLogged(t *testing.T) {
	var logged bytes.Buffer
	logger := consensusLog{log.NewTMLogger(&logged), func(error) { t.Error("the disk is not full") }, func(error) { t.Error("consensus has not failed") }}
	logger.Error(consensusEnded, "err", shut{errors.New("halted")}, "stack", "…")
	require.NotContains(t, logged.String(), "FAILURE")
}

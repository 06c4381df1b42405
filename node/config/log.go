package config

import (
	"fmt"
	"io"

	cfg "github.com/cometbft/cometbft/config"
	cmtflags "github.com/cometbft/cometbft/libs/cli/flags"
	"github.com/cometbft/cometbft/libs/log"
)

// NewLogger creates the log of a process. format is plain or json; level has CometBFT's form:
// "info", or "statesync:debug,*:error". The error matches ErrInvalid.
func NewLogger(w io.Writer, level, format string) (log.Logger, error) {
	var logger log.Logger
	switch format {
	case cfg.LogFormatPlain:
		logger = log.NewTMLogger(log.NewSyncWriter(w))
	case cfg.LogFormatJSON:
		logger = log.NewTMJSONLogger(log.NewSyncWriter(w))
	default:
		return nil, Invalid(fmt.Errorf("log_format is %q, it must be plain or json", format))
	}
	logger, err := cmtflags.ParseLogLevel(level, logger, cfg.DefaultLogLevel)
	if err != nil {
		return nil, Invalid(fmt.Errorf("log_level %q: %w", level, err))
	}
	return logger, nil
}

package cli

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/comet"
)

// A halt is not a failure. An error while the halted node closes is one: the block at halt_height
// may not be durable.
func TestHaltHidesNoFailure(t *testing.T) {
	logger := log.NewNopLogger()
	halted, failure := fmt.Errorf("%w at height 5, as halt_height asks for", comet.ErrHalted), errors.New("the last flush failed")
	require.NoError(t, unlessHalted(logger, nil))
	require.NoError(t, unlessHalted(logger, halted))
	require.NoError(t, unlessHalted(logger, fmt.Errorf("start: %w", halted)))
	require.NoError(t, unlessHalted(logger, errors.Join(halted, nil)))
	require.Equal(t, failure, unlessHalted(logger, failure))
	err := unlessHalted(logger, errors.Join(halted, failure)) // as node.New returns it
	require.ErrorIs(t, err, failure)
	require.NotErrorIs(t, err, comet.ErrHalted)
}

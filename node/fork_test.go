package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync/lightblocks"
)

// After two blocks of one height were proved, the node does not start until a person has decided.
func TestForkStaysAnAlarm(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	conf := nodetest.Load(t, home)
	evidence := filepath.Join(conf.CometBFT.DBDir(), "conflicts", "light-client-attack-7-AB.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(evidence), 0o700))
	nodetest.WriteFile(t, evidence, "a file that cannot be read counts")
	_, err := New(t.Context(), conf, log.NewNopLogger())
	require.ErrorIs(t, err, config.ErrInvalid, "exit status 2")
	require.ErrorIs(t, err, lightblocks.ErrConflict)
	require.ErrorContains(t, err, evidence)
	require.ErrorContains(t, err, "move the evidence in")
}

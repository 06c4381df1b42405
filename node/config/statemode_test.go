package config

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestModeOf(t *testing.T) {
	dir := t.TempDir()
	mode, _, err := ModeOf(dir)
	require.NoError(t, err)
	require.Empty(t, mode)
	require.NoError(t, CheckMode(dir, ModeLocal))
	require.NoError(t, CheckMode(dir, ModeSharded))

	require.NoError(t, os.Mkdir(StateDir(dir), 0o700))
	require.NoError(t, CheckMode(dir, ModeLocal))
	err = CheckMode(dir, ModeSharded)
	require.ErrorIs(t, err, ErrOtherMode)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "this home has the whole state")

	require.NoError(t, os.Remove(StateDir(dir)))
	for range 2 {
		require.NoError(t, MarkSharded(dir, "a-chain"))
	}
	mode, chain, err := ModeOf(dir)
	require.NoError(t, err)
	require.Equal(t, []string{ModeSharded, "a-chain"}, []string{mode, chain})
	require.NoError(t, CheckMode(dir, ModeSharded))
	err = CheckMode(dir, ModeLocal)
	require.ErrorIs(t, err, ErrOtherMode)
	require.ErrorContains(t, err, `set [state] mode = "sharded"`)

	// An incomplete write of a killed process is ignored.
	require.NoError(t, os.WriteFile(ModeFile(dir)+".begun", []byte("{"), 0o600))
	require.NoError(t, CheckMode(dir, ModeSharded))
	for _, text := range []string{"", "{", `{"mode":"local","chain_id":"a"}`, `{"mode":"sharded"}`} {
		require.NoError(t, os.WriteFile(ModeFile(dir), []byte(text), 0o600))
		require.ErrorContains(t, CheckMode(dir, ModeSharded), "restore the file", text)
	}
}

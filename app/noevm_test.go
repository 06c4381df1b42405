//go:build noevm

package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A newer starlingd does not help whoever built this one without the engine.
func TestUpgradeErrorWithoutEngine(t *testing.T) {
	e := &UpgradeError{Version: 2, Newest: NewestVersion(false), Height: 40}
	require.EqualError(t, e, "this starlingd was built with the tag noevm, without the engine of programs: the chain is of app version 2 after block 40, "+
		"and the newest that this build executes is 1: install a starlingd that was built without the tag noevm and start it with the same home folder")
	e.Version = NewestVersion(true) + 1
	require.ErrorContains(t, e, "this program is too old")
}

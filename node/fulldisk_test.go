package node

import (
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

func TestNodeDoesNotStartOnAFullDisk(t *testing.T) {
	home, _ := nodetest.Home(t, func(o *home.InitOptions) { o.Edit = nil })
	conf := nodetest.Load(t, home)
	conf.App.Disk.MinFreeBytes = 1 << 60
	_, err := New(t.Context(), conf, log.NewNopLogger())
	require.ErrorIs(t, err, disk.ErrFull)
	require.ErrorContains(t, err, conf.CometBFT.DBDir())
	require.NoDirExists(t, config.StateDir(conf.CometBFT.DBDir()))
}

func TestABCIServerDoesNotStartOnAFullDisk(t *testing.T) {
	config := config.DefaultApp()
	config.Disk.MinFreeBytes = 1 << 60
	home := t.TempDir()
	_, err := NewABCIServer(t.Context(), ABCIOptions{
		Address: "unix:///does/not/matter", Transport: "socket", Home: home, Config: config, Logger: log.NewNopLogger(),
	})
	require.ErrorIs(t, err, disk.ErrFull)
	require.ErrorContains(t, err, home)
}

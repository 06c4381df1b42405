package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
)

func TestLocalAddresses(t *testing.T) {
	c := &config.Config{CometBFT: config.DefaultCometBFT(), App: config.DefaultApp()}
	require.Equal(t, config.LocalAddresses{RPC: "http://127.0.0.1:26657", Otherwise: []string{"127.0.0.1:26666"}}, c.Local())
	c.CometBFT.RPC.ListenAddress, c.CometBFT.Instrumentation.Prometheus = "tcp://[::]:1", true
	c.App.Status.ListenAddress, c.App.Transport.ListenAddress = ":2", "tcp://192.0.2.1:3"
	require.Equal(t, config.LocalAddresses{Status: "127.0.0.1:2", RPC: "http://127.0.0.1:1", Otherwise: []string{"192.0.2.1:3", "127.0.0.1:26660"}}, c.Local())
	c.CometBFT.RPC.ListenAddress = "unix:///run/rpc.sock"
	require.Equal(t, "unix:///run/rpc.sock", c.Local().RPC)
}

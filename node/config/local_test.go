package config_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
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

func TestNamedPeers(t *testing.T) {
	c := &config.Config{CometBFT: config.DefaultCometBFT(), App: config.DefaultApp()}
	require.Empty(t, config.NamedPeers(c))
	id := func(digit string) string { return strings.Repeat(digit, 40) }
	c.App.Join.Peers = id("1") + "@a:1, b:2"
	c.CometBFT.P2P.PersistentPeers = id("2") + "@c:3," + id("1") + "@d:4"
	c.CometBFT.P2P.UnconditionalPeerIDs, c.CometBFT.P2P.PrivatePeerIDs = id("3"), id("4")+",x"
	c.CometBFT.P2P.Seeds = id("5") + "@e:5"
	want := []transport.ID{transport.ID(id("1")), transport.ID(id("2")), transport.ID(id("3")), transport.ID(id("4"))}
	require.Equal(t, want, config.NamedPeers(c), "seeds are not named peers")
}

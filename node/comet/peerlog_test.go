package comet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/p2p/conn"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/ports"
)

// duplicateError returns the error of CometBFT's filter about a second connection from one host.
func duplicateError(t *testing.T) error {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	set, ips := p2p.NewConnSet(), []net.IP{net.IPv4(127, 0, 0, 1)}
	set.Set(conn, ips)
	err = p2p.ConnDuplicateIPFilter()(set, conn, ips)
	require.Error(t, err)
	return err
}

// The operator of several nodes on one host gets one hint about the setting, at either node.
func TestDuplicateAddressIsHinted(t *testing.T) {
	var logged bytes.Buffer
	logger := newPeerLog(log.NewTMLogger(&logged)).With("module", "p2p")
	logger.Info(peerRejected, "err", errors.New("incompatible: other network"), "numPeers", 1)
	logger.Info("other", "err", duplicateError(t))
	require.NotContains(t, logged.String(), "allow_duplicate_ip")

	for range 3 { // wrapped as in p2p/transport.go, filterConn
		logger.Info(peerRejected, "err", fmt.Errorf("filtered CONN<127.0.0.1:40000>: %w", duplicateError(t)), "numPeers", 1)
	}
	require.Equal(t, 1, strings.Count(logged.String(), "set allow_duplicate_ip = true"))
	require.Contains(t, logged.String(), "host=127.0.0.1")

	for range 3 {
		logger.Error(dialFailed, "err", errors.New("dial tcp: connection refused"))
		logger.Info(peerRetried, "tries", 1, "err", errors.New(handshakeEnd), "addr", "id@10.0.0.1:26656")
	}
	require.Equal(t, 1, strings.Count(logged.String(), "it needs allow_duplicate_ip"))
}

// selfErrors returns the errors of CometBFT's transports of two nodes with one key, of which one
// dials the other: that of the dialed node, and that of the other.
func selfErrors(t *testing.T) (dialed, dialing error) {
	key := p2p.NodeKey{PrivKey: ed25519.GenPrivKey()}
	node := func() *p2p.MultiplexTransport {
		info := p2p.DefaultNodeInfo{DefaultNodeID: key.ID(), ListenAddr: "127.0.0.1:0", Network: "demo-1", Version: "1", Moniker: "m"}
		info.Other.TxIndex = "on"
		transport := p2p.NewMultiplexTransport(info, key, conn.DefaultMConnConfig())
		held, err := ports.Hold(1)
		require.NoError(t, err)
		held.Release()
		address, err := p2p.NewNetAddressString(p2p.IDAddressString(key.ID(), held.Address(0)))
		require.NoError(t, err)
		require.NoError(t, transport.Listen(*address))
		t.Cleanup(func() { _ = transport.Close() })
		return transport
	}
	a, b := node(), node()
	accepted := make(chan error, 1)
	go func() { accepted <- accept(a.Accept) }()
	dialing = dial(b.Dial, a.NetAddress())
	require.Error(t, dialing)
	return <-accepted, dialing
}

// accept and dial call methods of a transport, whose parameter has an unexported type.
func accept[C any](method func(C) (p2p.Peer, error)) error {
	var config C
	_, err := method(config)
	return err
}

func dial[C any](method func(p2p.NetAddress, C) (p2p.Peer, error), address p2p.NetAddress) error {
	var config C
	_, err := method(address, config)
	return err
}

// A node that meets a peer with its own node ID gives one hint for each host.
func TestOwnNodeIDIsHinted(t *testing.T) {
	const hint = "a peer has this node's own ID"
	dialed, dialing := selfErrors(t)
	for message, err := range map[string]error{peerRejected: dialed, dialFailed: dialing} {
		var logged bytes.Buffer
		logger := newPeerLog(log.NewTMLogger(&logged)).With("module", "p2p")
		logger.Info(peerRejected, "err", errors.New("incompatible: other network"))
		require.NotContains(t, logged.String(), hint)
		for range 3 {
			logger.Info(message, "err", err, "numPeers", 1)
		}
		require.Equal(t, 1, strings.Count(logged.String(), hint), message)
		require.Regexp(t, `host=127\.0\.0\.1\b`, logged.String())
		require.Contains(t, logged.String(), "node_key.json")
	}
}

func TestHintsAreBounded(t *testing.T) {
	var logged bytes.Buffer
	logger := newPeerLog(log.NewTMLogger(&logged))
	for i := range 2 * maxHints {
		logger.Info(peerRetried, "err", errors.New(handshakeEnd), "addr", fmt.Sprint(i))
	}
	require.Equal(t, maxHints, strings.Count(logged.String(), "it needs allow_duplicate_ip"))
}

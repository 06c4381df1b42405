package comet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	"github.com/stretchr/testify/require"
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

func TestHintsAreBounded(t *testing.T) {
	var logged bytes.Buffer
	logger := newPeerLog(log.NewTMLogger(&logged))
	for i := range 2 * maxHints {
		logger.Info(peerRetried, "err", errors.New(handshakeEnd), "addr", fmt.Sprint(i))
	}
	require.Equal(t, maxHints, strings.Count(logged.String(), "it needs allow_duplicate_ip"))
}

package network

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
)

// answer accepts one connection at an address, and sends a text.
func answer(t *testing.T, address, text string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, text)
		_ = conn.Close()
	}()
}

func answered(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	text, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(text)
}

func TestRDMA(t *testing.T) {
	require.Equal(t, []string{"STARLINGD_TRANSPORT_RDMA=required", "STARLINGD_TRANSPORT_RDMA_FABRIC=10.7.0.1/32"}, RDMA("10.7.0.1"))
	require.Equal(t, "10.7.0.1/32,fd00::2/128", Fabric("10.7.0.1", "fd00::2"))
}

// A hop leads to its target and, if it has one, to the transport next to it.
func TestDelay(t *testing.T) {
	held, err := ports.Hold(2)
	require.NoError(t, err)
	held.Release()
	p2p, rpc := held.Address(0), held.Address(1)
	transport, err := runner.TransportOf(p2p)
	require.NoError(t, err)
	answer(t, p2p, "p2p")
	answer(t, transport, "transport")
	answer(t, rpc, "rpc")

	from, to := &runner.Home{Name: "a"}, &runner.Home{Name: "b"}
	relay, at, err := Delay([]Hop{
		{From: from, To: to, Target: p2p, Delay: time.Millisecond, Transport: true}, {From: from, To: to, Target: rpc, Delay: time.Millisecond},
		{From: from, To: to, Target: "127.0.0.1:1", Host: "localhost"},
	})
	require.NoError(t, err)
	defer relay.Close()
	require.Len(t, at, 3)
	require.True(t, strings.HasPrefix(at[2], "localhost:"), at[2])
	require.Equal(t, "p2p", answered(t, at[0]))
	require.Equal(t, "rpc", answered(t, at[1]))
	beside, err := runner.TransportOf(at[0])
	require.NoError(t, err)
	require.Equal(t, "transport", answered(t, beside))

	_, _, err = Delay([]Hop{{From: from, To: to, Target: "no port", Transport: true}})
	require.ErrorContains(t, err, "missing port")
	_, _, err = Delay([]Hop{{From: from, To: to, Target: rpc, Delay: -1}})
	require.ErrorContains(t, err, "link from a to b")
}

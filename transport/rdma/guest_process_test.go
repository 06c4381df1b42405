//go:build cgo && linux && rdma

package rdma

import (
	"bufio"
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/transporttest"
)

// childVariable turns the test binary into one side of a connection: a server, or a dialer of the
// address in the variable.
const childVariable = "STARLING_RDMA_CHILD"

const childAnswer = 16 * unit

func answerMuch(context.Context, transport.Request) ([]byte, error) {
	return bytes.Repeat([]byte("c"), childAnswer), nil
}

// TestGuestChild is the other process of TestGuestSIGKILL, which kills it.
func TestGuestChild(t *testing.T) {
	of := os.Getenv(childVariable)
	if of == "" {
		t.Skip("TestGuestSIGKILL runs it")
	}
	l := softRoCE(t)
	if of == "server" {
		node := l.Listen(t, transporttest.Options{Node: 1, ChainID: chain, Handler: transport.HandlerFunc(answerMuch)})
		os.Stdout.WriteString("LISTENS " + node.Address.HostPort + "\n")
		<-t.Context().Done()
	}
	conn, err := l.Dialer(t, transporttest.Options{Node: 2, ChainID: chain}).Dial(t.Context(), transport.Address{ID: transporttest.ID(1), HostPort: of})
	require.NoError(t, err)
	for {
		_, err := conn.Call(t.Context(), transport.Call{Method: someMethod, Into: make([]byte, childAnswer)})
		require.NoError(t, err)
	}
}

// child starts the other process, and returns the rest of a line that it prints.
func child(t *testing.T, role, until string) (*exec.Cmd, string) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run", "^TestGuestChild$", "-test.v", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), childVariable+"="+role)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if rest, found := strings.CutPrefix(lines.Text(), until); found {
			return cmd, rest
		}
	}
	t.Fatal("the other process has ended")
	return nil, ""
}

// TestGuestSIGKILL kills either process of a connection while answers are written. On the other
// side, calls fail or end and the path is released. Afterwards the devices are unchanged.
func TestGuestSIGKILL(t *testing.T) {
	softRoCE(t)
	before := resources(t)
	t.Run("server", func(t *testing.T) {
		var received atomic.Int64
		l := softRoCE(t)
		l.options = func(o *Options) {
			o.Hooks.Received = func(_ transport.ID, n int) { received.Add(int64(n)) }
		}
		cmd, address := child(t, "server", "LISTENS ")
		conn, err := l.Dialer(t, transporttest.Options{Node: 2, ChainID: chain}).Dial(t.Context(), transport.Address{ID: transporttest.ID(1), HostPort: address})
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		failed := make(chan error, 1)
		go func() {
			for {
				if _, err := conn.Call(context.Background(), transport.Call{Method: someMethod, Into: make([]byte, childAnswer)}); err != nil {
					failed <- err
					return
				}
			}
		}()
		// In the middle of the second answer, or later.
		require.Eventually(t, func() bool { return received.Load() > childAnswer+unit }, patience, time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		require.ErrorIs(t, <-failed, transport.ErrClosed)
	})
	t.Run("dialer", func(t *testing.T) {
		var sent atomic.Int64
		var fabric *Fabric
		l := softRoCE(t)
		l.made = func(f *Fabric) { fabric = f }
		l.options = func(o *Options) { o.Hooks.Sent = func(_ transport.ID, n int) { sent.Add(int64(n)) } }
		node := l.Listen(t, transporttest.Options{Node: 1, ChainID: chain, Handler: transport.HandlerFunc(answerMuch)})
		cmd, _ := child(t, node.Address.HostPort, "=== RUN")
		require.Eventually(t, func() bool { return sent.Load() > childAnswer+unit }, patience, time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		require.Eventually(t, func() bool { return fabric.Stats().QueuePairs == 0 }, patience, time.Millisecond, "the path is released")
	})
	require.Eventually(t, func() bool { return resources(t) == before }, patience, time.Millisecond, "nothing leaks")
}

// TestGuestMTU connects an end with an MTU of 1500 bytes to one with 9000: both use the smaller
// one.
func TestGuestMTU(t *testing.T) {
	l := softRoCE(t)
	device := func(i int) int {
		d, err := verbs.Open(netip.MustParseAddr(l.ends[i]), 16)
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Close()) }()
		return d.Port().MTU
	}
	mtu := func(bytes string) {
		out, err := exec.Command("ip", "link", "set", "v1", "mtu", bytes).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	mtu("1500")
	t.Cleanup(func() { mtu("9000") })
	require.Equal(t, [2]int{4096, 1024}, [2]int{device(0), device(1)})
	for range 2 { // either end serves once
		var received atomic.Int64
		l.options = func(o *Options) {
			o.Hooks.Received = func(_ transport.ID, n int) { received.Add(int64(n)) }
		}
		t.Run("from "+l.ends[0], func(t *testing.T) {
			conn := connect(t, l, l, answerMuch)
			got, err := conn.Call(t.Context(), transport.Call{Method: someMethod, Into: make([]byte, childAnswer)})
			require.NoError(t, err)
			require.True(t, bytes.Equal(bytes.Repeat([]byte("c"), childAnswer), got))
			require.Equal(t, int64(childAnswer), received.Load())
		})
		l.ends[0], l.ends[1] = l.ends[1], l.ends[0]
	}
}

// TestGuestCheck finds the devices of this VM, and what is missing.
func TestGuestCheck(t *testing.T) {
	l := softRoCE(t)
	o := CheckOptions{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr(l.ends[0])}, Memory: 64 << 20}
	found := Check(o)
	t.Log(found)
	require.NoError(t, Able(found))
	o.Addrs = o.Addrs[:1]
	require.ErrorContains(t, Able(Check(o)), "no device has an address of the transport")
}

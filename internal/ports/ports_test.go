package ports_test

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/ports"
)

// childVariable makes the test binary print the addresses of some ports and exit.
const childVariable = "STARLING_TEST_PORTS"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		held, err := ports.Hold(25)
		if err != nil {
			os.Exit(1)
		}
		for i := range 25 {
			os.Stdout.WriteString(held.Address(i) + "\n")
		}
		return
	}
	m.Run()
}

func TestHold(t *testing.T) {
	held, err := ports.Hold(25) // more than a block
	require.NoError(t, err)
	other, err := ports.Hold(5)
	require.NoError(t, err)
	seen := map[string]bool{}
	for i := range 25 {
		seen[held.Address(i)] = true
		require.True(t, strings.HasPrefix(held.Address(i), "127.0.0.1:"))
		_, err := net.Listen("tcp", held.Address(i))
		require.Error(t, err, "it is bound until it is released")
	}
	for i := range 5 {
		seen[other.Address(i)] = true
	}
	require.Len(t, seen, 30)
	held.Release()
	held.Release()
	other.Release()
	listener, err := net.Listen("tcp", held.Address(0))
	require.NoError(t, err)
	require.NoError(t, listener.Close())

	// After Release they are still reserved.
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"=1")
	out, err := child.Output()
	require.NoError(t, err)
	theirs := strings.Fields(string(out))
	require.Len(t, theirs, 25)
	for _, address := range theirs {
		require.False(t, seen[address], address)
		seen[address] = true
	}
	require.Len(t, seen, 55)
}

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/ports"
)

// startProcess starts this test binary as starlingd, on a home; it ends with the test.
func startProcess(t *testing.T, home, rpc, p2p string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "start", "--home", home, "--rpc.laddr", "tcp://"+rpc, "--p2p.laddr", "tcp://"+p2p,
		"--consensus.timeout_commit", "10ms", "--consensus.create_empty_blocks_interval", "0s", "--log_level", "error")
	cmd.Env = append(os.Environ(), programVariable+"=1")
	logs, err := os.OpenFile(filepath.Join(home, "node.log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	require.NoError(t, err)
	cmd.Stderr = logs // a file, so that the process writes there itself
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			text, _ := os.ReadFile(logs.Name())
			t.Logf("%s", text)
		}
		logs.Close()
	})
	return cmd
}

// freeAddress returns an address for a process to bind.
func freeAddress(t *testing.T) string {
	t.Helper()
	held, err := ports.Hold(1)
	require.NoError(t, err)
	held.Release()
	return held.Address(0)
}

// checkState compares the app hash of the state with the header, and its values with the confirmed
// ones.
func checkState(t *testing.T, client *rpchttp.HTTP, confirmed map[string]string) {
	t.Helper()
	info, err := client.ABCIInfo(t.Context())
	require.NoError(t, err)
	height := info.Response.LastBlockHeight
	require.Eventually(t, func() bool {
		next := height + 1
		header, err := client.Header(t.Context(), &next)
		if err != nil || header.Header == nil {
			return false
		}
		require.Equal(t, info.Response.LastBlockAppHash, header.Header.AppHash.Bytes(), "height %d", height)
		return true
	}, patience, 10*time.Millisecond)
	for key, value := range confirmed {
		res, err := client.ABCIQuery(t.Context(), "/key", []byte(key))
		require.NoError(t, err)
		require.Equal(t, value, string(res.Response.Value), key)
	}
}

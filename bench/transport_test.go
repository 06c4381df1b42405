package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport/rdma"
)

func TestTransport(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "transport.json")
	out, err := run(t.Context(), "transport", "--sizes", "64KiB,1KiB", "--peers", "2,1", "--rounds", "2", "--mib", "1", "--json", file, "--dir", dir)
	require.NoError(t, err)
	for _, text := range []string{"responses", "64KiB", "tls", "plain sockets", "2 rounds"} {
		require.Contains(t, out, text)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "programs left behind")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result map[string]any
	require.NoError(t, json.Unmarshal(b, &result))
	for _, key := range []string{"device", "kernel", "guest", "machine", "runs"} {
		require.Contains(t, result, key)
	}
	require.Equal(t, false, result["guest"])
	if result["device"] != "" {
		t.Logf("also measured the device %v", result["device"])
		return
	}
	require.NotEmpty(t, result["no_rdma"])
	require.Contains(t, out, "no rows of rdma")
	var paths []any
	runs, is := result["runs"].([]any)
	require.True(t, is)
	for _, r := range runs {
		row, is := r.(map[string]any)
		require.True(t, is)
		paths = append(paths, row["path"], row["size"], row["peers"])
		require.Positive(t, row["mb_s"])
		for _, key := range []string{"cpu_s_per_gib_server", "cpu_s_per_gib_client", "cpu_s_per_gib_machine"} {
			require.Contains(t, row, key)
		}
		require.Contains(t, row, "events_per_mib")
		require.Nil(t, row["events_per_mib"])
	}
	require.Equal(t, []any{
		"tcp", 1024.0, 2.0, "tls", 1024.0, 2.0, "tcp", 1024.0, 1.0, "tls", 1024.0, 1.0,
		"tcp", 65536.0, 2.0, "tls", 65536.0, 2.0, "tcp", 65536.0, 1.0, "tls", 65536.0, 1.0,
	}, paths)
}

func TestTransportWithoutTheDevice(t *testing.T) {
	if rdma.Supported {
		t.Skip("this build has RDMA")
	}
	_, err := run(t.Context(), "transport", "--devices", "mlx5_0,mlx5_1")
	require.ErrorContains(t, err, "no RDMA device mlx5_0: this program was built without RDMA")
	require.ErrorContains(t, err, "\nit takes a build with -tags rdma")
}

// TestRDMARefusals covers the commands for which RDMA is one of several channels.
func TestRDMARefusals(t *testing.T) {
	for _, command := range []string{"join", "relay", "papers"} {
		_, err := run(t.Context(), command, "--guest", "--devices", "rxe0")
		require.ErrorContains(t, err, "leave out --devices", command)
		for _, devices := range []string{"mlx5_0,", ",", "a,b,c"} {
			_, err := run(t.Context(), command, "--devices", devices)
			require.ErrorContains(t, err, "it must name one device, or two", command)
		}
		if !rdma.Supported {
			_, err := run(t.Context(), command, "--devices", "mlx5_0,mlx5_1", "--dir", t.TempDir())
			require.ErrorContains(t, err, "no RDMA device mlx5_0: this program was built without RDMA", command)
			require.ErrorContains(t, err, "\nit takes a build", command)
		}
	}
}

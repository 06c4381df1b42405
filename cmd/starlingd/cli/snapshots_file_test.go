package cli

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/home"
)

// A new home imports the state from a file, verified by a light client with the flags' settings,
// and its node follows the network.
func TestImportASnapshotAndFollow(t *testing.T) {
	root := t.TempDir()
	dir, joiner, file := filepath.Join(root, "home"), filepath.Join(root, "joiner"), filepath.Join(root, "demo.snapshot")
	made, err := home.Init(home.InitOptions{Home: dir, ChainID: "demo", App: app.Genesis{Open: true, ChunkBytes: 512}})
	require.NoError(t, err)
	_, err = home.Init(home.InitOptions{Home: joiner, GenesisFile: filepath.Join(dir, "config", "genesis.json")})
	require.NoError(t, err)
	rpc, p2p := freeAddress(t), freeAddress(t)
	t.Setenv("STARLINGD_P2P_ALLOW_DUPLICATE_IP", "true")
	t.Setenv("STARLINGD_P2P_ADDR_BOOK_STRICT", "false")
	t.Setenv("STARLINGD_RPC_TIMEOUT_BROADCAST_TX_COMMIT", "5m")

	first := startProcess(t, dir, rpc, p2p)
	require.NoError(t, waitHeight("http://"+rpc, 3))
	// The node closes idle connections after 10 s. A request that meets the close fails.
	client, err := rpchttp.NewWithClient("http://"+rpc, "/websocket", &http.Client{Transport: &http.Transport{IdleConnTimeout: 5 * time.Second}})
	require.NoError(t, err)
	_, err = client.BroadcastTxCommit(t.Context(), []byte("fruit=apple"))
	require.NoError(t, err)
	height := int64(1)
	trusted, err := client.Commit(t.Context(), &height)
	require.NoError(t, err)
	require.NoError(t, first.Process.Signal(os.Interrupt))
	require.NoError(t, first.Wait())

	var out, errOut bytes.Buffer
	require.Equal(t, exitOK, Run([]string{"snapshots", "export", file, "--home", dir}, &out, &errOut), errOut.String())
	require.Contains(t, out.String(), "exported the state on disk")
	startProcess(t, dir, rpc, p2p)
	status, err := client.Status(t.Context())
	for err != nil || status.SyncInfo.LatestBlockHeight == 0 { // until it answers
		require.NoError(t, waitHeight("http://"+rpc, 1))
		status, err = client.Status(t.Context())
	}
	require.NoError(t, waitHeight("http://"+rpc, status.SyncInfo.LatestBlockHeight+5))

	out.Reset()
	servers := "http://" + rpc + ",http://" + rpc
	require.Equal(t, exitOK, Run([]string{
		"snapshots", "import", file, "--home", joiner, "--statesync.rpc_servers", servers, "--statesync.trust_height", "1",
		"--statesync.trust_hash", trusted.Commit.BlockID.Hash.String(),
	}, &out, &errOut), errOut.String())
	require.Contains(t, out.String(), "trusted: the light client")
	require.Contains(t, out.String(), "the next start continues from block")

	t.Setenv("STARLINGD_P2P_PERSISTENT_PEERS", made.NodeID+"@"+p2p)
	second := freeAddress(t)
	startProcess(t, joiner, second, freeAddress(t))
	info, err := client.ABCIInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, waitHeight("http://"+second, info.Response.LastBlockHeight))
	follower, err := rpchttp.New("http://"+second, "/websocket")
	require.NoError(t, err)
	checkState(t, follower, map[string]string{"fruit": "apple"})
}

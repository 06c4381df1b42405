package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node"
)

// A node is killed at random moments while it writes. After each start its state must be the one that the headers name, and hold
// every transaction that was confirmed.
func TestKilledNodeLosesNothing(t *testing.T) {
	const kills = 5
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("STARLING_TEST_SEED"); s != "" {
		_, err := fmt.Sscan(s, &seed)
		require.NoError(t, err)
	}
	t.Logf("to repeat: STARLING_TEST_SEED=%d go test ./cmd/starlingd -run %s", seed, t.Name())
	random := rand.New(rand.NewPCG(seed, 0))

	home := filepath.Join(t.TempDir(), "home")
	_, err := node.Init(node.InitOptions{Home: home, ChainID: "crash", App: app.Genesis{Open: true, ChunkBytes: 4096}})
	require.NoError(t, err)
	rpc, p2p := freeAddress(t), freeAddress(t)
	confirmed := map[string]string{}
	for round := range kills {
		process := startProcess(t, home, rpc, p2p)
		client, err := rpchttp.New("http://"+rpc, "/websocket")
		require.NoError(t, err)
		require.NoError(t, waitHeight("http://"+rpc, 2)) // the application has executed block 1
		checkState(t, client, confirmed)
		stop := time.After(time.Duration(300+random.IntN(700)) * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		written := make(chan map[string]string)
		go func() { written <- write(ctx, client, round) }()
		<-stop
		require.NoError(t, process.Process.Kill())
		cancel()
		for key, value := range <-written {
			confirmed[key] = value
		}
		_ = process.Wait()
	}
	process := startProcess(t, home, rpc, p2p)
	client, err := rpchttp.New("http://"+rpc, "/websocket")
	require.NoError(t, err)
	require.NoError(t, waitHeight("http://"+rpc, 2)) // the application has executed block 1
	checkState(t, client, confirmed)
	require.NotEmpty(t, confirmed, "nothing was written")
	t.Logf("%d transactions were confirmed over %d kills", len(confirmed), kills)
	require.NoError(t, process.Process.Signal(os.Interrupt))
	require.NoError(t, process.Wait())
}

func startProcess(t *testing.T, home, rpc, p2p string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "start", "--home", home, "--rpc.laddr", "tcp://"+rpc, "--p2p.laddr", "tcp://"+p2p,
		"--consensus.timeout_commit", "10ms", "--log_level", "error")
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

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := listenLoopback()
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// write sends transactions until the node is gone, and returns those that it confirmed to be in a block.
func write(ctx context.Context, client *rpchttp.HTTP, round int) map[string]string {
	done := map[string]string{}
	for i := 0; ; i++ {
		key, value := fmt.Sprintf("key-%d-%d", round, i), strings.Repeat(fmt.Sprint(i%10), 1+i%300)
		res, err := client.BroadcastTxCommit(ctx, []byte(key+"="+value))
		if err != nil {
			return done
		}
		if res.CheckTx.Code == 0 && res.TxResult.Code == 0 {
			done[key] = value
		}
	}
}

// checkState compares the state with the header that names it, and with what was confirmed.
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

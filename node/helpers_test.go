package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
)

const patience = 60 * time.Second

// testHome makes a home whose node listens on free ports of loopback and makes blocks fast.
func testHome(t *testing.T, edit func(*InitOptions)) (string, InitResult) {
	t.Helper()
	ports := freePorts(t, 2)
	opts := InitOptions{
		Home: filepath.Join(t.TempDir(), "home"), Moniker: "test", ChainID: "test-chain", App: app.Genesis{Open: true},
		Edit: func(c *cfg.Config, a *AppConfig) {
			a.Transport.ListenAddress = "127.0.0.1:0"
			c.RPC.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", ports[0])
			c.P2P.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", ports[1])
			c.P2P.AllowDuplicateIP, c.P2P.AddrBookStrict, c.P2P.PexReactor = true, false, false
			c.Consensus.TimeoutCommit = 20 * time.Millisecond
		},
	}
	if edit != nil {
		edit(&opts)
	}
	result, err := Init(opts)
	require.NoError(t, err)
	return opts.Home, result
}

// latest returns what was committed last, for the rest of the test.
func latest(t *testing.T, a *Application) (int64, *avlstar.Version) {
	t.Helper()
	height, v := a.Latest()
	if v != nil {
		t.Cleanup(v.Release)
	}
	return height, v
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func load(t *testing.T, home string) *Config {
	t.Helper()
	config, err := LoadConfig(home, viper.New())
	require.NoError(t, err)
	return config
}

// start runs a node on home; it is stopped at the end of the test unless the test has done so.
func start(t *testing.T, home string, logger log.Logger) *Node {
	t.Helper()
	n, err := New(t.Context(), load(t, home), logger)
	require.NoError(t, err)
	stopped := false
	t.Cleanup(func() {
		if !stopped && n.ctx.Err() == nil {
			require.NoError(t, n.Stop())
		}
		stopped = true
	})
	require.NoError(t, n.Start(t.Context()))
	return n
}

func rpcOf(t *testing.T, home string) *rpchttp.HTTP {
	t.Helper()
	client, err := rpchttp.New(RPCAddress(home), "/websocket")
	require.NoError(t, err)
	return client
}

// put writes by a text transaction and waits until it is in a block.
func put(t *testing.T, client *rpchttp.HTTP, key, value string) {
	t.Helper()
	res, err := client.BroadcastTxCommit(context.Background(), []byte(key+"="+value))
	require.NoError(t, err)
	require.Zero(t, res.CheckTx.Code, res.CheckTx.Log)
	require.Zero(t, res.TxResult.Code, res.TxResult.Log)
}

func get(t *testing.T, client *rpchttp.HTTP, key string) string {
	t.Helper()
	res, err := client.ABCIQuery(context.Background(), "/key", []byte(key))
	require.NoError(t, err)
	require.Zero(t, res.Response.Code, res.Response.Log)
	return string(res.Response.Value)
}

// until polls until ok.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 10*time.Millisecond, what)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// editJSON changes a JSON object in a file.
func editJSON(t *testing.T, path string, edit func(map[string]any)) {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	var object map[string]any
	require.NoError(t, json.Unmarshal(raw, &object))
	edit(object)
	raw, err = json.Marshal(object)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, raw, 0o600))
}

// logBuffer is a log that a test reads.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) has(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.buf.String(), text)
}

// find returns what the expression's first group matches.
func (b *logBuffer) find(t *testing.T, expression string) string {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	found := regexp.MustCompile(expression).FindStringSubmatch(b.buf.String())
	require.NotNil(t, found, expression)
	return found[1]
}

func (b *logBuffer) logger(t *testing.T) log.Logger {
	t.Helper()
	logger, err := NewLogger(b, "info", cfg.LogFormatPlain)
	require.NoError(t, err)
	return logger
}

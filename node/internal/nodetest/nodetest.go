// Package nodetest provides helpers for the tests of package node and its subpackages: homes on
// free ports, a log that tests can read, RPC calls, and the documented budgets.
package nodetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	cometnode "github.com/cometbft/cometbft/node"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/dustin/go-humanize"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/ports"
	"github.com/starling-kv/starling/node/budget"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
)

// Patience limits a test's wait for an event that should happen soon.
const Patience = 5 * time.Minute

// Home creates a home whose node listens on free loopback ports and makes blocks fast. edit, which
// may be nil, changes the options first.
func Home(t *testing.T, edit func(*home.InitOptions)) (string, home.InitResult) {
	t.Helper()
	numbers := FreePorts(t, 2)
	opts := home.InitOptions{
		Home: filepath.Join(t.TempDir(), "home"), Moniker: "test", ChainID: "test-chain", App: app.Genesis{Open: true},
		Edit: func(c *cfg.Config, a *config.App) {
			a.Transport.ListenAddress = "127.0.0.1:0"
			c.RPC.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", numbers[0])
			c.P2P.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", numbers[1])
			c.P2P.AllowDuplicateIP, c.P2P.AddrBookStrict, c.P2P.PexReactor = true, false, false
			c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 20*time.Millisecond, 0
			c.RPC.TimeoutBroadcastTxCommit = Patience
		},
	}
	if edit != nil {
		edit(&opts)
	}
	result, err := home.Init(opts)
	require.NoError(t, err)
	return opts.Home, result
}

// FreePorts returns loopback ports for CometBFT, which binds them itself. No other test gets the
// same ports.
func FreePorts(t *testing.T, n int) (numbers []int) {
	t.Helper()
	held, err := ports.Hold(n)
	require.NoError(t, err)
	held.Release()
	for i := range n {
		numbers = append(numbers, held.Number(i))
	}
	return numbers
}

// Load reads the configuration of a home.
func Load(t *testing.T, home string) *config.Config {
	t.Helper()
	config, err := config.Load(home, viper.New())
	require.NoError(t, err)
	return config
}

// RPC returns a client of the node of a home.
func RPC(t *testing.T, home string) *rpchttp.HTTP {
	t.Helper()
	// The node closes idle connections after 10 s. A request that meets the close fails.
	transport := &http.Transport{IdleConnTimeout: 5 * time.Second}
	client, err := rpchttp.NewWithClient(config.RPCAddress(home), "/websocket", &http.Client{Transport: transport})
	require.NoError(t, err)
	return client
}

// Put writes a key by a text transaction, and waits until it is in a block.
func Put(t *testing.T, client *rpchttp.HTTP, key, value string) {
	t.Helper()
	res, err := client.BroadcastTxCommit(context.Background(), []byte(key+"="+value))
	require.NoError(t, err)
	require.Zero(t, res.CheckTx.Code, res.CheckTx.Log)
	require.Zero(t, res.TxResult.Code, res.TxResult.Log)
}

// Get reads a key at the last height, without proof.
func Get(t *testing.T, client *rpchttp.HTTP, key string) string {
	t.Helper()
	res, err := client.ABCIQuery(context.Background(), "/key", []byte(key))
	require.NoError(t, err)
	require.Zero(t, res.Response.Code, res.Response.Log)
	return string(res.Response.Value)
}

// Until waits until ok returns true. After Patience the test fails; what names the condition.
func Until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, Patience, 10*time.Millisecond, what)
}

// WriteFile replaces a file.
func WriteFile(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// EditJSON changes a JSON object in a file.
func EditJSON(t *testing.T, path string, edit func(map[string]any)) {
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

// LogBuffer is a log that a test can read.
type LogBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns the whole log.
func (b *LogBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Has reports whether the log contains a text.
func (b *LogBuffer) Has(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.buf.String(), text)
}

// Find returns the match of a regular expression's first group.
func (b *LogBuffer) Find(t *testing.T, expression string) string {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	found := regexp.MustCompile(expression).FindStringSubmatch(b.buf.String())
	require.NotNil(t, found, expression)
	return found[1]
}

// Logger returns a logger that writes to the buffer. A test that fails prints the buffer's end.
func (b *LogBuffer) Logger(t *testing.T) log.Logger {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			lines := strings.Split(b.String(), "\n")
			t.Logf("the end of a log:\n%s", strings.Join(lines[max(len(lines)-100, 0):], "\n"))
		}
	})
	logger, err := config.NewLogger(b, "info", cfg.LogFormatPlain)
	require.NoError(t, err)
	return logger
}

// SameHashes compares the root of the application's last state with the app hash in the next
// block's header.
func SameHashes(t *testing.T, application interface {
	Latest() (int64, *avlstar.Version)
}, comet func() *cometnode.Node,
) {
	t.Helper()
	height, v := application.Latest()
	defer v.Release()
	Until(t, "the block after the state", func() bool { return comet().BlockStore().Height() > height })
	hash := v.AppHash()
	require.Equal(t, hash[:], comet().BlockStore().LoadBlockMeta(height+1).Header.AppHash.Bytes())
}

// RequireUsed requires that each budget, except the estimate, says how much of it is used, and
// returns that by name.
func RequireUsed(t *testing.T, b budget.Table) map[string]int64 {
	t.Helper()
	used := map[string]int64{}
	for _, one := range b {
		if one.Name == "program" {
			continue
		}
		require.NotNil(t, one.Used, one.Name)
		used[one.Name] = one.Used()
		require.GreaterOrEqual(t, used[one.Name], int64(0), one.Name)
	}
	return used
}

// RequireBudgets requires that the table of a section of docs/reference/limits.md, the file path,
// has the budgets in b, in MiB, and their sum.
func RequireBudgets(t *testing.T, b budget.Table, path, section string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n### "+section+"\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n#")
	var got [][2]string
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| `") {
			got = append(got, [2]string{strings.Trim(cells[0], "| `"), cells[1]})
		}
	}
	mib := func(bytes int64) string { return humanize.Comma((bytes+1<<20-1)>>20) + " MiB" }
	var want [][2]string
	for _, one := range b {
		want = append(want, [2]string{one.Name, mib(one.Bytes)})
	}
	require.Equal(t, append(want, [2]string{"min_memory_bytes", mib(b.Memory())}), got)
}

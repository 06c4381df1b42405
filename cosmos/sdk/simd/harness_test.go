package simd_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cometbft/cometbft/p2p"
	sdk "github.com/cosmos/cosmos-sdk/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
)

const (
	chainID = "demo-1"
	// Accounts in addition to the senders. In two stores, they are more leaves than one chunk of
	// format 0x5301 holds.
	accounts = 9000
	// Blocks between snapshots, snapshots kept, and states that pruning keeps.
	interval   = 15
	keepStates = 6
	keepRecent = 20
	follows    = 100 // blocks that joiners execute before they are compared and started again

	commitTimeout = "250ms"
	wait          = 4 * time.Minute // timeout of any step, with a wide margin
	perBlock      = 4 * time.Second // added for each block to wait for
	grace         = 30 * time.Second
)

// Indexes of a node's ports.
const (
	portP2P = iota
	portRPC
	portJoiners
	nodePorts
)

// network holds the chain's processes and programs.
type network struct {
	t         *testing.T
	dir       string
	simd      string // path of simd, or of the program of another chain
	iavl      string // path of starling-iavl
	processes *runner.Processes
	nodes     []*node // the validators
}

type node struct {
	n       *network
	name    string
	home    string
	program string
	args    []string // arguments of start
	env     []string
	ports   *ports.Ports
	process *runner.Process
}

func (n *network) must(name string, args ...string) string {
	n.t.Helper()
	out, err := command(n.processes.Context(), name, args...)
	require.NoError(n.t, err)
	return out
}

// command runs a program until it exits, and returns its stdout and stderr.
func command(ctx context.Context, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, &out)
	}
	return out.String(), nil
}

func newNetwork(t *testing.T) *network {
	n := networkOf(t, "")
	n.simd = filepath.Join(n.dir, "simd")
	require.NoError(t, runner.Build(t.Context(), ".", "./cmd/simd", n.simd, generation.BuildFlags...))
	return n
}

// networkOf is newNetwork for the program of another chain.
func networkOf(t *testing.T, program string) *network {
	dir := t.TempDir()
	n := &network{t: t, dir: dir, simd: program, iavl: filepath.Join(dir, "starling-iavl"), processes: runner.NewProcesses(t.Context())}
	require.NoError(t, runner.Build(t.Context(), "../../cmd/starling-iavl", ".", n.iavl))
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
			for _, log := range logs {
				t.Logf("%s:\n%s", filepath.Base(log), strings.Join(runner.Tail(log, 30), "\n"))
			}
		}
		if err := n.processes.Stop(grace); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	return n
}

// init initializes a node's home directory with free ports.
func (n *network) init(name string) *node {
	n.t.Helper()
	d := n.at(name, filepath.Join(n.dir, name))
	n.must(n.simd, "init", name, "--chain-id", chainID, "--home", d.home)
	d.configure()
	return d
}

// at returns a node with free ports. It does not create the home directory.
func (n *network) at(name, home string) *node {
	n.t.Helper()
	held, err := ports.Hold(nodePorts)
	require.NoError(n.t, err)
	return &node{n: n, name: name, home: home, program: n.simd, ports: held}
}

// configure writes the node's ports and the settings of all nodes of this chain to a new home.
func (d *node) configure() {
	d.n.t.Helper()
	held := d.ports
	d.set("config/config.toml", map[string]string{
		"rpc.laddr": quoted("tcp://" + held.Address(portRPC)), "rpc.pprof_laddr": `""`, "p2p.laddr": quoted("tcp://" + held.Address(portP2P)),
		"p2p.addr_book_strict": "false", "p2p.allow_duplicate_ip": "true", "p2p.pex": "false",
		"consensus.timeout_commit": quoted(commitTimeout), "statesync.discovery_time": `"6s"`,
	})
	d.set("config/app.toml", map[string]string{
		"pruning": `"custom"`, "pruning-keep-recent": quoted(keepRecent), "pruning-interval": `"10"`, "grpc.address": `"127.0.0.1:0"`,
		"state-sync.snapshot-interval": strconv.Itoa(interval), "state-sync.snapshot-keep-recent": strconv.Itoa(keepStates),
	})
}

func quoted(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) }

// set changes values in a settings file. Keys are section.name, or name for settings before the
// first section. All keys must exist in the file.
func (d *node) set(file string, values map[string]string) {
	d.n.t.Helper()
	path := filepath.Join(d.home, file)
	text, err := os.ReadFile(path)
	require.NoError(d.n.t, err)
	section, found := "", 0
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]") + "."
		}
		name, _, is := strings.Cut(line, " = ")
		if v, want := values[section+name]; is && want {
			lines[i] = name + " = " + v
			found++
		}
	}
	require.Len(d.n.t, values, found, "%s of %s", file, values)
	require.NoError(d.n.t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
}

// serving configures a node to serve joiners at its port.
func (d *node) serving() {
	d.n.t.Helper()
	f, err := os.OpenFile(filepath.Join(d.home, "config/app.toml"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(d.n.t, err)
	_, err = fmt.Fprintf(f, "\n[starling]\nladdr = %q\n", d.ports.Address(portJoiners))
	require.NoError(d.n.t, errors.Join(err, f.Close()))
	d.args = append(d.args, "--serve")
}

func (d *node) log() string { return filepath.Join(d.n.dir, d.name+".log") }

// runs makes the node run this test's program, with the given value of envNode.
func (d *node) runs(as string) {
	d.n.t.Helper()
	self, err := os.Executable()
	require.NoError(d.n.t, err)
	d.program, d.env = self, []string{envNode + "=" + as}
}

// start starts a node without waiting until its RPC responds.
func (d *node) start() {
	d.n.t.Helper()
	d.ports.Release()
	var err error
	d.process, err = d.n.processes.Start(runner.Spec{Name: d.name, Path: d.program, Env: d.env, Log: d.log(),
		Args: append([]string{"start", "--home", d.home, "--log_no_color"}, d.args...)})
	require.NoError(d.n.t, err)
}

// call calls a node's RPC.
func (d *node) call(path string, result any) error {
	ctx, done := context.WithTimeout(d.n.processes.Context(), grace)
	defer done()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.ports.Address(portRPC)+"/"+path, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	var all struct {
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&all); err != nil {
		return err
	}
	if all.Error != nil {
		return fmt.Errorf("%s of %s: %s", path, d.name, all.Error)
	}
	return json.Unmarshal(all.Result, result)
}

// state returns the application's height and app hash.
func (d *node) state() (int64, string, error) {
	var info struct {
		Response struct {
			Height int64  `json:"last_block_height,string"`
			Hash   string `json:"last_block_app_hash"`
		} `json:"response"`
	}
	err := d.call("abci_info", &info)
	return info.Response.Height, info.Response.Hash, err
}

// header contains the fields of a header that the tests need.
type header struct {
	hash    string // hash of the header, in hexadecimal
	appHash string // app hash after the previous height, in base64 as in abci_info
}

func (d *node) header(height int64) (header, error) {
	var commit struct {
		Signed struct {
			Header struct {
				AppHash string `json:"app_hash"`
			} `json:"header"`
			Commit struct {
				BlockID struct {
					Hash string `json:"hash"`
				} `json:"block_id"`
			} `json:"commit"`
		} `json:"signed_header"`
	}
	err := d.call(fmt.Sprintf("commit?height=%d", height), &commit)
	if err != nil {
		return header{}, err
	}
	app, err := hex.DecodeString(commit.Signed.Header.AppHash)
	return header{commit.Signed.Commit.BlockID.Hash, base64.StdEncoding.EncodeToString(app)}, err
}

// until waits for a condition. It fails the test if a process exits.
func (n *network) until(what string, ready func() bool) {
	n.t.Helper()
	n.within(wait, what, ready)
}

func (n *network) within(limit time.Duration, what string, ready func() bool) {
	n.t.Helper()
	ctx, done := context.WithTimeout(n.processes.Context(), limit)
	defer done()
	require.NoError(n.t, runner.Poll(ctx, what, ready))
}

// reach waits until a node has executed a height. The timeout grows with the number of blocks that
// the chain still has to make.
func (d *node) reach(height int64) {
	d.n.t.Helper()
	limit := wait
	if head, _, err := d.n.nodes[0].state(); err == nil {
		limit += time.Duration(max(0, height-head)) * perBlock
	}
	d.n.within(limit, fmt.Sprintf("%s reaches %d", d.name, height), func() bool {
		h, _, err := d.state()
		return err == nil && h >= height
	})
}

// agrees checks that a node's app hash equals the one in the validators' header.
func (d *node) agrees() int64 {
	d.n.t.Helper()
	height, hash, err := d.state()
	require.NoError(d.n.t, err)
	d.n.nodes[0].reach(height + 1)
	agreed, err := d.n.nodes[0].header(height + 1)
	require.NoError(d.n.t, err)
	require.Equal(d.n.t, agreed.appHash, hash, "%s at height %d", d.name, height)
	return height
}

func (d *node) peer() string {
	key, err := p2p.LoadNodeKey(filepath.Join(d.home, "config", "node_key.json"))
	require.NoError(d.n.t, err)
	return string(key.ID()) + "@" + d.ports.Address(portP2P)
}

func (n *network) genesis() string { return filepath.Join(n.nodes[0].home, "config", "genesis.json") }

// validators creates and starts four validators. The last two send invalid data to joiners.
func (n *network) validators() {
	n.t.Helper()
	keyring := []string{"--keyring-backend", "test", "--home"}
	with := func(home string, args ...string) []string { return append(append(args, keyring...), home) }
	for i := range 4 {
		d := n.init(fmt.Sprintf("validator%d", i))
		d.serving()
		n.nodes = append(n.nodes, d)
		n.must(n.simd, with(d.home, "keys", "add", "key")...)
		address := strings.TrimSpace(n.must(n.simd, with(d.home, "keys", "show", "key", "--address")...))
		n.must(n.simd, with(n.nodes[0].home, "genesis", "add-genesis-account", address, "1000000000stake")...)
	}
	require.NoError(n.t, os.Mkdir(filepath.Join(n.dir, "gentx"), 0o700))
	for i, d := range n.nodes {
		if i > 0 {
			n.copyGenesis(d)
		}
		n.must(n.simd, with(d.home, "genesis", "gentx", "key", "500000000stake", "--chain-id", chainID,
			"--output-document", filepath.Join(n.dir, "gentx", d.name+".json"))...)
	}
	n.must(n.simd, "genesis", "collect-gentxs", "--gentx-dir", filepath.Join(n.dir, "gentx"), "--home", n.nodes[0].home)
	n.must(n.simd, "genesis", "bulk-add-genesis-account", n.accounts(), "--home", n.nodes[0].home)
	var peers []string
	for i, d := range n.nodes {
		if i > 0 {
			n.copyGenesis(d)
		}
		peers = append(peers, d.peer())
	}
	n.nodes[2].runs(lieChunks)
	n.nodes[3].runs(lieManifests)
	for _, d := range n.nodes {
		d.set("config/config.toml", map[string]string{"p2p.persistent_peers": quoted(strings.Join(peers, ","))})
		d.start()
	}
}

func (n *network) copyGenesis(d *node) {
	b, err := os.ReadFile(n.genesis())
	require.NoError(n.t, err)
	require.NoError(n.t, os.WriteFile(filepath.Join(d.home, "config", "genesis.json"), b, 0o600))
}

// accounts writes a file of accounts that hold one coin each.
func (n *network) accounts() string {
	type account struct {
		Address string    `json:"address"`
		Coins   sdk.Coins `json:"coins"`
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var all []account
	for range accounts {
		address := make([]byte, 20)
		for i := range address {
			address[i] = byte(rnd.Uint32())
		}
		all = append(all, account{sdk.AccAddress(address).String(), sdk.NewCoins(sdk.NewInt64Coin("stake", 1))})
	}
	b, err := json.Marshal(all)
	require.NoError(n.t, err)
	path := filepath.Join(n.dir, "accounts.json")
	require.NoError(n.t, os.WriteFile(path, b, 0o600))
	return path
}

// send sends coins from the first validator's account until the test ends. Each transaction is sent
// after the previous one is in a block.
func (n *network) send() (sent *atomic.Int64) {
	sent = &atomic.Int64{}
	ctx, stop := context.WithCancel(n.processes.Context())
	done := make(chan error, 1)
	go func() {
		var err error
		for rnd := rand.New(rand.NewPCG(3, 4)); err == nil; sent.Add(1) {
			to := make([]byte, 20)
			for i := range to {
				to[i] = byte(rnd.Uint32())
			}
			err = n.nodes[0].pay(ctx, sdk.AccAddress(to))
		}
		if ctx.Err() != nil {
			err = nil
		}
		done <- err
	}()
	n.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	return sent
}

// pay sends coins from a validator's account, and waits until the transaction is in a block.
func (d *node) pay(ctx context.Context, to sdk.AccAddress) error {
	return d.transact(ctx, "bank", "send", "key", to.String(), "7stake")
}

// transact sends a transaction, and waits until it is in a block.
func (d *node) transact(ctx context.Context, args ...string) error {
	args = append(append([]string{"tx"}, args...), "--home", d.home, "--chain-id", chainID,
		"--keyring-backend", "test", "--yes", "--node", "tcp://"+d.ports.Address(portRPC), "--output", "json")
	out, err := command(ctx, d.n.simd, args...)
	if err != nil {
		return err
	}
	var accepted struct {
		Code int    `json:"code"`
		Hash string `json:"txhash"`
	}
	if err := json.Unmarshal([]byte(out), &accepted); err != nil {
		return fmt.Errorf("decode the output of tx: %w\n%s", err, out)
	}
	if accepted.Code != 0 {
		return fmt.Errorf("transaction refused with code %d:\n%s", accepted.Code, out)
	}
	var found struct {
		Result struct {
			Code int    `json:"code"`
			Log  string `json:"log"`
		} `json:"tx_result"`
	}
	ctx, done := context.WithTimeout(ctx, wait)
	defer done()
	if err := runner.Poll(ctx, "transaction "+accepted.Hash, func() bool { return d.call("tx?hash=0x"+accepted.Hash, &found) == nil }); err != nil {
		return err
	}
	if found.Result.Code != 0 {
		return fmt.Errorf("transaction %s failed: %s", accepted.Hash, found.Result.Log)
	}
	return nil
}

// logged counts the lines of a node's log that match a regular expression.
func (d *node) logged(pattern string) int {
	b, err := os.ReadFile(d.log())
	require.NoError(d.n.t, err)
	return len(regexp.MustCompile(pattern).FindAll(b, -1))
}

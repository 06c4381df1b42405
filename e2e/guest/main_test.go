package guest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

const (
	// Paths of the programs, which make test-rdma builds with RDMA and puts there.
	starlingd, byzantine = "/root/starlingd", "/root/byzantine"

	chain  = "guest"
	prefix = "guest/" // prefix of the keys that anybody may write
	// patience ends a test that hangs. No test result depends on it.
	patience = 15 * time.Minute

	insideVariable = "STARLING_GUEST_HUB"
)

// TestMain makes the network namespaces, and runs the tests in the one that reaches all nodes.
func TestMain(m *testing.M) {
	if os.Getenv("RDMA_GUEST") != "" && os.Getenv(insideVariable) == "" {
		fmt.Fprintln(os.Stderr, enterHub())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// script makes three nodes' namespaces and the hub, and gives rxe0 a second address, 10.7.0.3.
const script = `set -e
ip netns add hub
ip -n hub link set lo up
for i in 1 2 3; do
	ip netns add node$i
	ip -n node$i link set lo up
	ip link add n$i netns hub type veth peer name e0 netns node$i
	ip -n hub addr add 10.9.0.254/32 dev n$i
	ip -n hub link set n$i up
	ip -n node$i addr add 10.7.0.$i/32 dev e0
	ip -n node$i link set e0 up
	ip -n node$i route add default via 10.9.0.254 dev e0 onlink src 10.7.0.$i
	ip -n hub route add 10.7.0.$i/32 dev n$i src 10.9.0.254
done
ip netns exec hub sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
ip addr add 10.7.0.3/24 dev v0
ip rule add pref 24 from 10.7.0.2 to 10.7.0.3 lookup 101
ip rule add pref 25 from 10.7.0.3 to 10.7.0.2 lookup 100
` + thirdRoute

// thirdRoute has to be set again after the link was down.
const thirdRoute = `ip neigh replace 10.7.0.3 lladdr $(cat /sys/class/net/v0/address) dev v1 nud permanent
ip route replace 10.7.0.3 dev v1 src 10.7.0.2 table 101
`

// enterHub runs this program again, in the hub. It returns only if that fails.
func enterHub() error {
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("the nodes' network: %w: %s", err, out)
	}
	ip, err := exec.LookPath("ip")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(ip, append([]string{"ip", "netns", "exec", "hub", self}, os.Args[1:]...), append(os.Environ(), insideVariable+"=1"))
}

// first runs a command in the first network namespace, where the devices are.
func first(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nsenter", "-t", "1", "-n", "sh", "-c", command).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
	return string(out)
}

// resources lists the devices' resources that processes hold.
func resources(t *testing.T) string { t.Helper(); return first(t, "rdma resource show") }

// processes returns a supervisor for the test, whose context ends when a node dies.
func processes(t *testing.T) (*runner.Processes, context.Context) {
	t.Helper()
	if os.Getenv(insideVariable) == "" {
		t.Skip("it needs the VM of make test-rdma")
	}
	t.TempDir() // removed after the processes have ended
	p := runner.NewProcesses(context.Background())
	ctx, cancel := context.WithTimeoutCause(p.Context(), patience, fmt.Errorf("not done within %v", patience))
	t.Cleanup(func() {
		cancel()
		require.NoError(t, p.Stop(20*time.Second))
	})
	return p, ctx
}

// makeHomes makes a home for each name, the first one in node1.
func makeHomes(t *testing.T, ctx context.Context, signing int, names ...string) []*runner.Home {
	t.Helper()
	homes := make([]*runner.Home, 0, len(names))
	for i, name := range names {
		dir := filepath.Join(t.TempDir(), name)
		home, err := runner.InitHome(ctx, name, dir, starlingd, "init", name, "--chain-id", chain, "--home", dir)
		require.NoError(t, err)
		at := fmt.Sprintf("10.7.0.%d:", i+1)
		require.NoError(t, home.ServeAt(runner.Listen{P2P: at + "26656", RPC: at + "26657", Metrics: at + "26660"}))
		homes = append(homes, home)
	}
	_, err := runner.Genesis(homes[:signing], homes[signing:], chain, map[string]any{
		"chunk_bytes": 64 << 10, "snapshot_interval": interval, "open": false, "admins": []string{},
		"grants": []map[string]any{{"grantee": "*", "prefix": prefix}},
	})
	require.NoError(t, err)
	for i, home := range homes {
		require.NoError(t, home.Configure(func(c *cfg.Config) {
			// Processors are emulated: a round ends with a block, or after minutes.
			c.Consensus.TimeoutCommit, c.Consensus.TimeoutPropose = time.Second, 10*time.Minute
			c.P2P.PersistentPeers = runner.Peers(homes[:i]...)
		}))
	}
	return homes
}

// start starts a node in its namespace, with RDMA channels to all others.
func start(t *testing.T, p *runner.Processes, homes []*runner.Home, i int, env []string, command ...string) *runner.Process {
	t.Helper()
	var peers []string
	for k, home := range homes {
		if k != i {
			peers = append(peers, home.ID()) // named, so that metrics have a series for each
		}
	}
	home := homes[i]
	process, err := p.Start(runner.Spec{
		Name: home.Name, Path: "ip", Args: append(append([]string{"netns", "exec", fmt.Sprint("node", i+1)}, command...), "--home", home.Dir),
		Env: append([]string{
			"STARLINGD_TRANSPORT_RDMA=required", "STARLINGD_TRANSPORT_RDMA_PEERS=" + strings.Join(peers, ","), "STARLINGD_DISK_MIN_FREE_BYTES=0",
			"STARLINGD_SNAPSHOTS_KEEP_RECENT=10",
		}, env...),
		Log: home.Log(),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, line := range pathsAndEnd(home.Log()) {
				t.Logf("%s: %s", home.Name, line)
			}
		}
	})
	return process
}

// pathsAndEnd returns the lines of a log about RDMA channels, and its last lines.
func pathsAndEnd(log string) []string {
	lines := runner.Tail(log, 1<<20)
	end := max(0, len(lines)-20)
	kept := slices.DeleteFunc(slices.Clone(lines[:end]), func(line string) bool {
		return !strings.Contains(line, "RDMA") && !strings.Contains(line, "module=rdma")
	})
	return append(kept, lines[end:]...)
}

func await(t *testing.T, ctx context.Context, home *runner.Home, height int64) {
	t.Helper()
	require.NoError(t, runner.Poll(ctx, fmt.Sprintf("%s to reach height %d", home.Name, height), func() bool {
		at, err := home.AppInfo(ctx)
		return err == nil && at.Height >= height
	}))
}

// counted returns the sum of a node's metric over all series with the given labels, which are names
// and values in turn. It is 0 if there is no series, or the node does not answer.
func counted(t *testing.T, ctx context.Context, home *runner.Home, metric string, labels ...string) (sum float64) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, home.Metrics(), nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	require.NoError(t, err)
	for _, m := range families["starling_"+metric].GetMetric() {
		have := map[string]string{}
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		fits := true
		for i := 0; i < len(labels); i += 2 {
			fits = fits && have[labels[i]] == labels[i+1]
		}
		if fits {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

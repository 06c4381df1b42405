package config_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	rpcserver "github.com/cometbft/cometbft/rpc/jsonrpc/server"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/tx"
)

// Load reads back what init writes, so every name in CometBFT's template is known. Each setting of
// the network has its reason in config.toml.
func TestConfigRoundTrip(t *testing.T) {
	for _, network := range []config.Network{config.LAN, config.WAN} {
		t.Run(string(network), func(t *testing.T) {
			home, _ := nodetest.Home(t, func(o *home.InitOptions) { o.Edit, o.Network = nil, network })
			conf := nodetest.Load(t, home)
			want, app := config.DefaultCometBFT(), config.DefaultApp()
			config.Tune(network, want, &app)
			want.SetRoot(home)
			want.Moniker = "test"
			want.StateSync.RPCServers = []string{}
			require.Equal(t, want.RPC, conf.CometBFT.RPC)
			require.Equal(t, want.P2P.SendRate, conf.CometBFT.P2P.SendRate)
			require.Equal(t, want.P2P.FlushThrottleTimeout, conf.CometBFT.P2P.FlushThrottleTimeout)
			require.Equal(t, want.Mempool, conf.CometBFT.Mempool)
			require.Equal(t, want.StateSync, conf.CometBFT.StateSync)
			require.Equal(t, want.Consensus, conf.CometBFT.Consensus)
			require.Equal(t, want.BaseConfig, conf.CometBFT.BaseConfig)
			require.Equal(t, app, conf.App)
			// A request that comes when a server closes its idle connection fails, and the join
			// with it.
			wait, idle := conf.CometBFT.StateSync.DiscoveryTime, rpcserver.DefaultConfig().ReadTimeout
			for tries := time.Duration(1); tries < 10; tries++ {
				require.Greater(t, (tries*wait - idle).Abs(), time.Second)
			}
			require.NoError(t, config.CheckLimits(conf.CometBFT))

			text, err := os.ReadFile(config.CometFile(home))
			require.NoError(t, err)
			standard := cfg.DefaultConfig()
			changed := 0
			for _, same := range []bool{
				want.EventBusBufferCapacity == standard.EventBusBufferCapacity,
				want.P2P.FlushThrottleTimeout == standard.P2P.FlushThrottleTimeout,
				want.P2P.SendRate == standard.P2P.SendRate, want.P2P.RecvRate == standard.P2P.RecvRate,
				want.Mempool.Size == standard.Mempool.Size, want.Mempool.CacheSize == standard.Mempool.CacheSize,
				want.Consensus.TimeoutPropose == standard.Consensus.TimeoutPropose,
				want.Consensus.TimeoutProposeDelta == standard.Consensus.TimeoutProposeDelta,
				want.Consensus.TimeoutPrevote == standard.Consensus.TimeoutPrevote,
				want.Consensus.TimeoutPrevoteDelta == standard.Consensus.TimeoutPrevoteDelta,
				want.Consensus.TimeoutPrecommit == standard.Consensus.TimeoutPrecommit,
				want.Consensus.TimeoutPrecommitDelta == standard.Consensus.TimeoutPrecommitDelta,
				want.Consensus.TimeoutCommit == standard.Consensus.TimeoutCommit,
				want.Consensus.CreateEmptyBlocks == standard.Consensus.CreateEmptyBlocks,
				want.Consensus.CreateEmptyBlocksInterval == standard.Consensus.CreateEmptyBlocksInterval,
				want.Consensus.PeerGossipSleepDuration == standard.Consensus.PeerGossipSleepDuration,
			} {
				if !same {
					changed++
				}
			}
			require.Equal(t, changed, strings.Count(string(text), "# init --network "+string(network)))
		})
	}
}

func TestParseNetwork(t *testing.T) {
	n, err := config.ParseNetwork("lan")
	require.NoError(t, err)
	require.Equal(t, config.LAN, n)
	_, err = config.ParseNetwork("")
	require.ErrorContains(t, err, `use "lan" or "wan"`)
}

func TestFlagsGoBeforeVariablesBeforeFiles(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	nodetest.WriteFile(t, config.AppFile(home), "[state]\npruning_keep_recent = 7\nhash_index = true\nmin_retain_blocks = 70\n[snapshots]\nkeep_recent = 3\n[disk]\nflush_interval = \"2s\"\nflush_blocks = 5\n")
	t.Setenv("STARLINGD_DISK_MAX_BACKLOG_BLOCKS", "77")
	t.Setenv("STARLINGD_STATE_PRUNING_KEEP_RECENT", "8")
	t.Setenv("STARLINGD_STATE_MIN_RETAIN_BLOCKS", "80")
	t.Setenv("STARLINGD_STATESYNC_RPC_SERVERS", "http://a:1,http://b:2")
	t.Setenv("STARLINGD_CONSENSUS_TIMEOUT_COMMIT", "3s")
	t.Setenv("STARLINGD_MONIKER", "env")
	v := viper.New()
	config.BindEnvironment(v)
	peer := strings.Repeat("0a", 20) + "@b:1"
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.AddFlags(flags)
	require.NoError(t, flags.Parse([]string{"--state.pruning_keep_recent", "9", "--rpc.laddr", "tcp://127.0.0.1:1", "--log_format", "json",
		"--p2p.persistent_peers", peer, "--instrumentation.prometheus", "--rpc.cors_allowed_origins", "x,y",
		"--disk.cache_bytes", "20000000", "--disk.flush_interval", "3s"}))
	require.NoError(t, v.BindPFlags(flags))
	conf, err := config.Load(home, v)
	require.NoError(t, err)
	want := config.DefaultApp()
	want.State.KeepRecent, want.State.RetainBlocks, want.State.Index, want.Snapshots.Keep = 9, 80, true, 3
	want.Disk.FlushInterval, want.Disk.FlushBlocks, want.Disk.MaxBacklogBlocks, want.Disk.CacheBytes = 3*time.Second, 5, 77, 20_000_000
	require.Equal(t, want, conf.App)
	require.Equal(t, []string{"http://a:1", "http://b:2"}, conf.CometBFT.StateSync.RPCServers)
	require.Equal(t, []string{"x", "y"}, conf.CometBFT.RPC.CORSAllowedOrigins)
	require.Equal(t, 3*time.Second, conf.CometBFT.Consensus.TimeoutCommit)
	require.Equal(t, "env", conf.CometBFT.Moniker)
	require.Equal(t, "json", conf.CometBFT.LogFormat)
	require.Equal(t, "tcp://127.0.0.1:1", conf.CometBFT.RPC.ListenAddress)
	require.Equal(t, peer, conf.CometBFT.P2P.PersistentPeers)
	require.True(t, conf.CometBFT.Instrumentation.Prometheus)
}

func TestWrongConfigIsRefusedByName(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	comet, err := os.ReadFile(config.CometFile(home))
	require.NoError(t, err)
	for name, c := range map[string]struct{ app, from, to, want string }{
		"unknown section":      {app: "[sate]\npruning_keep_recent = 1\n", want: "unknown field sate.pruning_keep_recent (did you mean state.pruning_keep_recent?)"},
		"unknown field":        {app: "[state]\nkeep = 1\n", want: "unknown field state.keep"},
		"fraction":             {app: "[state]\npruning_keep_recent = 1.5\n", want: "state.pruning_keep_recent must be a whole number"},
		"wrong kind":           {app: "[snapshots]\nkeep_recent = true\n", want: "snapshots.keep_recent must be a whole number"},
		"negative bytes":       {app: "[state]\npruning_keep_recent_bytes = -1\n", want: "state.pruning_keep_recent_bytes is -1, it must be 0 (no limit) or more"},
		"negative events":      {app: "[state]\nkeep_events = -1\n", want: "state.keep_events is -1, it must be 0 (keep none) or more"},
		"few event bytes":      {app: "[state]\nkeep_events_bytes = 1\n", want: "state.keep_events_bytes is 1, it must be 16777216 (16 MiB) or more"},
		"out of range":         {app: "[state]\npruning_keep_recent = 0\n", want: "state.pruning_keep_recent is 0, it must be 1 or more"},
		"too many":             {app: "[snapshots]\nkeep_recent = 11\n", want: "snapshots.keep_recent is 11"},
		"little memory":        {app: "[disk]\ncache_bytes = 1000\n", want: "disk.cache_bytes is 1000, it must be 16777216"},
		"page for all":         {app: "[status]\nladdr = \"0.0.0.0:26680\"\n", want: "or set status.public = true"},
		"page without a port":  {app: "[status]\nladdr = \"127.0.0.1\"\n", want: "status.laddr is"},
		"no flush":             {app: "[disk]\nflush_blocks = 0\n", want: "disk.flush_blocks is 0"},
		"no flush bytes":       {app: "[disk]\nflush_bytes = 0\n", want: "disk.flush_bytes is 0"},
		"no interval":          {app: "[disk]\nflush_interval = \"0s\"\n", want: "disk.flush_interval is 0s"},
		"interval":             {app: "[disk]\nflush_interval = \"soon\"\n", want: "disk.flush_interval must be a time with a unit"},
		"lag below a flush":    {app: "[disk]\nflush_blocks = 300\n", want: "disk.max_backlog_blocks is 200, it must be flush_blocks (300) or more"},
		"bytes below a flush":  {app: "[disk]\nmax_backlog_bytes = 5\n", want: "disk.max_backlog_bytes is 5"},
		"index":                {app: "[state]\nhash_index = 3\n", want: "state.hash_index must be true or false"},
		"in memory":            {app: "[disk]\nstate_in_memory = 3\n", want: "disk.state_in_memory must be true or false"},
		"scrubbing backwards":  {app: "[disk]\nscrub_rate = -1\n", want: "disk.scrub_rate is -1"},
		"negative":             {app: "[disk]\nmin_free_bytes = -1\n", want: "disk.min_free_bytes is -1"},
		"negative headers":     {app: "[join]\nevidence_headers = -1\n", want: "join.evidence_headers is -1, it must be 0 (none) to 100000"},
		"too many headers":     {app: "[join]\nevidence_headers = 100001\n", want: "join.evidence_headers is 100001"},
		"RDMA, maybe":          {app: "[transport]\nrdma = \"maybe\"\n", want: `transport.rdma is "maybe", it must be "off", "auto" or "required"`},
		"RDMA with nobody":     {app: "[transport]\nrdma = \"auto\"\n", want: "no peer is allowed: name peers in transport.rdma_peers"},
		"RDMA with a name":     {app: "[transport]\nrdma = \"auto\"\nrdma_peers = \"bob\"\n", want: "transport.rdma_peers"},
		"RDMA with a host":     {app: "[transport]\nrdma_fabric = \"10.7.0.1/24\"\n", want: `transport.rdma_fabric: "10.7.0.1/24" is not a network`},
		"RDMA with everybody":  {app: "[transport]\nrdma_fabric = \"0.0.0.0/0\"\n", want: "transport.rdma_fabric"},
		"little RDMA memory":   {app: "[transport]\nrdma_memory = 1000\n", want: "transport.rdma_memory is 1000, it must be 67108864 (64 MiB) or more"},
		"no TOML":              {app: "[state\n", want: "app.toml"},
		"CometBFT's unknown":   {from: "timeout_commit =", to: "timeout_comit =", want: "unknown field consensus.timeout_comit"},
		"CometBFT's kind":      {from: "pex = false", to: "pex = \"maybe\"", want: "p2p.pex must be true or false"},
		"CometBFT's time":      {from: "timeout_commit = \"20ms\"", to: "timeout_commit = \"soon\"", want: "consensus.timeout_commit must be a time"},
		"CometBFT's own check": {from: "max_body_bytes = 8388608", to: "max_body_bytes = -1", want: "max_body_bytes can't be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := string(comet)
			if c.from != "" {
				changed = strings.Replace(changed, c.from, c.to, 1)
				require.NotEqual(t, string(comet), changed)
			}
			nodetest.WriteFile(t, config.CometFile(home), changed)
			nodetest.WriteFile(t, config.AppFile(home), c.app)
			_, err := config.Load(home, viper.New())
			require.ErrorContains(t, err, c.want)
			require.ErrorIs(t, err, config.ErrInvalid)
		})
	}
}

// A disk failure may be temporary: it is not an invalid setting. A missing home is one.
func TestInvalid(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"wrong value":    {errors.New("state.pruning_keep_recent is 0"), true},
		"missing file":   {&fs.PathError{Op: "open", Path: "genesis.json", Err: fs.ErrNotExist}, true},
		"not allowed":    {&fs.PathError{Op: "open", Path: "node_key.json", Err: fs.ErrPermission}, true},
		"disk":           {fmt.Errorf("genesis file: %w", &fs.PathError{Op: "read", Path: "genesis.json", Err: syscall.EIO}), false},
		"no home":        {fmt.Errorf("%w: x", config.ErrNotInitialised), true},
		"nothing at all": {nil, false},
	} {
		got := config.Invalid(c.err)
		require.Equal(t, c.want, errors.Is(got, config.ErrInvalid), name)
		if c.err != nil {
			require.Equal(t, c.err.Error(), got.Error(), name)
			require.ErrorIs(t, got, c.err, name)
		}
	}
}

func TestWrongVariableIsRefused(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	t.Setenv("STARLINGD_STATE_PRUNING_KEEP_RECENT", "many")
	v := viper.New()
	config.BindEnvironment(v)
	_, err := config.Load(home, v)
	require.ErrorContains(t, err, "pruning_keep_recent")
	require.ErrorContains(t, err, "STARLINGD_")
}

func TestLimitsMustFitTheLargestTransaction(t *testing.T) {
	for setting, lower := range map[string]func(*cfg.Config){
		"rpc.max_body_bytes":    func(c *cfg.Config) { c.RPC.MaxBodyBytes = 1_000_000 },
		"mempool.max_tx_bytes":  func(c *cfg.Config) { c.Mempool.MaxTxBytes = tx.MaxBytes - 1 },
		"mempool.max_txs_bytes": func(c *cfg.Config) { c.Mempool.MaxTxsBytes = tx.MaxBytes - 1 },
	} {
		c := config.DefaultCometBFT()
		require.NoError(t, config.CheckLimits(c))
		lower(c)
		err := config.CheckLimits(c)
		require.ErrorIs(t, err, config.ErrLimits)
		require.ErrorContains(t, err, setting)
	}
	c := config.DefaultCometBFT()
	c.Mempool.Type = cfg.MempoolTypeApp
	require.ErrorContains(t, config.CheckLimits(c), "mempool.type")
}

func TestRPCAddress(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	for laddr, want := range map[string]string{
		"tcp://127.0.0.1:5":              "http://127.0.0.1:5",
		"tcp://0.0.0.0:5":                "http://127.0.0.1:5",
		"tcp://:5,tcp://127.0.0.1:6":     "http://127.0.0.1:5",
		"unix:///run/starling.sock":      "unix:///run/starling.sock",
		"tcp://[::]:5":                   "http://127.0.0.1:5",
		"tcp://starling.example.org:123": "http://starling.example.org:123",
	} {
		nodetest.WriteFile(t, config.CometFile(home), "[rpc]\nladdr = \""+laddr+"\"\n")
		require.Equal(t, want, config.RPCAddress(home))
	}
	require.Equal(t, "http://127.0.0.1:26657", config.RPCAddress(t.TempDir()))
}

func TestSharedHost(t *testing.T) {
	id := strings.Repeat("ab", 20)
	for peers, host := range map[string]string{
		"":                                       "",
		id + "@10.0.0.1:1," + id + "@10.0.0.2:1": "",
		id + "@10.0.0.1:1, " + id + "@10.0.0.1:2":           "10.0.0.1",
		id + "@[::1]:1," + id + "@[::1]:2":                  "::1",
		"damaged,damaged," + id + "@h:1," + id + "@h:2,h:3": "h",
	} {
		require.Equal(t, host, config.SharedHost(&cfg.P2PConfig{PersistentPeers: peers}), peers)
		require.Empty(t, config.SharedHost(&cfg.P2PConfig{PersistentPeers: peers, AllowDuplicateIP: true}))
	}
}

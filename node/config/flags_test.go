package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// otherThan returns a value for a flag that differs from its default and has the right type; it may
// be invalid otherwise.
func otherThan(t *testing.T, f *pflag.Flag) string {
	t.Helper()
	switch f.Value.Type() {
	case "bool":
		return strconv.FormatBool(f.DefValue != "true")
	case "duration":
		d, err := time.ParseDuration(f.DefValue)
		require.NoError(t, err)
		return (d + time.Second).String()
	case "int64", "uint64":
		n, err := strconv.ParseInt(f.DefValue, 10, 64)
		require.NoError(t, err)
		return strconv.FormatInt(n+1, 10)
	case "stringSlice":
		return "a,b"
	default:
		return "other"
	}
}

// notWritten are settings for tests of CometBFT, which its config.toml template omits.
var notWritten = map[string]bool{"p2p.test_fuzz": true, "p2p.test_dial_fail": true}

// Flags of `starlingd join` are written to the files, and the next start reads them.
func TestFlagsAreWrittenAndReadAgain(t *testing.T) {
	texts := map[string]string{
		"state.mode": "sharded", "join.mode": "cometbft", "transport.rdma": "auto", "transport.rdma_peers": "0123456789012345678901234567890123456789", "transport.rdma_fabric": "10.7.0.0/24",
		"storage_node.senders": "0123456789012345678901234567890123456789", "join.peers": "h:1",
		"status.laddr": "127.0.0.1:1", "transport.laddr": "127.0.0.1:2", "db_backend": "goleveldb", "log_format": "json",
		"p2p.persistent_peers": "0123456789012345678901234567890123456789@h:1", "p2p.seeds": "0123456789012345678901234567890123456789@h:2",
		"abci": "grpc", "blocksync.version": "v0", "tx_index.indexer": "null", "mempool.type": "nop", "mempool.version": "v0",
		"rpc.laddr": "tcp://127.0.0.1:3", "grpc.laddr": "127.0.0.1:4", "statesync.trust_hash": "", "transport.relay": "all",
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	want := map[string]string{}
	flags.VisitAll(func(f *pflag.Flag) {
		value, has := texts[f.Name]
		if !has {
			value = otherThan(t, f)
		}
		require.NoError(t, flags.Set(f.Name, value), f.Name)
		want[f.Name] = f.Value.String()
	})
	comet, app := config.DefaultCometBFT(), config.DefaultApp()
	require.NoError(t, config.SetFlags(flags, comet, &app))

	home := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(home, "config"), 0o700))
	cfg.WriteConfigFile(config.CometFile(home), comet)
	require.NoError(t, config.WriteApp(config.AppFile(home), app))
	read, err := config.LoadApp(home, viper.New())
	require.NoError(t, err)
	require.Equal(t, app, read)
	v := viper.New()
	v.SetConfigFile(config.CometFile(home))
	require.NoError(t, v.ReadInConfig())
	appFlags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddAppFlags(appFlags)
	for name, value := range want {
		if notWritten[name] || appFlags.Lookup(name) != nil {
			continue
		}
		got := fmt.Sprint(v.Get(name))
		if _, is := v.Get(name).([]any); is {
			got, value = strings.Join(v.GetStringSlice(name), ","), strings.Trim(value, "[]")
		}
		require.Equal(t, strings.Trim(value, "[]"), got, name)
	}
}

func TestFlagThatDoesNotFitIsNamed(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	for flag, c := range map[string]struct{ value, want string }{
		"snapshots.keep_recent": {"50", "--snapshots.keep_recent: snapshots.keep_recent is 50"},
		"disk.flush_bytes":      {"0", "--disk.flush_bytes: disk.flush_bytes is 0"},
		"disk.flush_blocks": {"100000",
			"--disk.flush_blocks: disk.max_backlog_blocks is 200, it must be flush_blocks (100000) or more"},
		"consensus.timeout_commit": {"-1s", "--consensus.timeout_commit: "},
	} {
		v := viper.New()
		v.Set(flag, c.value)
		_, err := config.Load(home, v)
		require.ErrorIs(t, err, config.ErrInvalid)
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, err.Error(), ".toml")
		require.ErrorContains(t, config.CheckFlags(v, config.WAN), c.want)
	}
	require.NoError(t, config.CheckFlags(viper.New(), config.WAN))
	require.NoError(t, config.CheckFlags(viper.New(), config.LAN))
	for _, c := range []struct {
		name    string
		value   int
		network config.Network // for which it fits
	}{{"disk.max_backlog_blocks", 500, config.WAN}, {"disk.flush_blocks", 2000, config.LAN}} {
		v := viper.New()
		v.Set(c.name, c.value)
		for _, network := range []config.Network{config.WAN, config.LAN} {
			err := config.CheckFlags(v, network)
			require.Equal(t, network == c.network, err == nil, "%s = %d in a %s: %v", c.name, c.value, network, err)
		}
	}
}

func TestQuote(t *testing.T) {
	for argument, want := range map[string]string{
		"/a/b-c.d": "/a/b-c.d", "a b": "'a b'", "": "''", "it's": `'it'\''s'`, "$x": "'$x'", "~/a": "'~/a'",
	} {
		require.Equal(t, want, config.Quote(argument))
	}
}

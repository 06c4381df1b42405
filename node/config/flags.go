package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/spf13/pflag"
)

// AddTrustFlags adds flags for the header that a light client trusts and for the servers that it
// queries.
func AddTrustFlags(flags *pflag.FlagSet) {
	var fields []field
	for _, f := range fieldsOf(DefaultCometBFT()) {
		if f.name == "statesync.rpc_servers" || strings.HasPrefix(f.name, "statesync.trust_") {
			fields = append(fields, f)
		}
	}
	for _, f := range fieldsOf(DefaultApp()) {
		if f.name == "join.peers" {
			fields = append(fields, f)
		}
	}
	addFlags(flags, fields)
	period := flags.Lookup("statesync.trust_period")
	period.Hidden, period.Usage = false, "maximum age of the trusted header"
}

// shown are the settings whose flags are listed in the help text. All other settings have hidden
// flags.
var shown = map[string]string{
	"moniker":                         "name of this node",
	"log_level":                       "log level: debug, info, error, none, or module:level pairs",
	"log_format":                      "log format: plain or json",
	"rpc.laddr":                       "RPC address for clients",
	"p2p.laddr":                       "address for other nodes",
	"p2p.external_address":            "address advertised to other nodes",
	"p2p.persistent_peers":            "peers to stay connected to: id@host:port, comma-separated",
	"p2p.seeds":                       "seeds to ask for peers: id@host:port, comma-separated",
	"statesync.enable":                "join by state sync if this node has no state yet",
	"statesync.rpc_servers":           "two or more RPC addresses for the light client",
	"statesync.trust_height":          "height of a trusted header",
	"statesync.trust_hash":            "hash of the trusted header, in hex",
	"consensus.timeout_commit":        "pause between blocks",
	"instrumentation.prometheus":      "serve metrics for Prometheus",
	"halt_height":                     "stop after this block; 0: never",
	"state.pruning_keep_recent":       "number of recent states that can be queried",
	"state.pruning_keep_recent_bytes": "memory limit for older queryable states, in bytes; 0: no limit",
	"state.keep_events":               "number of recent blocks whose events watchers can read; 0: none",
	"state.keep_events_bytes":         "disk limit for events kept for watchers, in bytes",
	"state.min_retain_blocks":         "number of recent blocks to keep; 0: all",
	"state.hash_index":                "find keys in memory by a hash index",
	"snapshots.keep_recent":           "number of recent snapshots served to joining nodes",
	"disk.cache_bytes":                "memory limit for caches of blocks and state, in bytes",
	"disk.state_in_memory":            "keep the whole state in memory",
	"disk.scrub_rate":                 "bytes of state verified on disk per second; 0: none",
	"disk.min_free_bytes":             "free disk space below which the node stops; 0: never",
	"transport.laddr":                 "address for joining nodes; auto: that of p2p with port + 10",
	"transport.send_rate":             "send rate limit for joining nodes, in bytes per second; 0: no limit",
	"transport.rdma":                  "send large responses over RDMA, bypassing TLS: off, auto or required",
	"transport.rdma_peers":            "node IDs allowed to use RDMA, comma-separated",
	"join.mode":                       "fast: join over the transports of many peers; cometbft: by CometBFT's state sync",
	"join.peers":                      "transports to join from: id@host:port or host:port, comma-separated",
	"status.laddr":                    "address of the status page; empty: none",
	"status.public":                   "allow a status.laddr that other machines can reach",
	"grpc.laddr":                      "address of the gRPC endpoint; empty: none",
}

// AddFlags adds a flag for every setting of config.toml and app.toml, with the setting's name. The
// help text shows the defaults that init writes.
func AddFlags(flags *pflag.FlagSet) {
	comet, app := tuned(WAN)
	addFlags(flags, append(fieldsOf(comet), fieldsOf(app)...))
}

// HideFlags leaves flags whose names begin with a prefix out of the help text. They still work.
func HideFlags(flags *pflag.FlagSet, prefixes ...string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(f.Name, p) }) {
			f.Hidden = true
		}
	})
}

// SetFlags sets each setting whose flag, added by AddFlags, was given.
func SetFlags(flags *pflag.FlagSet, c *cfg.Config, a *App) error {
	for _, f := range append(fieldsOf(c), fieldsOf(a)...) {
		flag := flags.Lookup(f.name)
		if flag == nil || !flag.Changed || !f.settable() {
			continue
		}
		if err := f.set(flag); err != nil {
			return Invalid(fmt.Errorf("--%s: %w", f.name, err))
		}
	}
	return nil
}

// set sets the setting, whose struct is addressable, to the value of its flag.
func (f field) set(flag *pflag.Flag) error {
	text := flag.Value.String()
	switch {
	case f.value.Type() == durationType:
		d, err := time.ParseDuration(text)
		f.value.SetInt(int64(d))
		return err
	case f.value.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(text)
		f.value.SetBool(b)
		return err
	case f.value.Kind() == reflect.Slice:
		list, ok := flag.Value.(pflag.SliceValue)
		if !ok {
			return fmt.Errorf("%q is not a list", text)
		}
		f.value.Set(reflect.ValueOf(list.GetSlice()))
	case f.value.CanInt():
		n, err := strconv.ParseInt(text, 10, f.value.Type().Bits())
		f.value.SetInt(n)
		return err
	case f.value.CanUint():
		n, err := strconv.ParseUint(text, 10, f.value.Type().Bits())
		f.value.SetUint(n)
		return err
	default:
		f.value.SetString(text)
	}
	return nil
}

// AddAppFlags adds flags for the settings of app.toml and of the log only.
func AddAppFlags(flags *pflag.FlagSet) {
	fields := fieldsOf(DefaultApp())
	for _, f := range fieldsOf(DefaultCometBFT()) {
		if strings.HasPrefix(f.name, "log_") {
			fields = append(fields, f)
		}
	}
	addFlags(flags, fields)
}

func addFlags(flags *pflag.FlagSet, fields []field) {
	for _, f := range fields {
		if !f.settable() {
			continue
		}
		usage, listed := shown[f.name]
		if !listed {
			usage = "see config/config.toml"
		}
		f.addFlag(flags, usage)
		flags.Lookup(f.name).Hidden = !listed
	}
}

package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/spf13/pflag"
)

// AddTrustFlags adds flags for the settings that say what a light client trusts, and whom it asks.
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

// shown are the settings whose flags are listed in the help text. All other settings have flags,
// too, which are hidden.
var shown = map[string]string{
	"moniker":                    "name of this node",
	"log_level":                  "log level: debug, info, error, none, or module:level pairs",
	"log_format":                 "log format: plain or json",
	"rpc.laddr":                  "address for clients",
	"p2p.laddr":                  "address for other nodes",
	"p2p.external_address":       "address that other nodes are told to dial",
	"p2p.persistent_peers":       "peers to stay connected to: id@host:port, comma-separated",
	"p2p.seeds":                  "seeds to ask for peers: id@host:port, comma-separated",
	"statesync.enable":           "join by state sync where there is no state yet",
	"statesync.rpc_servers":      "two or more RPC addresses for the light client",
	"statesync.trust_height":     "height of a header that is trusted",
	"statesync.trust_hash":       "hash of that header, in hex",
	"consensus.timeout_commit":   "pause between blocks",
	"instrumentation.prometheus": "serve metrics for Prometheus",
	"halt_height":                "stop after this block; 0: never",
	"state.keep_recent":          "states that can be queried",
	"state.keep_recent_bytes":    "memory for these beyond the last one; 0: no limit",
	"state.keep_events":          "blocks whose events watchers can read; 0: none",
	"state.keep_events_bytes":    "bytes that these events may take",
	"state.retain_blocks":        "blocks that are kept; 0: all",
	"state.index":                "find keys in memory by an index of hashes",
	"snapshots.keep":             "snapshots served to joining nodes",
	"storage.memory_bytes":       "memory for caches of what is on disk",
	"storage.state_in_memory":    "keep the whole state in memory",
	"storage.scrub_rate":         "bytes of the state per second that are verified on disk; 0: none",
	"storage.min_free_bytes":     "free disk space below which the node stops; 0: never",
	"transport.laddr":            "address for joining nodes, auto: that of p2p with the port + 10",
	"transport.send_rate":        "bytes per second for joining nodes; 0: no limit",
	"transport.rdma":             "answers past TLS by RDMA: off, auto or required",
	"transport.rdma_peers":       "IDs of nodes that may have paths by RDMA, comma-separated",
	"join.fast":                  "join over the transport, from many peers at once",
	"join.peers":                 "transports to join from: id@host:port or host:port, comma-separated",
	"status.laddr":               "address for a web page that shows what the node does, empty: none",
	"status.public":              "status.laddr may be an address that others can reach",
}

// AddFlags adds a flag for every setting of config.toml and app.toml, with the setting's name.
func AddFlags(flags *pflag.FlagSet) {
	addFlags(flags, append(fieldsOf(DefaultCometBFT()), fieldsOf(DefaultApp())...))
}

// SetFlags changes settings to the values of the flags that were given, of those that AddFlags
// added.
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

// set changes the setting, whose struct is addressable, to the value of its flag.
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
			return fmt.Errorf("%q is no list", text)
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

package node

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/statuspage"
	"github.com/starling-kv/starling/storage/sgc"
)

// ErrNotInitialised: the folder is no home of a node.
var ErrNotInitialised = errors.New("not a home folder of starlingd")

// Config is all that a node is told: CometBFT's part and ours.
type Config struct {
	Home     string
	CometBFT *cfg.Config
	App      AppConfig
}

// AppConfig is config/app.toml.
type AppConfig struct {
	HaltHeight int64 `mapstructure:"halt_height"` // the node stops after this block, 0: never

	State     StateConfig     `mapstructure:"state"`
	Snapshots SnapshotsConfig `mapstructure:"snapshots"`
	Storage   StorageConfig   `mapstructure:"storage"`
	Transport TransportConfig `mapstructure:"transport"`
	Join      JoinConfig      `mapstructure:"join"`
	Status    StatusConfig    `mapstructure:"status"`
}

// StatusConfig is the section [status].
type StatusConfig struct {
	ListenAddress string `mapstructure:"laddr"`  // of the status page, "": none
	Public        bool   `mapstructure:"public"` // it may be an address that others can reach
	Hosts         string `mapstructure:"hosts"`  // names that browsers may call this node by, beside localhost
}

// TransportConfig is the section [transport].
type TransportConfig struct {
	ListenAddress   string `mapstructure:"laddr"`              // "auto": that of p2p, with the port + 10; "": none
	MaxPeers        int    `mapstructure:"max_peers"`          // connections that are served at a time
	MaxPeersPerHost int    `mapstructure:"max_peers_per_host"` // and of one address
	SendRate        int64  `mapstructure:"send_rate"`          // bytes a second to all peers, 0: no limit
	SendRatePerPeer int64  `mapstructure:"send_rate_per_peer"` // and to each
}

// JoinConfig is the section [join].
type JoinConfig struct {
	Fast          bool          `mapstructure:"fast"`            // over the transport; false: CometBFT's own state sync
	Peers         string        `mapstructure:"peers"`           // addresses of transports, beside those of p2p.persistent_peers and p2p.seeds
	MemoryBytes   int64         `mapstructure:"memory_bytes"`    // budget of what is in flight
	ReachTimeout  time.Duration `mapstructure:"reach_timeout"`   // after that without any peer another way is tried, or the join ends
	CatchUpBlocks int64         `mapstructure:"catch_up_blocks"` // a node so far behind fetches what differs of the state, 0: never
	// EvidenceHeaders is how many headers below its snapshot's a joining node fetches, which blocks to come may hold evidence about.
	EvidenceHeaders int64 `mapstructure:"evidence_headers"`
}

// StateConfig is the section [state].
type StateConfig struct {
	KeepRecent   int   `mapstructure:"keep_recent"`   // versions that queries can ask for
	RetainBlocks int64 `mapstructure:"retain_blocks"` // blocks that are kept, 0: all
}

// SnapshotsConfig is the section [snapshots].
type SnapshotsConfig struct {
	Keep int `mapstructure:"keep"` // snapshots that are served to joining nodes
}

// StorageConfig is the section [storage].
type StorageConfig struct {
	MemoryBytes   int64         `mapstructure:"memory_bytes"`    // budget of the caches of both zones
	StateInMemory bool          `mapstructure:"state_in_memory"` // all of the state, else pages of it are cached
	FlushBlocks   int           `mapstructure:"flush_blocks"`    // a flush begins when so many blocks wait ...
	FlushBytes    int64         `mapstructure:"flush_bytes"`     // ... or so many bytes ...
	FlushInterval time.Duration `mapstructure:"flush_interval"`  // ... or one so long
	MaxLagBlocks  int           `mapstructure:"max_lag_blocks"`  // so far the disk may fall behind, then blocks wait
	MaxLagBytes   int64         `mapstructure:"max_lag_bytes"`
	MinFreeBytes  int64         `mapstructure:"min_free_bytes"` // the node stops before the disk has less, 0: it does not look
}

// maxSnapshots is how many snapshots CometBFT advertises (statesync/reactor.go, recentSnapshots).
const maxSnapshots = 10

// DefaultAppConfig is what holds where app.toml is silent.
func DefaultAppConfig() AppConfig {
	return AppConfig{
		State: StateConfig{KeepRecent: 100}, Snapshots: SnapshotsConfig{Keep: 2},
		Storage: StorageConfig{
			MemoryBytes: 256 << 20, StateInMemory: true,
			FlushBlocks: 50, FlushBytes: 16 << 20, FlushInterval: 5 * time.Second, MaxLagBlocks: 200, MaxLagBytes: 64 << 20,
			MinFreeBytes: 64 << 20,
		},
		Transport: TransportConfig{ListenAddress: autoAddress, MaxPeers: 128, MaxPeersPerHost: 16},
		Join: JoinConfig{
			Fast: true, MemoryBytes: 256 << 20, ReachTimeout: 30 * time.Second, CatchUpBlocks: 10_000, EvidenceHeaders: 1000,
		},
	}
}

func (c AppConfig) validate() error {
	switch {
	case c.HaltHeight < 0:
		return fmt.Errorf("halt_height is %d, it must be 0 (never) or more", c.HaltHeight)
	case c.State.KeepRecent < 1:
		return fmt.Errorf("state.keep_recent is %d, it must be 1 or more", c.State.KeepRecent)
	case c.State.RetainBlocks < 0:
		return fmt.Errorf("state.retain_blocks is %d, it must be 0 (keep all) or more", c.State.RetainBlocks)
	case c.Snapshots.Keep < 0 || c.Snapshots.Keep > maxSnapshots:
		return fmt.Errorf("snapshots.keep is %d, it must be from 0 (serve none) to %d", c.Snapshots.Keep, maxSnapshots)
	}
	if err := c.Storage.validate(); err != nil {
		return err
	}
	return errors.Join(c.Transport.validate(), c.Join.validate(), c.Status.validate())
}

func (c StatusConfig) validate() error {
	if c.ListenAddress == "" {
		return nil
	}
	err := statuspage.CheckAddress(c.ListenAddress, c.Public)
	switch {
	case errors.Is(err, statuspage.ErrNotLoopback):
		return fmt.Errorf("status.laddr is %w: give it a loopback address, such as 127.0.0.1:26680, or set status.public = true", err)
	case err != nil:
		return fmt.Errorf("status.laddr is %w", err)
	}
	return nil
}

// autoAddress as transport.laddr follows p2p.laddr.
const autoAddress = "auto"

func (c TransportConfig) validate() error {
	switch {
	case c.MaxPeers < 1:
		return fmt.Errorf(`transport.max_peers is %d, it must be 1 or more (transport.laddr = "" serves nobody)`, c.MaxPeers)
	case c.MaxPeersPerHost < 1:
		return fmt.Errorf("transport.max_peers_per_host is %d, it must be 1 or more", c.MaxPeersPerHost)
	case c.SendRate < 0:
		return fmt.Errorf("transport.send_rate is %d, it must be 0 (no limit) or more", c.SendRate)
	case c.SendRatePerPeer < 0:
		return fmt.Errorf("transport.send_rate_per_peer is %d, it must be 0 (no limit) or more", c.SendRatePerPeer)
	}
	return nil
}

func (c JoinConfig) validate() error {
	_, err := transportAddresses(c.Peers)
	switch {
	case err != nil:
		return fmt.Errorf("join.peers: %w", err)
	case c.MemoryBytes < minMemory:
		return fmt.Errorf("join.memory_bytes is %d, it must be %d (16 MiB) or more", c.MemoryBytes, minMemory)
	case c.ReachTimeout <= 0:
		return fmt.Errorf(`join.reach_timeout is %s, it must be above 0, such as "30s"`, c.ReachTimeout)
	case c.CatchUpBlocks < 0:
		return fmt.Errorf("join.catch_up_blocks is %d, it must be 0 (never) or more", c.CatchUpBlocks)
	case c.EvidenceHeaders < 0 || c.EvidenceHeaders > maxEvidenceHeaders:
		return fmt.Errorf("join.evidence_headers is %d, it must be 0 (none) to %d", c.EvidenceHeaders, maxEvidenceHeaders)
	}
	return nil
}

// maxEvidenceHeaders is as far as a join goes back: evidence is no older than that with CometBFT's default parameters, unless blocks are slow.
const maxEvidenceHeaders = 100_000

// minMemory is the least budget: below it the caches are too small to be of use.
const minMemory = 16 << 20

func (c StorageConfig) validate() error {
	switch {
	case c.MemoryBytes < minMemory:
		return fmt.Errorf("storage.memory_bytes is %d, it must be %d (16 MiB) or more", c.MemoryBytes, minMemory)
	case c.FlushBlocks < 1:
		return fmt.Errorf("storage.flush_blocks is %d, it must be 1 (each block at once) or more", c.FlushBlocks)
	case c.FlushBytes < 1:
		return fmt.Errorf("storage.flush_bytes is %d, it must be 1 or more", c.FlushBytes)
	case c.FlushInterval <= 0:
		return fmt.Errorf(`storage.flush_interval is %s, it must be above 0, such as "5s"`, c.FlushInterval)
	case c.MaxLagBlocks < c.FlushBlocks:
		return fmt.Errorf("storage.max_lag_blocks is %d, it must be flush_blocks (%d) or more: no flush would begin", c.MaxLagBlocks, c.FlushBlocks)
	case c.MaxLagBytes < c.FlushBytes:
		return fmt.Errorf("storage.max_lag_bytes is %d, it must be flush_bytes (%d) or more: no flush would begin", c.MaxLagBytes, c.FlushBytes)
	case c.MinFreeBytes < 0:
		return fmt.Errorf("storage.min_free_bytes is %d, it must be 0 (do not look) or more", c.MinFreeBytes)
	}
	return nil
}

// databaseCache is what each zone's database has of the budget for blocks of its files: their indexes and filters, without which a
// lookup reads three times as often. The game is played for the rest, of which a byte holds more: what was asked for, instead of what
// lies around it.
func (c StorageConfig) databaseCache() int64 { return min(c.MemoryBytes/8, 64<<20) }

// newCache is the cache that both zones share.
func (c StorageConfig) newCache() *sgc.Cache { return sgc.New(c.MemoryBytes - 2*c.databaseCache()) }

// appTemplate is app.toml as init writes it.
var appTemplate = template.Must(template.New("app.toml").Parse(`# Settings of Starling's application. Those of CometBFT are in config.toml beside this file.
# Each can be overridden by a flag (--state.keep_recent) or an environment variable (STARLINGD_STATE_KEEP_RECENT).

# The node commits this block, writes everything to disk and stops, with exit status 0: so can all nodes stop at one state. It does not
# start again until this is higher, or 0, which is never.
halt_height = {{ .HaltHeight }}

[state]

# How many of the last states can be queried (at their heights, with proofs). At least 1: the last one.
keep_recent = {{ .State.KeepRecent }}

# How many of the last blocks CometBFT keeps; 0 keeps all. Blocks that a served snapshot needs are kept in any case.
# A node that is further behind than all others' blocks reach can only come back by state sync.
retain_blocks = {{ .State.RetainBlocks }}

[snapshots]

# How many snapshots are offered to joining nodes, the newest; 0 offers none. One that is being fetched stays some minutes longer.
# A snapshot is a pinned version of the state: it costs the memory of what has changed since, and on disk (data/snapshots) the files
# that the state has replaced since, so that it is there after a restart. Their interval is in the genesis file (snapshot_interval).
keep = {{ .Snapshots.Keep }}

[storage]

# Memory for caches of what is on disk, in bytes: blocks and, where it is not all in memory, state. It goes to whichever of the
# two gains more by it.
memory_bytes = {{ .Storage.MemoryBytes }}

# All of the state in memory (some 280 bytes a key beside short keys and values). false: for a state that is larger than memory; what was
# not touched lately is read from disk again, and proved, when it is needed. What must stay is a few bytes for each key.
state_in_memory = {{ .Storage.StateInMemory }}

# The state goes to disk behind the blocks, many of them at a time: when so many wait, or so many bytes of changes, or one has waited
# so long. What a crash loses of it is executed again from the blocks, which are on disk at once.
flush_blocks = {{ .Storage.FlushBlocks }}
flush_bytes = {{ .Storage.FlushBytes }}
flush_interval = "{{ .Storage.FlushInterval }}"

# So many blocks, or bytes of changes, the disk may fall behind. Then blocks wait for it.
max_lag_blocks = {{ .Storage.MaxLagBlocks }}
max_lag_bytes = {{ .Storage.MaxLagBytes }}

# The node stops, with exit status 5, when the disk of its data has less free space than this, and does not start before there is
# more: a node that is stopped cleanly has what it needs to close its files. 0: it does not look, and a full disk ends it where it
# happens to be.
min_free_bytes = {{ .Storage.MinFreeBytes }}

[transport]

# Where joining nodes get state and headers from this one: "auto" is the address of p2p.laddr with the port + 10, "" serves nobody. It is
# authenticated by the node keys, like p2p, and belongs behind the same firewall rules.
laddr = "{{ .Transport.ListenAddress }}"

# Connections that are served at a time, and those of one address among them.
max_peers = {{ .Transport.MaxPeers }}
max_peers_per_host = {{ .Transport.MaxPeersPerHost }}

# Bytes a second that are sent to all peers, and to each of them; 0 is no limit. The first 128 KiB or more go at once.
send_rate = {{ .Transport.SendRate }}
send_rate_per_peer = {{ .Transport.SendRatePerPeer }}

[join]

# With [statesync] enable in config.toml, a node without state joins over the transports of many peers at once; trust_height and
# trust_hash there are all that it trusts, rpc_servers are not needed. false: CometBFT's own state sync, which needs them.
fast = {{ .Join.Fast }}

# Transports to begin with, as id@host:port or host:port, comma-separated, beside those of p2p.persistent_peers and p2p.seeds (port + 10).
peers = "{{ .Join.Peers }}"

# Memory for chunks that are in flight or being verified, in bytes.
memory_bytes = {{ .Join.MemoryBytes }}

# After so long without a transport that answers, CometBFT's own state sync is tried where statesync.rpc_servers are given; else the
# node ends and says what it could not reach.
reach_timeout = "{{ .Join.ReachTimeout }}"

# With [statesync] enable, a node that was offline for so many blocks fetches what differs of the state instead of executing
# the blocks: the blocks since are not in its store then. 0: never.
catch_up_blocks = {{ .Join.CatchUpBlocks }}

# How many headers before the snapshot's are fetched with the state, until evidence about them has expired. A block with evidence about a
# validator's misbehaviour at a height whose header this node has not got stops it. 1000 take some 2 MB and less than a second; 0: none.
evidence_headers = {{ .Join.EvidenceHeaders }}

[status]

# A web page that shows what the node does, and each chunk while it joins; also /livez and /readyz, and /status.json for programs.
# Such as "127.0.0.1:26680"; "": none. It shows nothing secret, changes nothing, and needs no RPC.
laddr = "{{ .Status.ListenAddress }}"

# true: laddr may be an address that others can reach. Then whoever reaches it sees what the node shows.
public = {{ .Status.Public }}

# Names that browsers call this node by, comma-separated. A page asked for by another name is refused, so that no web site that lets its
# own name lead here can read it; localhost and addresses are always right.
hosts = "{{ .Status.Hosts }}"
`))

// Sizes that init writes into config.toml so that the largest transaction passes everywhere (limits.go checks them).
const (
	defaultMaxBodyBytes = 8 << 20
	defaultMaxTxBytes   = 4 << 20
)

// DefaultCometBFTConfig is what init writes: CometBFT's default configuration with limits that fit our transactions, and the block zone.
func DefaultCometBFTConfig() *cfg.Config {
	c := cfg.DefaultConfig()
	c.DBBackend = BlockZoneBackend
	c.RPC.MaxBodyBytes = defaultMaxBodyBytes
	c.Mempool.MaxTxBytes = defaultMaxTxBytes
	c.StateSync.DiscoveryTime = minDiscovery
	return c
}

func appFile(home string) string   { return filepath.Join(home, "config", "app.toml") }
func cometFile(home string) string { return filepath.Join(home, "config", "config.toml") }

// EnvPrefix starts the names of the environment variables.
const EnvPrefix = "STARLINGD"

// BindEnvironment makes v look at STARLINGD_… variables: for rpc.laddr, STARLINGD_RPC_LADDR.
func BindEnvironment(v *viper.Viper) {
	v.SetEnvPrefix(EnvPrefix)
	v.SetEnvKeyReplacer(environmentLetters)
	v.AutomaticEnv()
}

var environmentLetters = strings.NewReplacer(".", "_", "-", "_")

// EnvironmentName is the variable of a setting or flag.
func EnvironmentName(setting string) string {
	return EnvPrefix + "_" + strings.ToUpper(environmentLetters.Replace(setting))
}

// shown are the settings whose flags are listed in the help text; all the others have flags too.
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
	"halt_height":                "stop after this block, 0: never",
	"state.keep_recent":          "states that can be queried",
	"state.retain_blocks":        "blocks that are kept, 0: all",
	"snapshots.keep":             "snapshots served to joining nodes",
	"storage.memory_bytes":       "memory for caches of what is on disk",
	"storage.state_in_memory":    "keep all of the state in memory",
	"storage.min_free_bytes":     "free disk space below which the node stops, 0: never",
	"transport.laddr":            "address for joining nodes, auto: that of p2p with the port + 10",
	"transport.send_rate":        "bytes a second for joining nodes, 0: no limit",
	"join.fast":                  "join over the transport, from many peers at once",
	"join.peers":                 "transports to join from: id@host:port or host:port, comma-separated",
	"status.laddr":               "address for a web page that shows what the node does, empty: none",
	"status.public":              "status.laddr may be an address that others can reach",
}

// AddFlags gives every setting of config.toml and app.toml a flag of the same name.
func AddFlags(flags *pflag.FlagSet) {
	addFlags(flags, append(fieldsOf(DefaultCometBFTConfig()), fieldsOf(DefaultAppConfig())...))
}

// AddAppFlags does so for app.toml and the log only.
func AddAppFlags(flags *pflag.FlagSet) {
	fields := fieldsOf(DefaultAppConfig())
	for _, f := range fieldsOf(DefaultCometBFTConfig()) {
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

// LoadConfig reads the files of a home folder, under what v has from flags and environment. A field that is unknown or has a
// value of the wrong kind is refused by name.
func LoadConfig(home string, v *viper.Viper) (*Config, error) {
	config := &Config{Home: home, CometBFT: cfg.DefaultConfig(), App: DefaultAppConfig()}
	fields := fieldsOf(config.CometBFT)
	file, err := readFile(cometFile(home), fields)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is %w (there is no %s): run `starlingd init --home %s` first, or give another --home",
			home, ErrNotInitialised, cometFile(home), home)
	}
	if err != nil {
		return nil, err
	}
	if err := override(v, file, fields, config.CometBFT); err != nil {
		return nil, fmt.Errorf("%s: %w", cometFile(home), err)
	}
	config.CometBFT.SetRoot(home)
	if config.App, err = LoadAppConfig(home, v); err != nil {
		return nil, err
	}
	if err := config.validateComet(); err != nil {
		return nil, fmt.Errorf("%s: %w", cometFile(home), err)
	}
	return config, nil
}

// validateComet is CometBFT's own check, but that a join over our transport needs no RPC server.
func (c *Config) validateComet() error {
	comet := c.CometBFT
	s := comet.StateSync
	if !s.Enable || !c.App.Join.Fast || len(s.RPCServers) > 0 {
		return comet.ValidateBasic()
	}
	switch {
	case s.TrustHeight <= 0 || s.TrustHash == "":
		return errors.New("statesync.enable needs statesync.trust_height and trust_hash: the height and hash of a block that you trust, " +
			"such as one that a block explorer and an operator you know agree on")
	case s.TrustPeriod <= 0:
		return errors.New("statesync.trust_period must be above 0")
	}
	if _, err := hex.DecodeString(s.TrustHash); err != nil {
		return fmt.Errorf("statesync.trust_hash: %w", err)
	}
	copied, without := *comet, *s
	without.Enable = false
	copied.StateSync = &without
	return copied.ValidateBasic()
}

// LoadAppConfig reads app.toml alone; where there is none, defaults hold.
func LoadAppConfig(home string, v *viper.Viper) (AppConfig, error) {
	config := DefaultAppConfig()
	fields := fieldsOf(config)
	file, err := readFile(appFile(home), fields)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return AppConfig{}, err
	}
	if err := override(v, file, fields, &config); err != nil {
		return AppConfig{}, fmt.Errorf("%s: %w", appFile(home), err)
	}
	if err := config.validate(); err != nil {
		return AppConfig{}, fmt.Errorf("%s: %w", appFile(home), err)
	}
	return config, nil
}

// override decodes into target: flags and variables in v over file over the defaults in fields.
func override(v, file *viper.Viper, fields []field, target any) error {
	for _, f := range fields {
		if f.settable() {
			v.SetDefault(f.name, f.value.Interface()) // a variable is only looked up for a name that is known
		}
		if file != nil && file.IsSet(f.name) {
			v.SetDefault(f.name, file.Get(f.name))
		}
	}
	if err := v.Unmarshal(target); err != nil {
		return fmt.Errorf("wrong value in a file, a flag or a %s_… variable: %w", EnvPrefix, err)
	}
	return nil
}

// RPCAddress is where a client reaches the node of a home folder: what its config.toml says, else CometBFT's default.
func RPCAddress(home string) string {
	v := viper.New()
	v.SetConfigFile(cometFile(home))
	v.SetDefault("rpc.laddr", cfg.DefaultRPCConfig().ListenAddress)
	if err := v.ReadInConfig(); err != nil {
		v.Set("rpc.laddr", cfg.DefaultRPCConfig().ListenAddress)
	}
	first, _, _ := strings.Cut(v.GetString("rpc.laddr"), ",")
	host := strings.TrimPrefix(first, "tcp://")
	for _, every := range []string{"0.0.0.0:", "[::]:", ":"} {
		if port, ok := strings.CutPrefix(host, every); ok {
			host = "127.0.0.1:" + port
		}
	}
	if strings.Contains(host, "://") {
		return host
	}
	return "http://" + host
}

func writeAppConfig(path string, c AppConfig) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(appTemplate.Execute(file, c), file.Close())
}

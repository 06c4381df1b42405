package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/lightclient"
	"github.com/starling-kv/starling/statuspage"
	"github.com/starling-kv/starling/transport"
)

// ErrNotInitialised: the folder is not the home of a node.
var ErrNotInitialised = errors.New("not a home folder of starlingd")

// Config holds all settings of a node: those of CometBFT (config.toml) and ours (app.toml).
type Config struct {
	Home     string
	CometBFT *cfg.Config
	App      App
}

// App is config/app.toml.
type App struct {
	HaltHeight int64 `mapstructure:"halt_height"` // the node stops after this block; 0: never

	State     State     `mapstructure:"state"`
	Snapshots Snapshots `mapstructure:"snapshots"`
	Storage   Storage   `mapstructure:"storage"`
	// StorageNode is of the homes of storage nodes only.
	StorageNode StorageNode `mapstructure:"storage_node"`
	Transport   Transport   `mapstructure:"transport"`
	Join        Join        `mapstructure:"join"`
	Status      Status      `mapstructure:"status"`
}

// Status is the section [status].
type Status struct {
	ListenAddress string `mapstructure:"laddr"` // of the status page; "": none
	// Public allows a ListenAddress that other machines can reach.
	Public bool `mapstructure:"public"`
	// Hosts are the names by which browsers may address this node, beside localhost.
	Hosts string `mapstructure:"hosts"`
}

// HostNames returns the names in Hosts, one by one.
func (c Status) HostNames() []string { return splitList(c.Hosts) }

// The values of Transport.Relay: blocks go by p2p alone, or also over connections with a path of
// RDMA, or over any.
const (
	RelayOff  = "off"
	RelayRDMA = "rdma"
	RelayAll  = "all"
)

// Transport is the section [transport].
type Transport struct {
	// ListenAddress "auto" is that of p2p with PortOffset added to the port; "": nobody is served.
	ListenAddress string `mapstructure:"laddr"`
	// Relay is RelayOff, RelayRDMA or RelayAll: over which connections proposals and parts of
	// blocks go to p2p peers.
	Relay string `mapstructure:"relay"`
	// MaxPeers and MaxPeersPerHost limit the connections, and those from one address.
	MaxPeers        int `mapstructure:"max_peers"`
	MaxPeersPerHost int `mapstructure:"max_peers_per_host"`
	// SendRate and SendRatePerPeer limit the bytes per second to all peers together, and to those
	// of each address; 0: no limit.
	SendRate        int64 `mapstructure:"send_rate"`
	SendRatePerPeer int64 `mapstructure:"send_rate_per_peer"`
	// RDMA is RDMAOff, RDMAAuto or RDMARequired. The settings below are for the latter two:
	// RDMAPeers are IDs of nodes that are allowed a path, RDMAFabric networks (CIDR) of which all
	// are, and RDMAMemory limits the registered memory, in bytes.
	RDMA       string `mapstructure:"rdma"`
	RDMAPeers  string `mapstructure:"rdma_peers"`
	RDMAFabric string `mapstructure:"rdma_fabric"`
	RDMAMemory int64  `mapstructure:"rdma_memory"`
}

// Join is the section [join].
type Join struct {
	// Fast: the node joins over the transport; else by CometBFT's own state sync.
	Fast bool `mapstructure:"fast"`
	// Peers are addresses of transports, in addition to those of p2p.persistent_peers and
	// p2p.seeds.
	Peers string `mapstructure:"peers"`
	// MemoryBytes limits what is in flight or being verified.
	MemoryBytes int64 `mapstructure:"memory_bytes"`
	// ReachTimeout is the time without any peer after which another way is tried, or the join
	// fails.
	ReachTimeout time.Duration `mapstructure:"reach_timeout"`
	// CatchUpBlocks: a node further behind than this fetches what differs of the state; 0: never.
	CatchUpBlocks int64 `mapstructure:"catch_up_blocks"`
	// Blocks: a node that is behind fetches blocks over the transport and executes them before
	// CometBFT is made; else CometBFT's block sync does.
	Blocks bool `mapstructure:"blocks"`
	// EvidenceHeaders is the number of headers below its snapshot that a joining node fetches,
	// because later blocks may hold evidence about them.
	EvidenceHeaders int64 `mapstructure:"evidence_headers"`
}

// State is the section [state].
type State struct {
	KeepRecent   int   `mapstructure:"keep_recent"`   // number of versions that queries can read
	RetainBlocks int64 `mapstructure:"retain_blocks"` // number of blocks that are kept; 0: all
	// KeepRecentBytes limits the memory of these versions beyond that of the last one; 0: no limit.
	KeepRecentBytes int64 `mapstructure:"keep_recent_bytes"`
	// KeepEvents is of how many of the last blocks the events are kept for watchers, as far as they
	// take no more than KeepEventsBytes; 0: of none.
	KeepEvents      int64 `mapstructure:"keep_events"`
	KeepEventsBytes int64 `mapstructure:"keep_events_bytes"`
	// Index: keys in memory are found by their hashes.
	Index bool `mapstructure:"index"`
	// Mode is ModeLocal or ModeSharded. The settings below are of ModeSharded only.
	Mode string `mapstructure:"mode"`
	// RetainDepth is how many inner nodes of each way stay in memory, and Window for how many
	// blocks what was changed or fetched below them stays.
	RetainDepth int `mapstructure:"retain_depth"`
	Window      int `mapstructure:"window"`
	// StorageNodes is the file that LoadStorageNodes reads.
	StorageNodes string `mapstructure:"storage_nodes"`
	// A block waits while a range has fewer than MinAcks replicas that are at most MaxLagBlocks and
	// MaxLagBytes behind.
	MinAcks      int   `mapstructure:"min_acks"`
	MaxLagBlocks int64 `mapstructure:"max_lag_blocks"`
	MaxLagBytes  int64 `mapstructure:"max_lag_bytes"`
	// WitnessTimeout limits the time for which a proposal waits for storage nodes.
	WitnessTimeout time.Duration `mapstructure:"witness_timeout"`
}

// The values of State.Mode: the whole state is here, or only what was used lately.
const (
	ModeLocal   = "local"
	ModeSharded = "sharded"
)

// Sharded reports whether storage nodes keep the state.
func (c State) Sharded() bool { return c.Mode == ModeSharded }

// StorageNode is the section [storage_node].
type StorageNode struct {
	// Ranges is the file that LoadStorageNodes reads, in which this node is found by its ID.
	Ranges string `mapstructure:"ranges"`
	// ServeHeights is of how many of the last heights witnesses are answered, as far as what only
	// older ones have takes no more than ServeBytes. What only snapshots have may take as much.
	ServeHeights int   `mapstructure:"serve_heights"`
	ServeBytes   int64 `mapstructure:"serve_bytes"`
	// The state is stored every Interval blocks, and the last Keep of these are kept.
	Interval int64 `mapstructure:"interval"`
	Keep     int   `mapstructure:"keep"`
	// Senders are the IDs of the nodes that may send updates; empty: any node of the chain.
	Senders string `mapstructure:"senders"`
}

// Snapshots is the section [snapshots].
type Snapshots struct {
	Keep int `mapstructure:"keep"` // number of snapshots that are served to joining nodes
}

// Storage is the section [storage].
type Storage struct {
	// MemoryBytes limits the caches of both zones together.
	MemoryBytes int64 `mapstructure:"memory_bytes"`
	// StateInMemory: the whole state is in memory; else pages of it are cached.
	StateInMemory bool `mapstructure:"state_in_memory"`
	// A flush begins when FlushBlocks blocks wait, or FlushBytes bytes of changes, or when one
	// block has waited for FlushInterval.
	FlushBlocks   int           `mapstructure:"flush_blocks"`
	FlushBytes    int64         `mapstructure:"flush_bytes"`
	FlushInterval time.Duration `mapstructure:"flush_interval"`
	// MaxLagBlocks and MaxLagBytes are the maximum backlog of the flusher, in blocks and in bytes
	// of changes. Blocks wait for the disk when it is reached.
	MaxLagBlocks int   `mapstructure:"max_lag_blocks"`
	MaxLagBytes  int64 `mapstructure:"max_lag_bytes"`
	// ScrubRate is how many bytes of leaf records per second are read from disk and verified in the
	// background, unless the whole state is in memory; 0: none.
	ScrubRate int64 `mapstructure:"scrub_rate"`
	// MinFreeBytes: the node stops when the disk has less free space; 0: it does not check.
	MinFreeBytes int64 `mapstructure:"min_free_bytes"`
}

// MaxSnapshots is how many snapshots CometBFT advertises (statesync/reactor.go, recentSnapshots).
const MaxSnapshots = 10

// DefaultApp returns the settings that hold where app.toml has none.
func DefaultApp() App {
	app := App{
		State: State{
			KeepRecent: 100, KeepRecentBytes: 256 << 20, KeepEvents: 100_000, KeepEventsBytes: 1 << 30,
			Mode: ModeLocal, RetainDepth: 12, Window: 32, StorageNodes: DefaultStorageNodesFile,
			MinAcks: 1, MaxLagBlocks: 500, MaxLagBytes: 256 << 20, WitnessTimeout: time.Second,
		},
		Snapshots:   Snapshots{Keep: 2},
		StorageNode: StorageNode{Ranges: DefaultStorageNodesFile, ServeHeights: 1000, ServeBytes: 256 << 20, Interval: 1000, Keep: 2},
		Storage: Storage{
			MemoryBytes: 256 << 20, StateInMemory: true,
			FlushBlocks: 50, FlushBytes: 16 << 20, FlushInterval: 5 * time.Second, MaxLagBlocks: 200, MaxLagBytes: 64 << 20,
			ScrubRate: 256 << 10, MinFreeBytes: 64 << 20,
		},
		Transport: Transport{ListenAddress: autoAddress, MaxPeers: 128, MaxPeersPerHost: 16, RDMA: RDMAOff, RDMAMemory: 256 << 20},
		Join: Join{
			Fast: true, MemoryBytes: 256 << 20, ReachTimeout: 30 * time.Second, CatchUpBlocks: 10_000, Blocks: true, EvidenceHeaders: 1000,
		},
	}
	app.Transport.Relay = RelayOff
	return app
}

func (c App) validate() error {
	switch {
	case c.HaltHeight < 0:
		return fmt.Errorf("halt_height is %d, it must be 0 (never) or more", c.HaltHeight)
	case c.State.KeepRecent < 1:
		return fmt.Errorf("state.keep_recent is %d, it must be 1 or more", c.State.KeepRecent)
	case c.State.KeepRecentBytes < 0:
		return fmt.Errorf("state.keep_recent_bytes is %d, it must be 0 (no limit) or more", c.State.KeepRecentBytes)
	case c.State.KeepEvents < 0:
		return fmt.Errorf("state.keep_events is %d, it must be 0 (keep none) or more", c.State.KeepEvents)
	case c.State.KeepEventsBytes < minMemory:
		return fmt.Errorf("state.keep_events_bytes is %d, it must be %d (16 MiB) or more (state.keep_events = 0 keeps none)", c.State.KeepEventsBytes, minMemory)
	case c.State.RetainBlocks < 0:
		return fmt.Errorf("state.retain_blocks is %d, it must be 0 (keep all) or more", c.State.RetainBlocks)
	case c.Snapshots.Keep < 0 || c.Snapshots.Keep > MaxSnapshots:
		return fmt.Errorf("snapshots.keep is %d, it must be from 0 (serve none) to %d", c.Snapshots.Keep, MaxSnapshots)
	}
	if err := c.Storage.validate(); err != nil {
		return err
	}
	if err := errors.Join(c.State.validateSharded(), c.StorageNode.validate()); err != nil {
		return err
	}
	return errors.Join(c.Transport.validate(), c.Join.validate(), c.Status.validate())
}

func (c Status) validate() error {
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

// autoAddress, as transport.laddr, means: the address of p2p.laddr, with PortOffset added to the
// port.
const autoAddress = "auto"

func (c Transport) validate() error {
	switch {
	case c.Relay != RelayOff && c.Relay != RelayRDMA && c.Relay != RelayAll:
		return fmt.Errorf("transport.relay is %q, it must be %q, %q or %q", c.Relay, RelayOff, RelayRDMA, RelayAll)
	case c.Relay != RelayOff && c.ListenAddress == "":
		return fmt.Errorf(`transport.relay is %q, and transport.laddr "": peers cannot relay to a node that does not listen`, c.Relay)
	case c.MaxPeers < 1:
		return fmt.Errorf(`transport.max_peers is %d, it must be 1 or more (transport.laddr = "" serves nobody)`, c.MaxPeers)
	case c.MaxPeersPerHost < 1:
		return fmt.Errorf("transport.max_peers_per_host is %d, it must be 1 or more", c.MaxPeersPerHost)
	case c.SendRate < 0:
		return fmt.Errorf("transport.send_rate is %d, it must be 0 (no limit) or more", c.SendRate)
	case c.SendRatePerPeer < 0:
		return fmt.Errorf("transport.send_rate_per_peer is %d, it must be 0 (no limit) or more", c.SendRatePerPeer)
	}
	return c.validateRDMA()
}

func (c Join) validate() error {
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

// maxEvidenceHeaders limits join.evidence_headers: with CometBFT's default parameters evidence is
// no older than that, unless blocks are slow.
const maxEvidenceHeaders = 100_000

// minMemory is the smallest memory limit: caches below it are too small to be of use.
const minMemory = 16 << 20

func (c Storage) validate() error {
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
	case c.ScrubRate < 0:
		return fmt.Errorf("storage.scrub_rate is %d, it must be 0 (do not verify) or more", c.ScrubRate)
	case c.MinFreeBytes < 0:
		return fmt.Errorf("storage.min_free_bytes is %d, it must be 0 (do not look) or more", c.MinFreeBytes)
	}
	return nil
}

// maxRetainDepth limits state.retain_depth: the upper tree has 2 to that power nodes.
const maxRetainDepth = 24

func (c State) validateSharded() error {
	switch {
	case c.Mode != ModeLocal && c.Mode != ModeSharded:
		return fmt.Errorf("state.mode is %q, it must be %q or %q", c.Mode, ModeLocal, ModeSharded)
	case c.RetainDepth < 0 || c.RetainDepth > maxRetainDepth:
		return fmt.Errorf("state.retain_depth is %d, it must be 0 (the root's hash alone) to %d", c.RetainDepth, maxRetainDepth)
	case c.Window < minWindow:
		return fmt.Errorf("state.window is %d, it must be %d or more: storage nodes are two blocks behind at best", c.Window, minWindow)
	case c.MinAcks < 1:
		return fmt.Errorf("state.min_acks is %d, it must be 1 or more", c.MinAcks)
	case c.MaxLagBlocks < 3:
		return fmt.Errorf("state.max_lag_blocks is %d, it must be 3 or more: a storage node acknowledges a block after the next one", c.MaxLagBlocks)
	case c.MaxLagBytes < minMemory:
		return fmt.Errorf("state.max_lag_bytes is %d, it must be %d (16 MiB) or more", c.MaxLagBytes, minMemory)
	case c.WitnessTimeout <= 0:
		return fmt.Errorf(`state.witness_timeout is %s, it must be above 0, such as "1s"`, c.WitnessTimeout)
	}
	return nil
}

// minWindow is the least state.window.
const minWindow = 8

func (c StorageNode) validate() error {
	switch {
	case c.ServeHeights < 1:
		return fmt.Errorf("storage_node.serve_heights is %d, it must be 1 or more", c.ServeHeights)
	case c.ServeBytes < 0:
		return fmt.Errorf("storage_node.serve_bytes is %d, it must be 0 (the newest height only) or more", c.ServeBytes)
	case c.Interval < 1 || c.Keep < 1:
		return fmt.Errorf("storage_node.interval is %d and storage_node.keep %d, both must be 1 or more", c.Interval, c.Keep)
	case int64(c.Keep-1)*c.Interval < int64(c.ServeHeights-1):
		return fmt.Errorf("storage_node.keep is %d and storage_node.interval %d: with so few stored states a start could not answer %d heights (storage_node.serve_heights)", c.Keep, c.Interval, c.ServeHeights)
	}
	for _, id := range c.SenderIDs() {
		if err := id.Validate(); err != nil {
			return fmt.Errorf("storage_node.senders: %w", err)
		}
	}
	return nil
}

// SenderIDs returns the IDs in Senders, one by one.
func (c StorageNode) SenderIDs() []transport.ID {
	var ids []transport.ID
	for _, id := range splitList(c.Senders) {
		ids = append(ids, transport.ID(id))
	}
	return ids
}

// DatabaseCache returns the bytes that each zone's database may cache of its files: their indexes
// and filters, without which a lookup reads three times as often. The rest of the limit goes to the
// shared cache, where a byte is worth more: it holds what was asked for, and not what lies around
// it.
func (c Storage) DatabaseCache() int64 { return min(c.MemoryBytes/8, 64<<20) }

// CacheBytes returns the size of the cache that both zones share.
func (c Storage) CacheBytes() int64 { return c.MemoryBytes - 2*c.DatabaseCache() }

// Sizes that init writes into config.toml, so that the largest transaction passes everywhere.
// CheckLimits checks them.
const (
	defaultMaxBodyBytes = 8 << 20
	defaultMaxTxBytes   = 4 << 20
)

// DefaultCometBFT returns what init writes: CometBFT's default configuration with limits that fit
// our transactions, and the block zone.
func DefaultCometBFT() *cfg.Config {
	c := cfg.DefaultConfig()
	c.DBBackend = BlockZoneBackend
	c.RPC.MaxBodyBytes = defaultMaxBodyBytes
	c.Mempool.MaxTxBytes = defaultMaxTxBytes
	c.StateSync.DiscoveryTime = minDiscovery
	// CometBFT's own default is the same today
	c.StateSync.TrustPeriod = lightclient.DefaultTrustPeriod
	return c
}

// AppFile is the path of app.toml in a home folder.
func AppFile(home string) string { return filepath.Join(home, "config", "app.toml") }

// CometFile is the path of config.toml in a home folder.
func CometFile(home string) string { return filepath.Join(home, "config", "config.toml") }

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

// Load reads the configuration of a home folder. What v has from flags and environment takes
// precedence over the files. An unknown field, or a value of the wrong kind, is an error that names
// it and matches ErrInvalid; a folder without config.toml is ErrNotInitialised.
func Load(home string, v *viper.Viper) (*Config, error) {
	config, err := load(home, v)
	return config, Invalid(err)
}

func load(home string, v *viper.Viper) (*Config, error) {
	config := &Config{Home: home, App: DefaultApp()}
	fields := fieldsOf(cfg.DefaultConfig())
	file, err := readFile(CometFile(home), fields)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%q is %w (there is no %q): run `starlingd init --home %q` first, or give another --home",
			home, ErrNotInitialised, CometFile(home), home)
	}
	if err != nil {
		return nil, err
	}
	if config.App, err = LoadApp(home, v); err != nil {
		return nil, err
	}
	err = blame(v, file, fields, CometFile(home), func(v *viper.Viper) error {
		config.CometBFT = cfg.DefaultConfig()
		if err := override(v, file, fields, config.CometBFT); err != nil {
			return err
		}
		config.CometBFT.SetRoot(home)
		return config.validateComet()
	})
	if err != nil {
		return nil, err
	}
	return config, nil
}

// blame calls decode, which reads and checks settings, with v. An error is attributed to path, or
// to the flags and variables of v if the file alone (nil: there is none) has no fault.
func blame(v, file *viper.Viper, fields []field, path string, decode func(*viper.Viper) error) error {
	err := decode(v)
	if err == nil {
		return nil
	}
	if decode(viper.New()) != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var given, named []string
	for _, f := range fields {
		if !f.settable() || fmt.Sprint(v.Get(f.name)) == fmt.Sprint(inFile(file, f)) {
			continue
		}
		what := "--" + f.name
		if text := os.Getenv(EnvironmentName(f.name)); text != "" && text == v.GetString(f.name) {
			what = EnvironmentName(f.name)
		}
		given = append(given, what)
		if strings.Contains(err.Error(), lastPart(f.name)) {
			named = append(named, what)
		}
	}
	if len(named) == 0 {
		named = given
	}
	return fmt.Errorf("%s: %w", strings.Join(named, ", "), err)
}

// inFile is the value of a setting without flags and variables.
func inFile(file *viper.Viper, f field) any {
	if file != nil && file.IsSet(f.name) {
		return file.Get(f.name)
	}
	return f.value.Interface()
}

// CheckFlags checks the flags and variables in v as Load does for a home whose files have the
// defaults. Errors match ErrInvalid.
func CheckFlags(v *viper.Viper) error {
	config := &Config{App: DefaultApp()}
	appFields, fields := fieldsOf(DefaultApp()), fieldsOf(DefaultCometBFT())
	err := blame(v, nil, appFields, "the default settings", func(v *viper.Viper) error {
		config.App = DefaultApp()
		return errors.Join(override(v, nil, appFields, &config.App), config.App.validate())
	})
	if err != nil {
		return Invalid(err)
	}
	return Invalid(blame(v, nil, fields, "the default settings", func(v *viper.Viper) error {
		config.CometBFT = DefaultCometBFT()
		return errors.Join(override(v, nil, fields, config.CometBFT), config.validateComet())
	}))
}

// validateComet applies CometBFT's own checks, except that a join over our transport needs no RPC
// server.
func (c *Config) validateComet() error {
	comet := c.CometBFT
	s := comet.StateSync
	if err := checkPeers("p2p.persistent_peers", comet.P2P.PersistentPeers); err != nil {
		return err
	}
	if err := checkPeers("p2p.seeds", comet.P2P.Seeds); err != nil {
		return err
	}
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
	hash, err := hex.DecodeString(s.TrustHash)
	if err != nil {
		return fmt.Errorf("statesync.trust_hash: %w", err)
	}
	if len(hash) != sha256.Size {
		return fmt.Errorf("statesync.trust_hash has %d bytes, it must have %d", len(hash), sha256.Size)
	}
	copied, without := *comet, *s
	without.Enable = false
	copied.StateSync = &without
	return copied.ValidateBasic()
}

// checkPeers refuses addresses that CometBFT would refuse only after the state was rebuilt.
func checkPeers(setting, list string) error {
	for _, s := range splitList(list) {
		address := s
		if _, after, found := strings.Cut(s, "://"); found {
			address = after
		}
		if a, err := transport.ParseAddress(address); err != nil || a.ID == "" {
			return fmt.Errorf("%s: %q: it must be id@host:port", setting, s)
		}
	}
	return nil
}

// LoadApp reads app.toml alone, as Load does. Without the file, the defaults hold.
func LoadApp(home string, v *viper.Viper) (App, error) {
	config, err := loadApp(home, v)
	return config, Invalid(err)
}

func loadApp(home string, v *viper.Viper) (App, error) {
	var config App
	fields := fieldsOf(DefaultApp())
	file, err := readFile(AppFile(home), fields)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return App{}, err
	}
	err = blame(v, file, fields, AppFile(home), func(v *viper.Viper) error {
		config = DefaultApp()
		if err := override(v, file, fields, &config); err != nil {
			return err
		}
		return config.validate()
	})
	if err != nil {
		return App{}, err
	}
	return config, nil
}

// override decodes into target. Flags and variables in v take precedence over file, and file over
// the defaults in fields.
func override(v, file *viper.Viper, fields []field, target any) error {
	for _, f := range fields {
		if f.settable() {
			// a variable is only looked up for a name that is known
			v.SetDefault(f.name, f.value.Interface())
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

// RPCAddress returns the URL at which a client reaches the node of a home folder: as its
// config.toml says, else CometBFT's default.
func RPCAddress(home string) string {
	v := viper.New()
	v.SetConfigFile(CometFile(home))
	v.SetDefault("rpc.laddr", cfg.DefaultRPCConfig().ListenAddress)
	if err := v.ReadInConfig(); err != nil {
		v.Set("rpc.laddr", cfg.DefaultRPCConfig().ListenAddress)
	}
	return RPCURL(v.GetString("rpc.laddr"))
}

// RPCURL returns the URL at which a client of this machine reaches a node with that rpc.laddr: the
// first address of it.
func RPCURL(laddr string) string {
	first, _, _ := strings.Cut(laddr, ",")
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

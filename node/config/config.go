package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/statesync/lightclient"
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
	// MinMemoryBytes: a node of a sharded network does not start with less memory; 0: the sum of
	// its budgets.
	MinMemoryBytes int64 `mapstructure:"min_memory_bytes"`

	State     State     `mapstructure:"state"`
	Snapshots Snapshots `mapstructure:"snapshots"`
	Disk      Disk      `mapstructure:"disk"`
	// StorageNode is used only in the homes of storage nodes.
	StorageNode StorageNode `mapstructure:"storage_node"`
	Transport   Transport   `mapstructure:"transport"`
	Join        Join        `mapstructure:"join"`
	CatchUp     CatchUp     `mapstructure:"catch_up"`
	Status      Status      `mapstructure:"status"`
	GRPC        GRPC        `mapstructure:"grpc"`
}

// GRPC is the section [grpc].
type GRPC struct {
	ListenAddress string `mapstructure:"laddr"` // of the gRPC endpoint; "": none
}

// Status is the section [status].
type Status struct {
	ListenAddress string `mapstructure:"laddr"` // of the status page; "": none
	// Public allows a ListenAddress that other machines can reach.
	Public bool `mapstructure:"public"`
	// Hosts are the names by which browsers may address this node, in addition to localhost.
	Hosts string `mapstructure:"allowed_hosts"`
}

// HostNames returns the names in Hosts, one by one.
func (c Status) HostNames() []string { return splitList(c.Hosts) }

// The values of Transport.Relay: blocks go over p2p only, also over connections with an RDMA
// channel, or also over any connection.
const (
	RelayOff  = "off"
	RelayRDMA = "rdma"
	RelayAll  = "all"
)

// Transport is the section [transport].
type Transport struct {
	// ListenAddress "auto" is that of p2p with PortOffset added to the port; "": no peers are
	// served.
	ListenAddress string `mapstructure:"laddr"`
	// Relay is RelayOff, RelayRDMA or RelayAll: the connections over which proposals and block
	// parts are sent to p2p peers.
	Relay string `mapstructure:"relay"`
	// MaxPeers limits the connections, MaxPeersPerHost those from one address.
	MaxPeers        int `mapstructure:"max_peers"`
	MaxPeersPerHost int `mapstructure:"max_peers_per_host"`
	// SendRate and SendRatePerPeer limit the bytes per second to all peers together, and to those
	// of each address; 0: no limit.
	SendRate        int64 `mapstructure:"send_rate"`
	SendRatePerPeer int64 `mapstructure:"send_rate_per_peer"`
	// RDMA is RDMAOff, RDMAAuto or RDMARequired. The settings below apply to the latter two:
	// RDMAPeers lists the IDs of nodes allowed to use RDMA, RDMAFabric the networks (CIDR) whose
	// nodes are, and RDMAMemory limits the registered memory, in bytes.
	RDMA       string `mapstructure:"rdma"`
	RDMAPeers  string `mapstructure:"rdma_peers"`
	RDMAFabric string `mapstructure:"rdma_fabric"`
	RDMAMemory int64  `mapstructure:"rdma_memory"`
}

// The values of Join.Mode: a node without state joins over the transports of many peers, or by
// CometBFT's own state sync.
const (
	JoinFast     = "fast"
	JoinCometBFT = "cometbft"
)

// Join is the section [join].
type Join struct {
	// Mode is JoinFast or JoinCometBFT.
	Mode string `mapstructure:"mode"`
	// Peers are addresses of transports, in addition to those of p2p.persistent_peers and
	// p2p.seeds.
	Peers string `mapstructure:"peers"`
	// MemoryBytes limits the chunks in flight and being verified, in bytes.
	MemoryBytes int64 `mapstructure:"memory_bytes"`
	// ReachTimeout is the time without any reachable peer after which the node tries CometBFT's
	// state sync, or the join fails.
	ReachTimeout time.Duration `mapstructure:"reach_timeout"`
	// EvidenceHeaders is the number of headers below its snapshot that a joining node fetches,
	// because later blocks may hold evidence about them.
	EvidenceHeaders int64 `mapstructure:"evidence_headers"`
}

// Fast reports whether a node without state joins over the transport.
func (c Join) Fast() bool { return c.Mode == JoinFast }

// CatchUp is the section [catch_up].
type CatchUp struct {
	// Enabled: a node that is behind fetches blocks over the transport and executes them before
	// CometBFT starts; otherwise CometBFT's block sync does.
	Enabled bool `mapstructure:"enabled"`
	// StateThresholdBlocks: a node further behind than this fetches the parts of the state that
	// differ instead of blocks; 0: never.
	StateThresholdBlocks int64 `mapstructure:"state_threshold_blocks"`
}

// State is the section [state].
type State struct {
	KeepRecent   int   `mapstructure:"pruning_keep_recent"` // versions that can be queried
	RetainBlocks int64 `mapstructure:"min_retain_blocks"`   // blocks that are kept; 0: all
	// KeepRecentBytes limits the memory of these versions, in bytes beyond the latest one; 0: no
	// limit.
	KeepRecentBytes int64 `mapstructure:"pruning_keep_recent_bytes"`
	// KeepEvents is the number of recent blocks whose events are kept for watchers, within
	// KeepEventsBytes; 0: none.
	KeepEvents      int64 `mapstructure:"keep_events"`
	KeepEventsBytes int64 `mapstructure:"keep_events_bytes"`
	// Index: a hash index finds keys in memory.
	Index bool `mapstructure:"hash_index"`
	// Mode is ModeLocal or ModeSharded. The settings below apply to ModeSharded only.
	Mode string `mapstructure:"mode"`
	// RetainDepth is the number of inner nodes of each path that stay in memory. Deeper nodes stay
	// for Window blocks after they were changed or fetched.
	RetainDepth int `mapstructure:"retain_depth"`
	Window      int `mapstructure:"retain_window_blocks"`
	// StorageNodes is the file that LoadStorageNodes reads.
	StorageNodes string `mapstructure:"storage_nodes"`
	// A block waits while a range has fewer than MinAcks replicas that are at most MaxLagBlocks and
	// MaxLagBytes behind.
	MinAcks      int   `mapstructure:"min_acks"`
	MaxLagBlocks int64 `mapstructure:"max_lag_blocks"`
	MaxLagBytes  int64 `mapstructure:"max_lag_bytes"`
	// KeepUpdatesBytes limits the updates of all ranges together that are kept for replicas that
	// come back, although all replicas within the lag have them.
	KeepUpdatesBytes int64 `mapstructure:"keep_updates_bytes"`
	// WitnessTimeout limits the time for which a proposal waits for storage nodes.
	WitnessTimeout time.Duration `mapstructure:"witness_timeout"`
}

// The values of State.Mode: this node holds the full state, or only what it used recently.
const (
	ModeLocal   = "local"
	ModeSharded = "sharded"
)

// Sharded reports whether storage nodes keep the state.
func (c State) Sharded() bool { return c.Mode == ModeSharded }

// StorageNode is the section [storage_node].
type StorageNode struct {
	// Ranges is the file that LoadStorageNodes reads; it lists this node by its ID.
	Ranges string `mapstructure:"ranges"`
	// ServeHeights is the number of recent heights whose witnesses are served. Data needed only by
	// older heights, and changes not written to the ranges yet, take at most ServeBytes for all
	// ranges, and data needed only by snapshots as much again.
	ServeHeights int   `mapstructure:"serve_heights"`
	ServeBytes   int64 `mapstructure:"serve_bytes"`
	// Senders are the IDs of the nodes that may send updates; empty: any node of the chain.
	Senders string `mapstructure:"senders"`
}

// Snapshots is the section [snapshots].
type Snapshots struct {
	Keep int `mapstructure:"keep_recent"` // number of snapshots that are served to joining nodes
	// MaxBytes limits what snapshots keep in memory, and what they keep on disk; 0: as much as the
	// state has.
	MaxBytes int64 `mapstructure:"max_bytes"`
}

// Disk is the section [disk]: storage and caching of blocks and state.
type Disk struct {
	// CacheBytes limits the caches of both zones together, in bytes.
	CacheBytes int64 `mapstructure:"cache_bytes"`
	// StateInMemory: the whole state is in memory, some blocks after a start; otherwise the node
	// caches pages of it.
	StateInMemory bool `mapstructure:"state_in_memory"`
	// A flush begins when FlushBlocks blocks wait, or FlushBytes bytes of changes, or when one
	// block has waited for FlushInterval.
	FlushBlocks   int           `mapstructure:"flush_blocks"`
	FlushBytes    int64         `mapstructure:"flush_bytes"`
	FlushInterval time.Duration `mapstructure:"flush_interval"`
	// MaxBacklogBlocks and MaxBacklogBytes are the maximum backlog of the flusher, in blocks and in
	// bytes of changes. Blocks wait for the disk when the backlog reaches either.
	MaxBacklogBlocks int   `mapstructure:"max_backlog_blocks"`
	MaxBacklogBytes  int64 `mapstructure:"max_backlog_bytes"`
	// ScrubRate is the rate, in bytes of leaf records per second, at which a background scrub reads
	// and verifies the state, unless the whole state is in memory; 0: no scrub.
	ScrubRate int64 `mapstructure:"scrub_rate"`
	// MinFreeBytes: the node stops when the disk has less free space; 0: the node does not check.
	MinFreeBytes int64 `mapstructure:"min_free_bytes"`
}

// MaxSnapshots is the number of snapshots that CometBFT advertises (statesync/reactor.go,
// recentSnapshots).
const MaxSnapshots = 10

// DefaultApp returns the settings that apply if app.toml does not set them.
func DefaultApp() App {
	app := App{
		State: State{
			KeepRecent: 100, KeepRecentBytes: 256 << 20, KeepEvents: 100_000, KeepEventsBytes: 1 << 30,
			Mode: ModeLocal, RetainDepth: 12, Window: 32, StorageNodes: DefaultStorageNodesFile,
			MinAcks: 2, MaxLagBlocks: 500, MaxLagBytes: 256 << 20, KeepUpdatesBytes: 256 << 20, WitnessTimeout: time.Second,
		},
		Snapshots:   Snapshots{Keep: 2},
		StorageNode: StorageNode{Ranges: DefaultStorageNodesFile, ServeHeights: 1000, ServeBytes: 256 << 20},
		Disk: Disk{
			CacheBytes: 256 << 20, StateInMemory: true,
			FlushBlocks: 50, FlushBytes: 16 << 20, FlushInterval: 5 * time.Second, MaxBacklogBlocks: 200, MaxBacklogBytes: 64 << 20,
			ScrubRate: 256 << 10, MinFreeBytes: 64 << 20,
		},
		Transport: Transport{ListenAddress: autoAddress, MaxPeers: 128, MaxPeersPerHost: 16, RDMA: RDMAOff, RDMAMemory: 256 << 20},
		Join: Join{
			Mode: JoinFast, MemoryBytes: 256 << 20, ReachTimeout: 30 * time.Second, EvidenceHeaders: 1000,
		},
		CatchUp: CatchUp{Enabled: true, StateThresholdBlocks: 10_000},
	}
	app.Transport.Relay = RelayOff
	return app
}

func (c App) validate() error {
	switch {
	case c.HaltHeight < 0:
		return fmt.Errorf("halt_height is %d, it must be 0 (never) or more", c.HaltHeight)
	case c.MinMemoryBytes < 0:
		return fmt.Errorf("min_memory_bytes is %d, it must be 0 (the sum of the node's budgets) or more", c.MinMemoryBytes)
	case c.State.KeepRecent < 1:
		return fmt.Errorf("state.pruning_keep_recent is %d, it must be 1 or more", c.State.KeepRecent)
	case c.State.KeepRecentBytes < 0:
		return fmt.Errorf("state.pruning_keep_recent_bytes is %d, it must be 0 (no limit) or more", c.State.KeepRecentBytes)
	case c.State.KeepEvents < 0:
		return fmt.Errorf("state.keep_events is %d, it must be 0 (keep none) or more", c.State.KeepEvents)
	case c.State.KeepEventsBytes < minMemory:
		return fmt.Errorf("state.keep_events_bytes is %d, it must be %d (16 MiB) or more (state.keep_events = 0 keeps none)", c.State.KeepEventsBytes, minMemory)
	case c.State.RetainBlocks < 0:
		return fmt.Errorf("state.min_retain_blocks is %d, it must be 0 (keep all) or more", c.State.RetainBlocks)
	case c.Snapshots.Keep < 0 || c.Snapshots.Keep > MaxSnapshots:
		return fmt.Errorf("snapshots.keep_recent is %d, it must be from 0 (serve none) to %d", c.Snapshots.Keep, MaxSnapshots)
	case c.Snapshots.MaxBytes < 0:
		return fmt.Errorf("snapshots.max_bytes is %d, it must be 0 (as much as the state) or more", c.Snapshots.MaxBytes)
	}
	if err := c.Disk.validate(); err != nil {
		return err
	}
	if err := errors.Join(c.State.validateSharded(), c.StorageNode.validate()); err != nil {
		return err
	}
	return errors.Join(c.Transport.validate(), c.Join.validate(), c.CatchUp.validate(), c.Status.validate(), c.GRPC.validate())
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

func (c GRPC) validate() error {
	if c.ListenAddress == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.ListenAddress); err != nil {
		return fmt.Errorf("grpc.laddr is %q (%w): give it an address such as 127.0.0.1:26690", c.ListenAddress, err)
	}
	return nil
}

// autoAddress as transport.laddr stands for the address of p2p.laddr with PortOffset added to the
// port.
const autoAddress = "auto"

func (c Transport) validate() error {
	switch {
	case c.Relay != RelayOff && c.Relay != RelayRDMA && c.Relay != RelayAll:
		return fmt.Errorf("transport.relay is %q, it must be %q, %q or %q", c.Relay, RelayOff, RelayRDMA, RelayAll)
	case c.Relay != RelayOff && c.ListenAddress == "":
		return fmt.Errorf(`transport.relay is %q, and transport.laddr "": peers cannot relay to a node that does not listen`, c.Relay)
	case c.MaxPeers < 1:
		return fmt.Errorf(`transport.max_peers is %d, it must be 1 or more (transport.laddr = "" disables serving)`, c.MaxPeers)
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
	case c.Mode != JoinFast && c.Mode != JoinCometBFT:
		return fmt.Errorf("join.mode is %q, it must be %q or %q", c.Mode, JoinFast, JoinCometBFT)
	case err != nil:
		return fmt.Errorf("join.peers: %w", err)
	case c.MemoryBytes < minMemory:
		return fmt.Errorf("join.memory_bytes is %d, it must be %d (16 MiB) or more", c.MemoryBytes, minMemory)
	case c.ReachTimeout <= 0:
		return fmt.Errorf(`join.reach_timeout is %s, it must be above 0, such as "30s"`, c.ReachTimeout)
	case c.EvidenceHeaders < 0 || c.EvidenceHeaders > maxEvidenceHeaders:
		return fmt.Errorf("join.evidence_headers is %d, it must be 0 (none) to %d", c.EvidenceHeaders, maxEvidenceHeaders)
	}
	return nil
}

func (c CatchUp) validate() error {
	if c.StateThresholdBlocks < 0 {
		return fmt.Errorf("catch_up.state_threshold_blocks is %d, it must be 0 (never) or more", c.StateThresholdBlocks)
	}
	return nil
}

// maxEvidenceHeaders limits join.evidence_headers: with CometBFT's default parameters, evidence is
// at most this many blocks old, unless blocks are slow.
const maxEvidenceHeaders = 100_000

// minMemory is the smallest memory limit: smaller caches are useless.
const minMemory = 16 << 20

func (c Disk) validate() error {
	switch {
	case c.CacheBytes < minMemory:
		return fmt.Errorf("disk.cache_bytes is %d, it must be %d (16 MiB) or more", c.CacheBytes, minMemory)
	case c.FlushBlocks < 1:
		return fmt.Errorf("disk.flush_blocks is %d, it must be 1 (each block at once) or more", c.FlushBlocks)
	case c.FlushBytes < 1:
		return fmt.Errorf("disk.flush_bytes is %d, it must be 1 or more", c.FlushBytes)
	case c.FlushInterval <= 0:
		return fmt.Errorf(`disk.flush_interval is %s, it must be above 0, such as "5s"`, c.FlushInterval)
	case c.MaxBacklogBlocks < c.FlushBlocks:
		return fmt.Errorf("disk.max_backlog_blocks is %d, it must be flush_blocks (%d) or more: no flush would begin", c.MaxBacklogBlocks, c.FlushBlocks)
	case c.MaxBacklogBytes < c.FlushBytes:
		return fmt.Errorf("disk.max_backlog_bytes is %d, it must be flush_bytes (%d) or more: no flush would begin", c.MaxBacklogBytes, c.FlushBytes)
	case c.ScrubRate < 0:
		return fmt.Errorf("disk.scrub_rate is %d, it must be 0 (no scrub) or more", c.ScrubRate)
	case c.MinFreeBytes < 0:
		return fmt.Errorf("disk.min_free_bytes is %d, it must be 0 (no check) or more", c.MinFreeBytes)
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
		return fmt.Errorf("state.retain_window_blocks is %d, it must be %d or more: storage nodes are two blocks behind at best", c.Window, minWindow)
	case c.MinAcks < 1:
		return fmt.Errorf("state.min_acks is %d, it must be 1 or more", c.MinAcks)
	case c.MaxLagBlocks < 3:
		return fmt.Errorf("state.max_lag_blocks is %d, it must be 3 or more: a storage node acknowledges a block after the next one", c.MaxLagBlocks)
	case c.MaxLagBytes < minMemory:
		return fmt.Errorf("state.max_lag_bytes is %d, it must be %d (16 MiB) or more", c.MaxLagBytes, minMemory)
	case c.KeepUpdatesBytes < 0:
		return fmt.Errorf("state.keep_updates_bytes is %d, it must be 0 (none) or more", c.KeepUpdatesBytes)
	case c.WitnessTimeout <= 0:
		return fmt.Errorf(`state.witness_timeout is %s, it must be above 0, such as "1s"`, c.WitnessTimeout)
	}
	return nil
}

// minWindow is the smallest state.retain_window_blocks.
const minWindow = 8

func (c StorageNode) validate() error {
	switch {
	case c.ServeHeights < 1:
		return fmt.Errorf("storage_node.serve_heights is %d, it must be 1 or more", c.ServeHeights)
	case c.ServeBytes < 0:
		return fmt.Errorf("storage_node.serve_bytes is %d, it must be 0 (the newest height only) or more", c.ServeBytes)
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

// DatabaseCache returns the bytes that each zone's database may use to cache its files' indexes and
// filters, without which a lookup needs three times as many reads. The rest of CacheBytes goes to
// the shared cache, where a byte is worth more: it holds the records that were read, not whole file
// blocks.
func (c Disk) DatabaseCache() int64 { return min(c.CacheBytes/8, 64<<20) }

// SharedCache returns the size, in bytes, of the cache that both zones share.
func (c Disk) SharedCache() int64 { return c.CacheBytes - 2*c.DatabaseCache() }

// Limits that init writes to config.toml, so that every node accepts the largest transaction.
// CheckLimits checks them.
const (
	defaultMaxBodyBytes = 8 << 20
	defaultMaxTxBytes   = 4 << 20
)

// DefaultCometBFT returns the configuration that init writes: CometBFT's defaults with limits that
// fit our transactions, and the block zone.
func DefaultCometBFT() *cfg.Config {
	c := cfg.DefaultConfig()
	c.DBBackend = BlockZoneBackend
	c.RPC.MaxBodyBytes = defaultMaxBodyBytes
	c.Mempool.MaxTxBytes = defaultMaxTxBytes
	c.StateSync.DiscoveryTime = snapshotDiscovery
	// CometBFT's own default is currently the same.
	c.StateSync.TrustPeriod = lightclient.DefaultTrustPeriod
	return c
}

// AppFile is the path of app.toml in a home folder.
func AppFile(home string) string { return filepath.Join(home, "config", "app.toml") }

// CometFile is the path of config.toml in a home folder.
func CometFile(home string) string { return filepath.Join(home, "config", "config.toml") }

// EnvPrefix starts the names of the environment variables.
const EnvPrefix = "STARLINGD"

// BindEnvironment makes v read STARLINGD_… variables: for rpc.laddr, STARLINGD_RPC_LADDR.
func BindEnvironment(v *viper.Viper) {
	v.SetEnvPrefix(EnvPrefix)
	v.SetEnvKeyReplacer(environmentLetters)
	v.AutomaticEnv()
}

var environmentLetters = strings.NewReplacer(".", "_", "-", "_")

// EnvironmentName returns the variable of a setting or flag.
func EnvironmentName(setting string) string {
	return EnvPrefix + "_" + strings.ToUpper(environmentLetters.Replace(setting))
}

// Load reads the configuration of a home folder. Flags and environment variables in v take
// precedence over the files. An unknown field, or a value of the wrong type, is an error that names
// it and matches ErrInvalid. For a folder without config.toml it also matches ErrNotInitialised.
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

// blame calls decode, which reads and checks settings, with v. It attributes an error to path, or
// to the flags and variables of v if the file alone (nil: there is none) is valid.
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

// inFile returns the value of a setting, ignoring flags and variables.
func inFile(file *viper.Viper, f field) any {
	if file != nil && file.IsSet(f.name) {
		return file.Get(f.name)
	}
	return f.value.Interface()
}

// CheckFlags checks the flags and variables in v like Load, for a home whose files have the
// defaults of a network. Errors match ErrInvalid.
func CheckFlags(v *viper.Viper, network Network) error {
	comet, app := tuned(network)
	config := &Config{App: app}
	appFields, fields := fieldsOf(app), fieldsOf(comet)
	err := blame(v, nil, appFields, "the default settings", func(v *viper.Viper) error {
		_, config.App = tuned(network)
		return errors.Join(override(v, nil, appFields, &config.App), config.App.validate())
	})
	if err != nil {
		return Invalid(err)
	}
	return Invalid(blame(v, nil, fields, "the default settings", func(v *viper.Viper) error {
		config.CometBFT, _ = tuned(network)
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
	if !s.Enable || !c.App.Join.Fast() || len(s.RPCServers) > 0 {
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

// checkPeers refuses addresses that CometBFT would refuse only after the state has been rebuilt.
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

// LoadApp reads only app.toml, like Load. Without the file, the defaults apply.
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
			// Viper reads a variable only for a name that it knows.
			v.SetDefault(f.name, f.value.Interface())
		}
		if file != nil && file.IsSet(f.name) {
			v.SetDefault(f.name, file.Get(f.name))
		}
	}
	if err := v.Unmarshal(target); err != nil {
		return fmt.Errorf("invalid value in a file, a flag or a %s_… variable: %w", EnvPrefix, err)
	}
	return nil
}

// RPCAddress returns the URL at which a client reaches the node of a home folder: the one in
// config.toml, otherwise CometBFT's default.
func RPCAddress(home string) string {
	v := viper.New()
	v.SetConfigFile(CometFile(home))
	v.SetDefault("rpc.laddr", cfg.DefaultRPCConfig().ListenAddress)
	if err := v.ReadInConfig(); err != nil {
		v.Set("rpc.laddr", cfg.DefaultRPCConfig().ListenAddress)
	}
	return RPCURL(v.GetString("rpc.laddr"))
}

// RPCURL returns the URL at which a client on this machine reaches a node with that rpc.laddr: its
// first address.
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

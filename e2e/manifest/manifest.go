// Package manifest describes a test network and its disturbances, in a TOML file.
//
//	networks/ci.toml ──► Load ─┐
//	                           ├──► Manifest (checked) ──► e2e/testnet: start, load, perturb, wait, test
//	seed ──────► Generate ─────┘
//
// The names follow those of CometBFT's own end-to-end tests (test/e2e/pkg/manifest.go) for fields
// that exist there too.
package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// Manifest is one test network.
type Manifest struct {
	Name        string `toml:"-"` // the file's or the seed's
	Description string `toml:"description"`
	Seed        uint64 `toml:"seed"` // for keys, load and invalid responses

	ChunkBytes       uint64   `toml:"chunk_bytes"`
	SnapshotInterval int64    `toml:"snapshot_interval"` // blocks
	BlockPause       Duration `toml:"block_pause"`       // timeout_commit, without a network
	Network          Network  `toml:"network"`           // the nodes' default
	Limit            Duration `toml:"limit"`             // for the whole run
	// number of ranges of the state; storage nodes are assigned to them in turn; 0: no storage
	// nodes
	Shards int `toml:"shards"`

	Load  Load            `toml:"load"`
	Link  Link            `toml:"link"` // between all nodes
	Nodes map[string]Node `toml:"node"` // by name: [a-z0-9-]+
	// one after another, once all nodes that start at genesis follow the chain and the load runs
	Steps []Step `toml:"steps"`
}

// Load is the work of clients while the network runs. Their history is checked for linearizability.
type Load struct {
	InitialKeys int `toml:"initial_keys"` // written before the nodes join and before the steps
	ValueBytes  int `toml:"value_bytes"`  // length of their values
	// clients that put, compare-and-put and read, one operation after another; 0: none
	Clients int `toml:"clients"`
	Keys    int `toml:"keys"` // that the clients share
}

// Link describes how the user-space relay treats the connections between nodes.
type Link struct {
	Delay     Duration `toml:"delay"`     // one way
	Bandwidth int64    `toml:"bandwidth"` // bytes a second in each direction; 0: no limit
}

// Mode is the role of a node.
type Mode string

// Modes of nodes.
const (
	Validator Mode = "validator"
	Full      Mode = "full"
	// a storage node: it keeps a range of the state, and no blocks
	Storage Mode = "storage"
)

// Network is a kind of network to which settings fit.
type Network string

// Kinds of networks.
const (
	LAN Network = "lan"
	WAN Network = "wan"
)

// Join is the method by which a node that starts late gets the state.
type Join string

// Methods of joining.
const (
	Transport Join = "transport" // ours
	InBand    Join = "in-band"   // CometBFT's state sync
	Blocks    Join = "blocks"    // all blocks from genesis
)

// Node is one node.
type Node struct {
	Mode  Mode  `toml:"mode"`  // default: validator
	Power int64 `toml:"power"` // of a validator; default: 10
	// 0: the node starts at genesis; otherwise it starts once the network is at this height, and
	// the load has written its first keys
	StartAt int64 `toml:"start_at"`
	Join    Join  `toml:"join"` // of a node with start_at; default: transport
	// modes of e2e/byzantine: then the node is Byzantine, and the checks do not apply to it
	Lie      string `toml:"lie"`
	Paged    bool   `toml:"paged"`     // state_in_memory = false
	Sharded  bool   `toml:"sharded"`   // state.mode = "sharded": needs storage nodes
	SendRate int64  `toml:"send_rate"` // limit of its transport in bytes a second; 0: no limit
	// the settings are those of starlingd init --network; empty: those of these tests
	Network Network `toml:"network"`
	// Version names the source of the node's first program: a name in testnet's table, a tag or a
	// commit of this repository; empty: the present program. The step "upgrade" gives the node the
	// present program.
	Version string `toml:"version"`
}

// Kind is the kind of a step.
type Kind string

// Kinds of steps. If a step ends a node or cuts its network, the step is done once the node follows
// the chain again.
const (
	Kill    Kind = "kill"    // SIGKILL, then a restart after For (0: at once)
	Pause   Kind = "pause"   // stopped for For (SIGSTOP, docker pause)
	Restart Kind = "restart" // a clean stop, then a restart
	// the nodes have no network for For; with Docker, this includes clients
	Disconnect Kind = "disconnect"
	// the named nodes reach each other but none of the other nodes, for For
	Partition Kind = "partition"
	Bandwidth Kind = "bandwidth" // the nodes' links are limited to Rate bytes a second, for For
	Delay     Kind = "delay"     // the nodes' links have Delay added, for For
	Upgrade   Kind = "upgrade"   // a clean stop, then a start of the present program
	// The disk is full: the node ends by itself, gets space, and is started again. Needs root on
	// Linux.
	FullDisk       Kind = "full-disk"
	DeleteSnapshot Kind = "delete-snapshot" // its snapshots on disk are removed while it is down
	// SIGKILL of a storage node, a start without its data: it fetches its range again
	LoseDisk Kind = "lose-disk"
	// a node with start_at is started, killed during its join, started again
	KillMidSync Kind = "kill-mid-sync"
	// The range of a storage node is divided in its middle, and the replica of its upper half moves
	// from the first node to the second one, while the next steps run. The change before is waited
	// for. Only as processes, on Linux.
	SplitRange Kind = "split-range"
	MoveRange  Kind = "move-range"
	// an admin schedules the next app version while clients run; its programs and counters are used
	// from then on
	UpgradeApp Kind = "upgrade-app"
	Wait       Kind = "wait" // nothing happens for For
)

// Kinds lists all kinds.
func Kinds() []Kind {
	return []Kind{Kill, Pause, Restart, Disconnect, Partition, Bandwidth, Delay, Upgrade, FullDisk, DeleteSnapshot, LoseDisk, KillMidSync, SplitRange, MoveRange, UpgradeApp, Wait}
}

// Step is one perturbation.
type Step struct {
	Do    Kind     `toml:"do"`
	Nodes []string `toml:"nodes"` // affected nodes, all at the same time
	For   Duration `toml:"for"`
	Rate  int64    `toml:"rate"`  // of Bandwidth
	Delay Duration `toml:"delay"` // of Delay
}

func (s Step) String() string {
	text := string(s.Do)
	if len(s.Nodes) > 0 {
		text += " " + strings.Join(s.Nodes, ", ")
	}
	if s.For > 0 {
		text += fmt.Sprintf(" for %v", time.Duration(s.For))
	}
	return text
}

// Duration is written as "1.5s".
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// Read reads, completes and checks the manifest of a file.
func Read(path string) (*Manifest, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := Parse(strings.TrimSuffix(filepath.Base(path), ".toml"), content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Parse reads, completes and checks a manifest. An unknown field is an error.
func Parse(name string, content []byte) (*Manifest, error) {
	m := &Manifest{Name: name}
	decoder := toml.NewDecoder(strings.NewReader(string(content))).DisallowUnknownFields()
	if err := decoder.Decode(m); err != nil {
		var strict *toml.StrictMissingError
		if errors.As(err, &strict) {
			return nil, fmt.Errorf("unknown fields:\n%s", strict.String())
		}
		return nil, err
	}
	m.Complete()
	return m, m.Check()
}

// Complete sets the fields that are left out to their defaults.
func (m *Manifest) Complete() {
	defaults := func(value *Duration, to time.Duration) {
		if *value == 0 {
			*value = Duration(to)
		}
	}
	defaults(&m.BlockPause, 400*time.Millisecond)
	defaults(&m.Limit, 10*time.Minute)
	if m.ChunkBytes == 0 {
		m.ChunkBytes = 16 << 10
	}
	if m.SnapshotInterval == 0 {
		m.SnapshotInterval = 15
	}
	if m.Load.ValueBytes == 0 {
		m.Load.ValueBytes = 100
	}
	if m.Load.Keys == 0 {
		m.Load.Keys = 20
	}
	for name, n := range m.Nodes {
		if n.Mode == "" {
			n.Mode = Validator
		}
		if n.Mode == Validator && n.Power == 0 {
			n.Power = 10
		}
		if n.StartAt > 0 && n.Join == "" {
			n.Join = Transport
		}
		n.Network = cmp.Or(n.Network, m.Network)
		m.Nodes[name] = n
	}
}

// lanBlocks is how many times more blocks a LAN makes than a network without a kind.
const lanBlocks = 20

// On gives all nodes the settings of a kind of network, except those that have one, and those of an
// earlier build, which may not know it. In a LAN, heights are multiplied, so that nodes join at
// about the same time.
func (m *Manifest) On(kind Network) error {
	m.Name += "@" + string(kind)
	for name, n := range m.Nodes {
		if n.Version == "" {
			n.Network = cmp.Or(n.Network, kind)
		}
		if kind == LAN {
			n.StartAt *= lanBlocks
		}
		m.Nodes[name] = n
	}
	if kind == LAN {
		m.SnapshotInterval *= lanBlocks
	}
	return m.Check()
}

// Names returns the nodes' names, in order.
func (m *Manifest) Names() []string { return slices.Sorted(maps.Keys(m.Nodes)) }

// UpgradesApp reports whether a step begins the next app version.
func (m *Manifest) UpgradesApp() bool {
	return slices.ContainsFunc(m.Steps, func(s Step) bool { return s.Do == UpgradeApp })
}

// ChangesRanges reports whether a step changes the ranges of a sharded state.
func (m *Manifest) ChangesRanges() bool {
	return slices.ContainsFunc(m.Steps, func(s Step) bool { return s.Do == SplitRange || s.Do == MoveRange })
}

// RangeOf returns the number of the range that a storage node has at first, -1 if there is none.
func (m *Manifest) RangeOf(name string) int {
	storage := slices.DeleteFunc(m.Names(), func(name string) bool { return m.Nodes[name].Mode != Storage })
	if i := slices.Index(storage, name); i >= 0 && m.Shards > 0 {
		return i % m.Shards
	}
	return -1
}

// Honest returns the names of the nodes that are not Byzantine, in order.
func (m *Manifest) Honest() []string {
	return slices.DeleteFunc(m.Names(), func(name string) bool { return m.Nodes[name].Lie != "" })
}

// Liars returns the names of the Byzantine nodes, in order.
func (m *Manifest) Liars() []string {
	return slices.DeleteFunc(m.Names(), func(name string) bool { return m.Nodes[name].Lie == "" })
}

// Package manifest says what a test network consists of and what happens to it, in a TOML file.
//
//	networks/ci.toml ──► Load ─┐
//	                           ├──► Manifest (checked) ──► e2e/testnet: start, load, perturb, wait, test
//	seed ──────► Generate ─────┘
//
// The names follow those of CometBFT's own end-to-end tests (test/e2e/pkg/manifest.go) where there
// is the same thing.
package manifest

import (
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
	Name        string `toml:"-"` // of the file, or of the seed
	Description string `toml:"description"`
	Seed        uint64 `toml:"seed"` // of keys, load and lies

	ChunkBytes       uint64   `toml:"chunk_bytes"`
	SnapshotInterval int64    `toml:"snapshot_interval"` // blocks
	BlockPause       Duration `toml:"block_pause"`       // timeout_commit
	Limit            Duration `toml:"limit"`             // of the whole run
	// the ranges into which storage nodes divide the state, which take turns; 0: there are none
	Shards int `toml:"shards"`

	Load  Load            `toml:"load"`
	Link  Link            `toml:"link"` // of all nodes to each other
	Nodes map[string]Node `toml:"node"` // by name: [a-z0-9-]+
	// one after another, once all nodes that start at genesis follow the chain and the load runs
	Steps []Step `toml:"steps"`
}

// Load is what clients do while the network runs. Their history is checked for linearizability.
type Load struct {
	InitialKeys int `toml:"initial_keys"` // written before anything else happens
	ValueBytes  int `toml:"value_bytes"`  // of their values
	// that put, compare-and-put, and read, each one operation after another; 0: none
	Clients int `toml:"clients"`
	Keys    int `toml:"keys"` // that they fight for
}

// Link is how the user-space relay treats what one node sends another.
type Link struct {
	Delay     Duration `toml:"delay"`     // one way
	Bandwidth int64    `toml:"bandwidth"` // bytes a second and direction, 0: no limit
}

// Mode is what a node is.
type Mode string

// Modes of nodes.
const (
	Validator Mode = "validator"
	Full      Mode = "full"
	// it keeps a range of the state, and nothing of the chain
	Storage Mode = "storage"
)

// Join is how a node that starts late gets the state.
type Join string

// Ways to join.
const (
	Transport Join = "transport" // ours
	InBand    Join = "in-band"   // CometBFT's state sync
	Blocks    Join = "blocks"    // all blocks from genesis
)

// Node is one node.
type Node struct {
	Mode  Mode  `toml:"mode"`  // default: validator
	Power int64 `toml:"power"` // of a validator; default: 10
	// 0: at genesis; else once the network is at this height, and the load has written its first
	// keys
	StartAt int64 `toml:"start_at"`
	Join    Join  `toml:"join"` // of a node with start_at; default: transport
	// a mode of e2e/byzantine: then it is one of the Byzantine nodes, of which nothing is expected
	Lie      string `toml:"lie"`
	Paged    bool   `toml:"paged"`     // state_in_memory = false
	Sharded  bool   `toml:"sharded"`   // state.mode = "sharded": it needs storage nodes
	SendRate int64  `toml:"send_rate"` // bytes a second that its transport sends, 0: no limit
	// Version is what the node's first program is built from: a name in testnet's table, a tag or a
	// commit of this repository; empty: the present one. The step "upgrade" gives the node the
	// present one.
	Version string `toml:"version"`
}

// Kind is what a step does.
type Kind string

// Kinds of steps. Where a node ends or loses its network, the step is done once it follows the
// chain again.
const (
	Kill    Kind = "kill"    // SIGKILL, started again after For (0: at once)
	Pause   Kind = "pause"   // stopped for For (SIGSTOP, docker pause)
	Restart Kind = "restart" // ended cleanly, started again
	// without network for For, clients included where it is docker's
	Disconnect Kind = "disconnect"
	// the nodes named reach each other and none of the rest, for For
	Partition Kind = "partition"
	Bandwidth Kind = "bandwidth" // links of the nodes have Rate bytes a second, for For
	Delay     Kind = "delay"     // links of the nodes have Delay more, for For
	Upgrade   Kind = "upgrade"   // ended cleanly, started as the present program
	// no space left: the node ends by itself, gets space, is started again. Needs root on Linux.
	FullDisk       Kind = "full-disk"
	DeleteSnapshot Kind = "delete-snapshot" // its snapshots on disk are removed while it is down
	// a node with start_at is started, killed during its join, started again
	KillMidSync Kind = "kill-mid-sync"
	Wait        Kind = "wait" // nothing for For: the network runs on
)

// Kinds lists all kinds.
func Kinds() []Kind {
	return []Kind{Kill, Pause, Restart, Disconnect, Partition, Bandwidth, Delay, Upgrade, FullDisk, DeleteSnapshot, KillMidSync, Wait}
}

// Step is one perturbation.
type Step struct {
	Do    Kind     `toml:"do"`
	Nodes []string `toml:"nodes"` // that it happens to, all at once
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

// Parse reads, completes and checks a manifest. A field that is unknown is an error.
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
	m.complete()
	return m, m.Check()
}

// complete sets what is left out.
func (m *Manifest) complete() {
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
		m.Nodes[name] = n
	}
}

// Names returns the nodes' names, in order.
func (m *Manifest) Names() []string { return slices.Sorted(maps.Keys(m.Nodes)) }

// Honest returns the names of the nodes that do not lie, in order.
func (m *Manifest) Honest() []string {
	return slices.DeleteFunc(m.Names(), func(name string) bool { return m.Nodes[name].Lie != "" })
}

// Liars returns the names of those that do, in order.
func (m *Manifest) Liars() []string {
	return slices.DeleteFunc(m.Names(), func(name string) bool { return m.Nodes[name].Lie == "" })
}

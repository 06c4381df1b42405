package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/privval"
	"github.com/cometbft/cometbft/types"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/internal/ports"
)

// Ports of a node, in the order in which a Home holds them.
const (
	PortP2P = iota
	PortRPC
	PortMetrics
	HomePorts // number of ports
)

// Home is a node's folder and its ports on loopback. Methods that query the running node may be
// called concurrently.
type Home struct {
	Name    string
	Dir     string
	Power   int64        // voting power as a validator of Genesis; 0: defaultPower
	LogFile string       // for the node's output; "": node.log in Dir
	at      Listen       // addresses for this machine; empty before Serve or ServeAt
	ports   *ports.Ports // held until Release; nil: none
	id      p2p.ID
}

const defaultPower = 10

// Listen has the addresses at which a node listens, as host:port.
type Listen struct{ P2P, RPC, Metrics string }

// NewHome runs the program of a node (starlingd, or cometbft) with args to make a home folder, and
// configures it for a network on loopback.
func NewHome(ctx context.Context, name, dir, program string, args ...string) (*Home, error) {
	h, err := InitHome(ctx, name, dir, program, args...)
	if err != nil {
		return nil, err
	}
	held, err := ports.Hold(HomePorts)
	if err != nil {
		return nil, err
	}
	listen := Listen{held.Address(PortP2P), held.Address(PortRPC), held.Address(PortMetrics)}
	if err := h.Serve(listen, held); err != nil {
		held.Release()
		return nil, err
	}
	return h, nil
}

// InitHome makes a home folder and leaves its configuration as the program wrote it; the caller
// must call Serve.
func InitHome(ctx context.Context, name, dir, program string, args ...string) (*Home, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	nodeKey, err := p2p.LoadNodeKey(filepath.Join(dir, "config", "node_key.json"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Home{Name: name, Dir: dir, id: nodeKey.ID()}, nil
}

// Serve configures the addresses at which the node listens, and settings that several nodes at one
// address need. held are HomePorts ports of this machine that lead to these addresses: the same
// ports, unless the node has a separate address, as in a container. Home takes them over.
func (h *Home) Serve(listen Listen, held *ports.Ports) error {
	h.ports = held
	h.at = Listen{held.Address(PortP2P), held.Address(PortRPC), held.Address(PortMetrics)}
	return h.serve(listen)
}

// ServeAt is Serve for a node at a separate address, as in a network namespace, which this process
// can reach. No port needs to be held.
func (h *Home) ServeAt(listen Listen) error {
	h.at = listen
	return h.serve(listen)
}

func (h *Home) serve(listen Listen) error {
	return h.Configure(func(c *cfg.Config) {
		c.Moniker = h.Name
		c.P2P.ListenAddress = "tcp://" + listen.P2P
		c.RPC.ListenAddress = "tcp://" + listen.RPC
		c.RPC.PprofListenAddress = ""
		c.Instrumentation.Prometheus = true
		c.Instrumentation.PrometheusListenAddr = listen.Metrics
		// All nodes share one address, and find each other only by persistent_peers.
		c.P2P.AddrBookStrict = false
		c.P2P.AllowDuplicateIP = true
		c.P2P.PexReactor = false
	})
}

// Configure edits config.toml.
func (h *Home) Configure(edit func(*cfg.Config)) error {
	config, err := ReadConfig(h.Dir)
	if err != nil {
		return err
	}
	edit(config)
	path := configFile(h.Dir)
	checked, sync := *config, *config.StateSync
	if len(sync.RPCServers) == 0 { // starlingd needs none
		sync.Enable = false
		checked.StateSync = &sync
	}
	if err := checked.ValidateBasic(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	cfg.WriteConfigFile(path, config)
	return nil
}

// ReadConfig reads config.toml of a home folder of starlingd or cometbft. It does not check the
// settings.
func ReadConfig(dir string) (*cfg.Config, error) {
	v := viper.New()
	v.SetConfigFile(configFile(dir))
	if err := v.ReadInConfig(); err != nil {
		return nil, fmt.Errorf("%s: %w", configFile(dir), err)
	}
	config := cfg.DefaultConfig()
	if err := v.Unmarshal(config); err != nil {
		return nil, fmt.Errorf("%s: %w", configFile(dir), err)
	}
	config.SetRoot(dir)
	return config, nil
}

func configFile(dir string) string { return filepath.Join(dir, "config", "config.toml") }

// Release releases the ports, directly before the node starts.
func (h *Home) Release() {
	if h.ports != nil {
		h.ports.Release()
	}
}

// Log is the file for the node's output.
func (h *Home) Log() string { return cmp.Or(h.LogFile, filepath.Join(h.Dir, "node.log")) }

// ID is the ID of its node key.
func (h *Home) ID() string { return string(h.id) }

// Peer is the node's address for other nodes: ID@host:port.
func (h *Home) Peer() string { return h.PeerAt(h.at.P2P) }

// PeerAt is Peer for nodes that reach it at another address, host:port.
func (h *Home) PeerAt(address string) string { return p2p.IDAddressString(h.id, address) }

// RPC is the URL of the node's RPC server.
func (h *Home) RPC() string { return "http://" + h.at.RPC }

// Metrics is the URL of the node's Prometheus endpoint.
func (h *Home) Metrics() string { return "http://" + h.at.Metrics + "/metrics" }

// Peers joins the addresses of nodes in the form of `persistent_peers`.
func Peers(homes ...*Home) string {
	names := make([]string, 0, len(homes))
	for _, h := range homes {
		names = append(names, h.Peer())
	}
	return strings.Join(names, ",")
}

// Genesis makes one genesis file from the first validator's and writes it into all homes; the
// consensus parameters are those that the program wrote.
func Genesis(validators, others []*Home, chainID string, appState any) (*types.GenesisDoc, error) {
	doc, err := types.GenesisDocFromFile(validators[0].genesisFile())
	if err != nil {
		return nil, err
	}
	doc.ChainID = chainID
	doc.GenesisTime = time.Now().UTC()
	doc.Validators = nil
	for _, h := range validators {
		key := filepath.Join(h.Dir, "config", "priv_validator_key.json")
		if _, err := os.Stat(key); err != nil {
			// CometBFT exits if it cannot read the key
			return nil, fmt.Errorf("%s has no validator key: %w", h.Name, err)
		}
		public, err := privval.LoadFilePVEmptyState(key, "").GetPubKey()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		doc.Validators = append(doc.Validators, types.GenesisValidator{
			Address: public.Address(), PubKey: public, Power: cmp.Or(h.Power, defaultPower), Name: h.Name,
		})
	}
	if doc.AppState, err = json.Marshal(appState); err != nil {
		return nil, err
	}
	if err := doc.ValidateAndComplete(); err != nil {
		return nil, err
	}
	for _, homes := range [][]*Home{validators, others} {
		for _, h := range homes {
			if err := doc.SaveAs(h.genesisFile()); err != nil {
				return nil, err
			}
		}
	}
	return doc, nil
}

// SigningState is the file in which a validator records its signatures.
func (h *Home) SigningState() string {
	return filepath.Join(h.Dir, "data", "priv_validator_state.json")
}

func (h *Home) genesisFile() string { return filepath.Join(h.Dir, "config", "genesis.json") }

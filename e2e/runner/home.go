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
)

// Ports of a node, in the order in which a Home holds them.
const (
	portP2P = iota
	portRPC
	portMetrics
	portsPerNode
)

// Home is a node's folder and its ports on loopback. Its methods that ask the running node may be called concurrently.
type Home struct {
	Name  string
	Dir   string
	Power int64 // as a validator of Genesis; 0: defaultPower
	ports *Ports
	id    p2p.ID
}

const defaultPower = 10

// NewHome lets the program of a node (starlingd, or cometbft) make a home folder, by running it with args, and sets in its
// configuration what a network on loopback needs.
func NewHome(ctx context.Context, name, dir, program string, args ...string) (*Home, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	ports, err := HoldPorts(portsPerNode)
	if err != nil {
		return nil, err
	}
	h := &Home{Name: name, Dir: dir, ports: ports}
	nodeKey, err := p2p.LoadNodeKey(filepath.Join(dir, "config", "node_key.json"))
	if err != nil {
		ports.Release()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	h.id = nodeKey.ID()
	err = h.Configure(func(c *cfg.Config) {
		c.Moniker = name
		c.P2P.ListenAddress = "tcp://" + ports.Address(portP2P)
		c.RPC.ListenAddress = "tcp://" + ports.Address(portRPC)
		c.RPC.PprofListenAddress = ""
		c.Instrumentation.Prometheus = true
		c.Instrumentation.PrometheusListenAddr = ports.Address(portMetrics)
		// All nodes share one address, and know each other by name only.
		c.P2P.AddrBookStrict = false
		c.P2P.AllowDuplicateIP = true
		c.P2P.PexReactor = false
	})
	if err != nil {
		ports.Release()
		return nil, err
	}
	return h, nil
}

// Configure edits config.toml.
func (h *Home) Configure(edit func(*cfg.Config)) error {
	path := filepath.Join(h.Dir, "config", "config.toml")
	v := viper.New()
	v.SetConfigFile(path)
	if err := v.ReadInConfig(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	config := cfg.DefaultConfig()
	if err := v.Unmarshal(config); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	config.SetRoot(h.Dir)
	edit(config)
	checked, sync := *config, *config.StateSync
	if len(sync.RPCServers) == 0 { // starlingd needs none, see its [join]
		sync.Enable = false
		checked.StateSync = &sync
	}
	if err := checked.ValidateBasic(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	cfg.WriteConfigFile(path, config)
	return nil
}

// Release lets the ports go, right before the node starts.
func (h *Home) Release() { h.ports.Release() }

// Log is the file for the node's output.
func (h *Home) Log() string { return filepath.Join(h.Dir, "node.log") }

// Peer is how other nodes name this one: ID@host:port.
func (h *Home) Peer() string { return p2p.IDAddressString(h.id, h.ports.Address(portP2P)) }

// RPC is the URL of the node's RPC server.
func (h *Home) RPC() string { return "http://" + h.ports.Address(portRPC) }

// Metrics is the URL of the node's Prometheus endpoint.
func (h *Home) Metrics() string { return "http://" + h.ports.Address(portMetrics) + "/metrics" }

// Peers joins the names of nodes as `persistent_peers` has them.
func Peers(homes ...*Home) string {
	names := make([]string, 0, len(homes))
	for _, h := range homes {
		names = append(names, h.Peer())
	}
	return strings.Join(names, ",")
}

// Genesis makes one genesis file out of the first validator's and writes it into all homes; consensus parameters are those that the
// program wrote.
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
			return nil, fmt.Errorf("%s has no validator key: %w", h.Name, err) // CometBFT exits where it cannot read one
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

// SigningState is the file in which a validator keeps what it has signed.
func (h *Home) SigningState() string {
	return filepath.Join(h.Dir, "data", "priv_validator_state.json")
}

func (h *Home) genesisFile() string { return filepath.Join(h.Dir, "config", "genesis.json") }

// Package network runs the validators and joiners of a benchmark as processes on loopback.
//
//	Start ─▶ homes, one genesis, one dialler per pair ─▶ processes ─▶ all take part in consensus ─▶ … ─▶ Stop
//
// It adds to e2e/runner what benchmarks need: networks of another program (CometBFT's kvstore) with
// the same configuration, and the addresses of RDMA devices.
package network

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/internal/ports"
)

const (
	// ChainID is the chain ID of all networks.
	ChainID = "bench"

	// StartPatience is the default of Options.StartPatience; it is generous, for a busy machine.
	StartPatience = 3 * time.Minute

	// StopGrace is the time limit for a node to stop cleanly.
	StopGrace = 20 * time.Second
)

// Starlingd builds starlingd, unless given names a program that is already built.
func Starlingd(ctx context.Context, given string, progress *harness.Progress) (string, error) {
	return harness.Build(ctx, given, ".", "./cmd/starlingd", progress)
}

// CometBFT builds cometbft with the version of CometBFT that starlingd is linked with, unless given
// names a program that is already built.
func CometBFT(ctx context.Context, given string, progress *harness.Progress) (string, error) {
	return harness.Build(ctx, given, ".", "github.com/cometbft/cometbft/cmd/cometbft", progress)
}

// Open is a genesis state in which any client may send transactions in kvstore's text form.
var Open = map[string]any{"open": true, "admins": []string{}}

// Options configure a network.
type Options struct {
	Program  string
	Init     func(name, dir string) []string // arguments that create a home; nil: starlingd's
	AppState any                             // genesis state

	Dir        string // parent folder of the homes
	Validators int
	BlockBytes int64         // maximum block size; 0: the default
	Host       string        // p2p address; "": loopback
	Delay      time.Duration // one way, between every two validators
	// SlowLast is the delay, one way, between the last validator and each other, if it is more than
	// Delay.
	SlowLast time.Duration
	// Last is the program of the last validator, and its arguments before "--home"; nil: those of
	// the others.
	Last []string
	// StorageDelay is the delay, one way, between each validator and each storage node.
	StorageDelay time.Duration
	// StartPatience is the time limit for the first blocks, before which an application may fill
	// its state; 0: the constant.
	StartPatience time.Duration
	Edit          func(*cfg.Config) // changes each validator's configuration; may be nil
	Env           []string          // environment of each validator
	GRPC          bool              // the validators, of starlingd, have a gRPC endpoint

	Sharded Sharded // zero: all nodes have the whole state
}

// Sharded configures a network whose state is sharded over storage nodes. No node has all of it.
type Sharded struct {
	Nodes int // number of storage nodes, which the ranges get in turn
	// Ranges is the number of ranges of keys. Range i begins with First(i), except for the first
	// one, which has all keys below First(1).
	Ranges int
	First  func(i int) string
	Env    []string // environment of each storage node; Options.Env is that of the others
	// Signed: an operator's key, in the home of the first storage node, signs the map of the
	// ranges, which can then change. Not with Options.StorageDelay, which gives each node another
	// map.
	Signed bool
}

// Network is a network of running validators.
type Network struct {
	Validators []*runner.Home
	Storage    []*runner.Home // storage nodes of a sharded network
	Genesis    *types.GenesisDoc

	o         Options
	processes *runner.Processes
	running   map[*runner.Home]*runner.Process
	extra     map[*runner.Home][]string // environment of one node, in addition to Options.Env
	relay     *link.Relay               // nil without delays
	// reach has the addresses at which a node (the first) dials another through the relay.
	reach  map[[2]*runner.Home]string
	grpc   *ports.Ports // of the validators' gRPC endpoints; nil without Options.GRPC
	ranges []runner.Range
}

// Start creates homes, starts the validators, and waits until all take part in consensus.
func Start(ctx context.Context, o Options) (*Network, error) {
	if o.Init == nil {
		o.Init = InitStarlingd
	}
	o.StartPatience = cmp.Or(o.StartPatience, StartPatience)
	n := &Network{o: o, processes: runner.NewProcesses(ctx), running: map[*runner.Home]*runner.Process{}, extra: map[*runner.Home][]string{}}
	if err := n.start(); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

// InitStarlingd returns the arguments with which starlingd creates a home.
func InitStarlingd(name, dir string) []string {
	return []string{"init", name, "--chain-id", ChainID, "--home", dir}
}

// Home creates a home of starlingd in a folder of dir.
func Home(ctx context.Context, program, name, dir string) (*runner.Home, error) {
	return home(ctx, program, name, filepath.Join(dir, name), InitStarlingd)
}

func home(ctx context.Context, program, name, dir string, args func(name, dir string) []string) (*runner.Home, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	return runner.NewHome(ctx, name, dir, program, args(name, dir)...)
}

func (n *Network) start() (err error) {
	ctx, cancel := context.WithTimeout(n.Context(), n.o.StartPatience)
	defer cancel()
	if n.Validators, err = n.Homes(ctx, "validator", n.o.Validators); err != nil {
		return err
	}
	if n.o.GRPC {
		if n.grpc, err = ports.Hold(len(n.Validators)); err != nil {
			return err
		}
		n.grpc.Release() // the homes hold the neighbouring ports until they start
	}
	if n.Storage, err = n.Homes(ctx, "storage", n.o.Sharded.Nodes); err != nil {
		return err
	}
	if n.Genesis, err = runner.Genesis(n.Validators, n.Storage, ChainID, n.o.AppState); err != nil {
		return err
	}
	if n.o.BlockBytes > 0 {
		n.Genesis.ConsensusParams.Block.MaxBytes = n.o.BlockBytes
		for _, h := range n.Validators {
			if err := n.Genesis.SaveAs(GenesisFile(h)); err != nil {
				return err
			}
		}
	}
	p2p := make([]string, len(n.Validators))
	for i, h := range n.Validators {
		if p2p[i], err = P2P(h, n.o.Host); err != nil {
			return err
		}
	}
	if err := n.delay(p2p); err != nil {
		return err
	}
	for i, h := range n.Validators {
		var peers []string
		for j := range i {
			peers = append(peers, n.Validators[j].PeerAt(n.reached(h, n.Validators[j], p2p[j])))
		}
		err = h.Configure(func(c *cfg.Config) {
			// Only one node of each pair dials: if both dial at the same time, both connections may
			// fail and be retried only after seconds.
			c.P2P.PersistentPeers = strings.Join(peers, ",")
			c.P2P.ListenAddress = "tcp://" + p2p[i]
			if n.o.Edit != nil {
				n.o.Edit(c)
			}
		})
		if err != nil {
			return err
		}
	}
	if err := n.shard(); err != nil {
		return err
	}
	return n.runAll(ctx)
}

// shard assigns the ranges to the storage nodes, which learn the chain from the validators.
func (n *Network) shard() (err error) {
	if len(n.Storage) == 0 {
		return nil
	}
	if n.ranges, err = runner.Divide(n.Storage, n.o.Sharded.Ranges, n.o.Sharded.First); err != nil {
		return err
	}
	for _, h := range n.Validators {
		ranges, err := n.rangesAt(h)
		if err := errors.Join(err, h.SetRanges(ranges)); err != nil {
			return err
		}
	}
	for _, h := range n.Storage {
		err := h.Configure(func(c *cfg.Config) {
			c.P2P.PersistentPeers = runner.Peers(n.Validators...)
			if n.o.Edit != nil {
				n.o.Edit(c)
			}
		})
		if err := errors.Join(err, h.SetRanges(n.ranges)); err != nil {
			return err
		}
	}
	switch {
	case n.o.Sharded.Signed && n.o.StorageDelay > 0:
		return errors.New("a signed map is the same at all nodes: with a delay to storage nodes each has another one")
	case n.o.Sharded.Signed:
		return n.sign()
	}
	return nil
}

// sign signs the map of the ranges, and copies it into all homes.
func (n *Network) sign() error {
	if err := n.ChangeRanges(n.Context(), io.Discard, "sign"); err != nil {
		return err
	}
	file := filepath.Join("config", "storage_nodes.toml")
	text, err := os.ReadFile(filepath.Join(n.Storage[0].Dir, file))
	if err != nil {
		return err
	}
	for _, h := range slices.Concat(n.Validators, n.Storage) {
		if err := durable.Write(filepath.Join(h.Dir, file), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// ChangeRanges runs `starlingd storage ranges` with the operator's key, and passes the lines of its
// progress to progress.
func (n *Network) ChangeRanges(ctx context.Context, progress io.Writer, args ...string) error {
	args = slices.Concat([]string{"storage", "ranges"}, args, []string{"--home", n.Storage[0].Dir})
	cmd := exec.CommandContext(ctx, n.o.Program, args...)
	var said bytes.Buffer
	cmd.Stderr = io.MultiWriter(&said, progress)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("starlingd %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return nil
}

// Join configures a home as a sharded node that joins with a trusted header, and starts it.
func (n *Network) Join(h *runner.Home, trusted runner.Header) error {
	err := h.Configure(func(c *cfg.Config) {
		c.P2P.PersistentPeers = runner.Peers(n.Validators...)
		c.StateSync.Enable, c.StateSync.TrustHeight, c.StateSync.TrustHash = true, trusted.Height, fmt.Sprintf("%X", trusted.Hash)
		if n.o.Edit != nil {
			n.o.Edit(c)
		}
	})
	if err := errors.Join(err, CopyGenesis(n.Validators[0], h), h.SetRanges(n.ranges)); err != nil {
		return err
	}
	if err := n.Run(h); err != nil {
		return err
	}
	n.running[h].MayEnd() // a join that fails does not end the network
	return nil
}

// ServeGRPC gives a node that does not run yet a gRPC endpoint, and returns its address.
func (n *Network) ServeGRPC(h *runner.Home) (string, error) {
	held, err := ports.Hold(1)
	if err != nil {
		return "", err
	}
	address := held.Address(0)
	held.Release()
	n.extra[h] = []string{"STARLINGD_GRPC_LADDR=" + address}
	return "grpc://" + address, nil
}

// Hop is a way from one node to another through a relay.
type Hop struct {
	From, To  *runner.Home
	Target    string        // host:port of To
	Host      string        // at which the relay listens; "": loopback
	Delay     time.Duration // in each direction
	Transport bool          // Target is of p2p, and the transport of its node is reached, too
}

// Delay starts a relay, and returns the address on it for each hop. That of a transport follows
// from it (runner.TransportOf). The caller must close the relay.
func Delay(hops []Hop) (relay *link.Relay, addresses []string, err error) {
	held, err := ports.Hold(len(hops))
	if err != nil {
		return nil, nil, err
	}
	held.Release()
	var (
		links    []link.Link
		settings []link.Setting
	)
	for i, hop := range hops {
		from, to, at := hop.From.Name, hop.To.Name, held.Address(i)
		if hop.Host != "" {
			_, port, err := net.SplitHostPort(at)
			if err != nil {
				return nil, nil, err
			}
			at = net.JoinHostPort(hop.Host, port)
		}
		addresses = append(addresses, at)
		links = append(links, link.Link{From: from, To: to, Listen: at, Target: hop.Target})
		if hop.Transport {
			listen, err := runner.TransportOf(at)
			target, err2 := runner.TransportOf(hop.Target)
			if err := errors.Join(err, err2); err != nil {
				return nil, nil, err
			}
			links = append(links, link.Link{From: from, To: to, Listen: listen, Target: target})
		}
		treatment := link.Treatment{Delay: hop.Delay}
		settings = append(settings, link.Setting{From: from, To: to, Treatment: treatment}, link.Setting{From: to, To: from, Treatment: treatment})
	}
	if relay, err = link.New(link.Config{Links: links}); err != nil {
		return nil, nil, err
	}
	if err := relay.Set(settings...); err != nil {
		relay.Close()
		return nil, nil, err
	}
	return relay, addresses, nil
}

// delay starts a relay between the nodes with a delay. p2p are the validators' addresses. A
// validator dials those before it.
func (n *Network) delay(p2p []string) error {
	var hops []Hop
	for i, from := range n.Validators {
		delay := n.o.Delay
		if i == len(n.Validators)-1 {
			delay = max(delay, n.o.SlowLast)
		}
		for j, to := range n.Validators[:i] {
			if delay > 0 {
				hops = append(hops, Hop{From: from, To: to, Target: p2p[j], Delay: delay})
			}
		}
		for _, to := range n.Storage {
			if n.o.StorageDelay == 0 {
				continue
			}
			_, target, err := transportOf(to)
			if err != nil {
				return err
			}
			hops = append(hops, Hop{From: from, To: to, Target: target, Delay: n.o.StorageDelay})
		}
	}
	if len(hops) == 0 {
		return nil
	}
	relay, addresses, err := Delay(hops)
	if err != nil {
		return err
	}
	n.relay, n.reach = relay, map[[2]*runner.Home]string{}
	for i, hop := range hops {
		n.reach[[2]*runner.Home{hop.From, hop.To}] = addresses[i]
	}
	return nil
}

// reached returns the address at which a node dials another: direct unless there is a delay.
func (n *Network) reached(from, to *runner.Home, direct string) string {
	if address, delayed := n.reach[[2]*runner.Home{from, to}]; delayed {
		return address
	}
	return direct
}

// transportOf returns the ID and the host:port of a node's transport.
func transportOf(h *runner.Home) (id, address string, err error) {
	full, err := h.Transport()
	id, address, _ = strings.Cut(full, "@")
	return id, address, err
}

// rangesAt returns the ranges with the addresses at which a node dials the storage nodes.
func (n *Network) rangesAt(h *runner.Home) ([]runner.Range, error) {
	reached := map[string]string{}
	for _, to := range n.Storage {
		id, address, err := transportOf(to)
		if err != nil {
			return nil, err
		}
		reached[id+"@"+address] = id + "@" + n.reached(h, to, address)
	}
	ranges := slices.Clone(n.ranges)
	for i := range ranges {
		ranges[i].Nodes = slices.Clone(ranges[i].Nodes)
		for k, name := range ranges[i].Nodes {
			ranges[i].Nodes[k] = reached[name]
		}
	}
	return ranges, nil
}

// P2P returns the p2p address of a node, with host in place of the loopback address unless host is
// empty.
func P2P(h *runner.Home, host string) (string, error) {
	p2p := strings.TrimPrefix(h.Peer(), h.ID()+"@")
	if host == "" {
		return p2p, nil
	}
	_, port, err := net.SplitHostPort(p2p)
	return net.JoinHostPort(host, port), err
}

// RDMA returns the environment of a node that needs an RDMA device, and may have channels with the
// nodes at some addresses.
func RDMA(hosts ...string) []string {
	return []string{"STARLINGD_TRANSPORT_RDMA=required", "STARLINGD_TRANSPORT_RDMA_FABRIC=" + Fabric(hosts...)}
}

// Fabric returns the value of transport.rdma_fabric that allows some addresses.
func Fabric(hosts ...string) string {
	networks := make([]string, len(hosts))
	for i, host := range hosts {
		addr := netip.MustParseAddr(host)
		networks[i] = netip.PrefixFrom(addr, addr.BitLen()).String()
	}
	return strings.Join(networks, ",")
}

// runAll starts the validators, and waits until all take part in consensus. A node that is still
// block syncing accepts no transactions.
func (n *Network) runAll(ctx context.Context) error {
	for _, h := range slices.Concat(n.Storage, n.Validators) {
		if err := n.Run(h); err != nil {
			return err
		}
	}
	for _, h := range n.Validators {
		err := runner.Poll(ctx, h.Name+" to take part", func() bool {
			status, err := h.Status(ctx)
			// Do not wait for a second block: the network may make no empty blocks.
			return err == nil && !status.CatchingUp && status.Height >= 1
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Restart stops the validators, and starts them with another environment.
func (n *Network) Restart(ctx context.Context, env ...string) error {
	if err := n.processes.Stop(StopGrace); err != nil {
		return err
	}
	n.processes, n.o.Env = runner.NewProcesses(ctx), env
	ctx, cancel := context.WithTimeout(n.Context(), n.o.StartPatience)
	defer cancel()
	return n.runAll(ctx)
}

// Context ends when a process exits by itself.
func (n *Network) Context() context.Context { return n.processes.Context() }

// Homes creates count further homes, concurrently.
func (n *Network) Homes(ctx context.Context, role string, count int) ([]*runner.Home, error) {
	homes, errs := make([]*runner.Home, count), make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			name := fmt.Sprintf("%s-%d", role, i)
			homes[i], errs[i] = home(ctx, n.o.Program, name, filepath.Join(n.o.Dir, name), n.o.Init)
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err != nil {
		release(homes)
		return nil, err
	}
	return homes, nil
}

// Run starts one node.
func (n *Network) Run(h *runner.Home) error {
	h.Release()
	env := n.o.Env
	if i := slices.Index(n.Validators, h); i >= 0 && n.grpc != nil {
		env = append(slices.Clone(env), "STARLINGD_GRPC_LADDR="+n.grpc.Address(i))
	}
	command := []string{n.o.Program, "start"}
	if n.o.Last != nil && h == n.Validators[len(n.Validators)-1] {
		command = n.o.Last
	}
	if slices.Contains(n.Storage, h) {
		command, env = []string{n.o.Program, "storage", "start"}, n.o.Sharded.Env
	} else if len(n.Storage) > 0 {
		env = append(slices.Clone(env), "STARLINGD_STATE_MODE=sharded")
	}
	env = append(slices.Clone(env), n.extra[h]...)
	args := slices.Concat(command[1:], []string{"--home", h.Dir})
	p, err := n.processes.Start(runner.Spec{Name: h.Name, Path: command[0], Args: args, Env: env, Log: h.Log()})
	if err == nil {
		n.running[h] = p
	}
	return err
}

// Kill ends a node as a crash does.
func (n *Network) Kill(h *runner.Home) { n.running[h].Kill() }

// Pause stops a node, which keeps its connections, until the end of the network.
func (n *Network) Pause(h *runner.Home) { n.running[h].Pause() }

// Pid returns the process ID of a running node.
func (n *Network) Pid(h *runner.Home) int { return n.running[h].Pid() }

// Stop stops all nodes and removes the homes.
func (n *Network) Stop() error {
	err := n.processes.Stop(StopGrace)
	if n.relay != nil {
		n.relay.Close()
	}
	release(slices.Concat(n.Validators, n.Storage))
	return errors.Join(err, os.RemoveAll(n.o.Dir))
}

// Discard is Stop without a clean end: a validator in the middle of a long commit ends at once.
func (n *Network) Discard() error {
	for _, h := range n.Validators {
		n.Kill(h)
	}
	return n.Stop()
}

// Reach waits until the applications of all validators have a height.
func (n *Network) Reach(ctx context.Context, height int64) error {
	for _, h := range n.Validators {
		err := runner.Poll(ctx, fmt.Sprintf("%s to have height %d", h.Name, height), func() bool {
			at, err := h.AppInfo(ctx)
			return err == nil && at.Height >= height
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func release(homes []*runner.Home) {
	for _, h := range homes {
		if h != nil {
			h.Release()
		}
	}
}

// CPUSeconds returns the CPU time of all validators since they started.
func (n *Network) CPUSeconds(ctx context.Context) (sum float64, err error) {
	for _, h := range n.Validators {
		values, err := h.Scrape(ctx)
		if err != nil {
			return 0, err
		}
		sum += values["process_cpu_seconds_total"]
	}
	return sum, nil
}

// RPCs returns the RPC URLs of the validators.
func (n *Network) RPCs() []string {
	return slices.Collect(func(yield func(string) bool) {
		for _, h := range n.Validators {
			if !yield(h.RPC()) {
				return
			}
		}
	})
}

// Endpoints returns the addresses of the validators for a client: of their gRPC endpoints if they
// have one, otherwise of RPC.
func (n *Network) Endpoints() []string {
	if n.grpc == nil {
		return n.RPCs()
	}
	addresses := make([]string, len(n.Validators))
	for i := range n.Validators {
		addresses[i] = "grpc://" + n.grpc.Address(i)
	}
	return addresses
}

// CopyGenesis copies the genesis file of one home to others.
func CopyGenesis(of *runner.Home, homes ...*runner.Home) error {
	genesis, err := os.ReadFile(GenesisFile(of))
	if err != nil {
		return err
	}
	for _, h := range homes {
		if err := os.WriteFile(GenesisFile(h), genesis, 0o600); err != nil { //nolint:gosec // the folder belongs to the run
			return err
		}
	}
	return nil
}

// GenesisFile returns the path of a home's genesis file.
func GenesisFile(h *runner.Home) string { return filepath.Join(h.Dir, "config", "genesis.json") }

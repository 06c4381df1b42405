package testnet

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
)

// Processes is the Provider whose nodes and relay are processes of this machine, on loopback. It
// needs no privileges.
type Processes struct {
	relayProgram string
	processes    *runner.Processes
	links        *remembered

	mu      sync.Mutex
	running map[*Node]*runner.Process // the last process of each node
}

var _ Provider = (*Processes)(nil)

// stopGrace limits the time for a clean end when the network is closed.
const stopGrace = 20 * time.Second

// NewProcesses returns a provider of processes; relay is the path of e2e/relay's program. If it is
// empty, the nodes dial each other, and links cannot be cut or delayed. All processes end with ctx.
func NewProcesses(ctx context.Context, relay string) *Processes {
	return &Processes{relayProgram: relay, processes: runner.NewProcesses(ctx), running: map[*Node]*runner.Process{}}
}

// Name implements Provider.
func (p *Processes) Name() string { return "process" }

// Context implements Provider.
func (p *Processes) Context() context.Context { return p.processes.Context() }

// Links implements Provider.
func (p *Processes) Links() Links {
	if p.links == nil {
		return nil
	}
	return p.links
}

// Prepare implements Provider.
func (p *Processes) Prepare(ctx context.Context, dir string, nodes []*Node) error {
	numbers := map[*Node]int{}
	for _, n := range nodes {
		held, err := ports.Hold(runner.HomePorts)
		if err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		numbers[n] = held.Number(runner.PortP2P)
		listen := runner.Listen{P2P: held.Address(runner.PortP2P), RPC: held.Address(runner.PortRPC), Metrics: held.Address(runner.PortMetrics)}
		if err := n.ServeAt(listen, held, "http://"+listen.RPC); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	const loopback = "127.0.0.1"
	if p.relayProgram == "" {
		return setPeers(direct(nodes, func(n *Node) string { return hostPort(loopback, numbers[n]) }))
	}
	count := countLinks(nodes)
	held, err := ports.Hold(count + 1) // and one for the control endpoint
	if err != nil {
		return err
	}
	defer held.Release()
	links, addresses := planLinks(nodes, loopback,
		func(k int) (string, int) { return loopback, held.Number(k) },
		func(n *Node) (string, int) { return loopback, numbers[n] })
	if err := setPeers(addresses); err != nil {
		return err
	}
	config := filepath.Join(dir, "relay.json")
	control := net.JoinHostPort(loopback, strconv.Itoa(held.Number(count)))
	homes := map[string]string{}
	for _, n := range nodes {
		homes[n.Name] = n.Home.Dir
	}
	if err := (link.Config{Control: control, Links: links, Homes: homes}).Write(config); err != nil {
		return err
	}
	held.Release()
	spec := runner.Spec{Name: "relay", Path: p.relayProgram, Args: []string{"--config", config}, Log: filepath.Join(dir, "relay.log")}
	if _, err := p.processes.Start(spec); err != nil {
		return err
	}
	at := link.Control{URL: "http://" + control}
	p.links = &remembered{Links: at, settings: map[[2]string]link.Setting{}}
	for _, l := range pairs(nodes) {
		p.links.note(link.Setting{From: l[0], To: l[1]})
	}
	ctx, stop := under(ctx, p.Context())
	defer stop()
	return runner.Poll(ctx, "the relay to listen", func() bool { return at.Healthy(ctx) == nil })
}

// Start implements Provider.
func (p *Processes) Start(_ context.Context, n *Node) error {
	n.Home.Release()
	process, err := p.processes.Start(runner.Spec{
		Name: n.Name, Path: n.Program, Args: n.Args(n.Home.Dir), Env: n.Env, Log: n.Home.Log(), Ends: n.Lies(),
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[n] = process
	return nil
}

// process returns the last process of a node.
func (p *Processes) process(n *Node) *runner.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running[n]
}

// Stop implements Provider.
func (p *Processes) Stop(_ context.Context, n *Node, grace time.Duration) error {
	return p.process(n).Stop(grace)
}

// Kill implements Provider.
func (p *Processes) Kill(_ context.Context, n *Node) error {
	p.process(n).Kill()
	return nil
}

// Pause implements Provider.
func (p *Processes) Pause(_ context.Context, n *Node) error {
	p.process(n).Pause()
	return nil
}

// Resume implements Provider.
func (p *Processes) Resume(_ context.Context, n *Node) error {
	p.process(n).Resume()
	return nil
}

// Disconnect implements Provider: all links of the node are cut. Clients can still reach it.
func (p *Processes) Disconnect(ctx context.Context, n *Node) error {
	if p.links == nil {
		return errNoRelay
	}
	var cut []link.Setting
	for _, s := range p.links.of(n.Name) {
		s.Cut = true
		cut = append(cut, s)
	}
	return p.links.Links.Set(ctx, cut...) // not recorded, so that Connect restores the settings
}

// Connect implements Provider.
func (p *Processes) Connect(ctx context.Context, n *Node) error {
	return p.links.Links.Set(ctx, p.links.of(n.Name)...)
}

// MayEnd implements Provider.
func (p *Processes) MayEnd(n *Node) { p.process(n).MayEnd() }

// Ended implements Provider.
func (p *Processes) Ended(ctx context.Context, n *Node) (status int, err error) {
	process := p.process(n)
	select {
	case <-process.Done():
		return process.ExitStatus(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for the end of %s: %w", n.Name, context.Cause(ctx))
	}
}

// Close implements Provider.
func (p *Processes) Close() error { return p.processes.Stop(stopGrace) }

// remembered records the current settings.
type remembered struct {
	Links
	mu       sync.Mutex
	settings map[[2]string]link.Setting // by sender and receiver
}

// Set implements Links.
func (r *remembered) Set(ctx context.Context, settings ...link.Setting) error {
	if err := r.Links.Set(ctx, settings...); err != nil {
		return err
	}
	r.note(settings...)
	return nil
}

func (r *remembered) note(settings ...link.Setting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range settings {
		r.settings[[2]string{s.From, s.To}] = s
	}
}

// of returns the settings of all links of a node.
func (r *remembered) of(node string) (settings []link.Setting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.settings {
		if s.From == node || s.To == node {
			settings = append(settings, s)
		}
	}
	return settings
}

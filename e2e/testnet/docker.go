package testnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
)

// Docker is the Provider whose nodes are containers: images FROM scratch, a separate network,
// bind-mounted homes, and a compose file in the network's folder that can also be used by hand.
//
//	this machine                            network starling-e2e-PID-N
//	127.0.0.1:published ──RPC, metrics──►   validator-0 … :26656 :26666 :26657 :26660   /home = its folder here
//	127.0.0.1:published ──control──────►    relay :30000, two ports for each link
//
// A node is started by `docker start --attach`, a process of ours: it writes the container's output
// into the node's log, ends with the container, and forwards signals. So a container that ends
// unexpectedly is noticed at once. If this process is killed, these clients end with it, and so do
// the containers, except those just being started: NewDocker of the next run removes them.
type Docker struct {
	relayProgram string
	project      string
	clients      *runner.Processes // the `docker start --attach` processes
	compose      []string          // docker-compose, or docker compose
	images       images

	file       string // the compose file
	relay      *container
	control    *link.Control
	nodes      []*Node
	containers map[*Node]*container
	closed     atomic.Bool
}

// container is a container with its attached client.
type container struct {
	name    string // name of the service
	id      string // PROJECT-name
	log     string
	lies    bool
	ports   *ports.Ports // ports of this machine that lead into it
	program string       // program that it runs
	image   string       // image of program

	mu     sync.Mutex
	client *runner.Process // nil before the first start
}

const (
	homeInContainer = "/home"

	relayConfig = "relay.json"

	// closeTimeout limits the duration of Close, whatever the daemon does.
	closeTimeout = 2 * time.Minute
	closeGrace   = 20 * time.Second
)

// ListenInContainer has the addresses of every node in its container: p2p on 26656, and so its
// transport on 26666.
var ListenInContainer = runner.Listen{P2P: "0.0.0.0:26656", RPC: "0.0.0.0:26657", Metrics: "0.0.0.0:26660"}

const p2pInContainer, rpcInContainer, metricsInContainer = 26656, 26657, 26660

// networks counts the networks of this process.
var networks atomic.Int64

// NewDocker returns a provider for one network, and removes the leftovers of a killed run. Programs
// must be static; relay is the program of e2e/relay. An error explains why Docker cannot be used.
func NewDocker(ctx context.Context, relay string) (*Docker, error) {
	d := &Docker{
		relayProgram: relay,
		project:      fmt.Sprintf("starling-e2e-%d-%d", os.Getpid(), networks.Add(1)),
		containers:   map[*Node]*container{},
	}
	if _, err := docker(ctx, "version", "--format", "{{.Server.Version}}"); err != nil {
		return nil, fmt.Errorf("Docker cannot be used here: %w", err)
	}
	var err error
	if d.compose, err = findCompose(ctx); err != nil {
		return nil, err
	}
	if err := removeLeftovers(ctx); err != nil {
		return nil, err
	}
	d.clients = runner.NewProcesses(ctx)
	return d, nil
}

// Name implements Provider.
func (d *Docker) Name() string { return "docker" }

// Context implements Provider.
func (d *Docker) Context() context.Context { return d.clients.Context() }

// Links implements Provider.
func (d *Docker) Links() Links {
	if d.control == nil {
		return nil
	}
	return *d.control
}

// Prepare implements Provider.
func (d *Docker) Prepare(ctx context.Context, dir string, nodes []*Node) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	d.nodes, d.file = nodes, filepath.Join(dir, "docker-compose.yml")
	if err := d.plan(dir); err != nil {
		return err
	}
	if err := d.writeRelay(dir); err != nil {
		return err
	}
	if err := d.makeImages(ctx); err != nil {
		return err
	}
	if err := d.create(ctx); err != nil {
		return err
	}
	if err := d.attach(ctx, d.relay); err != nil {
		return err
	}
	return runner.Poll(ctx, "the relay", func() bool { return d.control.Healthy(ctx) == nil || d.Context().Err() != nil })
}

// plan gives each container a name and ports, and the nodes their addresses.
func (d *Docker) plan(dir string) error {
	var err error
	newContainer := func(name, log, program string, published int) *container {
		c := &container{name: name, id: d.project + "-" + name, log: log, program: program}
		if err == nil {
			c.ports, err = ports.Hold(published)
		}
		return c
	}
	d.relay = newContainer("relay", filepath.Join(dir, "relay.log"), d.relayProgram, 1)
	for _, n := range d.nodes {
		c := newContainer(n.Name, n.Home.Log(), n.Program, runner.HomePorts)
		c.lies = n.Lies()
		d.containers[n] = c
		if err != nil {
			return err
		}
		if err := n.ServeAt(ListenInContainer, c.ports, fmt.Sprintf("http://%s:%d", n.Name, rpcInContainer)); err != nil {
			return err
		}
	}
	return err
}

// writeRelay plans the links and configures the nodes and the relay with them.
func (d *Docker) writeRelay(dir string) error {
	d.control = &link.Control{URL: "http://" + d.relay.ports.Address(0)}
	config, err := RelayContainers(d.nodes, d.relay.name)
	if err != nil {
		return err
	}
	return config.Write(filepath.Join(dir, relayConfig))
}

// inOrder returns the nodes' containers, in the order of the nodes.
func (d *Docker) inOrder() []*container {
	all := make([]*container, 0, len(d.nodes))
	for _, n := range d.nodes {
		if c := d.containers[n]; c != nil { // Prepare may have failed before that
			all = append(all, c)
		}
	}
	return all
}

// create writes the compose file and runs compose to make the network and the named containers, or
// all of them.
func (d *Docker) create(ctx context.Context, services ...string) error {
	if err := d.writeCompose(); err != nil {
		return err
	}
	args := append(slices.Clone(d.compose[1:]), "--project-name", d.project, "--file", d.file, "up", "--no-start", "--no-build", "--no-deps")
	_, err := command(ctx, d.compose[0], append(args, services...)...)
	return err
}

// Start implements Provider.
func (d *Docker) Start(ctx context.Context, n *Node) error {
	c := d.containers[n]
	if n.Program != c.program { // an upgrade
		if err := d.images.build(ctx, []string{n.Program}); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		c.program, c.image = n.Program, d.images.of(n.Program)
		if err := d.create(ctx, c.name); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	// files that were made or changed since the last start belong to this process
	if uid, gid := user(); uid != os.Geteuid() {
		if err := runner.Own(n.Home.Dir, uid, gid); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return d.attach(ctx, c)
}

// attach starts a container and its client. It returns when the container runs, or has ended.
func (d *Docker) attach(ctx context.Context, c *container) error {
	c.ports.Release()
	client, err := d.clients.Start(runner.Spec{Name: c.name, Path: "docker", Args: []string{"start", "--attach", c.id}, Log: c.log, Ends: c.lies})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.client = client
	c.mu.Unlock()
	return runner.Poll(ctx, c.name+" to start", func() bool {
		select {
		case <-client.Done():
			return true
		default:
		}
		state, err := docker(ctx, "inspect", "--format", "{{.State.Running}}", c.id)
		return err == nil && state == "true"
	})
}

// Stop implements Provider.
func (d *Docker) Stop(ctx context.Context, n *Node, grace time.Duration) error {
	c := d.containers[n]
	c.mayEnd()
	if _, err := docker(ctx, "stop", "--time", strconv.Itoa(int(grace.Seconds())), c.id); err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	status, err := d.ended(ctx, c)
	if err == nil && status == killed {
		err = notInTime(c, grace)
	}
	return err
}

// killed is the exit status of a container that SIGKILL ended.
const killed = 128 + 9

// Kill implements Provider.
func (d *Docker) Kill(ctx context.Context, n *Node) error {
	c := d.containers[n]
	c.mayEnd()
	if _, err := docker(ctx, "kill", "--signal", "KILL", c.id); err != nil {
		// fails only if it has not ended by itself
		if running, _ := docker(ctx, "inspect", "--format", "{{.State.Running}}", c.id); running != "false" {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	_, err := d.ended(ctx, c)
	return err
}

// pauses is how often Pause tries.
const pauses = 5

// Pause implements Provider. The container runtime sometimes cannot freeze a process that reads or
// writes a busy disk. It then leaves the container running, and says so.
func (d *Docker) Pause(ctx context.Context, n *Node) (err error) {
	for range pauses {
		if err = d.tell(ctx, n, "pause"); err == nil || !strings.Contains(err.Error(), "unable to freeze") {
			return err
		}
	}
	return err
}

// Resume implements Provider.
func (d *Docker) Resume(ctx context.Context, n *Node) error { return d.tell(ctx, n, "unpause") }

// Disconnect implements Provider.
func (d *Docker) Disconnect(ctx context.Context, n *Node) error {
	return d.tell(ctx, n, "network", "disconnect", d.network())
}

// Connect implements Provider.
func (d *Docker) Connect(ctx context.Context, n *Node) error {
	return d.tell(ctx, n, "network", "connect", "--alias", n.Name, d.network())
}

func (d *Docker) tell(ctx context.Context, n *Node, args ...string) error {
	if _, err := docker(ctx, append(args, d.containers[n].id)...); err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	return nil
}

// network is the name that compose gives to the network "default".
func (d *Docker) network() string { return d.project + "_default" }

// MayEnd implements Provider.
func (d *Docker) MayEnd(n *Node) { d.containers[n].mayEnd() }

func (c *container) mayEnd() {
	if client := c.attached(); client != nil {
		client.MayEnd()
	}
}

// attached returns the client of the last start.
func (c *container) attached() *runner.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client
}

// Ended implements Provider.
func (d *Docker) Ended(ctx context.Context, n *Node) (status int, err error) {
	return d.ended(ctx, d.containers[n])
}

// ended waits until the client has ended, which is when the container has ended and its output is
// complete.
func (d *Docker) ended(ctx context.Context, c *container) (status int, err error) {
	client := c.attached()
	if client == nil {
		return 0, fmt.Errorf("%s was never started", c.name)
	}
	select {
	case <-client.Done():
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for the end of %s: %w", c.name, context.Cause(ctx))
	}
	text, err := docker(ctx, "inspect", "--format", "{{.State.ExitCode}}", c.id)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.name, err)
	}
	return strconv.Atoi(text)
}

// Close implements Provider.
func (d *Docker) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(d.Context()), closeTimeout, fmt.Errorf("Docker did not stop the network within %v", closeTimeout))
	defer cancel()
	all := d.inOrder()
	if d.relay != nil {
		all = append(all, d.relay)
	}
	for _, c := range all {
		c.mayEnd()
		if c.ports != nil {
			c.ports.Release()
		}
	}
	return errors.Join(d.endAll(ctx), removeProject(ctx, d.project), d.clients.Stop(closeGrace), removeOldImages(ctx))
}

// endAll ends the nodes cleanly, all at the same time, and returns an error for each honest one
// that had to be killed.
func (d *Docker) endAll(ctx context.Context) error {
	list := func(status string) ([]string, error) {
		names, err := docker(ctx, "ps", "--filter", "status="+status, "--filter", "label="+composeProject+"="+d.project, "--format", "{{.Names}}")
		return strings.Fields(names), err
	}
	paused, err := list("paused")
	if err != nil {
		return err
	}
	if len(paused) > 0 {
		if _, err := docker(ctx, append([]string{"unpause"}, paused...)...); err != nil {
			return err
		}
	}
	running, err := list("running")
	if err != nil || len(running) == 0 {
		return err
	}
	// The relay must run until the nodes have ended: some nodes need the others to end cleanly.
	if _, err := docker(ctx, append([]string{"stop", "--time", strconv.Itoa(int(closeGrace.Seconds()))}, running...)...); err != nil {
		return err
	}
	var errs []error
	for _, c := range d.inOrder() {
		if c.lies || !slices.Contains(running, c.id) {
			continue
		}
		status, err := d.ended(ctx, c)
		if err == nil && status == killed {
			err = notInTime(c, closeGrace)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func notInTime(c *container, grace time.Duration) error {
	return fmt.Errorf("%s did not end within %v of being asked to and was killed; its log: %s", c.name, grace, c.log)
}

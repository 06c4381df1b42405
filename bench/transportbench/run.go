package transportbench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/transport/rdma"
)

// Run runs the benchmark. It reports to progress, and always stops its processes.
func Run(ctx context.Context, o Options, progress *harness.Progress) (result *Result, err error) {
	err = harness.InFolder(ctx, progress, func(dir string) error {
		if o.Guest {
			result, err = runInGuest(ctx, o, dir, progress)
		} else {
			result, err = run(ctx, o, dir, progress)
		}
		return err
	})
	return result, err
}

// loopback is the address of both sides without a device.
const loopback = "127.0.0.1"

// ends are the addresses of the server and the client.
type ends struct {
	server, client string
	device         string // device names for the result
}

// choose selects devices. Without usable ones, absent is the reason, and both sides use loopback.
func choose(device string, ports []rdma.Port, err error) (_ ends, absent, failed error) {
	none := ends{server: loopback, client: loopback}
	if err != nil && device == "" {
		return none, err, nil
	}
	first, second, two := strings.Cut(device, ",")
	if !two {
		second = first
	}
	if err != nil {
		return none, nil, noDevice(first, err)
	}
	if device == "" {
		at := slices.IndexFunc(ports, func(p rdma.Port) bool { return p.Err == nil && len(p.Addrs) > 0 })
		if at < 0 {
			return none, fmt.Errorf("none of %d RDMA ports is up and has an address", len(ports)), nil
		}
		device = ports[at].Device
		first, second = device, device
	}
	e := ends{device: device}
	for _, side := range []struct {
		name string
		addr *string
	}{{first, &e.server}, {second, &e.client}} {
		if *side.addr, err = addressOf(side.name, ports); err != nil {
			return none, nil, err
		}
	}
	return e, nil, nil
}

// addressOf returns the address of a device, given as a name or as an address.
func addressOf(device string, ports []rdma.Port) (string, error) {
	// Accept any address: InfiniBand ports do not know theirs.
	if addr, err := netip.ParseAddr(device); err == nil {
		return addr.String(), nil
	}
	var names []string
	var why error
	for _, p := range ports {
		names = append(names, p.Device)
		if p.Device != device {
			continue
		}
		if why = p.Err; why == nil && len(p.Addrs) > 0 {
			return p.Addrs[0].String(), nil
		}
	}
	switch {
	case why != nil:
	case len(names) == 0:
		why = errors.New("this machine has none")
	default:
		why = fmt.Errorf("none of %q has that name and an IP address; on InfiniBand name the address of its interface", names)
	}
	return "", noDevice(device, why)
}

// noDevice returns the reason why a device cannot be used, and a hint.
func noDevice(device string, why error) error {
	return fmt.Errorf("no RDMA device %s: %w\nit takes a build with -tags rdma, libibverbs and an active device (docs/how-to/rdma.md); --guest runs with Soft-RoCE in a VM", device, why)
}

// Addresses returns the addresses of the two sides' devices: one or two that the flag names, or
// twice the first usable one.
func Addresses(device string) (server, client string, err error) {
	ports, err := rdma.Ports()
	e, absent, err := choose(device, ports, err)
	return e.server, e.client, errors.Join(absent, err)
}

// turn is one item of a round: a path, a size and a number of peers.
type turn struct {
	path        string
	size, peers int
	samples     []sample
}

// sample has the figures of one turn. Those of the reference are for both processes together.
type sample struct {
	bytes                   int64
	seconds                 float64
	server, client, machine float64 // CPU seconds; machine is negative if unknown
	events                  uint64  // of the side that had more
}

type running struct {
	o              Options
	ends           ends
	paths          []string
	server, client *harness.Process
	reference      string // path of the program; "": none
	turns          []*turn
	progress       *harness.Progress
}

func run(ctx context.Context, o Options, dir string, progress *harness.Progress) (_ *Result, err error) {
	r := &running{o: o, progress: progress, paths: []string{pathTCP, pathTLS}}
	ports, why := rdma.Ports()
	r.ends, why, err = choose(o.Devices, ports, why)
	if err != nil {
		return nil, err
	}
	var noReference error
	if why == nil {
		r.paths = append(r.paths, pathRDMA)
		if r.reference, noReference = reference(ctx, o.Reference, dir); noReference == nil {
			r.paths = append(r.paths, pathReference)
		}
	}
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	defer r.server.End()
	defer r.client.End()
	if err := r.measure(ctx); err != nil {
		return nil, err
	}
	result := newResult(o, r.turns)
	result.Device = r.ends.device
	if why != nil {
		result.NoRDMA = why.Error()
	}
	if noReference != nil {
		result.NoReference = noReference.Error()
	}
	return result, nil
}

// start starts the two sides.
func (r *running) start(ctx context.Context) (err error) {
	calls := slices.DeleteFunc(slices.Clone(r.paths), func(p string) bool { return p == pathReference })
	b := begin{Role: roleServer, Host: r.ends.server, Paths: calls, Largest: slices.Max(r.o.Sizes)}
	var a answer
	if r.server, err = harness.StartRunning(ctx, ChildName, "the server", b, &a); err != nil {
		return err
	}
	b.Role, b.Host, b.Servers = roleClient, r.ends.client, a.Servers
	if r.client, err = harness.StartRunning(ctx, ChildName, "the client", b, nil); err != nil {
		r.server.End()
	}
	return err
}

// measure runs all turns of all rounds.
func (r *running) measure(ctx context.Context) error {
	for _, size := range r.o.Sizes {
		for _, peers := range r.o.Peers {
			for _, path := range r.paths {
				if path != pathReference || besideReference(size, r.o.Sizes) {
					r.turns = append(r.turns, &turn{path: path, size: size, peers: peers})
				}
			}
		}
	}
	r.progress.Begin("answers", "turns", r.o.Rounds*len(r.turns))
	for round := range r.o.Rounds {
		for _, peers := range r.o.Peers {
			r.progress.Working(harness.Count(peers, "peer"))
			if err := r.client.Ask(request{Op: opConnect, Peers: peers}, nil); err != nil {
				return err
			}
			for i := range r.o.Sizes { // each round starts with a different size and path
				size := r.o.Sizes[(round+i)%len(r.o.Sizes)]
				of := slices.DeleteFunc(slices.Clone(r.turns), func(t *turn) bool { return t.peers != peers || t.size != size })
				for k := range of {
					t := of[(round+i+k)%len(of)]
					s, err := r.sample(ctx, t)
					if err != nil {
						return fmt.Errorf("%s, responses of %s, %s: %w", t.path, harness.SizeText(t.size), harness.Count(t.peers, "peer"), err)
					}
					t.samples = append(t.samples, s)
					r.progress.Add(1)
				}
			}
		}
	}
	return nil
}

// sample runs one turn.
func (r *running) sample(ctx context.Context, t *turn) (s sample, err error) {
	if t.path == pathReference {
		return runReference(ctx, r.reference, r.ends, min(t.size, maxReference), r.o.MiB<<20)
	}
	fetch := request{Op: opFetch, Path: t.path, Size: t.size, Flight: flightOf(t.size, t.peers), Limit: r.o.Limit}
	// Fetch one response per peer first, which touches memory and opens windows.
	fetch.Bytes = int64(t.size * t.peers)
	if err := r.client.Ask(fetch, nil); err != nil {
		return s, err
	}
	var before, after [2]used
	if before, err = r.used(); err != nil {
		return s, err
	}
	fetch.Bytes = max(fetch.Bytes, int64(r.o.MiB)<<20)
	var a answer
	if err := r.client.Ask(fetch, &a); err != nil {
		return s, err
	}
	if after, err = r.used(); err != nil {
		return s, err
	}
	if a.Bytes == 0 {
		return s, errors.New("no response arrived within the limit: raise --limit")
	}
	return sample{
		bytes: a.Bytes, seconds: a.Seconds, machine: a.Machine, server: after[0].CPU - before[0].CPU, client: after[1].CPU - before[1].CPU,
		events: max(after[0].Events-before[0].Events, after[1].Events-before[1].Events),
	}, nil
}

// used returns what both sides have used, the server first.
func (r *running) used() (both [2]used, err error) {
	for i, p := range []*harness.Process{r.server, r.client} {
		var a answer
		if err := p.Ask(request{Op: opUsed}, &a); err != nil {
			return both, err
		}
		both[i] = a.Used
	}
	return both, nil
}

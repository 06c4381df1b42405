package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// Supported reports whether this program was built with RDMA.
const Supported = verbs.Supported

// Verdict says what a finding means for RDMA paths.
type Verdict string

// Verdicts.
const (
	Good    Verdict = "ok"
	Slower  Verdict = "slower"  // paths work, but slower than they could
	Missing Verdict = "missing" // no path is possible
)

// Finding is the result of checking one prerequisite of RDMA paths.
type Finding struct {
	What    string  `json:"what"`
	Verdict Verdict `json:"verdict"`
	Text    string  `json:"text"`
	// Fix is the remedy; "" if the verdict is Good.
	Fix string `json:"fix,omitempty"`
}

// CheckOptions configure a Check.
type CheckOptions struct {
	// Addrs are the possible local addresses of connections, the preferred ones first.
	Addrs []netip.Addr
	// Memory is the configured limit of registered memory, in bytes, and Peers the number of peers
	// that it is divided among.
	Memory int64
	Peers  int

	list func() ([]verbs.Info, error)
	open func(netip.Addr, int) (verbs.Device, error)
	read func(name string) ([]byte, error)
}

// Check examines the prerequisites of RDMA paths on this host in order of dependency: the program,
// the library and the kernel, devices, a device with an address of this host, memory. It stops at
// the first missing prerequisite. It opens a device and registers the memory of one path, and
// releases both.
func Check(o CheckOptions) []Finding {
	if o.list == nil {
		o.list, o.open, o.read = verbs.List, verbs.Open, os.ReadFile
	}
	c := &checker{CheckOptions: o}
	if c.devices() && c.address() {
		c.memory()
		c.pages()
	}
	return c.found
}

// Able returns nil if a path is possible, otherwise FirstMissing.
func Able(found []Finding) error {
	if e := FirstMissing(found); e != nil {
		return e
	}
	return nil
}

// FirstMissing returns the first finding that rules out a path; nil if a path is possible.
func FirstMissing(found []Finding) *MissingError {
	for _, f := range found {
		if f.Verdict == Missing {
			return &MissingError{f}
		}
	}
	return nil
}

// MissingError reports the first missing prerequisite.
type MissingError struct{ Finding Finding }

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Finding.What, e.Finding.Text, e.Finding.Fix)
}

// Public returns the error without the remedy and without addresses of this host.
func (e *MissingError) Public() string {
	switch e.Finding.What {
	case whatAddress:
		return "address: no device has an address of this host, or the device cannot be opened"
	case whatMemory:
		return "memory: the memory of a path cannot be registered"
	}
	return e.Finding.What + ": " + e.Finding.Text
}

// Values of Finding.What whose texts can contain addresses of this host.
const (
	whatAddress = "address"
	whatMemory  = "memory"
)

type checker struct {
	CheckOptions
	found []Finding
	ports []verbs.Info
	addr  netip.Addr // an address of this host that a port has
}

func (c *checker) add(what string, v Verdict, fix, format string, args ...any) {
	c.found = append(c.found, Finding{what, v, fmt.Sprintf(format, args...), fix})
}

// Remedies for missing prerequisites.
const (
	fixBuild   = "run starlingd-rdma; build it on Linux with `make build-rdma`, a C compiler and libibverbs-dev"
	fixLibrary = "install libibverbs1 and ibverbs-providers, and load the kernel modules: modprobe ib_uverbs, and the device's module (mlx5_ib, irdma, bnxt_re, …)"
	fixDevice  = "load the device's module (rdma link show lists devices); to try without hardware: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
	fixOpen    = "give the node's user access to /dev/infiniband/uverbs* (mode 0666 by a udev rule, or the file's group; in a container, --device /dev/infiniband)"
	fixPort    = "connect the port and bring its interface up (ip link set DEV up)"
	fixAddress = "give the device's interface an address at which peers reach the transport (p2p.external_address, join.peers); RoCE v1 and iWARP are not supported"
	fixMemory  = "raise transport.rdma_memory, or allow fewer peers: name them in transport.rdma_peers instead of a network"
	fixMemlock = "raise the limit of locked memory to transport.rdma_memory or more: LimitMEMLOCK=infinity in the systemd unit, docker run --ulimit memlock=-1, ulimit -l unlimited"
	fixMTU     = "set an MTU of 4200 or more (9000 is usual) on the interface and all switches in between, on both sides"
	fixPages   = "reserve huge pages: sysctl vm.nr_hugepages=%d"
)

// devices reports whether any device is usable.
func (c *checker) devices() bool {
	var err error
	c.ports, err = c.list()
	if errors.Is(err, verbs.ErrNotBuilt) {
		c.add("program", Missing, fixBuild, "this build has no RDMA")
		return false
	}
	c.add("program", Good, "", "built with RDMA")
	if err != nil {
		c.add("library", Missing, fixLibrary, "%v", err)
		return false
	}
	c.add("library", Good, "", "libibverbs and the kernel modules are present")
	if len(c.ports) == 0 {
		c.add("device", Missing, fixDevice, "none found")
		return false
	}
	for _, p := range c.ports {
		what := fmt.Sprintf("device %s, port %d", p.Device, p.Port)
		switch {
		case p.Err != nil && p.State == "":
			c.add(what, Missing, fixOpen, "%v", p.Err)
		case p.Err != nil:
			c.add(what, Missing, fixPort, "%v", p.Err)
		case p.MTU < 4096:
			c.add(what, Slower, fixMTU, "%s, MTU of %d bytes: a packet costs as much as one of 4096 bytes", p.State, p.MTU)
		default:
			c.add(what, Good, "", "%s, MTU of %d bytes", p.State, p.MTU)
		}
	}
	// One usable device is enough.
	if slices.ContainsFunc(c.ports, usable) {
		for i := range c.found {
			if c.found[i].Verdict == Missing {
				c.found[i].Verdict = Slower
			}
		}
		return true
	}
	return false
}

func usable(p verbs.Info) bool { return p.Err == nil }

// address looks for a port that has one of the addresses.
func (c *checker) address() bool {
	var why error
	for _, a := range c.Addrs {
		d, err := c.open(a, 16)
		if err != nil {
			why = errors.Join(why, err)
			continue
		}
		port := d.Port()
		if err := d.Close(); err != nil {
			c.add(whatAddress, Missing, fixOpen, "%s: %v", port.Device, err)
			return false
		}
		c.addr = a
		c.add(whatAddress, Good, "", "%s is the GID %s of %s", a, port.GID, port.Device)
		return true
	}
	var gids []string
	for _, p := range c.ports {
		for _, g := range p.GIDs {
			gids = append(gids, g.String())
		}
	}
	if why == nil || errors.Is(why, verbs.ErrNoDevice) {
		c.add(whatAddress, Missing, fixAddress, "no device has an address of the transport: the transport can use %v, the devices have %v", c.Addrs, gids)
	} else {
		c.add(whatAddress, Missing, fixOpen, "%v", why)
	}
	return false
}

// memory registers as much memory as a path needs.
func (c *checker) memory() {
	units := unitsFor(c.Memory, c.Peers)
	sizes := lendingSizes(units)
	mib := (sizes.Lent + sizes.Own) >> 20
	err := func() error {
		d, err := c.open(c.addr, 256)
		if err != nil {
			return err
		}
		q, err := d.NewQueue(sizes)
		if err == nil {
			err = q.Close()
		}
		return errors.Join(err, d.Close())
	}()
	limit := c.field("/proc/self/limits", "Max locked memory")
	if err != nil {
		c.add(whatMemory, Missing, fixMemlock, "cannot register %d MiB for a path (limit of locked memory: %s): %v", mib, limit, err)
		return
	}
	if n, e := strconv.ParseInt(limit, 10, 64); e == nil && n < c.Memory && os.Geteuid() != 0 {
		c.add(whatMemory, Slower, fixMemlock, "one path fits, but the limit of locked memory, %d bytes, is below transport.rdma_memory, %d bytes: further peers use TLS", n, c.Memory)
		return
	}
	if fits := c.Memory / perPeer(units); fits < int64(c.Peers) {
		c.add(whatMemory, Slower, fixMemory, "registered %d MiB for a path, but transport.rdma_memory has room for %d of %d peers: further peers use TLS", mib, fits, c.Peers)
		return
	}
	c.add(whatMemory, Good, "", "registered %d MiB for a path; limit of locked memory: %s", mib, limit)
}

// pages checks the number of free 2 MiB huge pages.
func (c *checker) pages() {
	const page = 2 << 20
	need := (c.Memory + page - 1) / page
	free, err := strconv.ParseInt(c.field("/proc/meminfo", "HugePages_Free:"), 10, 64)
	if size := c.field("/proc/meminfo", "Hugepagesize:"); err != nil || size != "2048" {
		free = 0
	}
	if free < need {
		c.add("huge pages", Slower, fmt.Sprintf(fixPages, need), "%d huge pages of 2 MiB are free, all paths together can use %d", free, need)
		return
	}
	c.add("huge pages", Good, "", "%d huge pages of 2 MiB are free", free)
}

// field returns the first word after name in the line of a file that begins with name; "?" if there
// is none.
func (c *checker) field(file, name string) string {
	text, err := c.read(file)
	if err != nil {
		return "?"
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, name); found {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return "?"
}

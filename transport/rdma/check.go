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

// Verdict is what a finding means for paths.
type Verdict string

// Verdicts.
const (
	Good    Verdict = "ok"
	Slower  Verdict = "slower"  // paths work; they would be faster otherwise
	Lacking Verdict = "lacking" // no path is made
)

// Finding is one thing that paths need.
type Finding struct {
	What    string  `json:"what"`
	Verdict Verdict `json:"verdict"`
	Text    string  `json:"text"`
	// Mend is what to do; "" if the verdict is Good.
	Mend string `json:"mend,omitempty"`
}

// CheckOptions say what is looked at.
type CheckOptions struct {
	// Addrs are the possible addresses of this host's connections, the preferred ones first.
	Addrs []netip.Addr
	// Memory is the limit of registered memory that is configured, in bytes.
	Memory int64

	list func() ([]verbs.Info, error)
	open func(netip.Addr, int) (verbs.Device, error)
	read func(name string) ([]byte, error)
}

// Check looks at what paths need on this host, in the order in which they need it: the program, the
// library and the kernel, devices, one that has an address of this host, memory. What comes after
// something that lacks is left out. It opens a device and registers memory for one path, and
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

// Able returns nil if a path can be made, else FirstLacking.
func Able(found []Finding) error {
	if e := FirstLacking(found); e != nil {
		return e
	}
	return nil
}

// FirstLacking returns why no path can be made; nil: it can.
func FirstLacking(found []Finding) *LackingError {
	for _, f := range found {
		if f.Verdict == Lacking {
			return &LackingError{f}
		}
	}
	return nil
}

// LackingError is the first thing that lacks, because of which no path can be made.
type LackingError struct{ Finding Finding }

func (e *LackingError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Finding.What, e.Finding.Text, e.Finding.Mend)
}

// Public is the error without what to do, and without addresses of this host.
func (e *LackingError) Public() string {
	switch e.Finding.What {
	case whatAddress:
		return "address: no device has one of this host, or that device cannot be opened"
	case whatMemory:
		return "memory: what a path needs cannot be registered"
	}
	return e.Finding.What + ": " + e.Finding.Text
}

// The Finding.What of texts that can name addresses.
const (
	whatAddress = "address"
	whatMemory  = "memory"
)

type checker struct {
	CheckOptions
	found []Finding
	ports []verbs.Info
	addr  netip.Addr // that a port has
}

func (c *checker) add(what string, v Verdict, mend, format string, args ...any) {
	c.found = append(c.found, Finding{what, v, fmt.Sprintf(format, args...), mend})
}

// What to do, by what lacks.
const (
	mendBuild   = "run starlingd-rdma, which `make build-rdma` makes on Linux with a C compiler and libibverbs-dev"
	mendLibrary = "install libibverbs1 and ibverbs-providers, and load the kernel's modules: modprobe ib_uverbs, and that of the device (mlx5_ib, irdma, bnxt_re, …)"
	mendDevice  = "load the device's module (rdma link show lists devices); to try without hardware: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
	mendOpen    = "let the user of the node open /dev/infiniband/uverbs* (mode 0666 by a udev rule, or its group; in a container --device /dev/infiniband)"
	mendPort    = "connect the port and set its interface up (ip link set DEV up)"
	mendAddress = "give the interface of the device an address, and let peers reach the transport there (p2p.external_address, join.peers); RoCE v1 and iWARP do not do"
	mendMemlock = "raise the limit of locked memory to transport.rdma_memory or more: LimitMEMLOCK=infinity in the systemd unit, docker run --ulimit memlock=-1, ulimit -l unlimited"
	mendMTU     = "set an MTU of 4200 or more (9000 is usual) on the interface and all switches between, on both sides"
	mendPages   = "reserve them: sysctl vm.nr_hugepages=%d"
)

// devices looks for devices that can be opened.
func (c *checker) devices() bool {
	var err error
	c.ports, err = c.list()
	if errors.Is(err, verbs.ErrNotBuilt) {
		c.add("program", Lacking, mendBuild, "this build has no RDMA")
		return false
	}
	c.add("program", Good, "", "built with RDMA")
	if err != nil {
		c.add("library", Lacking, mendLibrary, "%v", err)
		return false
	}
	c.add("library", Good, "", "libibverbs and the kernel's modules are there")
	if len(c.ports) == 0 {
		c.add("device", Lacking, mendDevice, "there is none")
		return false
	}
	for _, p := range c.ports {
		what := fmt.Sprintf("device %s, port %d", p.Device, p.Port)
		switch {
		case p.Err != nil && p.State == "":
			c.add(what, Lacking, mendOpen, "%v", p.Err)
		case p.Err != nil:
			c.add(what, Lacking, mendPort, "%v", p.Err)
		case p.MTU < 4096:
			c.add(what, Slower, mendMTU, "%s, packets of %d bytes: each costs as much as one of 4096", p.State, p.MTU)
		default:
			c.add(what, Good, "", "%s, packets of %d bytes", p.State, p.MTU)
		}
	}
	// One that can be used is enough.
	if slices.ContainsFunc(c.ports, usable) {
		for i := range c.found {
			if c.found[i].Verdict == Lacking {
				c.found[i].Verdict = Slower
			}
		}
		return true
	}
	return false
}

func usable(p verbs.Info) bool { return p.Err == nil }

// address looks for a port that has an address of this host.
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
			c.add(whatAddress, Lacking, mendOpen, "%s: %v", port.Device, err)
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
		c.add(whatAddress, Lacking, mendAddress, "no device has an address of the transport: that can be %v, the devices have %v", c.Addrs, gids)
	} else {
		c.add(whatAddress, Lacking, mendOpen, "%v", why)
	}
	return false
}

// memory registers what a path needs.
func (c *checker) memory() {
	const lent, own = 128 * unit, bodies * bodyUnit
	err := func() error {
		d, err := c.open(c.addr, 256)
		if err != nil {
			return err
		}
		q, err := d.NewQueue(verbs.Sizes{Lent: lent, Own: own, Writes: bodies + 1, Receives: 129})
		if err == nil {
			err = q.Close()
		}
		return errors.Join(err, d.Close())
	}()
	limit := c.field("/proc/self/limits", "Max locked memory")
	if err != nil {
		c.add(whatMemory, Lacking, mendMemlock, "%d MiB for a path cannot be registered (limit of locked memory: %s): %v", (lent+own)>>20, limit, err)
		return
	}
	if n, e := strconv.ParseInt(limit, 10, 64); e == nil && n < c.Memory && os.Geteuid() != 0 {
		c.add(whatMemory, Slower, mendMemlock, "a path can be registered; the limit of locked memory is %d bytes, below the %d of transport.rdma_memory: further peers come over TLS", n, c.Memory)
		return
	}
	c.add(whatMemory, Good, "", "%d MiB for a path were registered; limit of locked memory: %s", (lent+own)>>20, limit)
}

// pages looks for huge pages of 2 MiB.
func (c *checker) pages() {
	const page = 2 << 20
	need := (c.Memory + page - 1) / page
	free, err := strconv.ParseInt(c.field("/proc/meminfo", "HugePages_Free:"), 10, 64)
	if size := c.field("/proc/meminfo", "Hugepagesize:"); err != nil || size != "2048" {
		free = 0
	}
	if free < need {
		c.add("huge pages", Slower, fmt.Sprintf(mendPages, need), "%d of 2 MiB are free, all paths together can use %d", free, need)
		return
	}
	c.add("huge pages", Good, "", "%d of 2 MiB are free", free)
}

// field returns the word after a name with which a line of a file begins; "?" if there is none.
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

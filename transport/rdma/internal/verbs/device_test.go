//go:build cgo && linux && rdma

package verbs_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs/verbstest"
)

// guest skips a test without Soft-RoCE devices. These tests run in transport/rdma/guest.
func guest(t *testing.T) (addrs [2]netip.Addr) {
	t.Helper()
	if os.Getenv("RDMA_GUEST") == "" {
		t.Skip("requires the VM of make test-rdma")
	}
	return [2]netip.Addr{netip.MustParseAddr(os.Getenv("RDMA_ADDR0")), netip.MustParseAddr(os.Getenv("RDMA_ADDR1"))}
}

// resources returns the kernel's counts of devices, queue pairs and regions.
func resources(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show").CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// TestMain requires that the tests leave no resources in the devices.
func TestMain(m *testing.M) {
	before := held()
	status := m.Run()
	if after := held(); after != before {
		fmt.Printf("before the tests:\n%safter them:\n%s", before, after)
		status = 1
	}
	os.Exit(status)
}

// held returns the resources that processes hold in the devices of the VM; "" elsewhere.
func held() string {
	if os.Getenv("RDMA_GUEST") == "" {
		return ""
	}
	out, err := exec.Command("rdma", "resource", "show").CombinedOutput()
	return fmt.Sprintln(string(out), err)
}

func open(t testing.TB, addr netip.Addr, completions int) verbs.Device {
	t.Helper()
	d, err := verbs.Open(addr, completions)
	require.NoError(t, err)
	return d
}

func TestSoftRoCE(t *testing.T) {
	addrs := guest(t)
	before := resources(t)
	for name, pair := range map[string][2]netip.Addr{"over the cable": addrs, "within a device": {addrs[0], addrs[0]}} {
		t.Run(name, func(t *testing.T) {
			verbstest.Run(t, func(tb testing.TB, completions int) (verbs.Device, verbs.Device) {
				return open(tb, pair[0], completions), open(tb, pair[1], completions)
			})
		})
	}
	require.Equal(t, before, resources(t), "nothing leaks")
}

func TestList(t *testing.T) {
	addrs := guest(t)
	ports, err := verbs.List()
	require.NoError(t, err)
	require.Len(t, ports, 2)
	for i, p := range ports {
		require.NoError(t, p.Err)
		require.Equal(t, "active", p.State)
		require.Contains(t, p.GIDs, verbs.GID(addrs[i].As16()))
	}
}

func TestNoSuchAddress(t *testing.T) {
	guest(t)
	_, err := verbs.Open(netip.MustParseAddr("192.0.2.1"), 16)
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}

// TestSendTooLong: a message longer than the peer's receive buffers breaks the queue pair, and
// nothing else.
func TestSendTooLong(t *testing.T) {
	addrs := guest(t)
	sizes := verbs.Sizes{Own: 1 << 12, Lent: 1 << 12, Writes: 4, Receives: 4}
	from, to := open(t, addrs[0], 64), open(t, addrs[1], 64)
	for _, long := range []bool{true, false} {
		left, err := from.NewQueue(sizes)
		require.NoError(t, err)
		right, err := to.NewQueue(sizes)
		require.NoError(t, err)
		require.NoError(t, right.Receive(4))
		require.NoError(t, left.Connect(right.Local()))
		require.NoError(t, right.Connect(left.Local()))
		length := verbs.MaxMessage
		if long {
			length *= 3
		}
		require.NoError(t, verbs.SendLong(left, length))
		batch := make([]verbs.Completion, verbs.MaxBatch)
		n, err := from.Wait(batch)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		t.Log(batch[0].Err)
		require.Equal(t, long, batch[0].Err != nil)
		require.NoError(t, left.Close())
		require.NoError(t, right.Close())
	}
	require.NoError(t, from.Close())
	require.NoError(t, to.Close())
}

func TestPortIsDown(t *testing.T) {
	addrs := guest(t)
	wire(t, "down")
	defer wire(t, "up")
	_, err := verbs.Open(addrs[0], 16)
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}

func wire(t *testing.T, what ...string) {
	t.Helper()
	out, err := exec.Command("rdma-wire", what...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestCut: a sender learns that there are no acknowledgements, and new queues work after the
// repair.
func TestCut(t *testing.T) {
	addrs := guest(t)
	before := resources(t)
	l, r := open(t, addrs[0], 64), open(t, addrs[1], 64)
	small := verbs.Sizes{Lent: 4096, Own: 4096, Writes: 2, Receives: 2}
	for _, cut := range []bool{true, false} {
		a, err := l.NewQueue(small)
		require.NoError(t, err)
		b, err := r.NewQueue(small)
		require.NoError(t, err)
		require.NoError(t, b.Receive(2))
		require.NoError(t, b.Connect(a.Local()))
		require.NoError(t, a.Connect(b.Local()))
		if cut {
			wire(t, "cut")
		}
		_, address, key := b.Lent()
		require.NoError(t, a.Write([]verbs.Write{{Length: 100, To: address, Key: key}}))
		batch := make([]verbs.Completion, 1)
		_, err = l.Wait(batch)
		require.NoError(t, err)
		require.Equal(t, cut, batch[0].Err != nil, "%v", batch[0].Err)
		if cut {
			wire(t, "repair")
		}
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
	require.NoError(t, l.Close())
	require.NoError(t, r.Close())
	require.Equal(t, before, resources(t), "nothing leaks")
}

// TestUnprivileged repeats some tests as a user who is subject to limits.
func TestUnprivileged(t *testing.T) {
	guest(t)
	run := func(shell string) string {
		// Not as root: root is not subject to the limits, and can open every file.
		out, _ := exec.Command("su", "nobody", "-s", "/bin/sh", "-c", shell).CombinedOutput()
		return string(out)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	// The user nobody cannot enter /root.
	binary, err := os.ReadFile(self)
	require.NoError(t, err)
	const copied = "/tmp/verbs.test"
	require.NoError(t, os.MkdirAll("/tmp", 0o777))
	require.NoError(t, os.WriteFile(copied, binary, 0o755))
	defer os.Remove(copied)
	again := "cd /; " + copied + " -test.run '^TestAsNobody$' -test.v"
	require.Contains(t, run("ulimit -l 256; "+again), "ulimit -l")

	devices, err := os.ReadDir("/dev/infiniband")
	require.NoError(t, err)
	for _, d := range devices {
		if strings.HasPrefix(d.Name(), "uverbs") {
			require.NoError(t, os.Chmod("/dev/infiniband/"+d.Name(), 0o600))
			defer os.Chmod("/dev/infiniband/"+d.Name(), 0o666)
		}
	}
	require.Contains(t, run(again), "/dev/infiniband/uverbs")
}

// TestAsNobody prints how a queue of 1 MiB fails. TestUnprivileged runs it.
func TestAsNobody(t *testing.T) {
	addrs := guest(t)
	if os.Getuid() == 0 {
		t.Skip("TestUnprivileged runs it")
	}
	d, err := verbs.Open(addrs[0], 64)
	if err != nil {
		t.Log(err)
		require.ErrorIs(t, err, verbs.ErrNoDevice)
		return
	}
	_, err = d.NewQueue(verbs.Sizes{Lent: 1 << 20, Own: 1 << 20, Writes: 2, Receives: 2})
	t.Log(err)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.NoError(t, d.Close())
}

// TestNoDevices runs on hosts without InfiniBand, such as those of developers.
func TestNoDevices(t *testing.T) {
	if os.Getenv("RDMA_GUEST") != "" {
		t.Skip("there are devices")
	}
	_, err := verbs.Open(netip.MustParseAddr("127.0.0.1"), 16)
	t.Log(err)
	require.Error(t, err)
}

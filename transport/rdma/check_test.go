package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs/verbstest"
)

// full is an in-memory device on which nothing can be registered.
type full struct{ verbs.Device }

func (full) NewQueue(verbs.Sizes) (verbs.Queue, error) {
	return nil, fmt.Errorf("ibv_reg_mr: %w", syscall.ENOMEM)
}

// TestCheck: the first missing prerequisite is reported with a remedy, and the checks stop there.
func TestCheck(t *testing.T) {
	memory := new(verbstest.Fabric)
	active := verbs.Info{Device: "rxe0", Port: 1, State: "active", MTU: 4096, GIDs: []verbs.GID{addrs[0].As16()}}
	port := func(change func(*verbs.Info)) func() ([]verbs.Info, error) {
		i := active
		if change != nil {
			change(&i)
		}
		return func() ([]verbs.Info, error) { return []verbs.Info{i}, nil }
	}
	files := func(locked string, pages int) func(string) ([]byte, error) {
		return func(name string) ([]byte, error) {
			if name == "/proc/meminfo" {
				return fmt.Appendf(nil, "MemFree: 3 kB\nHugePages_Free:    %d\nHugepagesize:    2048 kB\n", pages), nil
			}
			return fmt.Appendf(nil, "Limit Soft Hard\nMax locked memory         %s     unlimited            bytes\n", locked), nil
		}
	}
	noDevice := func(netip.Addr, int) (verbs.Device, error) { return nil, verbs.ErrNoDevice }
	for name, c := range map[string]struct {
		list func() ([]verbs.Info, error)
		open func(netip.Addr, int) (verbs.Device, error)
		read func(string) ([]byte, error)
		last Finding // of the findings: its text and remedy contain these
		able bool
	}{
		"everything": {last: Finding{"huge pages", Good, "200 huge pages of 2 MiB are free", ""}, able: true},
		"not built": {
			list: func() ([]verbs.Info, error) { return nil, verbs.ErrNotBuilt },
			last: Finding{"program", Missing, "this build has no RDMA", "starlingd-rdma"},
		},
		"no library": {
			list: func() ([]verbs.Info, error) { return nil, fmt.Errorf("libibverbs: %w", errors.ErrUnsupported) },
			last: Finding{"library", Missing, "libibverbs", "libibverbs1"},
		},
		"no device": {
			list: func() ([]verbs.Info, error) { return nil, nil },
			last: Finding{"device", Missing, "none", "rdma_rxe"},
		},
		"no permission": {
			list: port(func(i *verbs.Info) { i.Err, i.State = syscall.EACCES, "" }),
			last: Finding{"device rxe0, port 1", Missing, "permission denied", "uverbs"},
		},
		"port down": {
			list: port(func(i *verbs.Info) { i.Err, i.State = errors.New("port 1 of rxe0 is down"), "down" }),
			last: Finding{"device rxe0, port 1", Missing, "is down", "ip link set"},
		},
		"no GID": {
			open: noDevice,
			last: Finding{"address", Missing, "the transport can use [10.7.0.1], the devices have [10.7.0.1]", "external_address"},
		},
		"device that cannot be opened": {
			open: func(netip.Addr, int) (verbs.Device, error) { return nil, syscall.EACCES },
			last: Finding{"address", Missing, "permission denied", "uverbs"},
		},
		"little locked memory": {
			open: func(a netip.Addr, n int) (verbs.Device, error) {
				d, err := memory.Open(a, n)
				return full{d}, err
			},
			read: files("65536", 200),
			last: Finding{"huge pages", Good, "", ""},
		},
		"no huge pages": {
			read: files("unlimited", 0),
			last: Finding{"huge pages", Slower, "0 huge pages of 2 MiB are free, all paths together can use 128", "vm.nr_hugepages=128"},
			able: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := CheckOptions{Addrs: addrs[:1], Memory: 256 << 20, list: c.list, open: c.open, read: c.read}
			if o.list == nil {
				o.list = port(nil)
			}
			if o.open == nil {
				o.open = memory.Open
			}
			if o.read == nil {
				o.read = files("unlimited", 200)
			}
			found := Check(o)
			last := found[len(found)-1]
			require.Equal(t, c.last.What, last.What)
			require.Equal(t, c.last.Verdict, last.Verdict, last.Text)
			require.Contains(t, last.Text, c.last.Text)
			require.Contains(t, last.Fix, c.last.Fix)
			require.Equal(t, c.able, Able(found) == nil, "%+v", found)
			if e := FirstMissing(found); e != nil {
				require.NotContains(t, e.Public(), addrs[0].String(), "the status page may be public")
				require.Contains(t, e.Public(), e.Finding.What)
			}
			for _, f := range found {
				require.Equal(t, f.Verdict == Good, f.Fix == "", "%+v", f)
			}
			require.Zero(t, memory.Queues(), "nothing stays open")
		})
	}
	found := Check(CheckOptions{Addrs: addrs[:1], list: port(func(i *verbs.Info) { i.MTU = 1024 }), open: func(a netip.Addr, n int) (verbs.Device, error) {
		d, err := memory.Open(a, n)
		return full{d}, err
	}, read: files("65536", 0)})
	require.Equal(t, Slower, found[2].Verdict)
	require.Contains(t, found[2].Fix, "MTU of 4200")
	require.Equal(t, Missing, found[4].Verdict)
	require.Contains(t, found[4].Text, "limit of locked memory: 65536")
	require.ErrorContains(t, Able(found), "LimitMEMLOCK=infinity")

	found = Check(CheckOptions{Addrs: addrs[:1], Memory: 256 << 20, Peers: 26, list: port(nil), open: memory.Open, read: files("unlimited", 200)})
	require.NoError(t, Able(found))
	require.Equal(t, Slower, found[4].Verdict)
	require.Contains(t, found[4].Text, "registered 6 MiB for a path, but transport.rdma_memory has room for 25 of 26 peers")
	require.Contains(t, found[4].Fix, "transport.rdma_memory")
}

// TestReasons: every error has a short name, and that is one of Reasons.
func TestReasons(t *testing.T) {
	for want, why := range map[string]error{
		"not_supported": verbs.ErrNotBuilt, "no_device": fmt.Errorf("x: %w", verbs.ErrNoDevice), "memory": ErrMemory,
		"stalled": fmt.Errorf("%w: no greeting", ErrStalled), "device": errors.New("the device: flushed"),
	} {
		require.Equal(t, want, Reason(why))
		require.Contains(t, Reasons(), want)
	}
}

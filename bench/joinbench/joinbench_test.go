package joinbench

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
)

func TestPrint(t *testing.T) {
	r := &Result{Blocks: 10, BlockBytes: 1 << 20, Rounds: 3, TCPS: 2, BlocksyncS: 8, Blocksync500S: 4}
	r.judge()
	require.Len(t, r.Targets, 2)
	var out bytes.Buffer
	r.Print(&out)
	require.Contains(t, out.String(), "RDMA was not measured")
	require.Contains(t, out.String(), "met       a join over TCP at most half of the time of block sync: 0.25×")
	require.Contains(t, out.String(), "met       a join over TCP at most the time of block sync at 500 MB/s: 0.5×")
	seconds, share := 1.5, 0.8
	r.RDMAS, r.RDMACPUS, r.RDMACPUPeak, r.RDMAShare = &seconds, &seconds, &seconds, &share
	out.Reset()
	r.Print(&out)
	require.Contains(t, out.String(), "over the transport, RDMA       1.50 s")
	require.Contains(t, out.String(), "80 % of the blocks came over RDMA")
}

// The figures are medians; the samples are of the round with the median time.
func TestWay(t *testing.T) {
	round := func(seconds, user, kernel float64) joined {
		return joined{seconds: seconds, samples: []harness.CPUSample{{}, {At: seconds, User: user, Kernel: kernel}}}
	}
	way := newWay(RDMA, []joined{round(4, 8, 2), round(2, 1, 1), round(3, 9, 3)})
	require.Equal(t, 3.0, way.Samples[1].At)
	require.InDelta(t, 3, way.Seconds, 1e-9)
	require.InDelta(t, 10, way.CPUS, 1e-9)
	require.InDelta(t, 2, way.KernelS, 1e-9)
	require.InDelta(t, 2.5, way.Peak, 1e-9)
	require.InDelta(t, 10.0/3, way.Average(), 1e-9)
	require.Zero(t, newWay(TCP, []joined{{seconds: 1}}).CPUS, "no samples without /proc")

	r := &Result{Ways: []Way{way}}
	require.Equal(t, &r.Ways[0], r.Way(RDMA))
	require.Nil(t, r.Way(TCP))
	var out bytes.Buffer
	r.Print(&out)
	require.Contains(t, out.String(), "joiner, transport, RDMA: 10.00 CPU seconds, 2.00 of them in the kernel; at most 2.50 processors in a second")
}

// Only RDMA has addresses of devices. Two sides with one device have one address.
func TestFabric(t *testing.T) {
	one, two := &run{serving: "10.7.0.1", joining: "10.7.0.1"}, &run{serving: "10.7.0.1", joining: "10.7.0.2"}
	require.Equal(t, []string{"10.7.0.1"}, one.fabric(wayRDMA))
	require.Equal(t, []string{"10.7.0.1", "10.7.0.2"}, two.fabric(wayRDMA))
	for _, way := range []int{wayTCP, wayBlocksync, wayBlocksync500} {
		require.Empty(t, two.fabric(way))
	}
}

func TestReceivedMetric(t *testing.T) {
	const metrics = `# TYPE starling_transport_rdma_bytes_total counter
starling_transport_rdma_bytes_total{direction="received",peer="fabric"} 8.388608e+06
starling_transport_rdma_bytes_total{direction="sent",peer="fabric"} 5
`
	found := receivedMetric.FindAllStringSubmatch(metrics, -1)
	require.Len(t, found, 1)
	require.Equal(t, "8.388608e+06", found[0][1])
}

// A sample belongs to the innermost function with a component.
func TestComponents(t *testing.T) {
	for want, names := range map[string][]string{
		"network":    {"internal/runtime/syscall.Syscall6", "syscall.Syscall", "internal/poll.(*FD).Read", "net.(*conn).Read", "crypto/tls.(*Conn).Read"},
		"encryption": {"crypto/internal/fips140/aes/gcm.gcmAesDec", "crypto/tls.(*Conn).readRecord", "github.com/starling-kv/starling/transport/tcp.(*conn).read"},
		"storage":    {"runtime.memmove", "github.com/cockroachdb/pebble/v2.(*Batch).Set", "github.com/cometbft/cometbft/store.(*BlockStore).SaveBlock"},
		"execution":  {"runtime.mallocgc", "github.com/cometbft/cometbft/state.(*BlockExecutor).ApplyBlock"},
		"SHA-256":    {"github.com/starling-kv/starling/avlstar/sha256mb.Sum", "github.com/starling-kv/starling/avlstar.(*Version).AppHash"},
		collector:    {"runtime.scanobject", "runtime.gcBgMarkWorker"},
		otherPart:    {"runtime.findRunnable", "runtime.schedule", "runtime.mcall"},
	} {
		require.Equal(t, want, componentOf(names))
	}
	_, err := componentsOf(bytes.NewReader([]byte("no profile")))
	require.Error(t, err)
}

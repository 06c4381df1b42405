package joinbench

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrint(t *testing.T) {
	r := &Result{Blocks: 10, BlockBytes: 1 << 20, Rounds: 3, TCPS: 2, BlocksyncS: 8, Blocksync500S: 4}
	var out bytes.Buffer
	r.Print(&out)
	require.Contains(t, out.String(), "RDMA was not measured")
	require.Contains(t, out.String(), "over TCP / block sync: 0.25 (at most 0.5), at 500 MB/s: 0.50 (at most 1)")
	seconds, share := 1.5, 0.8
	r.RDMAS, r.RDMACPUS, r.RDMACPUPeak, r.RDMAShare = &seconds, &seconds, &seconds, &share
	out.Reset()
	r.Print(&out)
	require.Contains(t, out.String(), "over the transport, RDMA       1.50 s")
	require.Contains(t, out.String(), "80 % of the blocks came over it")
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

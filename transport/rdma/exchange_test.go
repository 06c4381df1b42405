package rdma

import (
	"encoding/binary"
	"testing"

	"github.com/starling-kv/starling/internal/spectest"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// TestSpecExample makes the messages in docs/spec/rdma.md.
func TestSpecExample(t *testing.T) {
	var n nonce
	for i := range n { // otherwise random
		n[i] = byte(i)
	}
	p := proposal{verbs.Endpoint{GID: addrs[0].As16(), QPN: 17, PSN: 104729, MTU: 4096}, n}
	g := greeting{n, region{0x7f2a40000000, 0x1805, 128}}
	units := newPlaces(g.region.units)
	units.take(3)
	first, round, _ := units.take(2)
	slot := slotNumber(round, first)
	immediates := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, slot), slot|immediateLast)
	spectest.Require(t, "rdma.md", p.encode(), g.encode(), immediates)
}

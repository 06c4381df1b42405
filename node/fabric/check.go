package fabric

import (
	"fmt"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport/rdma"
)

// Finding is the result of checking one prerequisite of RDMA.
type Finding = rdma.Finding

// Check checks the prerequisites of RDMA on this host and in the settings. The error explains why
// RDMA is not possible.
func Check(c *config.Config) ([]Finding, error) {
	addrs, err := Addrs(c)
	if err != nil {
		return nil, err
	}
	o := c.App.Transport
	found := rdma.Check(rdma.CheckOptions{Addrs: addrs, Memory: o.RDMAMemory, Peers: o.RDMAPeerCount()})
	settings := Finding{What: "settings", Verdict: rdma.Good, Text: fmt.Sprintf("transport.rdma is %q, for peers %q and networks %q", o.RDMA, o.RDMAPeers, o.RDMAFabric)}
	if o.RDMA == config.RDMAOff {
		settings.Verdict, settings.Text = rdma.Slower, `transport.rdma is "off": all responses use TLS`
		settings.Fix = `set rdma = "auto" and rdma_peers or rdma_fabric in [transport] of app.toml, here and at the peers`
	}
	return append(found, settings), rdma.Able(found)
}

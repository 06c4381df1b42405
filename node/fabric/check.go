package fabric

import (
	"fmt"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport/rdma"
)

// Finding is one thing that paths need.
type Finding = rdma.Finding

// Check looks at what paths need, on this host and in the settings. The error says that no path can
// be made, and why.
func Check(c *config.Config) ([]Finding, error) {
	addrs, err := Addrs(c)
	if err != nil {
		return nil, err
	}
	o := c.App.Transport
	found := rdma.Check(rdma.CheckOptions{Addrs: addrs, Memory: o.RDMAMemory})
	settings := Finding{What: "settings", Verdict: rdma.Good, Text: fmt.Sprintf("transport.rdma is %q, for peers %q and networks %q", o.RDMA, o.RDMAPeers, o.RDMAFabric)}
	if o.RDMA == config.RDMAOff {
		settings.Verdict, settings.Text = rdma.Slower, `transport.rdma is "off": everything comes over TLS`
		settings.Mend = `set rdma = "auto" and rdma_peers or rdma_fabric in [transport] of app.toml, here and at the peers`
	}
	return append(found, settings), rdma.Able(found)
}

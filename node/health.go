package node

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/starling-kv/starling/health"
)

// maxBlockAge is the age of the last block above which a node counts as behind, beyond the pauses that the configuration makes between blocks.
const maxBlockAge = time.Minute

// HealthFacts are those that a configuration and the file system tell, without the node.
func HealthFacts(c *Config) health.Facts {
	facts := health.Facts{Now: time.Now()}
	if consensus := c.CometBFT.Consensus; consensus.CreateEmptyBlocks {
		facts.MaxBlockAge = maxBlockAge + consensus.TimeoutCommit + consensus.CreateEmptyBlocksInterval
	}
	if free, known := leastFree(dataFolders(c.CometBFT)); known {
		facts.Disk = &health.Disk{Free: free, Minimum: uint64(c.App.Storage.MinFreeBytes)}
	}
	return facts
}

// Health says whether the node is alive and ready, at any time between New and Stop.
func (n *Node) Health() health.Report { return health.Of(n.healthFacts()) }

func (n *Node) healthFacts() health.Facts {
	facts := HealthFacts(n.config)
	if p, joining := n.joinView.Progress(); joining {
		facts.Joining = string(p.Phase)
		if p.Chunks > 0 {
			facts.Joining = fmt.Sprintf("%d of %d chunks", p.ChunksDone, p.Chunks)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	facts.Failed = n.mu.failure
	comet := n.readable()
	switch {
	case comet == nil:
		return facts
	case n.mu.joining:
		facts.Joining = "CometBFT's state sync"
	case comet.IsRunning():
		facts.Joining = ""
	}
	facts.Started, facts.CatchingUp = comet.IsRunning(), comet.ConsensusReactor().WaitSync()
	facts.Height = comet.BlockStore().Height()
	if meta := comet.BlockStore().LoadBlockMeta(facts.Height); meta != nil {
		facts.BlockTime = meta.Header.Time
	}
	return facts
}

// consensusFailed notes that CometBFT's consensus has ended, which CometBFT itself only logs: the rest of the node goes on as a shell.
func (n *Node) consensusFailed(cause error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.failure == nil {
		n.mu.failure = fmt.Errorf("consensus has ended: %w", cause)
	}
}

// LocalAddresses are where this machine reaches what a node with this configuration serves; "": it does not serve that.
type LocalAddresses struct {
	Status    string   // host:port of /livez and /readyz
	RPC       string   // URL
	Otherwise []string // host:port of what is there while a node joins, when RPC is not
}

// Local returns the addresses.
func (c *Config) Local() LocalAddresses {
	local := LocalAddresses{Status: localAddress(c.App.Status.ListenAddress), RPC: "http://" + localAddress(c.CometBFT.RPC.ListenAddress)}
	if strings.HasPrefix(c.CometBFT.RPC.ListenAddress, "unix://") {
		local.RPC = c.CometBFT.RPC.ListenAddress
	}
	if address, err := transportAddress(c); err == nil {
		local.Otherwise = append(local.Otherwise, localAddress(address))
	}
	if i := c.CometBFT.Instrumentation; i.IsPrometheusEnabled() {
		local.Otherwise = append(local.Otherwise, localAddress(i.PrometheusListenAddr))
	}
	return local
}

// localAddress is host:port of a listening address: one that means every interface is reached over loopback.
func localAddress(laddr string) string {
	address := strings.TrimPrefix(laddr, "tcp://")
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

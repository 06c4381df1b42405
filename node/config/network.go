package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
)

// Network is the kind of a network, to which the settings that init writes fit. All of them are
// local: nodes with settings of both kinds work in one network.
type Network string

const (
	// LAN is a network whose nodes reach each other within about a millisecond.
	LAN Network = "lan"
	// WAN is a network of nodes in several regions, or of unknown operators.
	WAN Network = "wan"
)

// ParseNetwork returns the kind of network with a name.
func ParseNetwork(name string) (Network, error) {
	if n := Network(name); n == LAN || n == WAN {
		return n, nil
	}
	return "", fmt.Errorf("%q is not a kind of network: use %q or %q", name, LAN, WAN)
}

// tuning is a setting of config.toml that differs from CometBFT's default.
type tuning struct {
	section, key string // of config.toml; section "": the top of the file
	set          func(c *cfg.Config)
	why          string // reason and risk
}

// tunings returns the settings of config.toml for a network.
func (n Network) tunings() []tuning {
	if n == LAN {
		return lanTunings
	}
	return wanTunings
}

// eventBus applies to both networks.
var eventBus = tuning{
	"", "event_bus_buffer_capacity", func(c *cfg.Config) { c.EventBusBufferCapacity = 1000 },
	"A slow index of transactions does not hold up blocks. " +
		"Risk: the index, and with it this node's votes, may be this many events behind; gossip sends the votes then.",
}

// gossip applies to both networks.
var gossip = tuning{
	"consensus", "peer_gossip_sleep_duration", func(c *cfg.Config) { c.Consensus.PeerGossipSleepDuration = 10 * time.Millisecond },
	"A node looks this often for votes and block parts that a peer does not have. A validator sends its own votes and blocks at once, so this delays only " +
		"what is passed on, for example by a sentry. Risk: with less, processor time that grows with the number of peers.",
}

var lanTunings = []tuning{
	eventBus,
	{"p2p", "flush_throttle_timeout", func(c *cfg.Config) { c.P2P.FlushThrottleTimeout = time.Millisecond },
		"A vote waits this long for others to share its packet, on every hop. Risk: more packets."},
	{"p2p", "send_rate", func(c *cfg.Config) { c.P2P.SendRate = 200_000_000 },
		"A full block takes 20 ms instead of seconds. Risk: one peer can use this much of the network."},
	{"p2p", "recv_rate", func(c *cfg.Config) { c.P2P.RecvRate = 200_000_000 },
		"See send_rate."},
	{"mempool", "size", func(c *cfg.Config) { c.Mempool.Size = 20_000 },
		"Short blocks come often, and bursts wait here. Risk: memory, up to max_txs_bytes."},
	{"mempool", "cache_size", func(c *cfg.Config) { c.Mempool.CacheSize = 100_000 },
		"It covers a few seconds of transactions, so that none is checked twice. Risk: 100 bytes of memory each."},
	{"consensus", "timeout_propose", func(c *cfg.Config) { c.Consensus.TimeoutPropose = 500 * time.Millisecond },
		"A block whose proposer is dead takes 0.6 s longer, not 4.5 s. Risk: a proposer that is slower than this loses its turn."},
	{"consensus", "timeout_propose_delta", func(c *cfg.Config) { c.Consensus.TimeoutProposeDelta = 250 * time.Millisecond },
		"Each further round of a height waits this much longer, so slow machines still agree."},
	{"consensus", "timeout_prevote", func(c *cfg.Config) { c.Consensus.TimeoutPrevote = 100 * time.Millisecond },
		"The wait for late votes if the first two thirds disagree. Risk: one more round."},
	{"consensus", "timeout_prevote_delta", func(c *cfg.Config) { c.Consensus.TimeoutPrevoteDelta = 100 * time.Millisecond },
		"See timeout_propose_delta."},
	{"consensus", "timeout_precommit", func(c *cfg.Config) { c.Consensus.TimeoutPrecommit = 100 * time.Millisecond },
		"See timeout_prevote."},
	{"consensus", "timeout_precommit_delta", func(c *cfg.Config) { c.Consensus.TimeoutPrecommitDelta = 100 * time.Millisecond },
		"See timeout_propose_delta."},
	{"consensus", "timeout_commit", func(c *cfg.Config) { c.Consensus.TimeoutCommit = 15 * time.Millisecond },
		"The pause after a block. It lets the last votes, and the next transaction of a client that waited, into the next block. " +
			"Risk: with 0, signatures of slow validators are left out."},
	{"consensus", "create_empty_blocks", func(c *cfg.Config) { c.Consensus.CreateEmptyBlocks = false },
		"An idle network makes no blocks but the one that proves the last state. Empty blocks without a pause would keep the machine busy."},
	{"consensus", "create_empty_blocks_interval", func(c *cfg.Config) { c.Consensus.CreateEmptyBlocksInterval = 10 * time.Second },
		"An idle network still makes a block this often. Risk: what happens at a height (an upgrade, the end of a proposal) takes longer in an idle network."},
	gossip,
}

var wanTunings = []tuning{
	eventBus,
	{"p2p", "flush_throttle_timeout", func(c *cfg.Config) { c.P2P.FlushThrottleTimeout = 2 * time.Millisecond },
		"A vote waits this long for others to share its packet, on every hop. Risk: more packets."},
	{"p2p", "send_rate", func(c *cfg.Config) { c.P2P.SendRate = 20_000_000 },
		"A full block takes 0.2 s instead of a second. Risk: one peer can use this much of the network."},
	{"p2p", "recv_rate", func(c *cfg.Config) { c.P2P.RecvRate = 20_000_000 },
		"See send_rate."},
	{"consensus", "timeout_commit", func(c *cfg.Config) { c.Consensus.TimeoutCommit = 120 * time.Millisecond },
		"The pause after a block, in which late votes still count. It is longer than the way between most regions, so that the next transaction of a " +
			"client that waited comes into the next block. Risk: while transactions wait, signatures of validators that are further away are left out."},
	{"consensus", "create_empty_blocks_interval", func(c *cfg.Config) { c.Consensus.CreateEmptyBlocksInterval = 380 * time.Millisecond },
		"Without transactions, the next block waits this much longer, so that an idle network makes no more than two blocks a second. " +
			"Risk: none; a transaction ends the wait."},
	gossip,
}

// Tune changes default settings to those for a network.
func Tune(n Network, c *cfg.Config, a *App) {
	for _, t := range n.tunings() {
		t.set(c)
	}
	// What counts blocks covers as much time as with a block per second. Limits in bytes and in
	// seconds stay.
	rate := n.blocksPerSecond()
	a.State.KeepRecent *= rate
	a.State.KeepEvents *= int64(rate)
	a.State.MaxLagBlocks *= int64(rate)
	a.StorageNode.ServeHeights *= rate
	a.CatchUp.StateThresholdBlocks *= int64(rate)
	if n == LAN {
		a.Disk.FlushBlocks *= rate // at the rate of a WAN, flush_interval ends first
		a.Disk.MaxBacklogBlocks *= rate
		a.State.WitnessTimeout = 250 * time.Millisecond // half of timeout_propose
	}
}

// tuned returns the settings that init writes for a network.
func tuned(n Network) (*cfg.Config, App) {
	comet, app := DefaultCometBFT(), DefaultApp()
	Tune(n, comet, &app)
	return comet, app
}

// blocksPerSecond is the assumed rate of a busy network.
func (n Network) blocksPerSecond() int {
	if n == LAN {
		return 20
	}
	return 2
}

// SnapshotInterval returns the default interval of snapshots of a new network, in blocks.
func (n Network) SnapshotInterval(usual int64) int64 {
	if n == LAN {
		return usual * 5 // 250 s if it is busy; idle blocks come every 10 s
	}
	return usual
}

// Explain adds the reasons of Tune to the text of a config.toml.
func Explain(n Network, text string) string {
	section := ""
	var lines []string
	for line := range strings.Lines(text) {
		if name, is := strings.CutPrefix(line, "["); is {
			section, _, _ = strings.Cut(name, "]")
		}
		key, _, _ := strings.Cut(line, " ")
		if i := slices.IndexFunc(n.tunings(), func(t tuning) bool { return t.section == section && t.key == key }); i >= 0 {
			lines = append(lines, fmt.Sprintf("# init --network %s: %s\n", n, n.tunings()[i].why))
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

package rangemap

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
)

// This file proposes changes of a map from sizes and traffic. It decides and does not act:
//
//	map, reports of nodes ──► replicate ──► split what is large or busy ──► move bytes ──► move traffic ──► merge what is small
//
// Each step sees the map as the proposals before it leave it, so an operator can run them in order.
// The result depends only on the arguments: ties go to the lowest key, and to the lowest node ID.

const (
	// minSplitBytes is the least size of a range that is split because of its bytes. A range is
	// moved from half of it on, between nodes that differ by at least as much. All numbers here are
	// chosen, not measured: each is far enough from the others that no proposal undoes another.
	minSplitBytes = 64 << 20
	// maxMergedBytes is the size up to which two neighbours are merged.
	maxMergedBytes = 16 << 20
	// minTraffic is the least number of keys a second of a range that is split because of its
	// traffic. A range is moved from half of it on.
	minTraffic = 1000
	// maxProposals limits the proposals: each one changes what the next ones should be.
	maxProposals = 16
)

// Report is what a storage node reports about its ranges. It is not verified.
type Report struct {
	Error string     // why there is none; "": there is one
	Loads []dsm.Load // Reads and Changes are those of the measured time
}

// NodeUse is what a storage node keeps and does.
type NodeUse struct {
	Node    string `json:"node"` // ID@host:port
	Ranges  int    `json:"ranges"`
	Bytes   uint64 `json:"bytes"`   // of leaf records
	Traffic uint64 `json:"traffic"` // keys read and changed a second
	Error   string `json:"error,omitempty"`
}

// Proposal is a change that an operator can make.
type Proposal struct {
	Change  string `json:"change"` // replicate, split, move or merge
	Range   string `json:"range"`
	Reason  string `json:"reason"`
	Command string `json:"command"`
}

// Balance is the use of the storage nodes, and what to do about it.
type Balance struct {
	Nodes     []NodeUse  `json:"nodes"`     // by ID
	Notes     []string   `json:"notes"`     // what prevents proposals, or needs an operator
	Proposals []Proposal `json:"proposals"` // in the order in which to run them
}

// part is a range while proposals are made.
type part struct {
	keys     avlstar.KeyRange
	replicas []dsm.NodeID // of the map
	live     []dsm.NodeID // replicas that report the range
	middle   []byte       // where to split it; empty: unknown
	bytes    uint64
	reads    uint64 // a second, of all replicas
	changes  uint64 // a second, of each replica
	changed  bool   // a proposal has changed it: its reported figures no longer apply
}

// traffic returns the keys a second of each replica.
func (p *part) traffic() uint64 { return p.reads/uint64(max(1, len(p.live))) + p.changes }

type balancer struct {
	Balance
	addresses map[dsm.NodeID]transport.Address
	live      []dsm.NodeID // nodes that answer, ascending
	parts     []*part      // in key order
}

// Propose returns the use of the nodes of a map, and of spare nodes without ranges, and proposes
// changes. over is the time in which the reports' traffic was measured.
func Propose(m *config.StorageNodes, spare []transport.Address, reports map[dsm.NodeID]Report, over time.Duration) Balance {
	b := &balancer{Balance: Balance{Nodes: []NodeUse{}, Notes: []string{}, Proposals: []Proposal{}}, addresses: maps.Clone(m.Addresses)}
	for _, a := range spare {
		if _, known := b.addresses[dsm.NodeID(a.ID)]; !known {
			b.addresses[dsm.NodeID(a.ID)] = a
		}
	}
	for _, n := range slices.Sorted(maps.Keys(b.addresses)) {
		if r, asked := reports[n]; asked && r.Error == "" {
			b.live = append(b.live, n)
		}
	}
	for i := range m.Ranges.Len() {
		b.parts = append(b.parts, partOf(m.Ranges.Shard(i), reports, over))
	}
	for _, n := range slices.Sorted(maps.Keys(b.addresses)) {
		use := NodeUse{Node: b.addresses[n].String(), Ranges: len(m.Ranges.Of(n)), Bytes: b.sum(n, size), Traffic: b.sum(n, (*part).traffic)}
		switch r, asked := reports[n]; {
		case !asked:
			use.Error = "it was not asked"
		default:
			use.Error = r.Error
		}
		if use.Error != "" {
			b.note("node %s does not answer (%s): start it. Nothing is moved to it or from it", use.Node, use.Error)
		}
		b.Nodes = append(b.Nodes, use)
	}
	switch {
	case IsChanging(m):
		b.note("the map has a change that is not finished: run `starlingd storage ranges continue` or `starlingd storage ranges abort` first")
		return b.Balance
	case m.Version == 0:
		b.note("the map is not signed, so its ranges cannot change while nodes run: run `starlingd storage ranges sign`, and copy the file into the home of every node")
	}
	b.replicate()
	b.split()
	b.move(size, minSplitBytes, 5, 4, humanize.IBytes, "")
	b.move((*part).traffic, minTraffic, 3, 2, keys, " of traffic")
	b.merge()
	return b.Balance
}

func size(p *part) uint64 { return p.bytes }

// keys formats a traffic.
func keys(n uint64) string { return humanize.Comma(int64(n)) + " keys a second" } //nolint:gosec // far below the limit

// partOf sums up what the replicas of a range report.
func partOf(s dsm.Placement, reports map[dsm.NodeID]Report, over time.Duration) *part {
	p := &part{keys: s.Range, replicas: slices.Clone(s.Replicas)}
	perSecond := func(n uint64) uint64 {
		if over <= 0 {
			return 0
		}
		return uint64(float64(n) / over.Seconds())
	}
	for _, n := range s.Replicas {
		for _, l := range reports[n].Loads {
			if !l.Range.Equal(s.Range) || reports[n].Error != "" {
				continue
			}
			p.live = append(p.live, n)
			if l.Bytes >= p.bytes {
				p.bytes, p.middle = l.Bytes, l.Middle
			}
			p.reads += perSecond(l.Reads)
			p.changes = max(p.changes, perSecond(l.Changes))
		}
	}
	return p
}

func (b *balancer) note(format string, args ...any) {
	b.Notes = append(b.Notes, fmt.Sprintf(format, args...))
}

func (b *balancer) isFull() bool { return len(b.Proposals) >= maxProposals }

// propose adds a proposal. The command is that of `starlingd storage ranges`.
func (b *balancer) propose(change string, p *part, command, reason string, args ...any) {
	p.changed = true
	b.Proposals = append(b.Proposals, Proposal{change, p.keys.String(), fmt.Sprintf(reason, args...), "starlingd storage ranges " + change + " " + command})
}

// argument formats a key for a command.
func argument(key []byte) string {
	switch text := config.FormatKey(key); {
	case len(key) == 0:
		return "0x"
	case strings.HasPrefix(text, "-"):
		return fmt.Sprintf("0x%x", key)
	default:
		return config.Quote(text)
	}
}

// sum adds up a figure of the ranges that the map assigns to a node, which may still fetch them.
func (b *balancer) sum(n dsm.NodeID, of func(*part) uint64) (sum uint64) {
	for _, p := range b.parts {
		if slices.Contains(p.replicas, n) {
			sum += of(p)
		}
	}
	return sum
}

// mean is the mean of sum over the nodes that answer.
func (b *balancer) mean(of func(*part) uint64) (mean uint64) {
	for _, n := range b.live {
		mean += b.sum(n, of)
	}
	return mean / uint64(max(1, len(b.live)))
}

// emptiest returns the nodes that answer and do not keep a range, the one with the least of a
// figure first.
func (b *balancer) emptiest(p *part, of func(*part) uint64) []dsm.NodeID {
	nodes := slices.DeleteFunc(slices.Clone(b.live), func(n dsm.NodeID) bool { return slices.Contains(p.replicas, n) })
	slices.SortStableFunc(nodes, func(x, y dsm.NodeID) int { return cmp.Compare(b.sum(x, of), b.sum(y, of)) })
	return nodes
}

// replicate proposes a further replica for each range with fewer than two that answer.
func (b *balancer) replicate() {
	for _, p := range b.parts {
		var silent []string
		for _, n := range p.replicas {
			switch {
			case slices.Contains(p.live, n):
			case slices.Contains(b.live, n):
				b.note("node %s has no state of range %v yet: wait until it follows the chain", b.addresses[n], p.keys)
			default:
				silent = append(silent, b.addresses[n].String())
			}
		}
		var why string
		switch {
		case len(p.live) == 0:
			b.note("no replica reports range %v, so nothing is proposed for it", p.keys)
			continue
		case len(p.replicas) < enough:
			why = fmt.Sprintf("range %v has one replica: a lost disk loses its state", p.keys)
		case len(p.live) < enough && len(p.replicas)-len(silent) < enough:
			why = fmt.Sprintf("only node %s has range %v now. If %s can be started again soon, do that instead", b.addresses[p.live[0]], p.keys, strings.Join(silent, ", "))
		default:
			continue
		}
		to := b.emptiest(p, size)
		switch {
		case len(to) == 0:
			b.note("range %v needs a further replica, but no other node answers: start one, and name it with --nodes", p.keys)
		case !b.isFull():
			b.propose("replicate", p, fmt.Sprintf("%s --to %s", argument(p.keys.First), b.addresses[to[0]]), "%s", why)
			p.replicas, p.live = append(p.replicas, to[0]), append(p.live, to[0])
		}
	}
}

// enough is the number of replicas that a range should have.
const enough = 2

// split proposes to divide each range that is larger, or has more traffic, than a node should have:
// no move could balance it. A range whose traffic is mostly reads gets a further replica instead.
func (b *balancer) split() {
	meanBytes, meanTraffic := b.mean(size), b.mean((*part).traffic)
	for i := 0; i < len(b.parts) && !b.isFull(); i++ {
		p := b.parts[i]
		large := p.bytes >= minSplitBytes && p.bytes > meanBytes
		busy := p.traffic() >= minTraffic && p.traffic() > meanTraffic/2*3
		to := b.emptiest(p, (*part).traffic)
		switch {
		case p.changed || len(p.live) == 0 || !large && !busy || len(to) == 0:
		case !large && p.reads/uint64(len(p.live)) >= p.changes:
			b.propose("replicate", p, fmt.Sprintf("%s --to %s", argument(p.keys.First), b.addresses[to[0]]),
				"each replica of range %v has %s, mostly reads, and the mean of a node is %s: a further replica shares the reads", p.keys, keys(p.traffic()), keys(meanTraffic))
			p.replicas, p.live = append(p.replicas, to[0]), append(p.live, to[0])
		case len(p.middle) == 0:
			b.note("range %v has more than a node should have, but its replicas report no key to split it at", p.keys)
		default:
			what, mean := humanize.IBytes(p.bytes), humanize.IBytes(meanBytes)
			if !large {
				what, mean = keys(p.traffic()), keys(meanTraffic)
			}
			b.propose("split", p, argument(p.middle), "range %v has %s, and the mean of a node is %s: its halves can be on different nodes", p.keys, what, mean)
			low := &part{
				keys: avlstar.KeyRange{First: p.keys.First, After: p.middle}, replicas: p.replicas, live: p.live,
				bytes: p.bytes / 2, reads: p.reads / 2, changes: p.changes / 2,
			}
			high := *low
			high.keys = avlstar.KeyRange{First: p.middle, After: p.keys.After}
			high.replicas, high.live = slices.Clone(low.replicas), slices.Clone(low.live)
			b.parts = slices.Replace(b.parts, i, i+1, low, &high)
			i++
		}
	}
}

// move proposes moves from the node with the most of a figure to others, while it has more than
// num/den of the mean, and at least least more than the target. A move must bring the two nodes
// closer together, and must not be of a small range.
func (b *balancer) move(of func(*part) uint64, least, num, den uint64, format func(uint64) string, unit string) {
	mean := b.mean(of)
	for !b.isFull() && len(b.live) > 1 {
		sums := map[dsm.NodeID]uint64{}
		for _, n := range b.live {
			sums[n] = b.sum(n, of)
		}
		by := func(x, y dsm.NodeID) int { return cmp.Compare(sums[x], sums[y]) }
		from := slices.MaxFunc(b.live, by) // the first one among equal ones
		order := slices.Clone(b.live)
		slices.SortStableFunc(order, by)
		if sums[from] <= mean/den*num {
			return
		}
		p, to := b.bestMove(of, least, from, order, sums)
		if p == nil {
			return
		}
		b.propose("move", p, fmt.Sprintf("%s --from %s --to %s", argument(p.keys.First), from, b.addresses[to]),
			"node %s has %s%s and node %s has %s, the mean is %s: the range has %s", b.addresses[from], format(sums[from]), unit, b.addresses[to], format(sums[to]),
			format(mean), format(of(p)))
		p.replicas, p.live = append(without(p.replicas, []dsm.NodeID{from}), to), append(without(p.live, []dsm.NodeID{from}), to)
	}
}

// bestMove returns the range of a node, and its target, whose move leaves the two nodes closest to
// each other; nil: no move helps.
func (b *balancer) bestMove(
	of func(*part) uint64, least uint64, from dsm.NodeID, order []dsm.NodeID, sums map[dsm.NodeID]uint64,
) (best *part, to dsm.NodeID) {
	for _, target := range order { // the emptiest first
		gap := sums[from] - min(sums[from], sums[target])
		if gap < least {
			break
		}
		left := gap // between the nodes, after the move
		for _, p := range b.parts {
			n := of(p)
			if p.changed || !slices.Contains(p.live, from) || slices.Contains(p.replicas, target) || len(p.live) < enough || n < least/2 {
				continue
			}
			if d := max(gap, 2*n) - min(gap, 2*n); d < left {
				best, to, left = p, target, d
			}
		}
		if best != nil {
			return best, to
		}
	}
	return nil, ""
}

// merge proposes to merge neighbours on the same nodes that are small and idle, if there are far
// more ranges than nodes.
func (b *balancer) merge() {
	ranges := len(b.parts)
	for i := 1; i < len(b.parts) && !b.isFull() && ranges > 2*len(b.live); i++ {
		low, high := b.parts[i-1], b.parts[i]
		switch {
		case low.changed || high.changed || len(low.live) < enough || len(high.live) < enough:
		case low.bytes+high.bytes > maxMergedBytes || low.traffic()+high.traffic() >= minTraffic/10:
		case !slices.Equal(slices.Sorted(slices.Values(low.replicas)), slices.Sorted(slices.Values(high.replicas))):
		default:
			b.propose("merge", high, argument(high.keys.First), "range %v and the one before have %s together, on the same nodes: each range costs memory and messages",
				high.keys, humanize.IBytes(low.bytes+high.bytes))
			low.changed = true
			ranges--
		}
	}
}

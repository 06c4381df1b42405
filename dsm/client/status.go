package client

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/dsm/client/feed"
)

// Status describes the client for operators.
type Status struct {
	Head    int64 // last block whose updates are encoded; 0: before Begin
	Durable int64 // as Source.Durable
	Ranges  []RangeStatus
	// Waits are the ranges whose last fetch no replica answered.
	Waits []Wait
	// Blocked are the ranges that the next block waits for.
	Blocked []avlstar.KeyRange
	Liars   []Liar // nodes that sent invalid answers since the start
	// Failed is why updates cannot be encoded; empty if they can.
	Failed string
}

// RangeStatus describes a range.
type RangeStatus struct {
	Range   avlstar.KeyRange
	Next    bool   // its nodes fill it, to replace current ranges
	Durable int64  // height that feed.Policy.MinAcks replicas have on disk
	Queued  uint64 // bytes of queued updates
	Nodes   []NodeStatus
}

// NodeStatus describes a replica.
type NodeStatus struct {
	feed.Lag
	Address   string
	Connected bool
	Error     string // why it is not connected
	Newest    int64  // newest height that it claims to serve
}

// Wait is a range that no replica answers.
type Wait struct {
	Range  avlstar.KeyRange
	Height int64
	Since  time.Time
	Tried  []ask.Trial
}

// Liar is a node that sent an answer that no honest node sends.
type Liar struct {
	Node    dsm.NodeID
	Range   avlstar.KeyRange
	Verdict ask.Verdict
	Count   int
	Last    time.Time
}

// Status returns the state of all ranges and nodes.
func (c *Client) Status() Status {
	l := c.layout()
	st := c.feeding.status()
	for i := range st.Ranges {
		r := &st.Ranges[i]
		for k := range r.Nodes {
			n := &r.Nodes[k]
			p := l.peers[n.Node]
			if p == nil {
				continue // the map has just changed
			}
			n.Newest = p.newest(r.Range)
			n.Address = p.address.HostPort
			p.mu.Lock()
			n.Connected = p.mu.conn != nil
			if !n.Connected && p.mu.err != nil {
				n.Error = p.mu.err.Error()
			}
			p.mu.Unlock()
		}
	}
	l.asking.mu.Lock()
	for _, w := range l.asking.mu.silent {
		st.Waits = append(st.Waits, w)
	}
	l.asking.mu.Unlock()
	slices.SortFunc(st.Waits, func(a, b Wait) int { return bytes.Compare(a.Range.First, b.Range.First) })
	st.Liars = c.liars.list()
	return st
}

// liars records the nodes that sent invalid answers since the start.
type liars struct {
	mu  sync.Mutex
	all []Liar
}

func (l *liars) add(n dsm.NodeID, r avlstar.KeyRange, v ask.Verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.all, func(o Liar) bool { return o.Node == n && o.Verdict == v && o.Range.Equal(r) })
	if i < 0 {
		i = len(l.all)
		l.all = append(l.all, Liar{Node: n, Range: r, Verdict: v})
	}
	l.all[i].Count++
	l.all[i].Last = time.Now()
}

func (l *liars) list() []Liar {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.all)
	slices.SortFunc(all, func(a, b Liar) int {
		return cmp.Or(bytes.Compare(a.Range.First, b.Range.First), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Verdict, b.Verdict))
	})
	return all
}

// otherNodes is the label of all helpers in metrics: the number of helper names is unbounded.
const otherNodes dsm.NodeID = "others"

// lied logs, counts and records an invalid answer.
func (a *asking) lied(n dsm.NodeID, shard int, v ask.Verdict, avoided time.Duration) {
	c, r := a.c, a.l.Ranges.Shard(shard).Range
	c.o.Logger.Error("a node sent an invalid answer and is avoided for a while", "node", n, "range", r, "reason", v, "for", avoided)
	if a.l.peers[n] == nil {
		n = otherNodes
	}
	c.o.Metrics.Lies.WithLabelValues(string(n), r.String(), string(v)).Inc()
	c.liars.add(n, r, v)
}

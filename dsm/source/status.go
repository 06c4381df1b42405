package source

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/ask"
	"github.com/starling-kv/starling/dsm/feed"
)

// Status is what an operator wants to know.
type Status struct {
	Head    int64 // the last block whose updates are made; 0: before Begin
	Durable int64 // as Source.Durable
	Ranges  []RangeStatus
	// Waits are the ranges that nobody answered when they were asked last.
	Waits []Wait
	// Blocked are the ranges that the next block waits for.
	Blocked []dsm.Range
	Liars   []Liar // those that lied since the start
	// Failed is why updates are not made, empty if they are.
	Failed string
}

// RangeStatus is where a range stands.
type RangeStatus struct {
	Range   dsm.Range
	Durable int64  // the height that feed.Policy.MinAcks replicas have on disk
	Queued  uint64 // bytes of the updates that are kept
	Nodes   []NodeStatus
}

// NodeStatus is where a replica stands.
type NodeStatus struct {
	feed.Lag
	Address   string
	Connected bool
	Error     string // why it is not connected
	Newest    int64  // the last height that it can be asked for, as it says
}

// Wait is a range that nobody answers.
type Wait struct {
	Range  dsm.Range
	Height int64
	Since  time.Time
	Tried  []ask.Trial
}

// Liar is a node that sent what no honest one sends.
type Liar struct {
	Node    dsm.Node
	Range   dsm.Range
	Verdict ask.Verdict
	Count   int
	Last    time.Time
}

// Status returns where all nodes stand.
func (s *Source) Status() Status {
	st := s.feeding.status()
	for i := range st.Ranges {
		r := &st.Ranges[i]
		for k := range r.Nodes {
			n := &r.Nodes[k]
			n.Newest = s.known.newest(n.Node, r.Range)
			p := s.peers[n.Node]
			n.Address = p.address.HostPort
			p.mu.Lock()
			n.Connected = p.mu.conn != nil
			if !n.Connected && p.mu.err != nil {
				n.Error = p.mu.err.Error()
			}
			p.mu.Unlock()
		}
	}
	s.asking.mu.Lock()
	for _, w := range s.asking.mu.silent {
		st.Waits = append(st.Waits, w)
	}
	s.asking.mu.Unlock()
	slices.SortFunc(st.Waits, func(a, b Wait) int { return bytes.Compare(a.Range.First, b.Range.First) })
	st.Liars = s.liars.list()
	return st
}

// newest returns the last height that a node claims for a range, 0 if none.
func (k *known) newest(n dsm.Node, r dsm.Range) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.mu.claims[n] {
		if c.Range.Covers(r) {
			return c.Newest
		}
	}
	return 0
}

// liars are those that lied since the start.
type liars struct {
	mu  sync.Mutex
	all []Liar
}

func (l *liars) add(n dsm.Node, r dsm.Range, v ask.Verdict) {
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

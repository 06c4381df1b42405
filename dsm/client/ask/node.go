package ask

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/backoff"
)

// node is the state of a storage node or a helper, shared by all fetches.
type node struct {
	id     dsm.NodeID
	helper bool
	owes   int // parts of requests in flight
	claims []dsm.Claim
	gone   map[int]absence       // by number of the range
	small  map[int]time.Duration // by number of the range: asked last until then
	alone  bool                  // it has refused a request for several ranges since it connected
	last   *request              // the last request sent to it, while it is in flight

	took      time.Duration // latency estimate; 0: unknown
	tookSince time.Duration // when took was measured

	failures int           // since the last answer
	failedAt time.Duration // when the last failure was counted
	until    time.Duration // not asked before this time, after failures
	lies     int
	liedAt   time.Duration // when the last invalid answer was counted
	avoided  time.Duration // not asked before this time, after invalid answers
}

// absence records that a node did not have a height.
type absence struct {
	height int64
	until  time.Duration // when the record expires
}

func newNode(id dsm.NodeID, helper bool) *node {
	return &node{id: id, helper: helper, gone: map[int]absence{}, small: map[int]time.Duration{}}
}

// free returns when the node may be asked again.
func (n *node) free() time.Duration { return max(n.until, n.avoided) }

// answered records a valid answer and its latency.
func (n *node) answered(now, took, forget time.Duration) {
	n.failures = 0
	took = max(took, 1)
	if n.took > 0 {
		took = max((3*n.estimate(now, forget)+took)/4, 1)
	}
	n.took, n.tookSince = took, now
}

// passed records that a request was cancelled without an answer after the given time.
func (n *node) passed(now, after time.Duration, policy Policy) {
	if after >= policy.Slow && after > n.estimate(now, policy.Forget) {
		n.took, n.tookSince = after, now
	}
}

// failed records the failure of a request that was sent at the time asked. Requests sent before the
// last counted failure do not count again: sixteen requests lost at once are one failure.
func (n *node) failed(now, asked time.Duration, policy Policy) {
	if n.failures > 0 && asked <= n.failedAt {
		return
	}
	n.failures++
	n.failedAt = now
	n.until = now + backoff.Doubled(policy.BackOff, n.failures-1, policy.MaxBackOff)
}

// lied records an invalid answer, with the same rule, and returns until when the node is avoided.
func (n *node) lied(now, asked time.Duration, policy Policy) (until time.Duration) {
	if n.lies == 0 || asked > n.liedAt {
		n.lies++
		n.liedAt = now
		n.avoided = now + backoff.Doubled(policy.Avoid, n.lies-1, policy.MaxAvoid)
	}
	return n.avoided
}

// estimate returns the expected latency. It decays, so a slow node is tried again.
func (n *node) estimate(now, forget time.Duration) time.Duration {
	return n.took >> min(int64((now-n.tookSince)/forget), 40)
}

// expected returns the expected latency of one more request. A node without a latency estimate gets
// one request at once; more requests are estimated as if the node were slow.
func (n *node) expected(now time.Duration, policy Policy) time.Duration {
	if n.took == 0 {
		return time.Duration(n.owes) * policy.Slow
	}
	return n.estimate(now, policy.Forget) * time.Duration(1+n.owes)
}

// claim returns the node's claim that covers a range. ok is false if it claims no height of the
// range.
func (n *node) claim(of avlstar.KeyRange) (c dsm.Claim, ok bool) {
	i := slices.IndexFunc(n.claims, func(c dsm.Claim) bool { return c.Newest > 0 && c.Range.Covers(of) })
	if i < 0 {
		return c, false
	}
	return n.claims[i], true
}

// trial returns why the node is not asked now.
func (n *node) trial(now time.Duration) Trial {
	if n.avoided > now {
		return Trial{n.id, fmt.Sprintf("avoided for %v more after an invalid answer", n.avoided-now)}
	}
	return Trial{n.id, fmt.Sprintf("left alone for %v more after a failure", max(n.until-now, 0))}
}

// nearest orders two heights by how well they serve a state of height: the newest height not above
// it comes first, then the lowest one above it. Unchanged subtrees have the same hash at all of
// them.
func nearest(height, a, b int64) int {
	if a > height || b > height {
		return cmp.Compare(a, b)
	}
	return cmp.Compare(b, a)
}

// heightOf returns the height at which to ask a node for a range of the state after height: the
// nearest height that the node claims or, without a claim, the nearest that another replica claims.
func (m *Machine) heightOf(n *node, shard int, height int64) (at int64, claimed bool) {
	of := m.ranges.Shard(shard)
	claim := func(n *node) (int64, bool) {
		c, ok := n.claim(of.Range)
		return min(max(height, c.Oldest), c.Newest), ok
	}
	if at, claimed = claim(n); claimed || n.helper {
		return at, claimed
	}
	at = height
	any := false
	for _, name := range of.Replicas {
		if h, ok := claim(m.nodes[name]); ok && (!any || nearest(height, h, at) < 0) {
			at, any = h, true
		}
	}
	return at, false
}

// isClaimed reports whether any replica claims a height of a range.
func (m *Machine) isClaimed(shard int) bool {
	of := m.ranges.Shard(shard)
	return slices.ContainsFunc(of.Replicas, func(name dsm.NodeID) bool {
		_, ok := m.nodes[name].claim(of.Range)
		return ok
	})
}

// beyond returns the lowest height that a replica of a range claims, if all replicas claim only
// heights above height. Otherwise it returns 0.
func (m *Machine) beyond(shard int, height int64) (oldest int64) {
	of := m.ranges.Shard(shard)
	for _, name := range of.Replicas {
		c, ok := m.nodes[name].claim(of.Range)
		if !ok || c.Oldest <= height {
			return 0
		}
		if oldest == 0 || c.Oldest < oldest {
			oldest = c.Oldest
		}
	}
	return oldest
}

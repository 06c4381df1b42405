package source

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/ask"
	"github.com/starling-kv/starling/dsm/feed"
)

// known is what the nodes said last of themselves: hints, which nothing but order and heights to
// ask for depends on.
type known struct {
	ranges *dsm.Ranges
	mu     struct {
		sync.Mutex
		claims  map[dsm.Node][]dsm.Claim
		asked   map[dsm.Node]time.Time
		changed chan struct{} // closed, and made anew, with each claim
	}
}

func newKnown(ranges *dsm.Ranges) *known {
	k := &known{ranges: ranges}
	k.mu.claims, k.mu.asked, k.mu.changed = map[dsm.Node][]dsm.Claim{}, map[dsm.Node]time.Time{}, make(chan struct{})
	return k
}

func (k *known) asked(n dsm.Node, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.asked[n] = at
}

// heardSince reports whether a node was asked after a time.
func (k *known) heardSince(n dsm.Node, at time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.asked[n].After(at)
}

func (k *known) set(n dsm.Node, claims []dsm.Claim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.claims[n] = claims
	close(k.mu.changed)
	k.mu.changed = make(chan struct{})
}

// heights returns the heights to ask the replicas of a range at for a state of height: of those
// that each claims, the nearest. Those not above height come first. There is no claim if ok is
// false. Where a node that starts is behind everything that is answered, it still gets what has not
// changed since: subtrees are known by their hashes.
func (k *known) heights(shard int, height int64) (heights []int64, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.ranges.Shard(shard)
	for _, n := range of.Replicas {
		for _, c := range k.mu.claims[n] {
			if c.Range.Covers(of.Range) && c.Newest > 0 {
				heights = append(heights, min(max(height, c.Oldest), c.Newest))
			}
		}
	}
	slices.SortFunc(heights, func(a, b int64) int {
		if a > height || b > height {
			return cmp.Compare(a, b)
		}
		return cmp.Compare(b, a)
	})
	return slices.Compact(heights), len(heights) > 0
}

// wait waits until done returns true, which is called after each claim, or ctx ends.
func (k *known) wait(ctx context.Context, done func() bool) error {
	for {
		k.mu.Lock()
		changed := k.mu.changed
		k.mu.Unlock()
		if done() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// all returns all claims, in the order of keys, then of nodes.
func (k *known) all() []dsm.Claim {
	k.mu.Lock()
	defer k.mu.Unlock()
	var claims []dsm.Claim
	for _, n := range k.ranges.Nodes() {
		claims = append(claims, k.mu.claims[n]...)
	}
	slices.SortStableFunc(claims, func(a, b dsm.Claim) int { return bytes.Compare(a.Range.First, b.Range.First) })
	return claims
}

// claimed takes what a node says it has.
func (s *Source) claimed(n dsm.Node, claims []dsm.Claim) {
	s.asking.step(ask.Claimed{Node: n, Claims: claims})
	s.feeding.step(feed.Claimed{Node: n, Claims: claims})
	s.known.set(n, claims)
}

// up says that a node is connected.
func (s *Source) up(n dsm.Node) {
	s.asking.step(ask.Up{Node: n})
	s.feeding.step(feed.Up{Node: n})
}

// Claims asks all nodes what they have, until each range has an answer, and a little longer for the
// other nodes, or until ctx ends: then the error names a range that has none, beside the claims
// that came. They are not proved: see
// storagenode.NewestProvable.
func (s *Source) Claims(ctx context.Context) ([]dsm.Claim, error) {
	ctx, cancel := s.alive(ctx)
	defer cancel()
	began := time.Now()
	fresh := newKnown(s.o.Ranges)
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, n := range s.o.Ranges.Nodes() {
		asking.Go(func() {
			for ctx.Err() == nil {
				if claims, err := s.claimsOf(ctx, n); err == nil {
					fresh.set(n, claims)
					return
				}
				s.pause(ctx, s.o.Ask.BackOff)
			}
		})
	}
	silent := func() (r dsm.Range, is bool) {
		for i := range s.o.Ranges.Len() {
			if !fresh.said(i) {
				return s.o.Ranges.Shard(i).Range, true
			}
		}
		return r, false
	}
	err := fresh.wait(ctx, func() bool { _, is := silent(); return !is })
	if err == nil {
		// Another replica may have more, and answer a little later.
		grace, end := context.WithTimeout(ctx, claimsGrace)
		_ = fresh.wait(grace, fresh.complete) //nolint:errcheck // the time is over
		end()
	}
	cancel()
	if r, is := silent(); err != nil && is {
		return fresh.all(), fmt.Errorf("source: no storage node of the keys in %v has answered for %v: %w", r, time.Since(began).Round(time.Millisecond), err)
	}
	return fresh.all(), nil
}

// claimsGrace is how long Claims waits for all nodes, once each range has an answer.
const claimsGrace = time.Second

// complete reports whether all nodes have answered.
func (k *known) complete() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.claims) == len(k.ranges.Nodes())
}

// said reports whether a replica of a range claimed anything of it.
func (k *known) said(shard int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.ranges.Shard(shard)
	return slices.ContainsFunc(of.Replicas, func(n dsm.Node) bool {
		return slices.ContainsFunc(k.mu.claims[n], func(c dsm.Claim) bool { return c.Range.Covers(of.Range) })
	})
}

// claimsOf asks a node for its claims.
func (s *Source) claimsOf(ctx context.Context, n dsm.Node) ([]dsm.Claim, error) {
	b, err := s.peers[n].call(ctx, dsm.MethodRanges, nil, dsm.MaxClaimsBytes)
	if err != nil {
		return nil, err
	}
	claims, err := dsm.DecodeClaims(b)
	if err == nil {
		s.claimed(n, claims)
	}
	return claims, err
}

// alive returns a context that ends with ctx and with the Source.
func (s *Source) alive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// pause waits, or until ctx ends.
func (s *Source) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

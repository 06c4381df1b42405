package client

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/dsm/client/feed"
	"github.com/starling-kv/starling/internal/sleep"
)

// claimsGrace is how long Claims waits for the remaining nodes once each range has an answer.
const claimsGrace = time.Second

// claimed passes a node's claims to both machines.
func (c *Client) claimed(n dsm.NodeID, claims []dsm.Claim) {
	c.layout().asking.step(ask.Claimed{Node: n, Claims: claims})
	c.feeding.step(feed.Claimed{Node: n, Claims: claims})
}

// up tells both machines that a node is connected.
func (c *Client) up(n dsm.NodeID) {
	c.layout().asking.step(ask.Up{Node: n})
	c.feeding.step(feed.Up{Node: n})
}

// Claims asks all nodes for their claims. It returns once each range has an answer, after giving
// the other nodes a little longer. If ctx ends first, the error names a range without an answer,
// and the claims received so far are returned with it. Claims are unverified: see
// server.NewestProvable.
func (c *Client) Claims(ctx context.Context) ([]dsm.Claim, error) {
	ctx, cancel := c.alive(ctx)
	defer cancel()
	began := time.Now()
	l := c.layout()
	nodes := l.nodes()
	answers := make(chan answer, len(nodes))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for _, n := range nodes {
		asking.Go(func() {
			for ctx.Err() == nil {
				if claims, ok := l.peers[n].poll(ctx); ok {
					answers <- answer{n, claims}
					return
				}
				_ = sleep.For(ctx, c.o.Ask.BackOff)
			}
		})
	}
	by := map[dsm.NodeID][]dsm.Claim{}
	wait := ctx
	for len(by) < len(nodes) && wait.Err() == nil {
		select {
		case a := <-answers:
			by[a.node] = a.claims
		case <-wait.Done():
		}
		if _, is := l.silent(by); wait == ctx && !is {
			// Another replica may have more and answer a little later.
			var end context.CancelFunc
			wait, end = context.WithTimeout(ctx, claimsGrace)
			defer end()
		}
	}
	var claims []dsm.Claim
	for _, n := range nodes {
		claims = append(claims, by[n]...)
	}
	slices.SortStableFunc(claims, func(a, b dsm.Claim) int { return bytes.Compare(a.Range.First, b.Range.First) })
	if r, is := l.silent(by); is {
		return claims, fmt.Errorf("no storage node of range %v has answered for %v: %w", r, time.Since(began).Round(time.Millisecond), ctx.Err())
	}
	return claims, nil
}

// answer holds the claims of a node.
type answer struct {
	node   dsm.NodeID
	claims []dsm.Claim
}

// silent returns the first range that no replica claims.
func (l *layout) silent(by map[dsm.NodeID][]dsm.Claim) (r avlstar.KeyRange, is bool) {
	for i := range l.Ranges.Len() {
		of := l.Ranges.Shard(i)
		if !slices.ContainsFunc(of.Replicas, func(n dsm.NodeID) bool {
			return slices.ContainsFunc(by[n], func(c dsm.Claim) bool { return c.Range.Covers(of.Range) })
		}) {
			return of.Range, true
		}
	}
	return r, false
}

// alive returns a context that ends with ctx and with the Client.
func (c *Client) alive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

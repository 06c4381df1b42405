package storagenode

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/hedge"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/transport"
)

var (
	// errEarly: no other replica has what the takeover would give up.
	errEarly  = errors.New("no other replica has the range at this height and at a newer one")
	errNobody = errors.New("no connected node has sent the range")
	// errMissing: the response does not have all that was requested. This is no fault: a validator
	// in sharded mode has only the parts of the state that its blocks needed.
	errMissing = errors.New("the node does not have this part of the state")
	// errPart: the response is a part of what was requested. It is used if no source sends more.
	errPart = errors.New("the response is only a part of what was requested")
	// errSplit: the response would be too long.
	errSplit = errors.New("the response would be too long")
	// errLied: the response is not part of the requested state.
	errLied = errors.New("the response is not part of the requested state")
)

// giver is a source: a node that may have the range.
type giver struct {
	transport.Conn
	parts []dsm.Claim // what it reports about ranges that overlap the wanted one; nil: nothing
	lied  bool        // it has sent an invalid response, at any height
	why   error       // why it is not asked at the height being fetched; nil: it is
	rated bool        // it was asked for a page
	// rate is the smoothed rate of complete pages that were proved, in bytes per second; 0 while
	// not rated. A page that is not complete counts as 0 bytes. One that another source overtakes
	// makes the rate 0.
	rate float64
	// late is the number of pages that came later than those of other sources.
	late int
	// probeAt is the value of takeover.asked at which it is asked although it is slow; 0: not slow
	// so far.
	probeAt int
}

// claims reports whether a source reports to serve keys at a height. Any source is asked for the
// first key after a range that it has.
func (g *giver) claims(keys avlstar.KeyRange, height int64) bool {
	return slices.ContainsFunc(g.parts, func(c dsm.Claim) bool {
		return c.Oldest <= height && height <= c.Newest && (c.Range.Covers(keys) || len(keys.First) > 0 && bytes.Equal(c.Range.After, keys.First) && isKey(keys))
	})
}

// isKey reports whether a range has one key only.
func isKey(r avlstar.KeyRange) bool {
	return len(r.After) == len(r.First)+1 && bytes.HasPrefix(r.After, r.First) && r.After[len(r.First)] == 0
}

// onlyKey returns the range of one key.
func onlyKey(key []byte) avlstar.KeyRange {
	return avlstar.KeyRange{First: key, After: append(bytes.Clone(key), 0)}
}

// replaces reports whether a source reports a newer height, and that it serves the range's height,
// too. The genesis state, before the initial height, is never lost.
func (g *giver) replaces(height, initial int64) bool {
	return slices.ContainsFunc(g.parts, func(c dsm.Claim) bool {
		return c.Newest > max(height, 0) && (height < initial || c.Oldest <= height && height <= c.Newest)
	})
}

// isCovered reports whether sources together report to serve all keys of a range at a height.
func isCovered(givers []*giver, r avlstar.KeyRange, height int64) bool {
	for key := r.First; ; {
		var after []byte // how far the best source goes
		found := false
		for _, g := range givers {
			for _, c := range g.parts {
				switch {
				case c.Oldest > height || height > c.Newest || !c.Range.Contains(key):
				case len(c.Range.After) == 0 || len(r.After) > 0 && bytes.Compare(c.Range.After, r.After) >= 0:
					return true
				case !found || bytes.Compare(c.Range.After, after) > 0:
					after, found = c.Range.After, true
				}
			}
		}
		if !found {
			return false
		}
		key = after
	}
}

// sample adds a page of n proved bytes, which took so long, to the rate.
func (g *giver) sample(n int, took time.Duration) {
	rate := float64(n) / max(took, time.Microsecond).Seconds()
	if g.rated {
		rate = (g.rate + rate) / 2
	}
	g.rate, g.rated = rate, true
}

// holders returns the other nodes of a map that have keys of a range.
func (n *Process) holders(nodes *config.StorageNodes, r avlstar.KeyRange) (all []dsm.NodeID) {
	for s := range nodes.Ranges.All(nodes.Next) {
		for _, node := range s.Replicas {
			if s.Range.Overlaps(r) && transport.ID(node) != n.ID() && !slices.Contains(all, node) {
				all = append(all, node)
			}
		}
	}
	return all
}

// overlapping returns the claims about ranges that overlap r.
func overlapping(claims []dsm.Claim, r avlstar.KeyRange) []dsm.Claim {
	return slices.DeleteFunc(slices.Clone(claims), func(c dsm.Claim) bool { return c.Newest == 0 || !c.Range.Overlaps(r) })
}

// mapped returns the claims about ranges of a map. Other ranges, which only a lying node or one
// with another map claims, could make isCovered slow: many that overlap, with a height each.
func mapped(claims []dsm.Claim, nodes *config.StorageNodes) []dsm.Claim {
	return slices.DeleteFunc(claims, func(c dsm.Claim) bool { return replicasOf(nodes, c.Range) == nil })
}

// holdersAtOnce is the number of nodes that givers asks concurrently.
const holdersAtOnce = 8

// givers connects to the other nodes that have keys of a range, and adds the nodes that are already
// connected, and this node itself, which can have other ranges with these keys. The order does not
// depend on how fast they answer.
func (n *Process) givers(ctx context.Context, p *place) (givers []*giver, closeAll func()) {
	ctx, cancel := context.WithTimeout(ctx, againAfter)
	defer cancel()
	own := slices.DeleteFunc(overlapping(n.Claims(), p.keys), func(c dsm.Claim) bool { return c.Range.Equal(p.keys) })
	if len(own) > 0 {
		givers = append(givers, &giver{Conn: itself{n}, parts: own})
	}
	nodes := n.nodes.Load()
	holders := n.holders(nodes, p.keys)
	dialled := make([]*giver, len(holders))
	var all sync.WaitGroup
	places := make(chan struct{}, holdersAtOnce)
	for i, node := range holders {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			conn, err := n.dialer.Dial(ctx, nodes.Addresses[node])
			if err != nil {
				n.log.Info("Cannot reach another replica of the range", "range", p.String(), "node", node, "err", err)
				return
			}
			claims, _ := rangemap.Claims(ctx, conn) // a node without claims is asked last
			dialled[i] = &giver{Conn: conn, parts: mapped(overlapping(claims, p.keys), nodes)}
		})
	}
	all.Wait()
	dialled = slices.DeleteFunc(dialled, func(g *giver) bool { return g == nil })
	givers = append(givers, dialled...)
	for _, conn := range n.peers.Load().Conns() {
		givers = append(givers, &giver{Conn: conn})
	}
	return givers, func() {
		for _, g := range dialled {
			_ = g.Close() // no request is in flight
		}
	}
}

// call asks the sources of keys until check accepts a response; check is not called concurrently,
// nor again after that. k chooses the first one among the best. If it is slow, others are asked as
// well. If isPage, the rate of the source is sampled. The error wraps errNobody if no source had a
// response, and says why for each of them; it is errSplit if one had no room.
//
// At times, a source that is much slower than the best one is asked together with it: see probed.
func (t *takeover) call(ctx context.Context, k int, keys avlstar.KeyRange, isPage bool, c transport.Call, check func(answer []byte) error) error {
	sources, prompt, failed := t.sources(k, keys)
	atOnce := 1
	if isPage && prompt > 0 {
		if i := t.probed(sources[prompt:]); i >= 0 {
			slow := sources[prompt+i]
			sources = slices.Insert(slices.Delete(sources, prompt+i, prompt+i+1), 1, slow)
			atOnce = 2
		}
	}
	var all sync.WaitGroup
	defer all.Wait()
	var mu sync.Mutex // guards accepted, and calls of check
	accepted, split := false, false
	search := hedge.Search[*giver, struct{}]{
		Policy: hedge.Policy{Pace: hedge.EachSlow, Start: atOnce, Most: sourcesAtOnce, After: slowAfter},
		Go:     func(f func()) { all.Go(f) },
		More:   func() ([]*giver, <-chan struct{}) { return sources, nil },
		Ask: func(ctx context.Context, g *giver) (struct{}, error) {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			began := time.Now()
			answer, err := g.Call(ctx, c)
			took := time.Since(began)
			if err != nil {
				return struct{}{}, err
			}
			mu.Lock()
			defer mu.Unlock()
			if accepted {
				return struct{}{}, nil
			}
			err = check(answer)
			accepted = err == nil
			t.mu.Lock()
			defer t.mu.Unlock()
			switch {
			case accepted && isPage:
				g.sample(len(answer), took)
			case errors.Is(err, errPart), errors.Is(err, errSplit):
				g.sample(0, took)
			}
			return struct{}{}, err
		},
		Failed: func(g *giver, err error) bool {
			split = split || errors.Is(err, errSplit)
			failed = t.note(failed, g, err)
			return false
		},
		Unheard: t.unheard,
	}
	err := search.Run(ctx)
	mu.Lock()
	defer mu.Unlock()
	switch {
	case err != nil:
		return err
	case accepted:
		return nil
	case split:
		return errSplit
	}
	return failed
}

// muchWorse is the factor by which a source is slower than the best one and asked only after the
// others.
const muchWorse = 4

// probeEvery is the least number of pages after which a slow source is asked again.
const probeEvery = 16

// probed returns the position of the source among the slow ones that is to be asked together with
// the best one, or -1. Its rate may come from one late page, or the best one's from one fast page.
// If its page comes first, the source regains its place. Nothing waits for it. The interval
// doubles with each of its late pages, so a source that is fast only when it is probed delays few
// pages.
func (t *takeover) probed(slow []*giver) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(slow) > 0 {
		t.asked++
	}
	for i, g := range slow {
		if g.probeAt == 0 {
			g.probeAt = t.asked + probeEvery
		}
		if t.asked >= g.probeAt {
			g.probeAt = t.asked + probeEvery<<min(g.late, maxLate)
			return i
		}
	}
	return -1
}

// maxLate limits how often the interval of probes doubles.
const maxLate = 16

// sources returns the usable sources, the number of those that are not much slower than the best
// one, and an errNobody with the reasons why the others are not used. The first are those that
// claim the height, then the others; those that are much slower than the best one come last. A
// source that was not asked for a page yet may be the best one.
func (t *takeover) sources(k int, keys avlstar.KeyRange) (usable []*giver, prompt int, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	why = errNobody
	for _, g := range t.givers {
		if part := len(t.edges) > 0 && len(g.parts) > 0 && !g.claims(keys, t.height); part {
			continue // it has other parts of the range
		}
		if g.why == nil {
			usable = append(usable, g)
		} else {
			why = fmt.Errorf("%w; %s: %w", why, g.Remote(), g.why)
		}
	}
	if len(usable) == 0 {
		return nil, 0, why
	}
	fastest := 0.0
	for _, g := range usable {
		fastest = max(fastest, g.rate)
	}
	const slow = 2
	rank := func(g *giver) int {
		switch {
		case g.rated && g.rate <= fastest/muchWorse:
			return slow
		case g.claims(keys, t.height):
			return 0
		}
		return 1
	}
	slices.SortStableFunc(usable, func(a, b *giver) int {
		if r := rank(a); r != rank(b) || r < slow {
			return cmp.Compare(r, rank(b))
		}
		return cmp.Compare(b.rate, a.rate)
	})
	best := 0
	for best < len(usable) && rank(usable[best]) == rank(usable[0]) {
		best++
	}
	for prompt < len(usable) && rank(usable[prompt]) < slow {
		prompt++
	}
	return slices.Concat(usable[k%best:best], usable[:k%best], usable[best:]), prompt, why
}

// note adds the reason why a source was of no use to an error, and does not ask it again at this
// height unless it is only busy, or has a part of what was requested.
func (t *takeover) note(failed error, g *giver, err error) error {
	failed = fmt.Errorf("%w; %s: %w", failed, g.Remote(), err)
	switch {
	case errors.Is(err, transport.ErrBusy), errors.Is(err, errPart), errors.Is(err, errSplit):
		return failed
	case errors.Is(err, errLied):
		t.n.log.Error("A node sent an invalid response: not using it again for now", "node", g.Remote(), "range", t.p.String(), "height", t.height, "err", err)
	default:
		t.n.log.Debug("A node did not send a part of the range: not asking it again at this height", "node", g.Remote(), "range", t.p.String(), "height", t.height, "err", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g.why, g.lied = err, g.lied || errors.Is(err, errLied)
	return failed
}

// maxPartial limits the attempts that end because a source failed: a Byzantine one could fail each
// time.
const maxPartial = 3

// anyFailed reports whether a source that reports this height failed in another way than by a false
// response, or by one without what it reports to have, and few attempts have ended for that reason.
func (t *takeover) anyFailed() bool {
	if t.p.partial >= maxPartial {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.givers, func(g *giver) bool {
		serves := slices.ContainsFunc(g.parts, func(c dsm.Claim) bool { return c.Oldest <= t.height && t.height <= c.Newest })
		return serves && g.why != nil && !g.lied && !errors.Is(g.why, errMissing)
	})
}

// unheard notes that a source was overtaken by another one.
func (t *takeover) unheard(g *giver, since time.Duration) {
	if since >= slowAfter {
		t.mu.Lock()
		defer t.mu.Unlock()
		g.rate, g.rated = 0, true
		g.late++
	}
}

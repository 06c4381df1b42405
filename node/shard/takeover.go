package shard

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/storagenode"
	"github.com/starling-kv/starling/transport"
)

const (
	// pageBytes is about how many bytes of leaves one request brings, and bagBytes the limit of the
	// answer.
	pageBytes = 2 << 20
	bagBytes  = 8 << 20
	// pagesAtOnce is how many pages are grafted together, and pageWorkers how many are under way.
	pagesAtOnce = 16
	pageWorkers = 4
	// upperBytes limits the upper tree that a node sends: 65,536 stubs with keys.
	upperBytes = 64 << 20
	// callTimeout limits one request.
	callTimeout = 30 * time.Second
	// progressEvery is the time between two lines in the log.
	progressEvery = 5 * time.Second
)

var (
	errNobody = errors.New("no replica of the range, and no validator in local mode, has it")
	// errLied: the answer is not of the state that was asked for.
	errLied = errors.New("the answer is not of that state")
)

// giver is a node that may have the range.
type giver struct {
	transport.Conn
	oldest, newest int64 // what it claims; 0: nothing
	lied           bool  // it has sent what is false, of whatever height
	lacks          bool  // it does not have the height that is being fetched
}

// claims reports whether a giver says that it answers a height.
func (g *giver) claims(height int64) bool { return g.oldest <= height && height <= g.newest }

// takeover fetches a range at one height, from whoever has it. What comes is proved by hashes:
//
//	header H+1 ── app hash ──► commitment ──► upper tree ──► seam ──► pages of leaves, several at a time
//
// Where that cannot be completed, the next lower height that somebody claims is fetched, and what
// is here already is reused by its hashes, as is what the range had before.
type takeover struct {
	n       *Node
	p       *place
	height  int64
	partial *avlstar.Partial // what is here
	began   time.Time
	bytes   int
	told    time.Time

	mu     sync.Mutex
	givers []*giver // lied and lacks are guarded by mu; the others do not change
}

// maxHeights limits the heights at which one attempt tries to fetch a range.
const maxHeights = 8

// takeOver fetches the range at the newest height above the given one that can be had, and opens
// it. The error wraps errNobody if no node gives it.
func (n *Node) takeOver(ctx context.Context, p *place, v verifier, above int64) error {
	givers, closeAll := n.givers(ctx, p)
	defer closeAll()
	newest, err := v.Newest(ctx)
	if err != nil {
		return err
	}
	heights := heightsOf(givers, newest-1, max(above, 0))
	if len(heights) == 0 {
		return errNobody
	}
	errs := []error{}
	for _, height := range heights {
		err := n.takeOverAt(ctx, p, v, givers, height)
		if err == nil || ctx.Err() != nil || isFinal(err) {
			return err
		}
		errs = append(errs, fmt.Errorf("after block %d: %w", height, err))
	}
	return errors.Join(errs...)
}

// heightsOf returns the heights that are tried: those that replicas claim as their newest, the
// greatest first, and then the last one, which validators in local mode have. Claims that
// are more than keepHeaders behind come after that: a range could hardly follow from there. A claim
// is a hint: a false one costs an attempt.
func heightsOf(givers []*giver, last, above int64) (heights []int64) {
	for _, g := range givers {
		if height := min(g.newest, last); height > above {
			heights = append(heights, height)
		}
	}
	slices.SortFunc(heights, func(a, b int64) int { return cmp.Compare(b, a) })
	heights = slices.Compact(heights)
	heights = heights[:min(len(heights), maxHeights-1)]
	if last <= above || slices.Contains(heights, last) {
		return heights
	}
	at := slices.IndexFunc(heights, func(h int64) bool { return h < last-keepHeaders })
	if at < 0 {
		at = len(heights)
	}
	return slices.Insert(heights, at, last)
}

// takeOverAt fetches the range at a height. What came stays for the next attempt if not all did.
func (n *Node) takeOverAt(ctx context.Context, p *place, v verifier, givers []*giver, height int64) error {
	header, err := v.LightBlock(ctx, height+1)
	if err != nil {
		return err
	}
	for _, g := range givers {
		g.lacks = false
	}
	slices.SortStableFunc(givers, func(a, b *giver) int {
		switch {
		case a.claims(height) == b.claims(height):
			return 0
		case a.claims(height):
			return -1
		}
		return 1
	})
	t := &takeover{n: n, p: p, height: height, givers: givers, began: time.Now(), told: time.Now()}
	if err := t.begin(ctx, header.AppHash); err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			p.leave(t.partial)
		}
	}()
	n.log.Info("Taking a range over", "range", p.String(), "height", height, "nodes", len(givers))
	if err := t.reuse(ctx); err != nil {
		return err
	}
	p.leave(nil)
	if err := t.fill(ctx); err != nil {
		return err
	}
	err = n.create(p, height, func(o storagenode.Options) error {
		if err := storagenode.CreateProved(o, height, t.partial); err != nil {
			return err
		}
		t.partial.Release() // before it is read from the disk: there may be memory for one only
		done = true
		return nil
	})
	if err != nil {
		return err
	}
	n.log.Info("Took a range over", "range", p.String(), "height", height, "bytes", t.bytes, "seconds", time.Since(t.began).Seconds())
	return nil
}

// givers connects to the other replicas of a range, and adds the nodes that are connected.
func (n *Node) givers(ctx context.Context, p *place) (givers []*giver, closeAll func()) {
	ctx, cancel := context.WithTimeout(ctx, againAfter)
	defer cancel()
	var conns []transport.Conn
	for _, node := range p.shard.Replicas {
		if transport.ID(node) == n.ID() {
			continue
		}
		conn, err := n.dialer.Dial(ctx, n.nodes.Addresses[node])
		if err != nil {
			n.log.Info("Another replica of the range cannot be reached", "range", p.String(), "node", node, "err", err)
			continue
		}
		conns = append(conns, conn)
		g := &giver{Conn: conn}
		b, err := conn.Call(ctx, transport.Call{Method: transport.Method(dsm.MethodRanges), Max: dsm.MaxClaimsBytes})
		if err == nil {
			claims, _ := dsm.DecodeClaims(b) // who claims nothing is asked last
			for _, c := range claims {
				if c.Range.Equal(p.shard.Range) {
					g.oldest, g.newest = c.Oldest, c.Newest
				}
			}
		}
		givers = append(givers, g)
	}
	for _, conn := range n.peers.Load().Conns() {
		givers = append(givers, &giver{Conn: conn})
	}
	return givers, func() {
		for _, c := range conns {
			_ = c.Close() // nothing is under way
		}
	}
}

// call asks the givers in turn, the k-th first, until check takes an answer. errNobody: none has
// given one.
func (t *takeover) call(ctx context.Context, k int, c transport.Call, check func(answer []byte) error) error {
	for i := range t.givers {
		g := t.givers[(k+i)%len(t.givers)]
		t.mu.Lock()
		skip := g.lied || g.lacks
		t.mu.Unlock()
		if skip {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		answer, err := g.Call(limited, c)
		cancel()
		if err == nil {
			err = check(answer)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return nil
		case errors.Is(err, errSplit):
			return err
		case errors.Is(err, errLied):
			t.n.log.Error("A node has sent what is not of the state, and is not asked again for now", "node", g.Remote(), "range", t.p.String(), "height", t.height, "err", err)
		case errors.Is(err, transport.ErrBusy):
			continue
		}
		t.mu.Lock()
		g.lacks, g.lied = true, g.lied || errors.Is(err, errLied)
		t.mu.Unlock()
	}
	return errNobody
}

// begin fetches the commitment with the upper tree, and the ways to both edges.
func (t *takeover) begin(ctx context.Context, appHash []byte) error {
	request := func(depth uint8) transport.Call {
		return transport.Call{Method: transport.Method(dsm.MethodUpper), Body: dsm.UpperRequest{Height: t.height, Depth: depth}.Encode(), Max: upperBytes}
	}
	err := t.call(ctx, 0, request(0), func(answer []byte) error {
		u, err := dsm.DecodeUpper(answer)
		if err != nil {
			return fmt.Errorf("%w: %w", errLied, err)
		}
		c, err := avlstar.DecodeCommitment(u.Commitment)
		if err != nil {
			return fmt.Errorf("%w: %w", errLied, err)
		}
		if hash := c.AppHash(); !bytes.Equal(hash[:], appHash) {
			return fmt.Errorf("%w: app hash %s, the header has %X", errLied, hash, appHash)
		}
		t.partial, err = avlstar.NewPartial(c)
		return err
	})
	if err != nil {
		return err
	}
	root := t.partial.Commitment().Root
	if depth := min(16, bits.Len64(root.Bytes/pageBytes)+1); depth > 1 {
		err = t.call(ctx, 0, request(uint8(depth)), func(answer []byte) error {
			u, err := dsm.DecodeUpper(answer)
			if err != nil {
				return fmt.Errorf("%w: %w", errLied, err)
			}
			return t.graftAll(u.Bag, root)
		})
	}
	for err == nil { // a way may lead through several stubs
		var missing *avlstar.MissingNodeError
		if _, err = t.partial.Seam(t.p.keys); !errors.As(err, &missing) {
			break
		}
		wants := []dsm.Want{{Key: missing.Key}}
		err = t.fetch(ctx, 0, wants, []avlstar.Stub{missing.Node}, func(bag []byte) error { return t.graftAll(bag, missing.Node) })
	}
	if err != nil {
		t.partial.Release()
	}
	return err
}

// graftAll adds a bag whose trees begin at stubs.
func (t *takeover) graftAll(b []byte, stubs ...avlstar.Stub) error {
	bag, err := proofOf(b, stubs)
	if err != nil {
		return err
	}
	next, _, err := t.partial.Graft(bag)
	if err != nil {
		return fmt.Errorf("%w: %w", errLied, err)
	}
	t.partial.Release()
	t.partial = next
	t.bytes += len(b)
	return nil
}

// proofOf decodes a bag, whose trees must begin at stubs, and all of these.
func proofOf(b []byte, stubs []avlstar.Stub) (*avlstar.Bag, error) {
	bag, err := avlstar.DecodeBag(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLied, err)
	}
	roots := bag.Roots()
	for _, s := range stubs {
		if !slices.Contains(roots, s) {
			return nil, fmt.Errorf("%w: a subtree with hash %s is missing", errLied, s.Hash)
		}
	}
	if len(roots) != len(stubs) {
		return nil, fmt.Errorf("%w: %d subtrees for %d that were asked for", errLied, len(roots), len(stubs))
	}
	return bag, nil
}

// errSplit: the answer would be too long.
var errSplit = errors.New("the answer would be too long")

// fetch asks for what is wanted below stubs.
func (t *takeover) fetch(ctx context.Context, k int, wants []dsm.Want, stubs []avlstar.Stub, check func(bag []byte) error) error {
	held := make([][32]byte, len(stubs))
	for i, s := range stubs {
		held[i] = s.Hash
	}
	slices.SortFunc(held, func(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) })
	body, err := dsm.Witness{Height: t.height, Depth: 255, MaxBytes: bagBytes, Held: slices.Compact(held), Wants: wants}.Encode()
	if err != nil {
		return err
	}
	return t.call(ctx, k, transport.Call{Method: transport.Method(dsm.MethodWitness), Body: body, Max: bagBytes}, func(answer []byte) error {
		if len(answer) == 0 {
			// The way to one key always has room. Who denies that would be asked the same for ever.
			if len(wants) == 1 && !wants[0].Range {
				return fmt.Errorf("%w: no room for the way to one key", errLied)
			}
			return errSplit
		}
		return check(answer)
	})
}

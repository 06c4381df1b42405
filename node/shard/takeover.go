package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

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
	newest int64 // what it claims; 0: nothing
	bad    bool  // it does not have the height, or has sent what is false
}

// takeover fetches a range at one height, from whoever has it. What comes is proved by hashes:
//
//	header H+1 ── app hash ──► commitment ──► upper tree ──► seam ──► pages of leaves, several at a time
type takeover struct {
	n       *Node
	p       *place
	height  int64
	partial *avlstar.Partial // what is here
	began   time.Time
	bytes   int
	told    time.Time

	mu     sync.Mutex
	givers []*giver // guarded by mu, but for Conn
}

// takeOver fetches the range at a height above the given one, and opens it. The error is errNobody
// if no node gives it.
func (n *Node) takeOver(ctx context.Context, p *place, v verifier, above int64) error {
	givers, closeAll := n.givers(ctx, p)
	defer closeAll()
	newest, err := v.Newest(ctx)
	if err != nil {
		return err
	}
	height := int64(0)
	for _, g := range givers {
		height = max(height, min(g.newest, newest-1))
	}
	if height == 0 {
		height = newest - 1 // validators have the last heights
	}
	if height <= max(above, 0) {
		return errNobody
	}
	header, err := v.LightBlock(ctx, height+1)
	if err != nil {
		return err
	}
	t := &takeover{n: n, p: p, height: height, givers: givers, began: time.Now(), told: time.Now()}
	if err := t.begin(ctx, header.AppHash); err != nil {
		return err
	}
	defer func() { t.partial.Release() }()
	n.log.Info("Taking a range over", "range", p.String(), "height", height, "nodes", len(givers))
	if err := t.fill(ctx); err != nil {
		return err
	}
	seam, err := t.partial.Seam(p.keys)
	if err != nil {
		return err
	}
	info := storagenode.StateInfo{Height: height, Commitment: t.partial.Commitment(), Seam: seam}
	if err := n.create(p, info, t.partial.Leaves(p.keys)); err != nil {
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
					g.newest = c.Newest
				}
			}
		}
		givers = append(givers, g)
	}
	slices.SortStableFunc(givers, func(a, b *giver) int { return int(min(1, max(-1, b.newest-a.newest))) })
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
		bad := g.bad
		t.mu.Unlock()
		if bad {
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
		g.bad = true
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
			return errSplit
		}
		return check(answer)
	})
}

// page is consecutive stubs that are asked for at once.
type page []avlstar.Subtree

// pages returns the next stubs of the range, in groups of about pageBytes.
func (t *takeover) pages() (pages []page) {
	var last page
	size := uint64(0)
	for s := range t.partial.Version().Stubs(t.p.keys.First) {
		if t.p.keys.After != nil && bytes.Compare(s.First, t.p.keys.After) >= 0 {
			break
		}
		if !t.p.keys.Contains(s.First) {
			continue
		}
		if len(last) > 0 && size+s.Bytes > pageBytes {
			if pages = append(pages, last); len(pages) == pagesAtOnce {
				return pages
			}
			last, size = nil, 0
		}
		last, size = append(last, s), size+s.Bytes
	}
	if len(last) > 0 {
		pages = append(pages, last)
	}
	return pages
}

// wants returns what opens a page: a large subtree is divided first, by the way to its least key.
func (t *takeover) wants(p page) []dsm.Want {
	if len(p) == 1 && p[0].Bytes > bagBytes/2 {
		return []dsm.Want{{Key: p[0].First}}
	}
	after := p[len(p)-1].After
	if t.p.keys.After != nil && (after == nil || bytes.Compare(after, t.p.keys.After) > 0) {
		after = t.p.keys.After
	}
	return []dsm.Want{{Key: p[0].First, Range: true, After: after}}
}

// fill fetches all leaves of the range.
func (t *takeover) fill(ctx context.Context) error {
	for {
		pages := t.pages()
		if len(pages) == 0 {
			return nil
		}
		bags, err := t.bags(ctx, pages)
		if err != nil {
			return err
		}
		next, _, err := t.partial.Graft(bags...)
		if err != nil {
			return err
		}
		t.partial.Release()
		t.partial = next
		if time.Since(t.told) >= progressEvery {
			t.told = time.Now()
			rate := float64(t.bytes) / time.Since(t.began).Seconds()
			t.n.log.Info("Taking a range over", "range", t.p.String(), "height", t.height, "bytes", t.bytes, "rate", humanize.IBytes(uint64(rate))+"/s")
		}
	}
}

// bags fetches pages, several at a time.
func (t *takeover) bags(ctx context.Context, pages []page) ([]*avlstar.Bag, error) {
	bags, errs := make([]*avlstar.Bag, len(pages)), make([]error, len(pages))
	var all sync.WaitGroup
	places := make(chan struct{}, pageWorkers)
	for i, p := range pages {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			bags[i], errs[i] = t.bag(ctx, i, p)
		})
	}
	all.Wait()
	return bags, errors.Join(errs...)
}

func (t *takeover) bag(ctx context.Context, k int, p page) (bag *avlstar.Bag, err error) {
	stubs := make([]avlstar.Stub, len(p))
	for i, s := range p {
		stubs[i] = s.Stub
	}
	take := func(b []byte) (err error) {
		if bag, err = proofOf(b, stubs); err == nil {
			t.mu.Lock()
			t.bytes += len(b)
			t.mu.Unlock()
		}
		return err
	}
	err = t.fetch(ctx, k, t.wants(p), stubs, take)
	if errors.Is(err, errSplit) { // the way to one key always has room
		stubs = stubs[:1]
		err = t.fetch(ctx, k, []dsm.Want{{Key: p[0].First}}, stubs, take)
	}
	return bag, err
}

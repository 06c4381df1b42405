package source

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/ask"
	"github.com/starling-kv/starling/transport"
)

var (
	errOtherState = errors.New("it answers with another state")
	errNoUpper    = errors.New("no replica of a range has sent its part of the upper tree")
)

// Edges returns the keys at which a range ends and the next begins, ascending. A version has to
// have the ways to them for updates to be made of it.
func (s *Source) Edges() (edges [][]byte) {
	for i := 1; i < s.o.Ranges.Len(); i++ {
		edges = append(edges, s.o.Ranges.Shard(i).Range.First)
	}
	return edges
}

// Upper fetches what the app hash of the state after block height commits to, and the inner nodes
// that have fewer than depth others above them. Each storage node has those that lead to its
// ranges, so one replica of each range is asked, and another one where that does not answer, until
// ctx ends. What storage nodes leave out is a stub of the result, and can be fetched like any
// other. The caller releases the result.
func (s *Source) Upper(ctx context.Context, height int64, appHash avlstar.Hash, depth int) (*avlstar.Partial, error) {
	ctx, cancel := s.alive(ctx)
	defer cancel()
	u := uppers{s: s, height: height, appHash: appHash, depth: uint8(max(0, min(depth, maxUpperDepth))), from: map[dsm.Node]*upperOf{}}
	var all sync.WaitGroup
	errs := make([]error, s.o.Ranges.Len())
	for i := range errs {
		all.Go(func() { errs[i] = u.shard(ctx, i) })
	}
	all.Wait()
	defer u.release()
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("source: the upper tree after block %d: %w", height, err)
	}
	return u.tree, nil
}

// maxUpperDepth is the depth up to which nodes answer.
const maxUpperDepth = 16

// uppers joins the upper trees that nodes send.
type uppers struct {
	s       *Source
	height  int64
	appHash avlstar.Hash
	depth   uint8

	mu     sync.Mutex
	from   map[dsm.Node]*upperOf
	tree   *avlstar.Partial // nil before the first answer
	failed bool             // tree is not the caller's
}

// upperOf is a node's answer: nodes with several ranges are asked once.
type upperOf struct {
	done chan struct{} // closed when err is set
	err  error
}

// shard asks the replicas of a range until one has answered.
func (u *uppers) shard(ctx context.Context, i int) error {
	of := u.s.o.Ranges.Shard(i)
	pause := u.s.o.Ask.Retry
	for {
		var errs []error
		for _, n := range of.Replicas {
			err := u.node(ctx, n)
			if err == nil {
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", n, err))
		}
		if u.others(ctx) {
			return nil
		}
		u.s.pause(ctx, pause)
		pause = min(2*pause, u.s.o.Ask.MaxRetry)
		if ctx.Err() != nil {
			u.fail()
			return fmt.Errorf("range %v: %w: %w: %w", of.Range, errNoUpper, errors.Join(errs...), ctx.Err())
		}
	}
}

// node asks a node, unless it has answered or is being asked.
func (u *uppers) node(ctx context.Context, n dsm.Node) error {
	u.mu.Lock()
	a, asked := u.from[n]
	if !asked {
		a = &upperOf{done: make(chan struct{})}
		u.from[n] = a
	}
	u.mu.Unlock()
	if asked {
		<-a.done
		return a.err
	}
	a.err = u.ask(ctx, n)
	if a.err != nil { // it may answer next time
		u.mu.Lock()
		delete(u.from, n)
		u.mu.Unlock()
	}
	close(a.done)
	return a.err
}

func (u *uppers) ask(ctx context.Context, n dsm.Node) error {
	ctx, cancel := context.WithTimeout(ctx, u.s.o.Ask.GiveUp)
	defer cancel()
	body := dsm.UpperRequest{Height: u.height, Depth: u.depth}.Encode()
	b, err := u.s.peers[n].call(ctx, dsm.MethodUpper, body, maxBag)
	if err != nil {
		return err
	}
	verdict, err := u.add(b)
	if verdict != "" {
		for _, i := range u.s.o.Ranges.Of(n) {
			r := u.s.o.Ranges.Shard(i).Range
			u.s.o.Metrics.lied(n, r, verdict)
			u.s.liars.add(n, r, verdict)
		}
		u.s.o.Logger.Error("a storage node sent a false upper tree", "node", n, "height", u.height, "reason", verdict)
	}
	return err
}

// others asks those that are no storage nodes: in local mode they have all of it.
func (u *uppers) others(ctx context.Context) bool {
	for _, conn := range u.s.others.all() {
		body := dsm.UpperRequest{Height: u.height, Depth: u.depth}.Encode()
		ctx, cancel := context.WithTimeout(ctx, u.s.o.Ask.GiveUp)
		b, err := conn.Call(ctx, transport.Call{Method: transport.Method(dsm.MethodUpper), Body: body, Max: maxBag})
		cancel()
		u.s.o.Metrics.called(otherNodes, dsm.MethodUpper, len(body), len(b), err)
		if err == nil {
			verdict, err := u.add(b)
			if err == nil {
				return true
			}
			u.s.others.judged(conn.Remote().ID, dsm.Range{}, verdict)
		}
	}
	return false
}

// add grafts an answer. A verdict is not empty if it is a lie. Another commitment is not: the app
// hash may be that of another height.
func (u *uppers) add(b []byte) (ask.Verdict, error) {
	m, err := dsm.DecodeUpper(b)
	if err != nil {
		return ask.Undecodable, err
	}
	c, err := avlstar.DecodeCommitment(m.Commitment)
	if err != nil {
		return ask.Undecodable, err
	}
	if got := c.AppHash(); got != u.appHash {
		return "", fmt.Errorf("%w: app hash %s, the header has %s", errOtherState, got, u.appHash)
	}
	bag, err := avlstar.DecodeBag(m.Bag)
	if err != nil {
		return ask.Undecodable, err
	}
	if roots := bag.Roots(); len(roots) > 1 || len(roots) == 1 && roots[0] != c.Root {
		return ask.Unasked, fmt.Errorf("%w: a tree with another root", errOtherState)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tree == nil {
		if u.tree, err = avlstar.NewPartial(c); err != nil {
			return "", err
		}
	}
	next, _, err := u.tree.Graft(bag)
	if err != nil {
		return "", err
	}
	u.tree.Release()
	u.tree = next
	return "", nil
}

func (u *uppers) fail() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.failed = true
}

// release gives up a tree that nobody gets.
func (u *uppers) release() {
	if u.failed && u.tree != nil {
		u.tree.Release()
	}
}

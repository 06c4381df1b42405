package storagenode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/serve"
	"github.com/starling-kv/starling/transport"
)

// NodeOptions are what a node answers with.
type NodeOptions struct {
	// Allow reports whether a peer may send updates; nil: anybody may. False updates are found
	// without it, but peers that nobody has named could take all the places in which updates wait.
	Allow func(transport.ID) bool
	// MaxBagBytes limits a witness; default serve.DefaultBagBytes. A requester then asks for less
	// at once.
	MaxBagBytes int
	// Making has one element for each answer that takes long to make, of whatever server: its
	// capacity is how many processors all of them may use. nil: all but one, for this node.
	Making chan struct{}
	// Outline returns the outline of a snapshot; nil: the node has none.
	Outline func(height int64) (outline []byte, ok bool)
	// Failed, if not nil, is told of errors that Run does not return: a state that could not be
	// stored is tried again at the next height that is due.
	Failed func(error)
}

// Node answers the methods of package dsm from replicas of several ranges.
type Node struct {
	o        NodeOptions
	replicas []*Replica      // in the order of keys
	wake     []chan struct{} // of each replica; capacity 1
}

// NewNode returns a node of these replicas, whose ranges must not overlap. They stay the caller's.
func NewNode(o NodeOptions, replicas ...*Replica) (*Node, error) {
	n := &Node{o: o, replicas: slices.Clone(replicas)}
	n.o.MaxBagBytes = orDefault(n.o.MaxBagBytes, serve.DefaultBagBytes)
	n.o.Making = serve.Places(n.o.Making)
	slices.SortFunc(n.replicas, func(a, b *Replica) int { return bytes.Compare(a.o.Range.First, b.o.Range.First) })
	for i, r := range n.replicas {
		n.wake = append(n.wake, make(chan struct{}, 1))
		if i == 0 {
			continue
		}
		if before := n.replicas[i-1].o.Range; before.After == nil || bytes.Compare(before.After, r.o.Range.First) > 0 {
			return nil, fmt.Errorf("storagenode: ranges %v and %v overlap", rangeOf(before), rangeOf(r.o.Range))
		}
	}
	return n, nil
}

// Register makes the node the handler of its methods.
func (n *Node) Register(mux *transport.Mux) {
	handle := func(method uint8, f func(r transport.Request) ([]byte, error)) {
		mux.Handle(transport.Method(method), transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) { return f(r) }))
	}
	handle(dsm.MethodRanges, func(transport.Request) ([]byte, error) { return dsm.EncodeClaims(n.Claims()) })
	serve.Costly(mux, n.o.Making, dsm.MethodWitness, n.witness, n.weighWitness)
	serve.Costly(mux, n.o.Making, dsm.MethodUpper, n.upper, serve.WeighUpper)
	handle(dsm.MethodUpdate, n.update)
	handle(dsm.MethodOutline, n.answerOutline)
}

// Claims returns what the node has, in the order of keys.
func (n *Node) Claims() []dsm.Claim {
	claims := make([]dsm.Claim, len(n.replicas))
	for i, r := range n.replicas {
		claims[i] = r.Claim()
	}
	return claims
}

// Run advances the replicas as updates and headers come, and stores states, until ctx ends. It
// returns nil then, and otherwise the first error of a replica, which takes no updates any more. A
// replica that was closed is left alone.
func (n *Node) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, len(n.replicas))
	var all sync.WaitGroup
	for i, r := range n.replicas {
		store := make(chan struct{}, 1)
		all.Go(func() {
			for wait(ctx, n.wake[i]) {
				_, err := r.Advance()
				if errors.Is(err, ErrClosed) {
					return // it is being replaced, and the others go their way
				}
				if err != nil {
					failed <- err
					cancel()
					return
				}
				nudge(store)
			}
		})
		all.Go(func() {
			for wait(ctx, store) {
				if err := r.Store(); err != nil && n.o.Failed != nil {
					n.o.Failed(err)
				}
			}
		})
	}
	n.Proved() // what came before
	all.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func wait(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is awake
	}
}

// Proved is to be called after headers were proved: replicas look at what waits. It returns at
// once.
func (n *Node) Proved() {
	for _, c := range n.wake {
		nudge(c)
	}
}

// update takes a part of an update, and wakes the replica if it is complete.
func (n *Node) update(r transport.Request) ([]byte, error) {
	if n.o.Allow != nil && !n.o.Allow(r.Peer) {
		return nil, serve.Refused(fmt.Errorf("%w: it is not one of those that may send updates", ErrRefusedSender))
	}
	p, err := dsm.DecodeUpdatePart(r.Body)
	if err != nil {
		return nil, serve.Refused(err)
	}
	i := slices.IndexFunc(n.replicas, func(r *Replica) bool { return rangeOf(r.o.Range).Equal(p.Range) })
	if i < 0 {
		return nil, fmt.Errorf("range %v: %w", p.Range, transport.ErrGone)
	}
	answer, err := n.replicas[i].Receive(r.Peer, p)
	switch {
	case err == nil, errors.Is(err, ErrFarAhead):
	case errors.Is(err, ErrFull):
		return nil, fmt.Errorf("%w: %w", transport.ErrBusy, err)
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrRefusedSender), errors.Is(err, dsm.ErrSum), errors.Is(err, dsm.ErrOtherUpdate), errors.Is(err, dsm.ErrMessage):
		return nil, serve.Refused(err)
	default:
		return nil, err
	}
	if answer.Have == p.Total {
		nudge(n.wake[i])
	}
	return answer.Encode(), nil
}

// answerOutline answers a part of an outline.
func (n *Node) answerOutline(r transport.Request) ([]byte, error) {
	o, err := dsm.DecodeOutlineRequest(r.Body)
	if err != nil {
		return nil, serve.Refused(err)
	}
	if n.o.Outline != nil {
		if outline, ok := n.o.Outline(o.Height); ok {
			return o.Of(outline), nil
		}
	}
	return nil, transport.ErrGone
}

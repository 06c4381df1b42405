package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/transport"
)

// ServerOptions configure a Server.
type ServerOptions struct {
	// Allow reports whether a peer may send updates; nil: any peer may. False updates are detected
	// without it, but unknown peers could occupy all slots for waiting updates.
	Allow func(transport.ID) bool
	// MaxMultiproofBytes limits a witness; default witness.DefaultMultiproofBytes. If a witness
	// would be longer, the requester asks for less at once.
	MaxMultiproofBytes int
	// Making limits concurrent expensive answers, across all servers that share it: its capacity is
	// the number of processors that they may use. nil: all but one, for this node alone.
	Making chan struct{}
	// Outline returns the outline of a snapshot. nil: the node has none.
	Outline func(height int64) (outline []byte, ok bool)
	// Broken, if not nil, is called with the error of a replica that accepts no further updates.
	// The other replicas continue. nil: Run ends with the error.
	Broken func(*Replica, error)
}

// Server answers the methods of package dsm from the replicas of several ranges.
type Server struct {
	o        ServerOptions
	replicas []*Replica      // as dsm.CompareRanges orders their ranges
	wake     []chan struct{} // of each replica; capacity 1
}

// NewServer returns a Server for replicas of different ranges, which overlap while the map of the
// ranges changes. The caller keeps ownership of the replicas.
func NewServer(o ServerOptions, replicas ...*Replica) (*Server, error) {
	n := &Server{o: o, replicas: slices.Clone(replicas)}
	n.o.MaxMultiproofBytes = orDefault(n.o.MaxMultiproofBytes, witness.DefaultMultiproofBytes)
	n.o.Making = witness.Places(n.o.Making)
	slices.SortFunc(n.replicas, func(a, b *Replica) int { return dsm.CompareRanges(a.o.Range, b.o.Range) })
	for i, r := range n.replicas {
		n.wake = append(n.wake, make(chan struct{}, 1))
		if i > 0 && dsm.CompareRanges(n.replicas[i-1].o.Range, r.o.Range) == 0 {
			return nil, fmt.Errorf("storagenode: two replicas of range %v", rangeOf(r.o.Range))
		}
	}
	return n, nil
}

// Register registers the server's handlers.
func (n *Server) Register(mux *transport.Mux) {
	handle := func(method uint8, f func(r transport.Request) ([]byte, error)) {
		mux.Handle(transport.Method(method), transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) { return f(r) }))
	}
	handle(dsm.MethodRanges, func(transport.Request) ([]byte, error) { return dsm.EncodeClaims(n.Claims()) })
	witness.Costly(mux, n.o.Making, dsm.MethodWitness, n.witness, n.weighWitness)
	rare := witness.Rare(mux)
	rare(dsm.MethodUpper, n.upper, witness.WeighUpper)
	rare(dsm.MethodLoads, n.loads, func(transport.Request) int64 { return dsm.MaxLoadsBytes / dsm.MaxClaims * int64(1+len(n.replicas)) })
	handle(dsm.MethodUpdate, n.update)
	handle(dsm.MethodOutline, n.answerOutline)
}

// Claims returns the claims of all replicas, as dsm.CompareRanges orders their ranges.
func (n *Server) Claims() []dsm.Claim {
	claims := make([]dsm.Claim, len(n.replicas))
	for i, r := range n.replicas {
		claims[i] = r.Claim()
	}
	return claims
}

// Run advances the replicas as updates and headers arrive, and scrubs their states, until ctx ends.
// It returns nil in that case, and otherwise, without ServerOptions.Broken, the first error of a
// replica, which then accepts no further updates. A closed replica is skipped.
func (n *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	var all sync.WaitGroup
	broken := func(r *Replica, err error) {
		if n.o.Broken != nil {
			n.o.Broken(r, err)
			return
		}
		select {
		case failed <- err: // the first error counts
		default:
		}
		cancel()
	}
	for i, r := range n.replicas {
		all.Go(func() {
			for wait(ctx, n.wake[i]) {
				heights, err := r.Advance()
				if errors.Is(err, ErrClosed) {
					return // it is being replaced; the other replicas continue
				}
				if err != nil {
					broken(r, err)
					return
				}
				if err := r.shorten(ctx); err != nil {
					broken(r, err)
					return
				}
				if heights > 0 {
					err = n.boundLog()
				}
				if err != nil {
					broken(r, err)
					return
				}
			}
		})
		all.Go(func() {
			if err := r.Scrub(ctx); err != nil {
				broken(r, err)
			}
		})
	}
	n.Proved() // for headers proved before Run
	all.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// boundLog wakes replicas that need too much of the log, and forgets updates of ranges without a
// replica that keep too much of it.
func (n *Server) boundLog() error {
	for i, r := range n.replicas {
		if r.logIsLong() {
			wake.Up(n.wake[i])
		}
	}
	o := n.replicas[0].o
	for _, id := range o.Log.Ranges() {
		if o.Log.NeededBytes(id) <= o.LogBytes {
			continue
		}
		used := slices.ContainsFunc(n.replicas, func(r *Replica) bool { return r.id == id && r.serves() })
		if used {
			continue
		}
		if err := o.Log.Forget(id); err != nil {
			return err
		}
	}
	return nil
}

func wait(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// Proved must be called after headers were proved; it wakes the replicas to check their waiting
// updates. It does not block.
func (n *Server) Proved() {
	for _, c := range n.wake {
		wake.Up(c)
	}
}

// update adds a part of an update, and wakes the replica if the update is complete.
func (n *Server) update(r transport.Request) ([]byte, error) {
	if n.o.Allow != nil && !n.o.Allow(r.Peer) {
		return nil, witness.Refused(fmt.Errorf("%w: it is not an allowed sender of updates", ErrRefusedSender))
	}
	p, err := dsm.DecodeUpdatePart(r.Body)
	if err != nil {
		return nil, witness.Refused(err)
	}
	i := slices.IndexFunc(n.replicas, func(r *Replica) bool { return rangeOf(r.o.Range).Equal(p.Range) })
	if i < 0 {
		return nil, fmt.Errorf("range %v: %w", p.Range, transport.ErrGone)
	}
	answer, err := n.replicas[i].Receive(r.Peer, r.Host, p)
	switch {
	case err == nil, errors.Is(err, ErrFarAhead):
	case errors.Is(err, ErrFull):
		return nil, fmt.Errorf("%w: %w", transport.ErrBusy, err)
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrRefusedSender), errors.Is(err, dsm.ErrSum), errors.Is(err, dsm.ErrOtherUpdate), errors.Is(err, dsm.ErrMessage):
		return nil, witness.Refused(err)
	default:
		return nil, err
	}
	if answer.Have == p.Total {
		wake.Up(n.wake[i])
	}
	return answer.Encode(), nil
}

// answerOutline answers with a part of an outline.
func (n *Server) answerOutline(r transport.Request) ([]byte, error) {
	o, err := dsm.DecodeOutlineRequest(r.Body)
	if err != nil {
		return nil, witness.Refused(err)
	}
	if n.o.Outline != nil {
		if outline, ok := n.o.Outline(o.Height); ok {
			return o.Of(outline), nil
		}
	}
	return nil, transport.ErrGone
}

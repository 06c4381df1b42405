package dsmbench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
)

// ownSource serves multiproofs from a full tree in this process, so that the network is not
// measured. Requests made during CheckTx wait until place, which measures how long the application
// takes to decode and graft the responses.
//
//	hold ── CheckTx … CheckTx ── place: multiproofs are made (not measured) ──► decoded and grafted ── block
type ownSource struct {
	full *avlstar.Version

	mu      sync.Mutex
	held    chan struct{} // closed by place
	made    chan struct{} // closed by place when all requests that waited have their multiproofs
	waiting bool          // from hold to the end of place
	during  int           // requests made while not waiting

	pending sync.WaitGroup // requests that wait for place, until their multiproofs are made
}

func newOwnSource(full *avlstar.Version) *ownSource {
	s := &ownSource{full: full, held: make(chan struct{}), made: make(chan struct{})}
	close(s.held)
	close(s.made)
	return s
}

// hold makes requests wait until place.
func (s *ownSource) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.made, s.during, s.waiting = make(chan struct{}), make(chan struct{}), 0, true
}

// Fetch implements app.Source.
func (s *ownSource) Fetch(ctx context.Context, _ int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Multiproof, error) {
	s.mu.Lock()
	held, made := s.held, s.made
	early := false
	select {
	case <-held:
	default:
		early = true
		s.pending.Add(1)
	}
	if !s.waiting {
		s.during++
	}
	s.mu.Unlock()
	b, err := s.make(ctx, held, wants, below)
	if early {
		s.pending.Done()
	}
	if err != nil {
		return nil, err
	}
	<-made // place closes it as soon as no request is pending
	multiproof, err := avlstar.DecodeMultiproof(b)
	if err != nil {
		return nil, err
	}
	return []*avlstar.Multiproof{multiproof}, nil
}

// make waits for place, and makes a multiproof.
func (s *ownSource) make(ctx context.Context, held <-chan struct{}, wants []avlstar.Want, below avlstar.Below) ([]byte, error) {
	select {
	case <-held:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.full.Multiproof(wants, below)
}

// patience is the time limit for multiproofs.
const patience = time.Minute

// place releases the waiting requests, and waits until the application has grafted all nodes in
// wants. It returns the time taken to decode and graft the multiproofs, from when those of all
// waiting requests are made. The application has up to eight requests of 256 wants in flight. If a
// block needs more, the time to make the multiproofs of the others counts, too.
func (s *ownSource) place(a *app.App, wants []avlstar.Want) (clock, cpu time.Duration, err error) {
	s.mu.Lock()
	close(s.held)
	s.mu.Unlock()
	s.pending.Wait()
	began, used := time.Now(), harness.CPUTime()
	close(s.made)
	every := time.NewTicker(100 * time.Microsecond)
	defer every.Stop()
	had := true
	for released := 0; released < len(wants); {
		if !lacksNothing(a, wants[released:released+1]) {
			had = false
			if <-every.C; time.Since(began) > patience {
				return 0, 0, fmt.Errorf("the multiproof with key %x was not grafted within %s", wants[released].Key, patience)
			}
			continue
		}
		if !had {
			clock, cpu, had = time.Since(began), harness.CPUTime()-used, true
		}
		released++
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = false
	return clock, cpu, nil
}

func lacksNothing(a *app.App, wants []avlstar.Want) bool {
	_, v := a.Latest()
	defer v.Release()
	_, held := v.Missing(wants)
	return len(held) == 0
}

// advance moves the full tree to the state after the block.
func (s *ownSource) advance(changes []avlstar.Change) error {
	next, err := s.full.Apply(changes)
	if err != nil {
		return err
	}
	s.full.Release()
	s.full = next
	return nil
}

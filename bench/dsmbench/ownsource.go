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
	waiting bool          // from hold to the end of place
	ready   time.Time     // when the last multiproof was encoded
	cpu     time.Duration
	during  int // requests made while not waiting
}

func newOwnSource(full *avlstar.Version) *ownSource {
	s := &ownSource{full: full, held: make(chan struct{})}
	close(s.held)
	return s
}

// hold makes requests wait until place.
func (s *ownSource) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.during, s.waiting = make(chan struct{}), 0, true
}

// Fetch implements app.Source.
func (s *ownSource) Fetch(ctx context.Context, _ int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Multiproof, error) {
	s.mu.Lock()
	held := s.held
	if !s.waiting {
		s.during++
	}
	s.mu.Unlock()
	select {
	case <-held:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	b, err := s.full.Multiproof(wants, below)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.ready, s.cpu = time.Now(), harness.CPUTime()
	s.mu.Unlock()
	multiproof, err := avlstar.DecodeMultiproof(b)
	if err != nil {
		return nil, err
	}
	return []*avlstar.Multiproof{multiproof}, nil
}

// patience is the time limit for multiproofs.
const patience = time.Minute

// place releases the waiting requests, and waits until the application has grafted all nodes in
// wants. It returns the time taken to decode and graft the last multiproof, which contains nearly
// all nodes: the first request was made by the first transaction alone.
func (s *ownSource) place(a *app.App, wants []avlstar.Want) (clock, cpu time.Duration, err error) {
	s.mu.Lock()
	close(s.held)
	s.mu.Unlock()
	every := time.NewTicker(100 * time.Microsecond)
	defer every.Stop()
	var (
		began    = time.Now()
		grafted  time.Time // when a missing node was last found to be grafted
		used     time.Duration
		had      = true
		has      bool
		released = 0
	)
	for released < len(wants) {
		if has = lacksNothing(a, wants[released:released+1]); !has {
			had = false
			if <-every.C; time.Since(began) > patience {
				return 0, 0, fmt.Errorf("the multiproof with key %x was not grafted within %s", wants[released].Key, patience)
			}
			continue
		}
		if !had {
			grafted, used, had = time.Now(), harness.CPUTime(), true
		}
		released++
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = false
	if !grafted.After(s.ready) {
		return 0, 0, nil
	}
	return grafted.Sub(s.ready), used - s.cpu, nil
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

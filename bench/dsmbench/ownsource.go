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

// ownSource answers from a full tree in this process, so that the network's part is measured apart.
// What CheckTx asks for is held back until place, which measures what the application does with it.
//
//	hold ── CheckTx … CheckTx ── place: bags are made (not measured) ──► decoded and grafted ── block
type ownSource struct {
	full *avlstar.Version

	mu      sync.Mutex
	held    chan struct{} // closed by place
	waiting bool          // for the last bags to be decoded and grafted
	ready   time.Time     // when the last bag was made
	cpu     harness.CPU
	during  int // requests since place
}

func newOwnSource(full *avlstar.Version) *ownSource {
	s := &ownSource{full: full, held: make(chan struct{})}
	close(s.held)
	return s
}

// hold holds back what is asked for.
func (s *ownSource) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.during, s.waiting = make(chan struct{}), 0, true
}

// Fetch implements app.Source.
func (s *ownSource) Fetch(ctx context.Context, _ int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Bag, error) {
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
	b, err := s.full.Bag(wants, below)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.ready, s.cpu = time.Now(), harness.CPUTime()
	s.mu.Unlock()
	bag, err := avlstar.DecodeBag(b)
	if err != nil {
		return nil, err
	}
	return []*avlstar.Bag{bag}, nil
}

// patience is how long bags may take.
const patience = time.Minute

// place lets the bags come, and waits until the application has grafted what wants name. It returns
// the time of decoding and grafting the last bag, which opens nearly all: the first was asked for
// by the first transaction alone.
func (s *ownSource) place(a *app.App, wants []avlstar.Want) (clock, cpu time.Duration, err error) {
	s.mu.Lock()
	close(s.held)
	s.mu.Unlock()
	every := time.NewTicker(100 * time.Microsecond)
	defer every.Stop()
	var (
		began    = time.Now()
		grafted  time.Time // when one was found that had been missing
		used     harness.CPU
		had      = true
		has      bool
		released = 0
	)
	for released < len(wants) {
		if has = lacksNothing(a, wants[released:released+1]); !has {
			had = false
			if <-every.C; time.Since(began) > patience {
				return 0, 0, fmt.Errorf("the bag that opens key %x was not grafted in %s", wants[released].Key, patience)
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
	return grafted.Sub(s.ready), used.Sub(s.cpu).Total(), nil
}

func lacksNothing(a *app.App, wants []avlstar.Want) bool {
	_, v := a.Latest()
	defer v.Release()
	_, held := v.Lacks(wants)
	return len(held) == 0
}

// advance brings the full tree to the state after the block.
func (s *ownSource) advance(changes []avlstar.Change) error {
	next, err := s.full.Apply(changes)
	if err != nil {
		return err
	}
	s.full.Release()
	s.full = next
	return nil
}

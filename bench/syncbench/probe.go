package syncbench

import (
	"context"
	"sync"
	"time"
)

const (
	// probeEvery is the time between two newcomers.
	probeEvery = 100 * time.Millisecond
	// probePatience is the time limit of a newcomer's connection and response.
	probePatience = 5 * time.Second
)

// probes are newcomers, one after another: each dials, requests a status and disconnects.
type probes struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		slowest time.Duration
		refused int
	}
}

func startProbes(ctx context.Context, t Target) *probes {
	p := &probes{}
	ctx, p.cancel = context.WithCancel(ctx)
	p.wg.Go(func() {
		every := time.NewTicker(probeEvery)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			began := time.Now()
			err := probe(ctx, t)
			if ctx.Err() != nil {
				return
			}
			p.mu.Lock()
			if p.mu.slowest = max(p.mu.slowest, time.Since(began)); err != nil {
				p.mu.refused++
			}
			p.mu.Unlock()
		}
	})
	return p
}

func probe(ctx context.Context, t Target) error {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	d, err := newDialer(t)
	if err != nil {
		return err
	}
	to, err := t.addresses()
	if err != nil {
		return err
	}
	conn, err := d.Dial(ctx, to[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = newestSnapshot(ctx, conn)
	return err
}

// since returns the time of the slowest newcomer since the last call, in milliseconds, and the
// number of newcomers without a response.
func (p *probes) since() (ms float64, refused int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ms, refused = float64(p.mu.slowest.Nanoseconds())/1e6, p.mu.refused
	p.mu.slowest, p.mu.refused = 0, 0
	return ms, refused
}

func (p *probes) end() {
	p.cancel()
	p.wg.Wait()
}

package e2ebench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
)

const (
	// warm is the uncounted beginning of a load: connections are new, caches empty.
	warm = 3 * time.Second

	// rampSeconds is how long each network is loaded to determine the rate for the latencies.
	rampSeconds = 5
)

// run is the state of one run.
type run struct {
	o        Options
	dir      string
	progress *harness.Progress
	kinds    []kind
	turns    int // number of networks started
}

// Run runs the benchmark. It reports to progress, and always stops its processes.
func Run(ctx context.Context, o Options, progress *harness.Progress) (result *Result, err error) {
	err = harness.InFolder(ctx, progress, func(dir string) error {
		r := &run{o: o, dir: dir, progress: progress}
		result, err = r.run(ctx)
		return err
	})
	return result, err
}

func (r *run) run(ctx context.Context) (*Result, error) {
	starlingd, err := network.Starlingd(ctx, r.o.Starlingd, r.progress)
	if err != nil {
		return nil, err
	}
	cometbft, err := network.CometBFT(ctx, r.o.CometBFT, r.progress)
	if err != nil {
		return nil, err
	}
	r.kinds = []kind{r.o.starling(starlingd, network.Open), r.o.kvstore(cometbft, r.o.KVStore)}
	rate := r.o.Rate
	if rate == 0 {
		if rate, err = r.ramp(ctx); err != nil {
			return nil, err
		}
	}
	o := r.o
	result := &Result{
		Validators: o.Validators, TimeoutCommitMS: millis(o.TimeoutCommit), InFlight: o.InFlight, TxBytes: o.TxBytes, Indexer: o.Indexer,
		KVStore: o.KVStore, Seconds: o.Seconds, Rounds: o.Rounds, Rate: rate, Machine: harness.ThisMachine(),
	}
	rounds, err := r.rounds(ctx, rate)
	if err != nil {
		return nil, err
	}
	if slices.Contains(o.Loads, loadOwn) {
		result.Own = newLoadResult(rounds[loadOwn])
	}
	if slices.Contains(o.Loads, loadDistinct) {
		result.Distinct = newLoadResult(rounds[loadDistinct])
	}
	result.judge()
	return result, nil
}

// ramp determines the rate for the latencies: half the throughput of the slower network.
func (r *run) ramp(ctx context.Context) (rate int, err error) {
	r.progress.Begin("ramp", "networks", len(r.kinds))
	for _, k := range r.kinds {
		r.progress.Working(k.name)
		err := r.turn(ctx, k, r.o.Loads[0], func(s *session) error {
			f, err := s.measure(warm, rampSeconds*time.Second, s.saturating())
			if half := int(f.TPS / 2); rate == 0 || half < rate {
				rate = half
			}
			return err
		})
		if err != nil {
			return 0, err
		}
		r.progress.Add(1)
	}
	return max(rate, 1), nil
}

// rounds measures all loads on all networks, and returns the rounds of each load.
func (r *run) rounds(ctx context.Context, rate int) (map[string][]Round, error) {
	rounds := make(map[string][]Round)
	for _, load := range r.o.Loads {
		rounds[load] = make([]Round, r.o.Rounds)
	}
	r.progress.Begin("load", "networks", r.o.Rounds*len(r.o.Loads)*len(r.kinds))
	err := harness.InTurns(r.o.Rounds, r.o.Loads, func(round int, load string) error {
		return harness.InTurns(1, r.inOrder(round), func(_ int, k kind) error {
			r.progress.Working(k.name + ", " + load)
			side := &rounds[load][round].Starling
			if k.name == nameKVStore {
				side = &rounds[load][round].KVStore
			}
			err := r.turn(ctx, k, load, func(s *session) (err error) {
				if side.Saturated, err = s.measure(warm, time.Duration(r.o.Seconds)*time.Second, s.saturating()); err != nil {
					return err
				}
				side.Paced, err = s.measure(warm, time.Duration(r.o.Seconds)*time.Second, s.paced(rate))
				return err
			})
			r.progress.Add(1)
			return err
		})
	})
	return rounds, err
}

// inOrder returns the networks in the order of a round: each is first in turn.
func (r *run) inOrder(round int) []kind {
	at := round % len(r.kinds)
	return append(r.kinds[at:len(r.kinds):len(r.kinds)], r.kinds[:at]...)
}

// turn runs work on a new network of a kind.
func (r *run) turn(ctx context.Context, k kind, load string, work func(*session) error) (err error) {
	r.turns++
	dir := filepath.Join(r.dir, fmt.Sprintf("network-%d", r.turns))
	n, err := k.start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Stop()) }()
	s, err := openSession(n, k.name, load, r.o.Network)
	if err != nil {
		return err
	}
	defer s.close()
	return work(s)
}

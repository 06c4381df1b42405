package clientbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/tx"
)

// TimelineOptions configure a run of timeline.
type TimelineOptions struct {
	Seconds    int
	Workers    int
	Validators []int
	Delays     []int // ms, one way, between every two validators
	Network    string
	Pause      time.Duration // 0: that of Network
	Starlingd  string
}

// Flags adds the flags of timeline.
func (o *TimelineOptions) Flags(f *harness.Flags) {
	f.Int(&o.Seconds, "seconds", 10, 1, 3600, "duration of each measurement, in seconds")
	f.Int(&o.Workers, "workers", 8, 1, 256, "number of concurrent puts")
	f.Ints(&o.Validators, "validators", []int{1, 4, 16}, 1, 64, "numbers of validators")
	f.Ints(&o.Delays, "delays", []int{0, 1, 20, 80}, 0, 1000, "delays between every two validators in ms, one way; a single validator has none")
	f.OneOf(&o.Network, "network", []string{string(config.LAN), string(config.WAN)}, "settings of the nodes, as for starlingd init")
	f.Time(&o.Pause, "timeout-commit", 0, 0, time.Minute, "pause between blocks (0: that of --network)")
	f.Program(&o.Starlingd, "starlingd")
}

// The steps of a put, in order. Each ends with the event in the table that Print explains.
const (
	stepAccept = iota
	stepPropose
	stepSpread
	stepPrevote
	stepPolka
	stepPrecommit
	stepDecide
	stepAnswer
	numSteps
)

var stepNames = [numSteps]string{"accept", "propose", "spread", "prevote", "polka", "precommit", "decide", "answer"}

// neededSyncs is the number of syncs of a disk, one after the other, that a put needs: a validator
// must not forget what it signed (proposal, prevote, precommit), nor a block that it reported.
const neededSyncs = 4

// TimelineResult is the outcome of a run.
type TimelineResult struct {
	Lines   []Timeline      `json:"lines"`
	SyncMS  float64         `json:"sync_ms"` // median of a sync of 4 KiB on this disk
	Seconds int             `json:"seconds"`
	Workers int             `json:"workers"`
	Network string          `json:"network"`
	PauseMS float64         `json:"timeout_commit_ms"`
	Machine harness.Machine `json:"machine"`
}

// Timeline has the mean durations of a put's steps, in ms.
type Timeline struct {
	Validators int                `json:"validators"`
	DelayMS    int                `json:"delay_ms"`
	Steps      map[string]float64 `json:"steps_ms"`
	PutMS      float64            `json:"put_ms"` // their sum
	P50MS      float64            `json:"put_p50_ms"`
	FloorMS    float64            `json:"floor_ms"` // see hops and neededSyncs
	Puts       int                `json:"puts"`
	Left       int                `json:"left_out"` // several rounds, or events are missing
	Syncs      *Syncs             `json:"syncs,omitempty"`
	Idle       idle               `json:"idle"`
}

// idle has figures of a network without traffic.
type idle struct {
	CPU    float64 `json:"cpu_ms_s"`     // ms of CPU time of all validators in a second
	Blocks float64 `json:"blocks_per_s"` // empty blocks
}

func (l *Timeline) name() string {
	if l.Validators == 1 {
		return "1 validator"
	}
	if l.DelayMS == 0 {
		return harness.Count(l.Validators, "validator")
	}
	return fmt.Sprintf("%s, %d ms apart", harness.Count(l.Validators, "validator"), l.DelayMS)
}

// lines lists what a run measures.
func (o *TimelineOptions) lines() (lines []Timeline) {
	for _, n := range o.Validators {
		for _, delay := range o.Delays {
			if n == 1 {
				delay = 0
			}
			lines = append(lines, Timeline{Validators: n, DelayMS: delay})
			if n == 1 {
				break
			}
		}
	}
	return lines
}

// RunTimeline measures where the time of a put goes. It reports to progress, and always stops its
// processes.
func RunTimeline(ctx context.Context, o TimelineOptions, progress *harness.Progress) (result *TimelineResult, err error) {
	err = harness.InFolder(ctx, progress, func(dir string) error {
		program, err := network.Starlingd(ctx, o.Starlingd, progress)
		if err != nil {
			return err
		}
		result = &TimelineResult{Lines: o.lines(), Seconds: o.Seconds, Workers: o.Workers, Network: o.Network, Machine: harness.ThisMachine()}
		settings := common{Network: o.Network, TimeoutCommit: o.Pause}
		result.PauseMS = float64(settings.pause().Microseconds()) / 1e3
		if result.SyncMS, err = measureSync(dir); err != nil {
			return err
		}
		progress.Begin("time lines", "networks", len(result.Lines))
		for i := range result.Lines {
			l := &result.Lines[i]
			progress.Working(l.name())
			if err := o.measure(ctx, l, program, filepath.Join(dir, fmt.Sprintf("line-%d", i))); err != nil {
				return fmt.Errorf("%s: %w", l.name(), err)
			}
			l.FloorMS = neededSyncs*result.SyncMS + hops*float64(l.DelayMS)
			progress.Add(1)
		}
		return nil
	})
	return result, err
}

// measure fills in a time line.
func (o *TimelineOptions) measure(ctx context.Context, l *Timeline, program, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := startStarling(ctx, Options{
		common: common{Seconds: o.Seconds, Network: o.Network, TimeoutCommit: o.Pause, delay: time.Duration(l.DelayMS) * time.Millisecond},
		Keys:   1000, ValueBytes: valueBytes, RangeKeys: 1, Workers: o.Workers, Validators: l.Validators, writers: o.Workers,
	}, program, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.load(ctx); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	net := s.(*starling)
	if l.Idle, err = net.idle(ctx); err != nil {
		return fmt.Errorf("idle: %w", err)
	}
	events := &blockEvents{of: map[int64]*heightEvents{}}
	stop, err := events.follow(ctx, net.net.RPCs())
	if err != nil {
		return err
	}
	puts, err := net.timedPuts(ctx)
	stop()
	if err != nil {
		return err
	}
	l.add(puts, events)
	l.Syncs, err = countSyncs(ctx, net)
	return err
}

// idle measures the network without traffic.
func (s *starling) idle(ctx context.Context) (idle, error) {
	at := func() (cpu float64, height int64, err error) {
		status, err := s.believer.Status(ctx)
		if err != nil {
			return 0, 0, err
		}
		cpu, err = s.net.CPUSeconds(ctx)
		return cpu, status.SyncInfo.LatestBlockHeight, err
	}
	began := time.Now()
	cpu, height, err := at()
	if err != nil {
		return idle{}, err
	}
	if err := sleep.For(ctx, time.Duration(s.o.Seconds)*time.Second); err != nil {
		return idle{}, err
	}
	cpuAfter, heightAfter, err := at()
	seconds := time.Since(began).Seconds()
	return idle{CPU: (cpuAfter - cpu) * 1e3 / seconds, Blocks: float64(heightAfter-height) / seconds}, err
}

// timedPut is one put: its height, and when it began, was accepted and was answered.
type timedPut struct {
	height                    int64
	began, accepted, answered time.Time
}

// timedPuts repeats puts.
func (s *starling) timedPuts(ctx context.Context) (puts []timedPut, err error) {
	var mu sync.Mutex
	work := make([]Operation, s.o.Workers)
	for i := range work {
		writer := s.writers[i%len(s.writers)]
		work[i] = func(ctx context.Context, random *rand.Rand) error {
			p := timedPut{began: time.Now()}
			key, value := Key(random.IntN(s.o.Keys)), NewValue(random, s.o.ValueBytes)
			sent, err := writer.Send(ctx, tx.NewPut(key, value))
			if err != nil {
				return err
			}
			p.accepted = time.Now()
			done, err := sent.Wait(ctx)
			if err != nil {
				return err
			}
			p.answered, p.height = time.Now(), done.Height
			mu.Lock()
			defer mu.Unlock()
			puts = append(puts, p)
			return nil
		}
	}
	_, _, err = Repeat(ctx, work, 1, time.Duration(s.o.Seconds)*time.Second)
	return puts, err
}

// blockEvents collects when the nodes' events about blocks arrived.
type blockEvents struct {
	mu sync.Mutex
	of map[int64]*heightEvents // guarded by mu
}

// heightEvents are the arrivals of the events about one height, by the step that they end, in
// order.
type heightEvents struct {
	at     [numSteps][]time.Time
	rounds bool // there was more than one round
}

// follow subscribes to the events of all nodes, until stop is called.
func (b *blockEvents) follow(ctx context.Context, rpcs []string) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var clients []*rpchttp.HTTP
	stop = func() {
		cancel()
		for _, c := range clients {
			_ = c.Stop()
		}
		all.Wait()
	}
	for _, address := range rpcs {
		c, err := client.NewHTTP(address)
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			stop()
			return nil, err
		}
		clients = append(clients, c)
		for _, query := range []string{types.EventNewRoundStep, types.EventCompleteProposal, types.EventPolka} {
			events, err := c.Subscribe(ctx, "timeline", types.QueryForEvent(query).String(), 1000)
			if err != nil {
				stop()
				return nil, err
			}
			all.Go(func() { b.collect(ctx, query, events) })
		}
	}
	return stop, nil
}

func (b *blockEvents) collect(ctx context.Context, query string, events <-chan ctypes.ResultEvent) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			at := time.Now()
			switch data := e.Data.(type) {
			case types.EventDataCompleteProposal:
				b.note(stepSpread, data.Height, data.Round, at)
			case types.EventDataRoundState:
				step := -1
				switch {
				case query == types.EventPolka:
					step = stepPolka
				case data.Step == "RoundStepPrevote":
					step = stepPrevote
				case data.Step == "RoundStepPrecommit":
					step = stepPrecommit
				case data.Step == "RoundStepCommit":
					step = stepDecide
				}
				if step >= 0 {
					b.note(step, data.Height, data.Round, at)
				}
			}
		}
	}
}

func (b *blockEvents) note(step int, height int64, round int32, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.of[height]
	if h == nil {
		h = &heightEvents{}
		b.of[height] = h
	}
	h.at[step] = append(h.at[step], at)
	h.rounds = h.rounds || round > 0
}

// add computes the means over puts. A step ends at the node that completes two thirds of them.
func (l *Timeline) add(puts []timedPut, events *blockEvents) {
	events.mu.Lock()
	defer events.mu.Unlock()
	quorum := 2*l.Validators/3 + 1
	l.Steps = map[string]float64{}
	var took []float64
	for _, p := range puts {
		ends, ok := events.of[p.height].ends(p, quorum)
		if !ok {
			l.Left++
			continue
		}
		l.Puts++
		last := p.began
		for step, at := range ends {
			l.Steps[stepNames[step]] += at.Sub(last).Seconds() * 1e3
			last = at
		}
		took = append(took, p.answered.Sub(p.began).Seconds()*1e3)
	}
	for _, name := range stepNames {
		l.Steps[name] = harness.Ratio(l.Steps[name], float64(l.Puts))
		l.PutMS += l.Steps[name]
	}
	if l.Puts > 0 {
		l.P50MS = harness.Median(took)
	}
}

// ends returns the end of each step of a put; false: they are not known, or the block took more
// than one round.
func (h *heightEvents) ends(p timedPut, quorum int) (ends [numSteps]time.Time, ok bool) {
	if h == nil || h.rounds {
		return ends, false
	}
	for step := range numSteps {
		switch step {
		case stepAccept:
			ends[step] = p.accepted
		case stepAnswer:
			ends[step] = p.answered
		case stepPropose:
			if len(h.at[stepSpread]) == 0 {
				return ends, false
			}
			ends[step] = h.at[stepSpread][0] // the proposer's own event
		default:
			if len(h.at[step]) < quorum {
				return ends, false
			}
			ends[step] = h.at[step][quorum-1]
		}
	}
	return ends, true
}

// measureSync returns the median time of a sync of 4 KiB on the disk of dir, in ms.
func measureSync(dir string) (ms float64, err error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	var took []float64
	block := make([]byte, 4096)
	for i := range 200 {
		block[0] = byte(i)
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began).Seconds()*1e3)
	}
	return harness.Median(took), nil
}

// Print writes the table.
func (r *TimelineResult) Print(out io.Writer) {
	cells := [][]string{{"mean of a put, ms"}}
	for _, l := range r.Lines {
		cells[0] = append(cells[0], l.name())
	}
	row := func(name string, figure func(l *Timeline) string) {
		cells = append(cells, []string{name})
		for i := range r.Lines {
			cells[len(cells)-1] = append(cells[len(cells)-1], figure(&r.Lines[i]))
		}
	}
	for _, name := range stepNames {
		row(name, func(l *Timeline) string { return milliseconds(l.Steps[name]) })
	}
	row("put", func(l *Timeline) string { return milliseconds(l.PutMS) })
	row("put, p50", func(l *Timeline) string { return milliseconds(l.P50MS) })
	row("floor", func(l *Timeline) string { return milliseconds(l.FloorMS) })
	row("puts", func(l *Timeline) string { return harness.Group(l.Puts) })
	row("left out", func(l *Timeline) string { return harness.Group(l.Left) })
	row("syncs a block", func(l *Timeline) string { return l.Syncs.perBlock() })
	row("ms a sync", func(l *Timeline) string { return l.Syncs.each() })
	row("idle, CPU", func(l *Timeline) string { return milliseconds(l.Idle.CPU) })
	row("idle, blocks", func(l *Timeline) string { return fmt.Sprintf("%.2f", l.Idle.Blocks) })
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
%d s each, %d puts at a time, settings of init --network %s with timeout_commit %g ms. Each step lasts until
accept     the client's node has checked the transaction, and the client knows
propose    the proposer has made a block of it: this includes the end of the block before, and the pause
spread     two thirds of the validators have the whole block
prevote    they have checked it and signed their prevotes
polka      they have two thirds of the prevotes
precommit  they have signed their precommits
decide     they have two thirds of the precommits
answer     the client's node has executed and stored the block, and the client has the result
floor      four one-way delays between validators, and %d syncs of %s ms, the median on this disk
left out   puts in blocks of several rounds, or with events that did not arrive
syncs      of one validator's disk, for a block, counted by strace in a run of their own
idle       CPU time of all validators in a second without puts, in ms, and empty blocks a second
The times are those at which this program, on the same machine, receives the nodes' events.
`, r.Seconds, r.Workers, r.Network, r.PauseMS, neededSyncs, milliseconds(r.SyncMS))
}

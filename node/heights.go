package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/store"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage/undo"
)

// What a node needs to answer from the heights before its start:
//
//	before the restart   block H ──► what it replaced ──► storage/undo, before the state of H is durable
//	after it             the oldest state ──record──► the state before it ──app hash of the chain──► answers queries, and so on
//
// The records are a node's own, and may be missing or damaged: each state must have the app hash
// that the block after it names (docs/decisions/0054-heights-after-a-restart.md).

// rebuildProgress is the time between two log lines of a rebuild.
const rebuildProgress = 3 * time.Second

// maxUndoChanges limits the changes of a record that is used: going back by it is one step, during
// which no block is applied.
const maxUndoChanges = 50_000

// keepsUndo reports whether undo records are kept.
func (o ApplicationOptions) keepsUndo() bool {
	return o.Undo && !o.Config.State.Sharded() && o.Config.State.KeepRecent >= 2
}

// openUndo opens the log of undo records, and changes nothing in it. nil: this node keeps none, or
// cannot, and runs as well.
func openUndo(o ApplicationOptions) *undo.Log {
	if !o.keepsUndo() {
		return nil
	}
	c, lag := o.Config.State, max(o.Config.Storage.MaxLagBlocks, o.Config.Storage.FlushBlocks)
	records, err := undo.Open(config.UndoDir(o.DataDir), undo.Options{
		FS: o.fs, Logger: o.Logger.With("module", "undo"), KeepBlocks: int64(c.KeepRecent), KeepBytes: c.KeepRecentBytes, Slack: int64(lag),
	})
	if err != nil {
		o.Logger.Error("No undo records are kept: after the next start, queries reach less far back", "err", err)
		return nil
	}
	return records
}

// removeUndo removes the records of an earlier start if none are kept now: they would have a gap
// when they are kept again. The state's lock must be held, since a running node has such records.
func removeUndo(o ApplicationOptions) {
	if o.keepsUndo() {
		return
	}
	if err := os.RemoveAll(config.UndoDir(o.DataDir)); err != nil {
		o.Logger.Error("Old undo records are of no use, but cannot be removed", "err", err)
	}
}

// closeUndo closes a log unless it is nil.
func closeUndo(records *undo.Log) error {
	if records == nil {
		return nil
	}
	return records.Close()
}

// heights makes the states of heights before the start again, beside everything else.
type heights struct {
	app     *app.App
	records *undo.Log // nil: there is nothing to make them of
	log     log.Logger
	largest int // changes of a record that is used, at most

	mu struct {
		sync.Mutex
		rebuilt int64
		took    time.Duration
	}
}

var errNoHeader = errors.New("the chain's app hash is not known here: the block after it is not stored")

// rebuild goes back as far as there are records and room. appHash returns the app hash that the
// chain has for the state after a height; nil: it is not known here.
func (h *heights) rebuild(ctx context.Context, appHash func(height int64) ([]byte, error)) {
	if h == nil || h.records == nil {
		return
	}
	height, v := h.app.OldestVersion()
	if v == nil {
		return
	}
	defer func() { v.Release() }() // also where appHash ends the goroutine
	from, began, said := height, time.Now(), time.Now()
	reason := h.app.WantsOlder()
	if reason != nil {
		return // it was started with as many blocks to execute
	}
	for ; reason == nil; reason = h.next(ctx, height) {
		before, err := h.back(height, v, appHash)
		if err == nil {
			if err = h.app.Extend(height-1, before); err != nil {
				before.Release()
			}
		}
		if err != nil {
			reason = err
			break
		}
		v.Release()
		height, v = height-1, before
		h.note(from-height, time.Since(began))
		if time.Since(said) > rebuildProgress {
			said = time.Now()
			h.log.Info("Older states are made again", "heights", from-height, "oldest", height, "seconds", time.Since(began).Seconds())
		}
	}
	h.note(from-height, time.Since(began))
	if height == from {
		h.log.Info("States from before the start do not answer queries", "oldest", height, "reason", reason)
		return
	}
	h.log.Info("Made older states again: they answer queries", "heights", from-height, "oldest", height, "latest", from-1,
		"seconds", time.Since(began).Round(time.Millisecond).Seconds(), "ended", reason)
}

// next returns why the state before height is not to be made; nil: it is.
func (h *heights) next(ctx context.Context, height int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if height == 1 {
		return errors.New("it is the first one")
	}
	return h.app.WantsOlder()
}

// back returns the state before that of height, v, verified.
func (h *heights) back(height int64, v *avlstar.Version, appHash func(height int64) ([]byte, error)) (*avlstar.Version, error) {
	record, err := h.records.Get(height)
	if err != nil {
		return nil, err
	}
	u, err := avlstar.DecodeUndo(record)
	if err != nil {
		return nil, fmt.Errorf("undo record of height %d: %w", height, err)
	}
	if n := u.Changes(); n > h.largest {
		return nil, fmt.Errorf("undo record of height %d: blocks would wait too long for its %d changes: more than %d", height, n, h.largest)
	}
	want, err := appHash(height - 1)
	switch {
	case err != nil:
		return nil, err
	case want == nil:
		return nil, fmt.Errorf("height %d: %w", height-1, errNoHeader)
	}
	// The result has the root that the record names.
	if hash := u.To.AppHash(); string(hash[:]) != string(want) {
		return nil, fmt.Errorf("undo record of height %d: it leads to a state with the app hash %s, the chain has %X", height, hash, want)
	}
	before, err := v.Before(u)
	if err != nil {
		return nil, fmt.Errorf("undo record of height %d: %w", height, err)
	}
	return before, nil
}

func (h *heights) note(rebuilt int64, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.rebuilt, h.mu.took = rebuilt, took
}

// RebuildHeights makes the states of the last heights before the start again, as far as keep_recent
// and keep_recent_bytes allow. The state is that of the blocks that CometBFT has executed; it may
// be called once. appHash returns the app hash that the chain has for the state after a height;
// nil: it is not known. Its error ends the work. It returns when it is done, or ctx has ended.
func (a *Application) RebuildHeights(ctx context.Context, appHash func(height int64) ([]byte, error)) {
	a.heights.rebuild(ctx, appHash)
}

// rebuildHeights is RebuildHeights with the headers that CometBFT has.
func (n *Node) rebuildHeights() {
	if n.application.heights == nil {
		return
	}
	blocks, err := openBlocks(n.databases)
	if err != nil {
		n.log.Error("Older states are not made again", "err", err)
		return
	}
	n.application.RebuildHeights(n.ctx, func(height int64) ([]byte, error) { return appHashAfter(blocks, height) })
}

// openBlocks is Blocks with an error where CometBFT panics: it does when it cannot read.
func openBlocks(d *comet.Databases) (_ *store.BlockStore, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("CometBFT's blocks: %w", comet.Panicked(cause))
		}
	}()
	return d.Blocks()
}

// appHashAfter returns the app hash of the state after a height, as the block after it has it; nil:
// that block is not stored. It returns an error where CometBFT panics.
func appHashAfter(blocks *store.BlockStore, height int64) (hash []byte, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("block %d: %w", height+1, comet.Panicked(cause))
		}
	}()
	meta := blocks.LoadBlockMeta(height + 1)
	if meta == nil {
		return nil, nil
	}
	return meta.Header.AppHash, nil
}

// heightMetrics are the metrics of these states, read when Prometheus asks.
type heightMetrics struct {
	heights              *heights // nil: this node makes none, and all are 0
	rebuilt, took, bytes *prometheus.Desc
}

var _ prometheus.Collector = (*heightMetrics)(nil)

func newHeightMetrics(h *heights) *heightMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("starling", "heights", name), help, nil, nil)
	}
	return &heightMetrics{
		heights: h,
		rebuilt: desc("rebuilt", "States from before the start that were made again, so that queries are answered from them."),
		took:    desc("rebuild_seconds", "Time that this has taken so far."),
		bytes:   desc("undo_bytes", "Bytes of the records on disk of which the next start would make them."),
	}
}

// Describe implements prometheus.Collector.
func (m *heightMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.rebuilt, m.took, m.bytes} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *heightMetrics) Collect(to chan<- prometheus.Metric) {
	var rebuilt, took, bytes float64
	if h := m.heights; h != nil {
		h.mu.Lock()
		rebuilt, took = float64(h.mu.rebuilt), h.mu.took.Seconds()
		h.mu.Unlock()
		bytes = float64(h.records.Bytes())
	}
	to <- prometheus.MustNewConstMetric(m.rebuilt, prometheus.GaugeValue, rebuilt)
	to <- prometheus.MustNewConstMetric(m.took, prometheus.GaugeValue, took)
	to <- prometheus.MustNewConstMetric(m.bytes, prometheus.GaugeValue, bytes)
}

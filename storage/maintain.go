package storage

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// compactStep is the approximate number of bytes of tables compacted between two calls of progress.
const compactStep = 64 << 20

// Compact rewrites the tables to free the space of overwritten and deleted leaves that no kept
// state needs. It stops when ctx ends. progress may be nil; done and total are bytes of tables.
func (s *Zone) Compact(ctx context.Context, progress func(done, total uint64)) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("state folder %s: compact: open for reading only", s.dir)
	}
	if !s.users.enter() {
		return s.closedErr("compact")
	}
	defer s.users.leave()
	if progress == nil {
		progress = func(_, _ uint64) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.failure.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := s.Settle(ctx); err != nil {
		return err
	}
	levels, err := s.db.SSTables()
	if err != nil {
		return s.readErr(err)
	}
	var all []pebble.SSTableInfo
	var done, total uint64
	for _, level := range levels {
		for _, t := range level {
			all = append(all, t)
			total += t.Size
		}
	}
	slices.SortFunc(all, func(a, b pebble.SSTableInfo) int { return bytes.Compare(a.Smallest.UserKey, b.Smallest.UserKey) })
	from, step := wholeZone.Start, uint64(0)
	for i, t := range all {
		step += t.Size
		to := wholeZone.End
		if i+1 < len(all) {
			if to = all[i+1].Smallest.UserKey; step < compactStep || bytes.Compare(from, to) >= 0 {
				continue
			}
		}
		progress(done, total)
		if err := s.db.Compact(ctx, from, to, true); err != nil {
			if failed := s.failure.get(); failed != nil {
				return failed
			}
			return s.folder.Err("compact", err)
		}
		done, from, step = done+step, to, 0
	}
	progress(total, total)
	return nil
}

// DiskBytes returns the disk usage of the zone in bytes, without its pins.
func (s *Zone) DiskBytes() uint64 {
	if !s.users.enter() {
		return 0
	}
	defer s.users.leave()
	return s.db.Metrics().DiskSpaceUsage() + s.unsettledBytes()
}

// unsettledBytes returns the size of a restored state that is not in the database yet.
func (s *Zone) unsettledBytes() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.unsettled == nil {
		return 0
	}
	return s.mu.unsettled.set.bytes
}

// Metrics are counted since the zone was opened.
type Metrics struct {
	SafeHeight         int64
	LagBlocks          int // blocks that are not durable yet
	LagBytes           int64
	LagSeconds         float64 // age of the oldest of these blocks
	Flushes            int64
	FlushSeconds       float64 // time spent in flushes
	FlushedBytes       uint64  // of durable blocks: keys, values and heights, see bytesOf
	WaitSeconds        float64 // time that Write waited for the disk
	CompactionBytes    uint64  // bytes written by compactions
	WrittenBytes       uint64  // bytes written by flushes, compactions and restores
	WriteAmplification float64 // WrittenBytes per byte flushed or ingested
	DiskBytes          uint64
	Generations        int   // number of kept states
	PageReads          int64 // calls of Page that found a page
	PageMisses         int64 // calls of Page that found none
	RecordReads        int64 // calls of Kept.Get that found a record
	CacheHits          int64 // blocks of tables found in the block cache
	CacheMisses        int64
	CacheBytes         int64
	MemTableBytes      uint64
}

// Metrics returns zeros after Close.
func (s *Zone) Metrics() Metrics {
	if !s.users.enter() {
		return Metrics{}
	}
	defer s.users.leave()
	p := s.db.Metrics()
	m := Metrics{
		DiskBytes: p.DiskSpaceUsage() + s.unsettledBytes(), Generations: s.generations.count(),
		PageReads: s.generations.hits.Load(), PageMisses: s.generations.misses.Load(),
		RecordReads: s.generations.records.Load(),
		CacheHits:   p.BlockCache.Hits, CacheMisses: p.BlockCache.Misses, CacheBytes: p.BlockCache.Size,
		MemTableBytes: p.MemTable.Size,
	}
	var flushed, ingested uint64
	for _, l := range p.Levels {
		flushed += l.TableBytesFlushed
		ingested += l.TableBytesIngested
		m.CompactionBytes += l.TableBytesCompacted
	}
	m.WrittenBytes = flushed + ingested + m.CompactionBytes
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.safe != nil {
		m.SafeHeight = s.mu.safe.Height
	}
	m.LagBlocks, m.LagBytes = len(s.mu.waiting)+s.mu.flushing, s.mu.waitingBytes+s.mu.flushingBytes
	if s.mu.flushing > 0 {
		m.LagSeconds = time.Since(s.mu.flushingSince).Seconds()
	} else if len(s.mu.waiting) > 0 {
		m.LagSeconds = time.Since(s.mu.waiting[0].since).Seconds()
	}
	m.Flushes, m.FlushSeconds, m.FlushedBytes = s.mu.flushes, s.mu.flushTime.Seconds(), s.mu.flushedBytes
	m.WaitSeconds = s.mu.waited.Seconds()
	if in := m.FlushedBytes + ingested; in > 0 {
		m.WriteAmplification = float64(m.WrittenBytes) / float64(in)
	}
	return m
}

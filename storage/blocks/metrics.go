package blocks

import (
	"bytes"
	"context"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Level is one level of the LSM tree.
type Level struct {
	Files int64
	Bytes int64
}

// Metrics describes a block zone. Counters start when it is opened.
type Metrics struct {
	DiskBytes      uint64 // tables, logs and obsolete files
	Levels         []Level
	MemTableBytes  uint64
	BytesWritten   uint64 // keys and values of writes
	LogBytes       uint64 // written to the write-ahead log
	FlushedBytes   uint64
	CompactedBytes uint64
	Compactions    int64
	CompactionDebt uint64 // estimated bytes that remain to be compacted
	SegmentBytes   uint64 // written to segments
	Segments       int    // files
	// (LogBytes + FlushedBytes + CompactedBytes + SegmentBytes) / BytesWritten; 0 before the first
	// write
	WriteAmp float64
	// Pebble's cache of file blocks; the space-gaming cache has statistics of its own
	BlockCacheBytes   int64
	BlockCacheHits    int64
	BlockCacheMisses  int64
	OpenIterators     int
	ReadAmplification int // files that a read may have to search
}

// Metrics returns the zero value once the zone is closed.
func (z *Zone) Metrics() Metrics {
	release, err := z.use()
	if err != nil {
		return Metrics{}
	}
	defer release()
	p := z.db.Metrics()
	m := Metrics{
		DiskBytes:     p.DiskSpaceUsage(),
		MemTableBytes: p.MemTable.Size,
		BytesWritten:  p.WAL.BytesIn, LogBytes: p.WAL.BytesWritten,
		Compactions: p.Compact.Count, CompactionDebt: p.Compact.EstimatedDebt,
		BlockCacheBytes: p.BlockCache.Size, BlockCacheHits: p.BlockCache.Hits, BlockCacheMisses: p.BlockCache.Misses,
		ReadAmplification: p.ReadAmp(),
	}
	for _, l := range p.Levels {
		m.Levels = append(m.Levels, Level{l.TablesCount, l.TablesSize})
		m.FlushedBytes += l.TableBytesFlushed + l.BlobBytesFlushed
		m.CompactedBytes += l.TableBytesCompacted + l.BlobBytesCompacted
	}
	m.SegmentBytes, m.Segments = z.parts.appended.Load(), len(z.parts.store.All())
	m.DiskBytes += z.parts.store.Bytes()
	m.BytesWritten += m.SegmentBytes
	if m.BytesWritten > 0 {
		m.WriteAmp = float64(m.LogBytes+m.FlushedBytes+m.CompactedBytes+m.SegmentBytes) / float64(m.BytesWritten)
	}
	z.iterators.Lock()
	defer z.iterators.Unlock()
	m.OpenIterators = len(z.iterators.open)
	return m
}

// compactionStep is about the number of bytes that Compact rewrites between two calls of progress.
const compactionStep = 64 << 20

// Compact rewrites all tables to free the space of deleted and replaced values, and removes
// segments without references. progress, if not nil, is called with the bytes done and in total, as
// estimated at the beginning.
func (z *Zone) Compact(ctx context.Context, progress func(done, total uint64)) error {
	release, err := z.use()
	if err != nil {
		return err
	}
	defer release()
	if progress == nil {
		progress = func(uint64, uint64) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(z.closing, cancel)()
	files, total, err := z.files()
	if err != nil {
		return err
	}
	progress(0, total)
	lower, done, step := []byte{0}, uint64(0), uint64(0)
	for _, f := range files {
		step += f.Size
		upper := f.Largest.UserKey
		if step < compactionStep || bytes.Compare(lower, upper) >= 0 {
			continue
		}
		if err := z.compact(ctx, lower, upper); err != nil {
			return err
		}
		lower, done, step = upper, done+step, 0
		progress(done, total)
	}
	if err := z.compact(ctx, lower, []byte{maxID + 1}); err != nil {
		return err
	}
	progress(total, total)
	return z.sweepAll(ctx)
}

// files returns all files in the order of their last keys, and their bytes.
func (z *Zone) files() (files []pebble.SSTableInfo, total uint64, err error) {
	levels, err := z.db.SSTables()
	if err != nil {
		return nil, 0, z.folder.Err("compact", err)
	}
	for _, level := range levels {
		for _, f := range level {
			files = append(files, f)
			total += f.Size
		}
	}
	slices.SortFunc(files, func(a, b pebble.SSTableInfo) int { return bytes.Compare(a.Largest.UserKey, b.Largest.UserKey) })
	return files, total, nil
}

// compact compacts [lower, upper). The caller keeps the zone open.
func (z *Zone) compact(ctx context.Context, lower, upper []byte) error {
	if z.readOnly {
		return ErrReadOnly
	}
	return z.folder.Err("compact", z.db.Compact(ctx, lower, upper, true))
}

package tablebench

import (
	"hash/crc32"
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/starling-kv/starling/internal/rowtable"
)

// tableWriter writes one table of keys with one prefix.
type tableWriter interface {
	add(key, value []byte) error
	// finish ends the table and returns its length and the CRC-32C of all of it.
	finish() (size uint64, crc uint32, err error)
}

// writer is a contestant.
type writer struct {
	name string
	open func(file io.Writer, prefix byte) tableWriter
}

// ours is the first writer, which ratios refer to.
const ours = "rowtable"

func writers() []writer {
	row := sstable.WriterOptions{
		TableFormat: sstable.TableFormatPebblev1, Compression: sstable.NoCompression,
	}
	columnar := sstable.WriterOptions{
		TableFormat: pebble.FormatValueSeparation.MaxTableFormat(), Compression: sstable.NoCompression,
	}
	large := func(o sstable.WriterOptions) sstable.WriterOptions {
		o.BlockSize = 32 << 10
		return o
	}
	snappy := columnar
	snappy.Compression = sstable.SnappyCompression
	return []writer{
		{ours, func(file io.Writer, prefix byte) tableWriter {
			return own{rowtable.New(file, prefix, pebble.DefaultMerger.Name)}
		}},
		{"sstable, row", pebbles(row)},
		{"sstable, row, 32 KiB", pebbles(large(row))},
		{"sstable, columnar", pebbles(columnar)},
		{"sstable, columnar, 32 KiB", pebbles(large(columnar))},
		{"sstable, columnar, Snappy", pebbles(snappy)},
	}
}

type own struct{ w *rowtable.Writer }

func (o own) add(key, value []byte) error { return o.w.Add(key, value[:1], value[1:]) }

func (o own) finish() (uint64, uint32, error) {
	defer o.w.Recycle()
	return o.w.Finish()
}

// pebbles opens tables of Pebble's writer.
func pebbles(options sstable.WriterOptions) func(io.Writer, byte) tableWriter {
	return func(file io.Writer, prefix byte) tableWriter {
		g := gathers.Get().(*gather)
		*g = gather{file: file, buf: g.buf[:0]}
		return &theirs{gather: g, w: sstable.NewWriter(g, options), key: []byte{prefix}}
	}
}

type theirs struct {
	gather *gather
	w      *sstable.Writer
	key    []byte
}

func (t *theirs) add(key, value []byte) error {
	t.key = append(t.key[:1], key...)
	return t.w.Set(t.key, value)
}

func (t *theirs) finish() (uint64, uint32, error) {
	err := t.w.Close()
	defer gathers.Put(t.gather)
	return t.gather.size, t.gather.crc, err
}

// gatherBytes is the least size of a write to the file but for the last, as in rowtable.
const gatherBytes = 256 << 10

// gather is the file under Pebble's writer: objstorage's own writes a few KiB at a time, and has no
// checksum of the whole. It implements objstorage.Writable.
type gather struct {
	file io.Writer
	buf  []byte
	size uint64
	crc  uint32
}

// gathers keeps the buffers for the next table, as rowtable does.
var gathers = sync.Pool{New: func() any { return &gather{buf: make([]byte, 0, gatherBytes+64<<10)} }}

func (g *gather) Write(b []byte) error {
	g.buf = append(g.buf, b...)
	if len(g.buf) < gatherBytes {
		return nil
	}
	return g.flush()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (g *gather) flush() error {
	g.crc = crc32.Update(g.crc, castagnoli, g.buf)
	g.size += uint64(len(g.buf))
	_, err := g.file.Write(g.buf)
	g.buf = g.buf[:0]
	return err
}

func (g *gather) Finish() error { return g.flush() }

func (g *gather) Abort() {}

package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// tableWriter writes one sorted table in the row format that LevelDB introduced, which every version of Pebble reads (its name there
// is Pebble,v1; see pebble's sstable/table.go). Pebble's own writers, for tables with anything in them, take twice the CPU for that
// format, and four to five times for their newest.
//
//	┌ data block: ascending records ┬ data block ┬ … ┬ index: last key → handle ┬ properties ┬ their handle ┬ footer ┐
//	        about 4 KiB each, every block followed by its type and CRC-32C
type tableWriter struct {
	file vfs.File
	out  []byte // what is not written yet; it begins at offset written of the file
	last []byte // the last key

	written       uint64
	crc           uint32 // CRC-32C of what is written
	block         int    // where the block under way begins in out
	records       int    // in that block
	restarts      []uint32
	index         []byte
	indexRestarts []uint32

	entries, keyBytes, valueBytes, dataBytes uint64
}

const (
	tableBlockBytes = 4 << 10   // a block ends with the record that reaches it
	tableWriteBytes = 256 << 10 // so much is written at a time
	// restartInterval is how many records may share beginnings of keys.
	restartInterval = 16
	trailerBytes    = 8       // that a key has behind it: sequence number 0 and kind
	kindSet         = 1       // pebble.InternalKeyKindSet
	maxRecordValue  = 1 << 30 // offsets in a block have 31 bits
	footerBytes     = 1 + 2*2*binary.MaxVarintLen64 + 4 + 8
	crcChecksums    = 1 // in the footer
	tableMagic      = "\xf0\x9f\xaa\xb3\xf0\x9f\xaa\xb3"
	tableVersion    = 1
)

var (
	errOrder       = errors.New("keys must ascend strictly")
	errRecordBytes = errors.New("a record is too large")
)

var tableWriters = sync.Pool{New: func() any { return &tableWriter{out: make([]byte, 0, tableWriteBytes+2*tableBlockBytes)} }}

func newTableWriter(file vfs.File) *tableWriter {
	w := tableWriters.Get().(*tableWriter)
	*w = tableWriter{
		file: file, out: w.out[:0], last: w.last[:0], restarts: w.restarts[:0], index: w.index[:0], indexRestarts: w.indexRestarts[:0],
	}
	return w
}

// recycle must be the last call.
func (w *tableWriter) recycle() {
	w.file = nil
	if cap(w.out) <= 4*tableWriteBytes {
		tableWriters.Put(w)
	}
}

// add writes a record whose key is kind ‖ key. All of a table have one kind.
func (w *tableWriter) add(kind byte, key, value []byte) error {
	if len(value) > maxRecordValue || len(key) > maxRecordValue {
		return fmt.Errorf("key of %d bytes, value of %d: %w", len(key), len(value), errRecordBytes)
	}
	shared := 0
	if w.entries > 0 {
		n := commonPrefix(w.last, key)
		if n == len(key) || n < len(w.last) && key[n] < w.last[n] {
			return fmt.Errorf("key %x after %x: %w", key, w.last, errOrder)
		}
		shared = 1 + n
	}
	if w.records%restartInterval == 0 {
		w.restarts = append(w.restarts, uint32(len(w.out)-w.block))
		shared = 0
	}
	out := appendUvarint(w.out, uint64(shared))
	out = appendUvarint(out, uint64(1+len(key)+trailerBytes-shared))
	out = appendUvarint(out, uint64(len(value)))
	if shared == 0 {
		out = append(append(out, kind), key...)
	} else {
		out = append(out, key[shared-1:]...)
	}
	out = binary.LittleEndian.AppendUint64(out, kindSet)
	w.out = append(out, value...)
	w.last = append(w.last[:0], key...)
	w.records++
	w.entries++
	w.keyBytes += uint64(1 + len(key) + trailerBytes)
	w.valueBytes += uint64(len(value))
	if len(w.out)-w.block < tableBlockBytes {
		return nil
	}
	return w.endDataBlock(kind)
}

// commonPrefix is how many bytes a and b begin with in common.
func commonPrefix(a, b []byte) int {
	n, most := 0, min(len(a), len(b))
	for ; n+8 <= most; n += 8 {
		if differ := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); differ != 0 {
			return n + bits.TrailingZeros64(differ)/8
		}
	}
	for n < most && a[n] == b[n] {
		n++
	}
	return n
}

func appendUvarint(b []byte, n uint64) []byte {
	if n < 0x80 {
		return append(b, byte(n))
	}
	return binary.AppendUvarint(b, n)
}

// size is about how large the table would be if it ended now.
func (w *tableWriter) size() uint64 { return w.written + uint64(len(w.out)+len(w.index)) }

func (w *tableWriter) endDataBlock(kind byte) error {
	for _, at := range w.restarts {
		w.out = binary.LittleEndian.AppendUint32(w.out, at)
	}
	w.out = binary.LittleEndian.AppendUint32(w.out, uint32(len(w.restarts)))
	handle := w.endBlock()
	w.dataBytes = w.written + uint64(w.block)
	w.records, w.restarts = 0, w.restarts[:0]

	w.indexRestarts = append(w.indexRestarts, uint32(len(w.index)))
	w.index = append(appendUvarint(append(w.index, 0), uint64(1+len(w.last)+trailerBytes)), byte(len(handle)))
	w.index = append(append(w.index, kind), w.last...)
	w.index = append(binary.LittleEndian.AppendUint64(w.index, kindSet), handle...)
	if len(w.index) > math.MaxInt32 {
		return fmt.Errorf("index of %d bytes: %w", len(w.index), errRecordBytes)
	}
	if len(w.out) < tableWriteBytes {
		return nil
	}
	return w.flush()
}

// endBlock appends what follows every block to the one that has begun at w.block, and returns the block's handle. The next one
// begins there.
func (w *tableWriter) endBlock() []byte {
	handle := binary.AppendUvarint(make([]byte, 0, 2*binary.MaxVarintLen64), w.written+uint64(w.block))
	handle = binary.AppendUvarint(handle, uint64(len(w.out)-w.block))
	w.out = append(w.out, 0)                                                                  // not compressed
	masked := bits.RotateLeft32(crc32.Checksum(w.out[w.block:], castagnoli), 17) + 0xa282ead8 // LevelDB's util/crc32c.h
	w.out = binary.LittleEndian.AppendUint32(w.out, masked)
	w.block = len(w.out)
	return handle
}

func (w *tableWriter) flush() error {
	w.crc = crc32.Update(w.crc, castagnoli, w.out)
	n, err := w.file.Write(w.out)
	if err != nil {
		return err
	}
	w.written += uint64(n)
	w.out, w.block = w.out[:0], 0
	return nil
}

// finish ends the table, and returns its length and the CRC-32C of all of it. Nothing is synced.
func (w *tableWriter) finish(kind byte) (size uint64, crc uint32, err error) {
	if w.records > 0 {
		if err := w.endDataBlock(kind); err != nil {
			return 0, 0, err
		}
	}
	w.out = append(w.out, w.index...)
	for _, at := range w.indexRestarts {
		w.out = binary.LittleEndian.AppendUint32(w.out, at)
	}
	w.out = binary.LittleEndian.AppendUint32(w.out, uint32(len(w.indexRestarts)))
	indexBytes := len(w.out) - w.block
	index := w.endBlock()
	number := func(n uint64) []byte { return binary.AppendUvarint(nil, n) }
	w.appendTable([]property{ // in ascending order
		{"rocksdb.block.based.table.index.type", make([]byte, 4)},
		{"rocksdb.comparator", []byte("leveldb.BytewiseComparator")},
		{"rocksdb.compression", []byte("NoCompression")},
		{"rocksdb.data.size", number(w.dataBytes)},
		{"rocksdb.deleted.keys", number(0)},
		{"rocksdb.filter.size", number(0)},
		{"rocksdb.index.size", number(uint64(indexBytes) + 5)},
		{"rocksdb.merge.operands", number(0)},
		{"rocksdb.merge.operator", []byte("pebble.concatenate")},
		{"rocksdb.num.data.blocks", number(uint64(len(w.indexRestarts)))},
		{"rocksdb.num.entries", number(w.entries)},
		{"rocksdb.num.range-deletions", number(0)},
		{"rocksdb.raw.key.size", number(w.keyBytes)},
		{"rocksdb.raw.value.size", number(w.valueBytes)},
	})
	properties := w.endBlock()
	w.appendTable([]property{{"rocksdb.properties", properties}})
	meta := w.endBlock()
	footer := append(append(append(make([]byte, 0, footerBytes), crcChecksums), meta...), index...)
	footer = append(binary.LittleEndian.AppendUint32(footer[:footerBytes-4-8], tableVersion), tableMagic...)
	w.out = append(w.out, footer...)
	err = w.flush()
	return w.written, w.crc, err
}

type property struct {
	name  string
	value []byte
}

// appendTable appends a block of names with values.
func (w *tableWriter) appendTable(properties []property) {
	var restarts []byte
	for _, p := range properties {
		restarts = binary.LittleEndian.AppendUint32(restarts, uint32(len(w.out)-w.block))
		w.out = append(appendUvarint(append(w.out, 0), uint64(len(p.name))), byte(len(p.value)))
		w.out = append(append(w.out, p.name...), p.value...)
	}
	w.out = binary.LittleEndian.AppendUint32(append(w.out, restarts...), uint32(len(properties)))
}

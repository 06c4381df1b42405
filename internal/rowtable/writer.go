// Package rowtable writes sorted tables that Pebble ingests unchanged.
//
// It writes one format only, the row format that LevelDB introduced and that every version of
// Pebble reads (its name there is Pebble,v1; pebble's sstable/table.go), uncompressed, without
// filters. It does not read tables, and does not sync files.
//
//	┌ data block: ascending records ┬ data block ┬ … ┬ index: last key → handle ┬ properties ┬ their handle ┬ footer ┐
//	        about 4 KiB each, every block followed by its type and CRC-32C
//
// Pebble's own writers take 1.6 to 2.3 times the CPU time: docs/decisions/0022-own-table-writer.md.
package rowtable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"sync"

	"github.com/starling-kv/starling/internal/crc32c"
)

// Writer writes one table. It is for one goroutine.
//
//	New ──► Add … Add ──► Finish ──► Recycle
type Writer struct {
	file   io.Writer
	prefix byte   // the first byte of every key in the table
	merger string // the name of the database's merger
	out    []byte // bytes not written yet; out[0] is at offset written of the file
	last   []byte // the last key, without its prefix

	written       uint64   // bytes
	block         int      // offset in out of the current block
	records       int      // in the current block
	restarts      []uint32 // offsets in the current block of the keys that are written whole
	index         []byte   // the index block as far as it is known
	indexRestarts []uint32

	entries, keyBytes, valueBytes, dataBytes uint64
}

const (
	blockBytes = 4 << 10   // a block ends with the record that reaches this size
	writeBytes = 256 << 10 // minimum size of a write to the file, except the last
	// restartInterval is the number of records per restart point: only the first of them has its
	// whole key.
	restartInterval = 16
	trailerBytes    = 8       // after each key: sequence number 0 and kindSet
	kindSet         = 1       // pebble.InternalKeyKindSet
	maxRecordBytes  = 1 << 30 // of a key, and of a value: offsets in a block have 31 bits
	footerBytes     = 1 + 2*2*binary.MaxVarintLen64 + 4 + 8
	crcChecksums    = 1 // in the footer: blocks have CRC-32C, not xxHash
	magic           = "\xf0\x9f\xaa\xb3\xf0\x9f\xaa\xb3"
	version         = 1
)

var (
	// ErrOrder is returned for a key that is not above the one before it.
	ErrOrder = errors.New("keys must ascend strictly")
	// ErrRecordBytes is returned for a key or value of more than 1 GiB, and where the index becomes
	// too large.
	ErrRecordBytes = errors.New("a record is too large")
)

var writers = sync.Pool{New: func() any { return &Writer{out: make([]byte, 0, writeBytes+2*blockBytes)} }}

// New begins a table whose keys all begin with prefix. merger is the name of the database's merger:
// Pebble does not open a table that names another one. The caller keeps ownership of file.
func New(file io.Writer, prefix byte, merger string) *Writer {
	w := writers.Get().(*Writer)
	*w = Writer{
		file: file, prefix: prefix, merger: merger, out: w.out[:0], last: w.last[:0],
		restarts: w.restarts[:0], index: w.index[:0], indexRestarts: w.indexRestarts[:0],
	}
	return w
}

// Recycle keeps the buffers for the next table. It must be the last call, after Finish or instead
// of it; a Writer that is not recycled is garbage like any other.
func (w *Writer) Recycle() {
	w.file = nil
	if cap(w.out) <= 4*writeBytes {
		writers.Put(w)
	}
}

// Add writes a record whose key is prefix ‖ key, and whose value is head ‖ value. No slice is kept.
// It returns ErrOrder, after which the table can be continued, ErrRecordBytes, or an error of the
// file.
func (w *Writer) Add(key, head, value []byte) error {
	valueBytes := len(head) + len(value)
	if valueBytes > maxRecordBytes || len(key) > maxRecordBytes {
		return fmt.Errorf("key of %d bytes, value of %d: %w", len(key), valueBytes, ErrRecordBytes)
	}
	shared := 0
	if w.entries > 0 {
		n := commonPrefix(w.last, key)
		if n == len(key) || n < len(w.last) && key[n] < w.last[n] {
			return fmt.Errorf("key %x after %x: %w", key, w.last, ErrOrder)
		}
		shared = 1 + n
	}
	if w.records%restartInterval == 0 {
		w.restarts = append(w.restarts, uint32(len(w.out)-w.block))
		shared = 0
	}
	out := appendUvarint(w.out, uint64(shared))
	out = appendUvarint(out, uint64(1+len(key)+trailerBytes-shared))
	out = appendUvarint(out, uint64(valueBytes))
	if shared == 0 {
		out = append(append(out, w.prefix), key...)
	} else {
		out = append(out, key[shared-1:]...)
	}
	out = binary.LittleEndian.AppendUint64(out, kindSet)
	w.out = append(append(out, head...), value...)
	w.last = append(w.last[:0], key...)
	w.records++
	w.entries++
	w.keyBytes += uint64(1 + len(key) + trailerBytes)
	w.valueBytes += uint64(valueBytes)
	if len(w.out)-w.block < blockBytes {
		return nil
	}
	return w.endDataBlock()
}

// commonPrefix is the number of bytes at the beginning that a and b have in common.
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

// Size is the approximate length in bytes that the table would have if it ended now.
func (w *Writer) Size() uint64 { return w.written + uint64(len(w.out)+len(w.index)) }

// LastKey is the last key, without its prefix; valid until the next call.
func (w *Writer) LastKey() []byte { return w.last }

func (w *Writer) endDataBlock() error {
	for _, at := range w.restarts {
		w.out = binary.LittleEndian.AppendUint32(w.out, at)
	}
	w.out = binary.LittleEndian.AppendUint32(w.out, uint32(len(w.restarts)))
	handle := w.endBlock()
	w.dataBytes = w.written + uint64(w.block)
	w.records, w.restarts = 0, w.restarts[:0]

	w.indexRestarts = append(w.indexRestarts, uint32(len(w.index)))
	w.index = append(appendUvarint(append(w.index, 0), uint64(1+len(w.last)+trailerBytes)), byte(len(handle)))
	w.index = append(append(w.index, w.prefix), w.last...)
	w.index = append(binary.LittleEndian.AppendUint64(w.index, kindSet), handle...)
	if len(w.index) > math.MaxInt32 {
		return fmt.Errorf("index of %d bytes: %w", len(w.index), ErrRecordBytes)
	}
	if len(w.out) < writeBytes {
		return nil
	}
	return w.flush()
}

// endBlock appends type and checksum to the block that began at w.block, begins the next one, and
// returns the handle of the one that ended.
func (w *Writer) endBlock() []byte {
	handle := binary.AppendUvarint(make([]byte, 0, 2*binary.MaxVarintLen64), w.written+uint64(w.block))
	handle = binary.AppendUvarint(handle, uint64(len(w.out)-w.block))
	w.out = append(w.out, 0) // not compressed
	// LevelDB masks checksums (util/crc32c.h).
	masked := bits.RotateLeft32(crc32c.Sum(w.out[w.block:]), 17) + 0xa282ead8
	w.out = binary.LittleEndian.AppendUint32(w.out, masked)
	w.block = len(w.out)
	return handle
}

func (w *Writer) flush() error {
	n, err := w.file.Write(w.out)
	if err != nil {
		return err
	}
	w.written += uint64(n)
	w.out, w.block = w.out[:0], 0
	return nil
}

// Finish ends the table.
func (w *Writer) Finish() error {
	if w.records > 0 {
		if err := w.endDataBlock(); err != nil {
			return err
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
	w.appendProperties([]property{ // in ascending order
		{"rocksdb.block.based.table.index.type", make([]byte, 4)},
		{"rocksdb.comparator", []byte("leveldb.BytewiseComparator")},
		{"rocksdb.compression", []byte("NoCompression")},
		{"rocksdb.data.size", number(w.dataBytes)},
		{"rocksdb.deleted.keys", number(0)},
		{"rocksdb.filter.size", number(0)},
		{"rocksdb.index.size", number(uint64(indexBytes) + 5)},
		{"rocksdb.merge.operands", number(0)},
		{"rocksdb.merge.operator", []byte(w.merger)},
		{"rocksdb.num.data.blocks", number(uint64(len(w.indexRestarts)))},
		{"rocksdb.num.entries", number(w.entries)},
		{"rocksdb.num.range-deletions", number(0)},
		{"rocksdb.raw.key.size", number(w.keyBytes)},
		{"rocksdb.raw.value.size", number(w.valueBytes)},
	})
	properties := w.endBlock()
	w.appendProperties([]property{{"rocksdb.properties", properties}})
	meta := w.endBlock()
	footer := append(append(append(make([]byte, 0, footerBytes), crcChecksums), meta...), index...)
	footer = append(binary.LittleEndian.AppendUint32(footer[:footerBytes-4-8], version), magic...)
	w.out = append(w.out, footer...)
	return w.flush()
}

type property struct {
	name  string
	value []byte
}

// appendProperties appends a block of names, which ascend, with their values.
func (w *Writer) appendProperties(properties []property) {
	var restarts []byte
	for _, p := range properties {
		restarts = binary.LittleEndian.AppendUint32(restarts, uint32(len(w.out)-w.block))
		w.out = append(appendUvarint(append(w.out, 0), uint64(len(p.name))), byte(len(p.value)))
		w.out = append(append(w.out, p.name...), p.value...)
	}
	w.out = binary.LittleEndian.AppendUint32(append(w.out, restarts...), uint32(len(properties)))
}

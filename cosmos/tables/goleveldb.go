package tables

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/comparer"
	"github.com/syndtr/goleveldb/leveldb/filter"
	"github.com/syndtr/goleveldb/leveldb/journal"
	"github.com/syndtr/goleveldb/leveldb/opt"
	"github.com/syndtr/goleveldb/leveldb/table"

	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/internal/durable"
)

// bloomBits is the number of Bloom filter bits per key, as in cosmos-db.
const bloomBits = 10

// GoLevelDB writes a goleveldb database. It writes LevelDB's files (github.com/google/leveldb,
// doc/impl.md and doc/fileformat.md) with goleveldb's writers of tables and journals.
type GoLevelDB struct {
	dir     string
	files   *files
	options *opt.Options
}

// Numbers of the files. The engine creates a journal when it opens the database.
const (
	manifestNumber = 1
	firstTable     = 2
)

// sequence is the sequence number of all keys, because each key occurs only once.
const sequence = 1

// NewGoLevelDB begins a database in a folder, and removes the folder's content.
func NewGoLevelDB(dir string) (*GoLevelDB, error) {
	if err := empty(dir); err != nil {
		return nil, err
	}
	d := &GoLevelDB{dir: dir, options: &opt.Options{Comparer: internal{}, Filter: internalFilter{filter.NewBloomFilter(bloomBits)}}}
	d.files = newFiles(firstTable, int64(d.options.GetCompactionTableSize(1)), d.create)
	return d, nil
}

// Run implements nodedb.Tables.
func (d *GoLevelDB) Run() (nodedb.Run, error) { return d.files.run(), nil }

type levelWriter struct {
	b   *bufio.Writer
	w   *table.Writer
	key []byte
}

func (d *GoLevelDB) create(number int64) (*os.File, writer, error) {
	f, err := os.Create(filepath.Join(d.dir, fmt.Sprintf("%06d.ldb", number)))
	if err != nil {
		return nil, nil, err
	}
	b := bufio.NewWriterSize(f, 256<<10)
	return f, &levelWriter{b: b, w: table.NewWriter(b, d.options, nil, 2*d.options.GetBlockSize())}, nil
}

func (w *levelWriter) set(key, value []byte) error {
	w.key = append(w.key[:0], key...)
	w.key = appendTrailer(w.key)
	return w.w.Append(w.key, value)
}

func (w *levelWriter) size() int64 { return int64(w.w.BytesLen()) }

func (w *levelWriter) close() (int64, error) {
	err := w.w.Close()
	return int64(w.w.BytesLen()), errors.Join(err, w.b.Flush())
}

// appendTrailer makes an internal key: key ‖ (sequence << 8 | 1: a value), little endian.
func appendTrailer(key []byte) []byte { return binary.LittleEndian.AppendUint64(key, sequence<<8|1) }

// Commit implements nodedb.Tables.
func (d *GoLevelDB) Commit(last []nodedb.Record) error {
	tables, err := d.files.finished()
	if err != nil {
		return err
	}
	if err := d.manifest(tables); err != nil {
		return err
	}
	db, err := leveldb.OpenFile(d.dir, &opt.Options{Filter: filter.NewBloomFilter(bloomBits), ErrorIfMissing: true})
	if err != nil {
		return err
	}
	b := &leveldb.Batch{}
	for _, r := range last {
		b.Put(r.Key, r.Value)
	}
	return errors.Join(db.Write(b, &opt.WriteOptions{Sync: true}), db.Close())
}

// Fields of a record of the manifest (LevelDB, db/version_edit.cc).
const (
	fieldComparer = 1
	fieldJournal  = 2
	fieldNextFile = 3
	fieldSequence = 4
	fieldTable    = 7
)

// manifest writes the manifest, and names it in the file CURRENT. From then on this is a database.
func (d *GoLevelDB) manifest(tables []file) (err error) {
	name := fmt.Sprintf("MANIFEST-%06d", manifestNumber)
	f, err := os.Create(filepath.Join(d.dir, name))
	if err != nil {
		return err
	}
	j := journal.NewWriter(f)
	w, err := j.Next()
	if err == nil {
		_, err = w.Write(d.edit(tables))
	}
	if err = errors.Join(err, j.Close(), f.Sync(), f.Close()); err != nil {
		return err
	}
	return durable.Write(filepath.Join(d.dir, "CURRENT"), []byte(name+"\n"), 0o644)
}

func (d *GoLevelDB) edit(tables []file) []byte {
	number := func(b []byte, field int, v int64) []byte {
		return binary.AppendUvarint(binary.AppendUvarint(b, uint64(field)), uint64(v))
	}
	text := func(b, v []byte) []byte { return append(binary.AppendUvarint(b, uint64(len(v))), v...) }
	total, next := int64(0), int64(firstTable)
	for _, t := range tables {
		total, next = total+t.size, max(next, t.number+1)
	}
	level := 2 // the first level that new blocks do not fill
	for d.options.GetCompactionTotalSize(level) < total {
		level++
	}
	b := text(binary.AppendUvarint(nil, fieldComparer), []byte(comparer.DefaultComparer.Name()))
	b = number(number(number(b, fieldJournal, 0), fieldNextFile, next), fieldSequence, sequence)
	for _, t := range tables {
		b = number(b, fieldTable, int64(level))
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(t.number)), uint64(t.size))
		b = text(text(b, appendTrailer(bytes.Clone(t.First))), appendTrailer(bytes.Clone(t.Last)))
	}
	return b
}

// internal orders internal keys. No table has two internal keys with the same user key (goleveldb,
// leveldb/comparer.go).
type internal struct{}

func (internal) Name() string { return comparer.DefaultComparer.Name() }

func (internal) Compare(a, b []byte) int { return bytes.Compare(user(a), user(b)) }

func (internal) Separator(dst, a, b []byte) []byte {
	return shortened(comparer.DefaultComparer.Separator(dst, user(a), user(b)), user(a))
}

func (internal) Successor(dst, b []byte) []byte {
	return shortened(comparer.DefaultComparer.Successor(dst, user(b)), user(b))
}

// shortened appends the trailer that sorts before all others to key if key is shorter than a;
// otherwise it returns nil.
func shortened(key, a []byte) []byte {
	if key == nil || len(key) >= len(a) || bytes.Compare(a, key) >= 0 {
		return nil
	}
	const most = 1<<56 - 1 // sequence
	return binary.LittleEndian.AppendUint64(key, most<<8|1)
}

func user(key []byte) []byte { return key[:len(key)-8] }

// internalFilter filters by user keys, which are internal keys without the trailer.
type internalFilter struct{ filter.Filter }

func (f internalFilter) Contains(b, key []byte) bool { return f.Filter.Contains(b, user(key)) }

func (f internalFilter) NewGenerator() filter.FilterGenerator {
	return internalGenerator{f.Filter.NewGenerator()}
}

type internalGenerator struct{ filter.FilterGenerator }

func (g internalGenerator) Add(key []byte) { g.FilterGenerator.Add(user(key)) }

package server

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/crc32c"
	"github.com/starling-kv/starling/internal/durable/onvfs"
)

// A stored state in a file (docs/spec/storagenode.md#stored-states). Integers are big-endian.
//
//	file   = header ‖ block ... ‖ end
//	header = "SDSMRNG1" ‖ length of rest:u32 ‖ CRC-32C of rest:u32 ‖ rest
//	rest   = length of label:u16 ‖ label ‖ height:u64 ‖ commitment:53 ‖ boundary proof
//	block  = length:u32 ‖ CRC-32C of all blocks so far:u32 ‖ leaf records                     complete records, in key order
//	end    = 0:u32 ‖ CRC-32C of all blocks and of the number:u32 ‖ number of leaves:u64
//
// The checksum covers all blocks so far, so a missing block or a block of another file is detected.
const (
	stateMagic  = "SDSMRNG1"
	stateSuffix = ".state"
	stateBegun  = ".state-begun"

	stateBlockBytes = 64 << 10 // size at which a block is complete
	maxStateBlock   = stateBlockBytes + record.MaxBytes
	maxStateHeader  = 1 << 28
)

// Files is a Disk of plain files: each stored state is one file that is written completely, synced,
// and then renamed into place. Each kept state takes as much space as the range.
type Files struct {
	fs    vfs.FS
	dir   string
	label []byte
}

// OpenFiles opens the stored states in a folder, creates the folder if it is missing, and removes
// unfinished states. label identifies chain and range; it has at most MaxLabelBytes.
func OpenFiles(fsys vfs.FS, dir string, label []byte) (*Files, error) {
	f := &Files{fsys, dir, label}
	if err := f.open(); err != nil {
		return nil, fmt.Errorf("storagenode: states: %w", err)
	}
	return f, nil
}

func (f *Files) open() error {
	if len(f.label) > MaxLabelBytes {
		return fmt.Errorf("a label of %d bytes", len(f.label))
	}
	if err := onvfs.MakeDir(f.fs, f.dir); err != nil {
		return err
	}
	names, err := f.fs.List(f.dir)
	if err != nil {
		return inFile(f.dir, err)
	}
	for _, name := range names {
		if _, begun := numbered(name, stateBegun); begun {
			if err := f.fs.Remove(f.fs.PathJoin(f.dir, name)); err != nil {
				return inFile(f.fs.PathJoin(f.dir, name), err)
			}
		}
	}
	return nil
}

func (f *Files) path(height int64, suffix string) string {
	return f.fs.PathJoin(f.dir, numberedName(height, suffix))
}

// List implements Disk.
func (f *Files) List() ([]int64, error) {
	names, err := f.fs.List(f.dir)
	if err != nil {
		return nil, fmt.Errorf("storagenode: states: %w", inFile(f.dir, err))
	}
	var heights []int64
	for _, name := range names {
		if height, is := numbered(name, stateSuffix); is {
			heights = append(heights, height)
		}
	}
	slices.Sort(heights)
	return heights, nil
}

// Drop implements Disk.
func (f *Files) Drop(height int64) error {
	path := f.path(height, stateSuffix)
	_, err := f.fs.Stat(path) // some file systems' Remove does not fail on a missing file
	if err == nil {
		err = f.fs.Remove(path)
	}
	switch {
	case isNotExist(err):
		return fmt.Errorf("storagenode: states: height %d: %w", height, ErrNoState)
	case err != nil:
		return fmt.Errorf("storagenode: states: %w", inFile(path, err))
	}
	if err := onvfs.SyncDir(f.fs, f.dir); err != nil {
		return fmt.Errorf("storagenode: states: %w", err)
	}
	return nil
}

// Close implements Disk.
func (f *Files) Close() error { return nil }

// Begin implements Disk.
func (f *Files) Begin(info StateInfo) (StateWriter, error) {
	w, err := f.begin(info)
	if err != nil {
		return nil, fmt.Errorf("storagenode: states: height %d: %w", info.Height, err)
	}
	return w, nil
}

func (f *Files) begin(info StateInfo) (*stateWriter, error) {
	if _, err := f.fs.Stat(f.path(info.Height, stateSuffix)); !isNotExist(err) {
		if err == nil {
			err = errors.New("it is already kept")
		}
		return nil, err
	}
	header := f.header(info)
	if info.Height < 0 || len(header) > maxStateHeader {
		return nil, fmt.Errorf("a header of %d bytes", len(header))
	}
	w := &stateWriter{files: f, height: info.Height}
	path := f.path(info.Height, stateBegun)
	file, err := f.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, inFile(path, err)
	}
	w.file = file
	if _, err := file.Write(header); err != nil {
		return nil, errors.Join(inFile(path, err), w.Close())
	}
	return w, nil
}

func (f *Files) header(info StateInfo) []byte {
	rest := binary.BigEndian.AppendUint16(nil, uint16(len(f.label)))
	rest = append(rest, f.label...)
	rest = binary.BigEndian.AppendUint64(rest, uint64(info.Height))
	rest = append(rest, info.Commitment.Encode()...)
	rest = append(rest, info.Boundary...)
	b := binary.BigEndian.AppendUint32([]byte(stateMagic), uint32(len(rest)))
	b = binary.BigEndian.AppendUint32(b, crc32c.Sum(rest))
	return append(b, rest...)
}

type stateWriter struct {
	files  *Files
	height int64
	file   vfs.File
	block  []byte
	sum    uint32 // of all blocks
	leaves uint64
	last   []byte // key
	kept   bool
}

// Write implements StateWriter.
func (w *stateWriter) Write(l avlstar.Leaf) error {
	if w.leaves > 0 && bytes.Compare(l.Key, w.last) <= 0 {
		return fmt.Errorf("storagenode: state of height %d: key %x does not ascend", w.height, l.Key)
	}
	w.last = append(w.last[:0], l.Key...)
	w.block = record.Append(w.block, l)
	if w.leaves++; len(w.block) >= stateBlockBytes {
		return w.flush()
	}
	return nil
}

// flush writes the block unless it is empty.
func (w *stateWriter) flush() error {
	if len(w.block) == 0 {
		return nil
	}
	w.sum = addSum(w.sum, w.block)
	return w.write(uint32(len(w.block)), w.block)
}

func (w *stateWriter) write(length uint32, rest []byte) error {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 8+len(rest)), length)
	b = binary.BigEndian.AppendUint32(b, w.sum)
	if _, err := w.file.Write(append(b, rest...)); err != nil {
		return w.failed(err)
	}
	w.block = w.block[:0]
	return nil
}

func (w *stateWriter) failed(err error) error {
	return fmt.Errorf("storagenode: states: %w", inFile(w.files.path(w.height, stateBegun), err))
}

// Keep implements StateWriter.
func (w *stateWriter) Keep() error {
	if err := w.flush(); err != nil {
		return err
	}
	number := binary.BigEndian.AppendUint64(nil, w.leaves)
	w.sum = addSum(w.sum, number)
	if err := w.write(0, number); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return w.failed(err)
	}
	file := w.file
	w.file = nil
	if err := file.Close(); err != nil {
		return w.failed(err)
	}
	f := w.files
	if err := onvfs.Rename(f.fs, f.path(w.height, stateBegun), f.path(w.height, stateSuffix)); err != nil {
		return w.failed(err)
	}
	w.kept = true
	return nil
}

// Close implements StateWriter.
func (w *stateWriter) Close() error {
	var errs []error
	if w.file != nil {
		errs = append(errs, w.file.Close())
		w.file = nil
	}
	if !w.kept {
		// After a failed Keep, the file may have either name or not exist.
		for _, suffix := range []string{stateBegun, stateSuffix} {
			if err := w.files.fs.Remove(w.files.path(w.height, suffix)); !isNotExist(err) {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return w.failed(err)
	}
	return nil
}

func addSum(sum uint32, b []byte) uint32 {
	return crc32c.Sum(binary.BigEndian.AppendUint32(nil, sum), b)
}

// Open implements Disk.
func (f *Files) Open(height int64) (StoredState, error) {
	path := f.path(height, stateSuffix)
	file, err := f.fs.Open(path)
	switch {
	case isNotExist(err):
		return nil, fmt.Errorf("storagenode: states: height %d: %w", height, ErrNoState)
	case err != nil:
		return nil, fmt.Errorf("storagenode: states: %w", inFile(path, err))
	}
	s := &storedState{path: path, file: file, r: bufio.NewReaderSize(file, 256<<10)}
	if err := s.readHeader(f.label, height); err != nil {
		return nil, errors.Join(fmt.Errorf("storagenode: states: %w", err), file.Close())
	}
	return s, nil
}

type storedState struct {
	path   string
	file   vfs.File
	r      *bufio.Reader
	offset int64
	info   StateInfo
	read   bool
}

// Info implements StoredState.
func (s *storedState) Info() StateInfo { return s.info }

// Close implements StoredState.
func (s *storedState) Close() error { return s.file.Close() }

// next reads n bytes. Errors: ErrDamaged if the file ends early; file system errors.
func (s *storedState) next(n int64) ([]byte, error) {
	var b bytes.Buffer // grows with the bytes read: the length may be damaged
	got, err := io.CopyN(&b, s.r, n)
	switch {
	case errors.Is(err, io.EOF):
		return nil, damaged(s.path, s.offset, "the file ends, %d bytes are missing", n-got)
	case err != nil:
		return nil, inFile(s.path, err)
	}
	s.offset += n
	return b.Bytes(), nil
}

func (s *storedState) readHeader(label []byte, height int64) error {
	head, err := s.next(int64(len(stateMagic)) + 8)
	if err != nil {
		return err
	}
	magic, head := head[:len(stateMagic)], head[len(stateMagic):]
	length := binary.BigEndian.Uint32(head)
	if string(magic) != stateMagic || length > maxStateHeader {
		return damaged(s.path, 0, "not a stored state")
	}
	rest, err := s.next(int64(length))
	if err != nil {
		return err
	}
	if crc32c.Sum(rest) != binary.BigEndian.Uint32(head[4:]) || len(rest) < 2 {
		return damaged(s.path, 0, "the header's checksum does not match")
	}
	n := int(binary.BigEndian.Uint16(rest))
	if rest = rest[2:]; len(rest) < n || !bytes.Equal(rest[:n], label) {
		return inFile(s.path, ErrOther)
	}
	if rest = rest[n:]; len(rest) < 8+avlstar.CommitmentBytes {
		return damaged(s.path, 0, "the header is too short")
	}
	at := binary.BigEndian.Uint64(rest)
	if at > math.MaxInt64 || int64(at) != height {
		return damaged(s.path, 0, "the file name does not match its height %d", at)
	}
	s.info.Height, rest = height, rest[8:]
	s.info.Commitment, err = avlstar.DecodeCommitment(rest[:avlstar.CommitmentBytes])
	if err != nil {
		return damaged(s.path, 0, "%v", err)
	}
	s.info.Boundary = rest[avlstar.CommitmentBytes:]
	return nil
}

// Leaves implements StoredState. It may be called once.
func (s *storedState) Leaves() iter.Seq2[avlstar.Leaf, error] {
	return func(yield func(avlstar.Leaf, error) bool) {
		if s.read {
			yield(avlstar.Leaf{}, errors.New("storagenode: a stored state can be read only once"))
			return
		}
		s.read = true
		if err := s.leaves(yield); err != nil {
			yield(avlstar.Leaf{}, fmt.Errorf("storagenode: states: %w", err))
		}
	}
}

func (s *storedState) leaves(yield func(avlstar.Leaf, error) bool) error {
	var sum uint32
	var leaves uint64
	for {
		began := s.offset
		head, err := s.next(8)
		if err != nil {
			return err
		}
		length := int64(binary.BigEndian.Uint32(head))
		if length > maxStateBlock {
			return damaged(s.path, began, "a block of %d bytes", length)
		}
		end := length == 0
		if end {
			length = 8
		}
		block, err := s.next(length)
		if err != nil {
			return err
		}
		if sum = addSum(sum, block); sum != binary.BigEndian.Uint32(head[4:]) {
			return damaged(s.path, began, "the checksum of a block does not match")
		}
		if end {
			if n := binary.BigEndian.Uint64(block); n != leaves {
				return damaged(s.path, began, "found %d leaves, want %d", leaves, n)
			}
			return nil
		}
		for len(block) > 0 {
			leaf, rest, err := record.Decode(block)
			if err != nil {
				return damaged(s.path, began, "a leaf record: %v", err)
			}
			if leaves++; !yield(leaf, nil) {
				return nil
			}
			block = rest
		}
	}
}

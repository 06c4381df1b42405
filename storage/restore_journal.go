package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/internal/crc32c"
)

// RunID identifies a run of leaves. The caller chooses it; it has at most MaxRunID bytes and says
// nothing about the run's position in the state.
type RunID string

// MaxRunID is the maximum length of a RunID.
const MaxRunID = 200

// MaxLabel is the maximum length of a restore's label.
const MaxLabel = 64 << 20

// run is the location of a run's records. A run without leaves has none.
type run struct {
	file   uint64 // number of the file
	at     uint64 // offset in the file, in bytes
	bytes  uint64
	crc    uint32 // CRC-32C of the records
	height uint8  // of the first leaf; the one in its record is ignored
	first  []byte // key of the first leaf
}

// The journal lists the runs:
//
//	journal = version:u8 ‖ record × n
//	record  = length of body:u32be ‖ body ‖ CRC-32C of both:u32be
//	body    = 'a' ‖ len:u8 ‖ id ‖ height:u8 ‖ file:u64be ‖ offset:u64be ‖ bytes:u64be ‖ CRC-32C:u32be ‖ first key     added
//	        | 'r' ‖ len:u8 ‖ id                                                                                       removed
//
// Reading ends before the first incomplete record: a crash may leave the last record incomplete,
// and everything after damage is ignored.
const (
	journalVersion  = 1
	journalAdded    = 'a'
	journalRemoved  = 'r'
	runBytes        = 1 + 8 + 8 + 8 + 4 // of a record, without its id and the first key
	maxJournalBytes = 1 << 30           // more than any restore needs: millions of runs
)

// appendAdded appends a record of an added run.
func appendAdded(journal []byte, id RunID, r run) []byte {
	at := len(journal)
	journal = append(append(journal, 0, 0, 0, 0, journalAdded, byte(len(id))), id...)
	journal = append(journal, r.height)
	journal = binary.BigEndian.AppendUint64(journal, r.file)
	journal = binary.BigEndian.AppendUint64(journal, r.at)
	journal = binary.BigEndian.AppendUint64(journal, r.bytes)
	journal = binary.BigEndian.AppendUint32(journal, r.crc)
	return endRecord(append(journal, r.first...), at)
}

// appendRemoved appends a record of a removed run.
func appendRemoved(journal []byte, id RunID) []byte {
	at := len(journal)
	return endRecord(append(append(journal, 0, 0, 0, 0, journalRemoved, byte(len(id))), id...), at)
}

func endRecord(journal []byte, at int) []byte {
	binary.BigEndian.PutUint32(journal[at:], uint32(len(journal)-at-4))
	return binary.BigEndian.AppendUint32(journal, crc32c.Sum(journal[at:]))
}

// decodeJournal returns the listed runs, and the length of the valid part of the journal.
func decodeJournal(journal []byte) (runs map[RunID]run, whole int) {
	runs = map[RunID]run{}
	if len(journal) == 0 || journal[0] != journalVersion {
		return runs, 0
	}
	whole = 1
	for {
		rest := journal[whole:]
		if len(rest) < 4+4 {
			break
		}
		n := uint64(binary.BigEndian.Uint32(rest))
		if n > uint64(len(rest)-4-4) {
			break
		}
		record := rest[:4+n]
		if crc32c.Sum(record) != binary.BigEndian.Uint32(rest[4+n:]) || !applyRecord(runs, record[4:]) {
			break
		}
		whole += len(record) + 4
	}
	return runs, whole
}

func applyRecord(runs map[RunID]run, body []byte) bool {
	if len(body) < 2 || len(body)-2 < int(body[1]) || body[1] > MaxRunID {
		return false
	}
	id, b := RunID(body[2:2+body[1]]), body[2+body[1]:]
	switch {
	case body[0] == journalRemoved && len(b) == 0:
		delete(runs, id)
		return true
	case body[0] != journalAdded || len(b) < runBytes:
		return false
	}
	r := run{
		height: b[0], file: binary.BigEndian.Uint64(b[1:]), at: binary.BigEndian.Uint64(b[9:]), bytes: binary.BigEndian.Uint64(b[17:]),
		crc: binary.BigEndian.Uint32(b[25:]), first: bytes.Clone(b[runBytes:]),
	}
	if r.file > math.MaxInt64 || r.at > math.MaxInt64 || r.bytes > math.MaxInt64-r.at {
		return false
	}
	// A run without leaves has neither a file nor a first key; any other run has both.
	if some := r.bytes > 0; some != (r.file > 0) || some != (len(r.first) > 0) {
		return false
	}
	runs[id] = r
	return true
}

// The label is stored in a file that contains
//
//	version:u8 ‖ label ‖ CRC-32C of both:u32be
const labelVersion = 1

func encodeLabel(label []byte) []byte {
	b := append(append(make([]byte, 0, 1+len(label)+4), labelVersion), label...)
	return binary.BigEndian.AppendUint32(b, crc32c.Sum(b))
}

func decodeLabel(b []byte) ([]byte, error) {
	if len(b) < 1+4 || len(b) > 1+MaxLabel+4 {
		return nil, fmt.Errorf("label of %d bytes: %w", len(b), ErrCorrupt)
	}
	body := b[:len(b)-4]
	switch {
	case crc32c.Sum(body) != binary.BigEndian.Uint32(b[len(b)-4:]):
		return nil, fmt.Errorf("label: wrong checksum: %w", ErrCorrupt)
	case body[0] > labelVersion:
		return nil, newerRestore(body[0])
	case body[0] < labelVersion:
		return nil, fmt.Errorf("label: version %d: %w", body[0], ErrCorrupt)
	}
	return body[1:], nil
}

// newerRestore is the version of a restore's label or journal written by a newer program.
type newerRestore byte

func (v newerRestore) Error() string {
	return fmt.Sprintf("a restore of version %d: %v", byte(v), ErrNewerFormat)
}

func (newerRestore) Is(target error) bool { return target == ErrNewerFormat }

// readAll reads a file of at most limit bytes.
func readAll(fs vfs.FS, path string, limit int64) ([]byte, error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s: %d bytes exceed the limit of %d: %w", path, info.Size(), limit, ErrCorrupt)
	}
	b := make([]byte, info.Size())
	if _, err := io.ReadFull(file, b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// writeSynced writes and syncs a file. The caller must sync the folder.
func writeSynced(fs vfs.FS, path string, b []byte) error {
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	if err == nil {
		err = file.Sync()
	}
	if err2 := file.Close(); err == nil {
		err = err2
	}
	return err
}

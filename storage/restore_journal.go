package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// RunID names a run of leaves, wherever in the state it lies: at most MaxRunID bytes of the
// caller's choice.
type RunID string

// MaxRunID is the greatest length of a RunID.
const MaxRunID = 200

// MaxLabel is the greatest length of a restore's label.
const MaxLabel = 64 << 20

// run says where the records of a run lie. One without leaves lies nowhere.
type run struct {
	file   uint64 // number of the file
	at     uint64 // offset in it, in bytes
	bytes  uint64
	crc    uint32 // CRC-32C of the records
	height uint8  // of the first leaf, whatever its record says
	first  []byte // key of the first leaf
}

// The journal lists the runs:
//
//	journal = version:u8 ‖ record × n
//	record  = length of body:u32be ‖ body ‖ CRC-32C of both:u32be
//	body    = 'a' ‖ len:u8 ‖ id ‖ height:u8 ‖ file:u64be ‖ offset:u64be ‖ bytes:u64be ‖ CRC-32C:u32be ‖ first key     added
//	        | 'r' ‖ len:u8 ‖ id                                                                                       removed
//
// It ends before the first record that is not whole: a kill tears the last record, and whatever
// follows damage is ignored. Versions 1 and 2 named tables for each run; what such a journal lists
// is fetched again.
const (
	journalVersion  = 3
	journalAdded    = 'a'
	journalRemoved  = 'r'
	runBytes        = 1 + 8 + 8 + 8 + 4 // of a record, but for its id and the first key
	maxJournalBytes = 1 << 30           // more than any restore needs: millions of runs
)

// appendAdded appends the record that a run is there.
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

// appendRemoved appends the record that a run was removed.
func appendRemoved(journal []byte, id RunID) []byte {
	at := len(journal)
	return endRecord(append(append(journal, 0, 0, 0, 0, journalRemoved, byte(len(id))), id...), at)
}

func endRecord(journal []byte, at int) []byte {
	binary.BigEndian.PutUint32(journal[at:], uint32(len(journal)-at-4))
	return binary.BigEndian.AppendUint32(journal, crc32.Checksum(journal[at:], castagnoli))
}

// decodeJournal returns the runs that are listed, and how many bytes of the journal are whole.
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
		if crc32.Checksum(record, castagnoli) != binary.BigEndian.Uint32(rest[4+n:]) || !applyRecord(runs, record[4:]) {
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
	// a run without leaves has no file and no first key, any other has both
	if some := r.bytes > 0; some != (r.file > 0) || some != (len(r.first) > 0) {
		return false
	}
	runs[id] = r
	return true
}

// The label is a file with
//
//	version:u8 ‖ label ‖ CRC-32C of both:u32be
const labelVersion = 1

func encodeLabel(label []byte) []byte {
	b := append(append(make([]byte, 0, 1+len(label)+4), labelVersion), label...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeLabel(b []byte) ([]byte, error) {
	if len(b) < 1+4 || len(b) > 1+MaxLabel+4 {
		return nil, fmt.Errorf("label of %d bytes: %w", len(b), ErrCorrupt)
	}
	body := b[:len(b)-4]
	switch {
	case crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]):
		return nil, fmt.Errorf("label: wrong checksum: %w", ErrCorrupt)
	case body[0] > labelVersion:
		return nil, newerRestore(body[0])
	case body[0] < labelVersion:
		return nil, fmt.Errorf("label: version %d: %w", body[0], ErrCorrupt)
	}
	return body[1:], nil
}

// newerRestore is the version of a restore's label or journal that a newer program wrote.
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
		return nil, fmt.Errorf("%s: %d bytes, at most %d make sense: %w", path, info.Size(), limit, ErrCorrupt)
	}
	b := make([]byte, info.Size())
	if _, err := io.ReadFull(file, b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// writeSynced makes a file with these bytes, durably, but for its name.
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

package signer

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	cmtjson "github.com/cometbft/cometbft/libs/json"
	"github.com/cometbft/cometbft/privval"

	"github.com/starling-kv/starling/internal/crc32c"
	"github.com/starling-kv/starling/internal/durable/onvfs"
)

const (
	// slotBytes is the size of a slot and of priv_validator_state.json: a block of the usual file
	// systems, so a write of one slot does not touch the other.
	slotBytes = 4096
	// slotHeader is the length of a slot's header, big-endian:
	//
	//	crc32c of the rest:u32 ‖ bytes of content:u32 ‖ number of the signature:u64
	slotHeader = 4 + 4 + 8
)

// slot is the content of a slot, as JSON.
type slot struct {
	Owner string `json:"owner"` // the validator's address, in hex
	privval.FilePVLastSignState
}

// files are priv_validator_state.json and the slots.
type files struct {
	fs    vfs.FS
	path  string // of priv_validator_state.json
	owner fmt.Stringer

	number uint64   // of the newest signature in a slot, which is slot number mod 2
	slots  vfs.File // nil before the first signature, as json
	json   vfs.File
	failed error // of a write: nothing is signed after it
}

// SlotsFile returns the path of the slots that belong to a priv_validator_state.json.
func SlotsFile(state string) string { return state + ".slots" }

// load returns the newest signature. priv_validator_state.json must exist, but a power failure may
// leave it older than the slots, or damaged.
func (f *files) load() (last privval.FilePVLastSignState, err error) {
	raw, err := f.read(f.path)
	if err != nil {
		return last, err
	}
	slots, err := f.read(SlotsFile(f.path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return last, err
	}
	newest, found, err := f.newest(slots)
	if err != nil {
		return last, err
	}
	if damaged := cmtjson.Unmarshal(raw, &last); damaged != nil {
		if !found {
			return last, damaged
		}
		return newest, nil
	}
	// Another program may have signed since the newest slot was written.
	if found && !before(newest, last) {
		return newest, nil
	}
	return last, nil
}

// before reports whether a was signed before b.
func before(a, b privval.FilePVLastSignState) bool {
	switch {
	case a.Height != b.Height:
		return a.Height < b.Height
	case a.Round != b.Round:
		return a.Round < b.Round
	}
	return a.Step < b.Step
}

// newest returns the newest signature of this key in the slots. One damaged slot was being written
// when the power failed, so its signature was never sent.
func (f *files) newest(slots []byte) (last privval.FilePVLastSignState, found bool, err error) {
	var own uint64
	damaged := 0
	for ; len(slots) >= slotBytes; slots = slots[slotBytes:] {
		number, s, err := decodeSlot(slots[:slotBytes])
		if err != nil {
			damaged++
			continue
		}
		f.number = max(f.number, number)
		if s.Owner == f.owner.String() && number > own {
			last, found, own = s.FilePVLastSignState, true, number
		}
	}
	if damaged == 2 {
		return last, false, fmt.Errorf("%s: both slots are damaged: check the disk; remove the file only if you know that %s has the last signature",
			SlotsFile(f.path), f.path)
	}
	return last, found, nil
}

var errSlot = errors.New("the checksum of a slot is false")

// encodeSlot returns a slot.
func encodeSlot(number uint64, s slot) ([]byte, error) {
	content, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if len(content) > slotBytes-slotHeader {
		return nil, fmt.Errorf("a signed message of %d bytes does not fit into a slot", len(s.SignBytes))
	}
	b := make([]byte, slotBytes)
	binary.BigEndian.PutUint32(b[4:], uint32(len(content))) //nolint:gosec // below slotBytes
	binary.BigEndian.PutUint64(b[8:], number)
	copy(b[slotHeader:], content)
	binary.BigEndian.PutUint32(b, crc32c.Sum(b[4:slotHeader+len(content)]))
	return b, nil
}

// decodeSlot is the inverse of encodeSlot. A slot that was never written has number 0.
func decodeSlot(b []byte) (number uint64, s slot, err error) {
	size := binary.BigEndian.Uint32(b[4:])
	if size == 0 && bytes.Count(b, []byte{0}) == len(b) {
		return 0, s, nil
	}
	if size > slotBytes-slotHeader || crc32c.Sum(b[4:slotHeader+size]) != binary.BigEndian.Uint32(b) {
		return 0, s, errSlot
	}
	return binary.BigEndian.Uint64(b[8:]), s, json.Unmarshal(b[slotHeader:slotHeader+size], &s)
}

// read reads a file as far as it may be long.
func (f *files) read(path string) ([]byte, error) {
	file, err := f.fs.Open(path)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(file, 2*slotBytes))
	return content, errors.Join(err, file.Close())
}

// save makes a signature durable in the older slot, and then writes it to
// priv_validator_state.json. After an error nobody knows what is on the disk, so every later save
// returns the same error.
func (f *files) save(last *privval.FilePVLastSignState) error {
	if f.failed == nil {
		f.failed = f.write(last)
	}
	return f.failed
}

func (f *files) write(last *privval.FilePVLastSignState) error {
	b, err := encodeSlot(f.number+1, slot{f.owner.String(), *last})
	if err != nil {
		return err
	}
	if _, err := f.slots.WriteAt(b, int64((f.number+1)%2)*slotBytes); err != nil { //nolint:gosec // 0 or 1
		return err
	}
	if err := f.slots.SyncData(); err != nil {
		return err
	}
	f.number++

	text, err := cmtjson.MarshalIndent(last, "", "  ")
	if err != nil {
		return err
	}
	// Spaces keep the size, so the write changes one block, and no other program reads a part.
	_, err = f.json.WriteAt(append(text, bytes.Repeat([]byte{' '}, max(0, slotBytes-len(text)))...), 0)
	return err
}

// begin opens both files for writing, makes the slots if there are none, and makes the last
// signature durable in both. The caller holds the locks of the databases: no other process signs.
func (f *files) begin(last *privval.FilePVLastSignState) error {
	if f.failed != nil {
		return f.failed
	}
	path := SlotsFile(f.path)
	_, err := f.fs.Stat(path)
	if err == nil { // a process that was killed may have made it, without syncing its name
		err = onvfs.SyncDir(f.fs, f.fs.PathDir(path))
	} else if errors.Is(err, fs.ErrNotExist) {
		if err = onvfs.Write(f.fs, path, make([]byte, 2*slotBytes)); err == nil && f.fs == vfs.Default {
			err = os.Chmod(path, 0o600)
		}
	}
	if err != nil {
		return err
	}
	slots, err := f.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// A killed process may have left a slot in memory only. Both must never be written at once.
	if err := slots.SyncData(); err != nil {
		return errors.Join(err, slots.Close())
	}
	if f.json, err = f.fs.OpenReadWrite(f.path, vfs.WriteCategoryUnspecified); err != nil {
		return errors.Join(err, slots.Close())
	}
	f.slots = slots
	if last.Height == 0 {
		return nil
	}
	if err := errors.Join(f.save(last), f.json.Sync()); err != nil {
		return errors.Join(err, f.close())
	}
	return nil
}

func (f *files) close() error {
	if f.slots == nil {
		return nil
	}
	err := errors.Join(f.json.Sync(), f.json.Close(), f.slots.Close())
	f.slots, f.json = nil, nil
	return err
}

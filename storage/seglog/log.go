package seglog

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/starling-kv/starling/internal/crc32c"
	"github.com/starling-kv/starling/internal/durable/onvfs"
)

// ErrLabel: the folder contains a log with another label.
var ErrLabel = errors.New("the log has another label")

// MaxLabel is the maximum length of a label, in bytes.
const MaxLabel = 16 << 10

// maxLogKey is the maximum length of a key in a Log, because recovery looks for heads of records at
// any offset.
const maxLogKey = 256

// LogOptions configure a Log.
type LogOptions struct {
	Options        // Ends and ReadOnly are not used
	Label   []byte // identifies the contents of the log, at most MaxLabel bytes
	// Before returns, for a key, the total length of the records before it in its AppendGroup. The
	// key's encoding must contain it, because recovery looks at single records. nil: there are no
	// groups.
	Before func(key []byte) uint64
}

// Log is a store that is its own index: all records are valid, from the first one in the oldest
// segment on. The methods of Store may be used, except Append and Remove.
type Log struct {
	*Store
	o    LogOptions
	torn Torn
}

// Torn describes the bytes ignored at the end of a log.
type Torn struct {
	File   string // empty: nothing was ignored
	Offset uint64
	Bytes  uint64
}

// OpenLog opens or creates the log in a folder, and calls visit for each record, in the order of
// appending. An error of visit ends it. After OpenLog returns, every visited record is durable.
// Errors: ErrDamaged, ErrLabel, those of visit, and file system errors.
func OpenLog(o LogOptions, visit func(r Ref, key, value []byte) error) (*Log, error) {
	l := &Log{o: o}
	numbers, err := Numbers(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	if l.o.salt, err = l.identify(len(numbers) > 0); err != nil {
		return nil, err
	}
	l.o.Ends = map[uint32]uint64{}
	for i, number := range numbers {
		path := o.FS.PathJoin(o.Dir, fileName(number))
		if i > 0 && number != numbers[i-1]+1 {
			return nil, fmt.Errorf("%w: file %s is missing", ErrDamaged, o.FS.PathJoin(o.Dir, fileName(numbers[i-1]+1)))
		}
		info, err := o.FS.Stat(path)
		if err != nil {
			return nil, inFile(path, err)
		}
		l.o.Ends[number] = uint64(info.Size()) // until it is read
	}
	if l.Store, err = Open(l.o.Options); err != nil {
		return nil, err
	}
	for _, number := range numbers {
		if err := l.recover(number, visit); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	if err := l.syncLast(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// syncLast makes the records that were read durable: the previous process may have been killed
// before a Sync.
func (l *Log) syncLast() (err error) {
	if l.Active() == 0 {
		return nil
	}
	if l.o.Before != nil && l.torn.Bytes > 0 {
		if err := l.truncate(); err != nil {
			return err
		}
	}
	if l.w.file, err = l.openWriter(); err != nil {
		return err
	}
	l.w.dirty = true
	return errors.Join(l.Sync(), onvfs.SyncDir(l.o.FS, l.o.Dir))
}

// truncate removes the torn end from the file. It may contain whole records of the torn group,
// which would become valid again after a record with the length of the torn one. And it may begin
// after the limit, so that the next record is in another segment.
func (l *Log) truncate() error {
	number := l.Active()
	file, err := l.acquire(number)
	if err != nil {
		return err
	}
	b, err := l.bytes(file, 0, l.torn.Offset)
	l.release(file)
	if err != nil {
		return err
	}
	// A handle would stay on the replaced file.
	return errors.Join(l.shut(file), onvfs.Write(l.o.FS, l.path(number), b))
}

// recover visits the records of a segment. It ends the last segment at the first invalid record.
func (l *Log) recover(number uint32, visit func(r Ref, key, value []byte) error) error {
	size := l.End(number)
	for offset := uint64(0); offset < size; {
		var value []byte
		key, r, _, err := l.Next(number, offset)
		if err == nil {
			value, err = l.Read(key, r)
		}
		switch {
		case errors.Is(err, ErrDamaged) && number == l.Active():
			return l.cut(number, offset, size, err)
		case err != nil:
			return err
		}
		if err := visit(r, key, value); err != nil {
			return l.at(r, err)
		}
		offset += uint64(r.Length)
	}
	return nil
}

// cut ends the last segment at an offset without a valid record, unless a later record proves that
// there was one.
func (l *Log) cut(number uint32, offset, size uint64, why error) error {
	later, found, err := l.later(number, offset+1, size)
	if err != nil {
		return err
	}
	if found {
		return fmt.Errorf("%w; a record follows at %d", why, later)
	}
	l.torn = Torn{File: l.path(number), Offset: offset, Bytes: size - offset}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.files[number].end = offset
	return nil
}

// later looks in the bytes [offset, size) of a segment for the head of a record whose group begins
// there too: it was appended after a Sync of what is before offset.
func (l *Log) later(number uint32, offset, size uint64) (at uint64, found bool, err error) {
	begin := offset
	const piece, longest = 1 << 20, headBytes + maxLogKey
	file, err := l.acquire(number)
	if err != nil {
		return 0, false, err
	}
	defer l.release(file)
	for ; offset < size; offset += piece {
		b, err := l.bytes(file, offset, min(piece+longest, size-offset))
		if err != nil {
			return 0, false, err
		}
		for i := range b[:min(piece, len(b))] {
			if b[i] != mark {
				continue
			}
			h, err := decodeHead(b[i:])
			if err != nil || h.key > maxLogKey {
				continue
			}
			at := offset + uint64(i)
			_, key, err := decodeKey(b[i:], l.place(number, at))
			if err == nil && (l.o.Before == nil || at-l.o.Before(key) >= begin) {
				return at, true, nil
			}
		}
	}
	return 0, false, nil
}

// Torn describes the bytes that were ignored when the log was opened.
func (l *Log) Torn() Torn { return l.torn }

// Append appends a record, whose key has at most 256 bytes. It is durable after Sync, and readable
// at once. The caller must call Sync before the next Append. After an error, nothing can be
// appended until the log is opened again.
func (l *Log) Append(key, value []byte) (Ref, error) {
	if len(key) > maxLogKey {
		return Ref{}, fmt.Errorf("seglog: key of %d bytes", len(key))
	}
	var g Group
	g.Add(key, value)
	refs, _, err := l.Store.Append(&g)
	if err != nil {
		return Ref{}, err
	}
	return refs[0], nil
}

// AppendGroup appends the records of a group, which one Sync makes durable. After a crash before
// Sync, the log has the first ones or none. LogOptions.Before must be set. Otherwise it is like
// Append. The caller must call Sync before the next AppendGroup.
func (l *Log) AppendGroup(g *Group) ([]Ref, error) {
	for i := range g.records {
		if n := len(g.Key(i)); n > maxLogKey {
			return nil, fmt.Errorf("seglog: key of %d bytes", n)
		}
	}
	refs, _, err := l.Store.Append(g)
	return refs, err
}

// DropOldest removes the oldest segment, durably, unless it is the last one.
func (l *Log) DropOldest() error {
	all := l.All()
	if len(all) < 2 {
		return nil
	}
	if err := l.Remove(all[0]); err != nil {
		return err
	}
	return onvfs.SyncDir(l.o.FS, l.o.Dir)
}

// Reset removes all records durably, the oldest first. It also clears the state after an error.
func (l *Log) Reset() error {
	if err := l.Close(); err != nil {
		return err
	}
	numbers, err := Numbers(l.o.FS, l.o.Dir)
	if err != nil {
		return err
	}
	for _, number := range numbers {
		if err := l.o.FS.Remove(l.path(number)); err != nil {
			return inFile(l.path(number), err)
		}
		if err := onvfs.SyncDir(l.o.FS, l.o.Dir); err != nil {
			return err
		}
	}
	l.o.Ends = nil
	l.Store, err = Open(l.o.Options)
	return err
}

// The identity of a log is stored in the file LABEL:
//
//	"SEGLOG1" ‖ salt:16 ‖ label ‖ CRC-32C of all before:u32be
//
// The salt is random and part of the checksums, so that no value chosen by a client can contain a
// valid record.
const (
	labelFile  = "LABEL"
	labelMagic = "SEGLOG1"
	saltBytes  = 16
)

// identify returns the salt. It creates the label unless there are segments.
func (l *Log) identify(segments bool) (salt []byte, err error) {
	path := l.o.FS.PathJoin(l.o.Dir, labelFile)
	if len(l.o.Label) > MaxLabel {
		return nil, fmt.Errorf("seglog: label of %d bytes", len(l.o.Label))
	}
	b, err := l.readLabel(path)
	const least = len(labelMagic) + saltBytes + 4
	body := b[:max(0, len(b)-4)]
	switch {
	case errors.Is(err, fs.ErrNotExist) && !segments:
		return l.writeLabel(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: file %s is missing", ErrDamaged, path)
	case err != nil:
		return nil, inFile(path, err)
	case len(b) < least || string(b[:len(labelMagic)]) != labelMagic || crc32c.Sum(body) != binary.BigEndian.Uint32(b[len(body):]):
		return nil, fmt.Errorf("%w: file %s, record at 0: its checksum does not match", ErrDamaged, path)
	case !bytes.Equal(body[len(labelMagic)+saltBytes:], l.o.Label):
		return nil, fmt.Errorf("file %s: %w", path, ErrLabel)
	}
	return body[len(labelMagic):][:saltBytes], nil
}

func (l *Log) readLabel(path string) ([]byte, error) {
	file, err := l.o.FS.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, int64(len(labelMagic)+saltBytes+MaxLabel+4+1)))
}

func (l *Log) writeLabel(path string) (salt []byte, err error) {
	salt = make([]byte, saltBytes)
	_, _ = rand.Read(salt) // it never fails (Go 1.24)
	b := append(append([]byte(labelMagic), salt...), l.o.Label...)
	b = binary.BigEndian.AppendUint32(b, crc32c.Sum(b))
	return salt, onvfs.Write(l.o.FS, path, b)
}

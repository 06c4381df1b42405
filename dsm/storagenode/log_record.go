package storagenode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The files of a log (docs/spec/storagenode.md#log). Numbers are big-endian.
//
//	file   = header ‖ record ...
//	header = "SDSMLOG1" ‖ salt:16 ‖ first height:u64 ‖ length of label:u16 ‖ label ‖ CRC-32C of all before:u32
//	record = 0x55 'U' ‖ height:u64 ‖ length:u32 ‖ CRC-32C of update:u32 ‖ CRC-32C of salt ‖ offset:u64 ‖ the head before:u32 ‖ update
//
// The salt is random, so no update that a client has thought up contains what counts as a record.
const (
	logMagic      = "SDSMLOG1"
	logSuffix     = ".log"
	saltBytes     = 16
	logMark       = 'U'
	logHeadBytes  = 1 + 8 + 4 + 4 + 4
	maxLogUpdate  = 1 << 30
	logNameDigits = 20
)

func logHeaderBytes(label []byte) int64 {
	return int64(len(logMagic) + saltBytes + 8 + 2 + len(label) + 4)
}

func encodeLogHeader(salt []byte, first int64, label []byte) []byte {
	b := append([]byte(logMagic), salt...)
	b = binary.BigEndian.AppendUint64(b, uint64(first))
	b = binary.BigEndian.AppendUint16(b, uint16(len(label)))
	b = append(b, label...)
	return binary.BigEndian.AppendUint32(b, sumOf(b))
}

// errNoHeader: the header is not complete, or damaged.
var errNoHeader = errors.New("the header's checksum does not match")

// readLogHeader returns the salt. Errors: errNoHeader; ErrOther; of the file system.
func readLogHeader(file vfs.File, size, first int64, label []byte) ([]byte, error) {
	fixed := int64(len(logMagic) + saltBytes + 8 + 2)
	if size < fixed {
		return nil, errNoHeader
	}
	b := make([]byte, fixed, fixed+64)
	if _, err := file.ReadAt(b, 0); err != nil {
		return nil, readError(err)
	}
	rest := int64(binary.BigEndian.Uint16(b[fixed-2:])) + 4
	if string(b[:len(logMagic)]) != logMagic || size < fixed+rest {
		return nil, errNoHeader
	}
	b = append(b, make([]byte, rest)...)
	if _, err := file.ReadAt(b[fixed:], fixed); err != nil {
		return nil, readError(err)
	}
	body := b[:len(b)-4]
	switch {
	case sumOf(body) != binary.BigEndian.Uint32(b[len(body):]):
		return nil, errNoHeader
	case !bytes.Equal(body[fixed:], label):
		return nil, ErrOther
	case binary.BigEndian.Uint64(b[len(logMagic)+saltBytes:]) != uint64(first):
		return nil, fmt.Errorf("%w: it was another file's, of another height", ErrOther)
	}
	return b[len(logMagic):][:saltBytes], nil
}

// readError is the error of a ReadAt within the size of a file.
func readError(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func appendLogRecord(b, salt []byte, offset, height int64, update []byte) []byte {
	at := len(b)
	b = append(b, logMark)
	b = binary.BigEndian.AppendUint64(b, uint64(height))
	b = binary.BigEndian.AppendUint32(b, uint32(len(update)))
	b = binary.BigEndian.AppendUint32(b, sumOf(update))
	b = binary.BigEndian.AppendUint32(b, logHeadSum(b[at:], salt, offset))
	return append(b, update...)
}

func logHeadSum(before, salt []byte, offset int64) uint32 {
	return sumOf(salt, binary.BigEndian.AppendUint64(nil, uint64(offset)), before)
}

// logHead is the beginning of a record.
type logHead struct {
	height int64
	length int64
	sum    uint32
}

// decodeLogHead returns the head that b begins with, which lies at that offset. ok is false if it
// is none.
func decodeLogHead(b, salt []byte, offset int64) (h logHead, ok bool) {
	if len(b) < logHeadBytes || b[0] != logMark {
		return h, false
	}
	before := b[:logHeadBytes-4]
	height, length := binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint32(b[9:])
	if height > math.MaxInt64 || length > maxLogUpdate || binary.BigEndian.Uint32(b[len(before):]) != logHeadSum(before, salt, offset) {
		return h, false
	}
	return logHead{int64(height), int64(length), binary.BigEndian.Uint32(b[13:])}, true
}

// errNoRecord: the bytes are no record.
var errNoRecord = errors.New("no record")

// readLogRecord reads the record at an offset. Errors: errNoRecord, with what is wrong; of the file
// system.
func readLogRecord(file vfs.File, size int64, salt []byte, offset int64) (h logHead, update []byte, err error) {
	if size-offset < logHeadBytes {
		return h, nil, fmt.Errorf("%w: %d bytes are no head", errNoRecord, size-offset)
	}
	head := make([]byte, logHeadBytes)
	if _, err := file.ReadAt(head, offset); err != nil {
		return h, nil, readError(err)
	}
	h, ok := decodeLogHead(head, salt, offset)
	switch {
	case !ok:
		return h, nil, fmt.Errorf("%w: the checksum of its head does not match", errNoRecord)
	case h.length > size-offset-logHeadBytes:
		return h, nil, fmt.Errorf("%w: it ends behind the file", errNoRecord)
	}
	update = make([]byte, h.length)
	if _, err := file.ReadAt(update, offset+logHeadBytes); err != nil && h.length > 0 {
		return h, nil, readError(err)
	}
	if sumOf(update) != h.sum {
		return h, nil, fmt.Errorf("%w: the checksum of its update does not match", errNoRecord)
	}
	return h, update, nil
}

// laterRecord looks for the head of a record behind an offset, where there is none that counts.
func laterRecord(file vfs.File, size int64, salt []byte, offset int64) (at int64, found bool, err error) {
	const piece = 1 << 20
	b := make([]byte, piece+logHeadBytes-1)
	for offset++; size-offset >= logHeadBytes; offset += piece {
		b := b[:min(int64(len(b)), size-offset)]
		if _, err := file.ReadAt(b, offset); err != nil {
			return 0, false, readError(err)
		}
		for i := range len(b) - logHeadBytes + 1 {
			if b[i] == logMark {
				if _, ok := decodeLogHead(b[i:], salt, offset+int64(i)); ok {
					return offset + int64(i), true, nil
				}
			}
		}
	}
	return 0, false, nil
}

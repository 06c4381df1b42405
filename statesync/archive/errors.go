package archive

import (
	"errors"
	"fmt"
)

var (
	// ErrNotArchive: the file is not a snapshot file.
	ErrNotArchive = errors.New("not a snapshot file")
	// ErrVersion: the format version is not supported, older or newer.
	ErrVersion = errors.New("unsupported version of snapshot files")
	// ErrTruncated: the end of the file is missing.
	ErrTruncated = errors.New("the snapshot file is cut short")
	// ErrTrailing: the file continues after its end.
	ErrTrailing = errors.New("there is more in the file than the snapshot")
	// ErrDamaged: the bytes differ from those written. A DamageError has the location.
	ErrDamaged = errors.New("the snapshot file is damaged")
	// ErrOtherState: the file is of another state than the trusted app hash.
	ErrOtherState = errors.New("the snapshot file is of another state")
	// ErrExists: a file of that name exists or is being written.
	ErrExists = errors.New("the file exists")
)

// DamageError locates the damage in a file. It wraps ErrDamaged.
type DamageError struct {
	Part   string // "header", "manifest", "chunk 17 of 190", "trailer"
	Offset int64  // start of that part, in bytes from the start of the file
	Err    error
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("%v: the %s at byte offset %d: %v", ErrDamaged, e.Part, e.Offset, e.Err)
}

func (e *DamageError) Unwrap() []error { return []error{ErrDamaged, e.Err} }

var errChecksum = errors.New("wrong checksum")

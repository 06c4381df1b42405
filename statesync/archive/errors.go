package archive

import (
	"errors"
	"fmt"
)

var (
	// ErrNotArchive: the file is something else.
	ErrNotArchive = errors.New("not a snapshot file")
	// ErrVersion: a version of the format that this program does not know, older or newer.
	ErrVersion = errors.New("a version of snapshot files that this program does not know")
	// ErrTruncated: the end is missing.
	ErrTruncated = errors.New("the snapshot file is cut short")
	// ErrTrailing: there is something after the end.
	ErrTrailing = errors.New("there is more in the file than the snapshot")
	// ErrDamaged: the bytes are not those that were written. A DamageError says which.
	ErrDamaged = errors.New("the snapshot file is damaged")
	// ErrOtherState: the file is of another state than the trusted app hash.
	ErrOtherState = errors.New("the snapshot file is of another state")
	// ErrExists: a file of that name is there, or is being written.
	ErrExists = errors.New("the file exists")
)

// DamageError says where a file is damaged. It wraps ErrDamaged.
type DamageError struct {
	Part   string // "header", "manifest", "chunk 17 of 190", "trailer"
	Offset int64  // where that part begins, in bytes from the start of the file
	Err    error
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("%v: the %s at byte offset %d: %v", ErrDamaged, e.Part, e.Offset, e.Err)
}

func (e *DamageError) Unwrap() []error { return []error{ErrDamaged, e.Err} }

var errChecksum = errors.New("wrong checksum")

package config

import (
	"errors"
	"io/fs"
)

// ErrInvalid is matched by errors about settings, flags, or files named by settings: the node
// cannot start until an operator corrects them. It does not match failures of the disk.
var ErrInvalid = errors.New("invalid settings")

// Invalid marks an error as ErrInvalid and keeps its text. nil and disk failures are returned
// unchanged.
func Invalid(err error) error {
	var failed *fs.PathError
	if err == nil || errors.Is(err, ErrInvalid) ||
		errors.As(err, &failed) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return invalid{err}
}

// invalid wraps an error that is also ErrInvalid.
type invalid struct{ error }

func (e invalid) Is(target error) bool { return target == ErrInvalid }
func (e invalid) Unwrap() error        { return e.error }

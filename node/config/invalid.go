package config

import (
	"errors"
	"io/fs"
)

// ErrInvalid is matched by errors about settings, flags, or files that the settings name: a start
// cannot succeed before a person has corrected them. Files that cannot be read because of the disk
// are not among them.
var ErrInvalid = errors.New("wrong settings")

// Invalid marks an error as ErrInvalid and keeps its text. nil, ErrNotInitialised (the home may be
// on a disk that is mounted later), and failures of the disk are returned as they are.
func Invalid(err error) error {
	var failed *fs.PathError
	if err == nil || errors.Is(err, ErrInvalid) || errors.Is(err, ErrNotInitialised) ||
		errors.As(err, &failed) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return invalid{err}
}

// invalid wraps an error that is also ErrInvalid.
type invalid struct{ error }

func (e invalid) Is(target error) bool { return target == ErrInvalid }
func (e invalid) Unwrap() error        { return e.error }

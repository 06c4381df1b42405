//go:build !linux

package hugemem

import "errors"

var kernel = system{reserve: func(int) ([]byte, error) { return nil, errors.ErrUnsupported }}

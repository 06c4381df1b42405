package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// Layout 1 had two records for a leaf, and no merger of ours:
//
//	'k' ‖ key  →  value
//	'h' ‖ key  →  height:u8        of the inner node whose key it is; none: 0
//
// It is read, in pins and in a zone that is opened for reading only, and not written any more:
// convert.go makes it layout 2.
const (
	layout1       = 1
	kindHeight    = 'h'
	layout1Merger = "pebble.concatenate" // pebble.DefaultMerger's name
)

// isLayout1 reports whether the folder has a database of layout 1. It reads the database's options,
// and opens it only if they are not there. One that is damaged is not taken for one, nor is a
// folder without a database: whoever opens those says what they are. That the folder is locked or
// cannot be read is an error.
func isLayout1(f engine.Folder) (bool, error) {
	if name := f.Merger(); name != "" {
		return name == layout1Merger, nil
	}
	f.Logger, f.Background = engine.NopLogger{}, func(error) {} // it may well not be one
	db, err := f.Open(&pebble.Options{ReadOnly: true})
	if err != nil {
		return false, f.Err("open", unlessContent(err))
	}
	_, ok, err := readMeta(db, layout1)
	if err := errors.Join(unlessContent(err), db.Close()); err != nil {
		return false, f.Err("open", err)
	}
	return err == nil && ok, nil
}

// unlessContent drops an error that is about what the files contain, or that there are none, and
// keeps that of a lock or of the operating system.
func unlessContent(err error) error {
	var system syscall.Errno
	switch {
	case errors.Is(err, ErrLocked):
		return err
	case errors.Is(err, ErrCorrupt), errors.Is(err, fs.ErrNotExist), !errors.As(err, &system):
		return nil
	}
	return err
}

// pairCursor is the cursor of layout 1: leaves, and the heights beside them.
type pairCursor struct{ leaves, heights *pebble.Iterator }

func newPairCursor(r pebble.Reader, first, after []byte) (cursor, error) {
	leaves, err := r.NewIter(bounds(kindLeaf, first, after))
	if err != nil {
		return nil, err
	}
	heights, err := r.NewIter(bounds(kindHeight, first, after))
	if err != nil {
		return nil, errors.Join(err, leaves.Close())
	}
	return &pairCursor{leaves, heights}, nil
}

func (c *pairCursor) first() {
	c.leaves.First()
	c.heights.First()
}

func (c *pairCursor) seek(key []byte) {
	c.leaves.SeekGE(append([]byte{kindLeaf}, key...))
	c.heights.SeekGE(append([]byte{kindHeight}, key...))
}

func (c *pairCursor) close() error { return errors.Join(c.leaves.Close(), c.heights.Close()) }

// read implements cursor. Every height belongs to a leaf, so the second iterator never runs ahead
// of the first.
func (c *pairCursor) read(after []byte, take func(key, value []byte, height uint8) bool) error {
	for ; c.leaves.Valid(); c.leaves.Next() {
		key := c.leaves.Key()[1:]
		if after != nil && bytes.Compare(key, after) >= 0 {
			break
		}
		height, err := c.height(key)
		if err != nil {
			return err
		}
		value, err := c.leaves.ValueAndErr()
		if err != nil {
			return err
		}
		if !take(key, value, height) {
			return nil
		}
	}
	if err := errors.Join(c.leaves.Error(), c.heights.Error()); err != nil {
		return err
	}
	if c.heights.Valid() && (after == nil || bytes.Compare(c.heights.Key()[1:], after) < 0) {
		return orphanErr(c.heights.Key()[1:])
	}
	return nil
}

// height returns the height that is recorded for the key of the next leaf, and goes behind it.
func (c *pairCursor) height(key []byte) (uint8, error) {
	if !c.heights.Valid() {
		return 0, c.heights.Error()
	}
	switch bytes.Compare(c.heights.Key()[1:], key) {
	case -1:
		return 0, orphanErr(c.heights.Key()[1:])
	case 1:
		return 0, nil
	}
	rec, err := c.heights.ValueAndErr()
	if err != nil {
		return 0, err
	}
	if len(rec) != 1 || rec[0] > maxHeight {
		return 0, fmt.Errorf("%w: height of key %x is %x", errLeafForm, key, rec)
	}
	height := rec[0]
	c.heights.Next()
	return height, nil
}

func orphanErr(key []byte) error {
	return fmt.Errorf("%w: key %x has a height and no value", errLeafForm, key)
}

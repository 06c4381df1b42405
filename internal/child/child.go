// Package child is the protocol between a benchmark and its child processes. The programs of all
// modules below bench use it.
//
//	parent                                                             child
//	  │ ── one line of JSON: what the child is ──────────────────────▶ │ Run ──▶ Worker
//	  │ ◀── one line of JSON: {"error": …} or {"answer": …} ────────── │
//	  │ ── a request: one line of JSON, which changes may follow ────▶ │
//	  │ ◀── one line of JSON: {"error": …} or {"answer": …} ────────── │
//
// The node does not use it. It is in this module because the modules below bench cannot import each
// other: they need different versions of the same libraries.
package child

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Reply answers a request: either Error or Answer.
type Reply[A any] struct {
	Error  string `json:"error,omitempty"`
	Answer A      `json:"answer"`
}

// Worker does the work of one child. It must be used by one goroutine.
type Worker[R, A any] interface {
	// Do answers a request. The bytes that follow the request are in the reader; Do must read all
	// of them before it fails.
	Do(r R, in *bufio.Reader) (A, error)
	Close() error
}

// Run is the child process: it opens a worker according to the first line of stdin, sends the
// answer of open, and answers requests until stdin ends. A failed request does not end the child.
func Run[B, R, A any](stdin io.Reader, stdout io.Writer, open func(begin B) (Worker[R, A], A, error)) (err error) {
	in, out := bufio.NewReaderSize(stdin, 1<<20), json.NewEncoder(stdout)
	begin, err := receive[B](in)
	if err != nil {
		return fmt.Errorf("only starling-bench runs this command: %w", err)
	}
	w, a, err := open(begin)
	if err := errors.Join(err, out.Encode(reply(a, err))); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for {
		r, err := receive[R](in)
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		a, err := w.Do(r, in)
		if err := out.Encode(reply(a, err)); err != nil {
			return err
		}
	}
}

func reply[A any](a A, err error) Reply[A] {
	if err != nil {
		return Reply[A]{Error: err.Error()}
	}
	return Reply[A]{Answer: a}
}

// receive reads one line; io.EOF: the parent sends no more lines.
func receive[T any](in *bufio.Reader) (t T, err error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(line, &t); err != nil {
		return t, fmt.Errorf("unreadable request: %w", err)
	}
	return t, nil
}

// Change sets a key to a value or, if Value is nil, deletes the key.
type Change struct{ Key, Value []byte }

// Length limits of a change, as everywhere in Starling.
const (
	maxKey   = 4096
	maxValue = 1 << 20
)

// WriteChanges writes each change as uvarint(len key) ‖ key ‖ uvarint(0 to delete it, otherwise 1 +
// len value) ‖ value.
func WriteChanges(w *bufio.Writer, changes []Change) error {
	var b []byte
	for _, c := range changes {
		b = append(binary.AppendUvarint(b[:0], uint64(len(c.Key))), c.Key...)
		if c.Value == nil {
			b = binary.AppendUvarint(b, 0)
		} else {
			b = append(binary.AppendUvarint(b, uint64(len(c.Value))+1), c.Value...)
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// ReadChanges reads n changes.
func ReadChanges(in *bufio.Reader, n int) ([]Change, error) {
	var changes []Change
	for i := range n {
		key, err := readBytes(in, maxKey, 0)
		if err != nil {
			return nil, fmt.Errorf("key of change %d of %d: %w", i+1, n, err)
		}
		value, err := readBytes(in, maxValue, 1)
		if err != nil {
			return nil, fmt.Errorf("value of change %d of %d: %w", i+1, n, err)
		}
		changes = append(changes, Change{key, value})
	}
	return changes, nil
}

// readBytes reads a length, which is increased by bias, and that many bytes. It returns nil if the
// encoded length is below bias.
func readBytes(in *bufio.Reader, most, bias uint64) ([]byte, error) {
	length, err := binary.ReadUvarint(in)
	switch {
	case err != nil:
		return nil, err
	case length < bias:
		return nil, nil
	case length-bias > most:
		return nil, fmt.Errorf("%d bytes, the limit is %d", length-bias, most)
	}
	b := make([]byte, length-bias)
	_, err = io.ReadFull(in, b)
	return b, err
}

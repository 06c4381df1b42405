package storagebench

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// opKind is the kind of an operation on a key.
type opKind byte

const (
	opSet    opKind = iota
	opDelete        // a leaf and its height
	opHeight        // height of the inner node with this key, in one byte
)

type op struct {
	kind       opKind
	key, value []byte
}

// batch is a set of operations that are written together.
type batch struct {
	db   byte
	sync bool
	ops  []op
}

func (b *batch) set(key, value []byte) { b.ops = append(b.ops, op{opSet, key, value}) }

func (b *batch) bytes() (n int) {
	for _, o := range b.ops {
		n += len(o.key) + len(o.value)
	}
	return n
}

// A trace is a file of requests in the order of their replay, made once for all contestants:
//
//	step  = u32be(bytes that follow) ‖ uvarint(batches) ‖ batch …
//	batch = database:u8 ‖ synced:u8 ‖ uvarint(operations) ‖ operation …
//	operation = kind:u8 ‖ uvarint(len key) ‖ key ‖ uvarint(len value) ‖ value
type traceWriter struct {
	file *os.File
	w    *bufio.Writer
	buf  []byte
}

func createTrace(name string) (*traceWriter, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("creating the file of requests: %w", err)
	}
	return &traceWriter{file: f, w: bufio.NewWriterSize(f, 1<<20)}, nil
}

func (t *traceWriter) write(step []batch) error {
	b := append(t.buf[:0], 0, 0, 0, 0)
	b = binary.AppendUvarint(b, uint64(len(step)))
	for _, batch := range step {
		b = append(b, batch.db, 0)
		if batch.sync {
			b[len(b)-1] = 1
		}
		b = binary.AppendUvarint(b, uint64(len(batch.ops)))
		for _, o := range batch.ops {
			b = append(b, byte(o.kind))
			b = append(binary.AppendUvarint(b, uint64(len(o.key))), o.key...)
			b = append(binary.AppendUvarint(b, uint64(len(o.value))), o.value...)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	t.buf = b
	_, err := t.w.Write(b)
	return err
}

func (t *traceWriter) close() error { return errors.Join(t.w.Flush(), t.file.Close()) }

// traceReader reads ahead, so that a replay waits only for its database. The receiver may keep the
// steps that it returns.
type traceReader struct {
	steps chan readStep
	stop  chan struct{}
}

type readStep struct {
	batches []batch
	err     error
}

// readAhead is the number of steps that are read ahead.
const readAhead = 4

func openTrace(name string) (*traceReader, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening the requests: %w", err)
	}
	t := &traceReader{steps: make(chan readStep, readAhead), stop: make(chan struct{})}
	go func() {
		defer f.Close()
		r := bufio.NewReaderSize(f, 1<<20)
		for {
			step, err := readTraceStep(r)
			select {
			case t.steps <- readStep{step, err}:
			case <-t.stop:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return t, nil
}

func (t *traceReader) next() ([]batch, error) {
	step := <-t.steps
	return step.batches, step.err
}

func (t *traceReader) close() { close(t.stop) }

var errTrace = errors.New("the file of requests is damaged")

func readTraceStep(r io.Reader) ([]batch, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	d := decoder{b: make([]byte, binary.BigEndian.Uint32(head[:]))}
	if _, err := io.ReadFull(r, d.b); err != nil {
		return nil, errTrace
	}
	step := make([]batch, d.uvarint())
	for i := range step {
		step[i].db, step[i].sync = d.u8(), d.u8() == 1
		step[i].ops = make([]op, d.uvarint())
		for j := range step[i].ops {
			step[i].ops[j] = op{opKind(d.u8()), d.bytes(), d.bytes()}
		}
	}
	if d.bad {
		return nil, errTrace
	}
	return step, nil
}

// decoder reads fields from the front of b.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) u8() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) uvarint() uint64 {
	x, n := binary.Uvarint(d.b)
	if n <= 0 || d.bad {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return x
}

func (d *decoder) varint() int64 {
	x, n := binary.Varint(d.b)
	if n <= 0 || d.bad {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return x
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

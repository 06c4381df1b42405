package verbstest

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// queue implements verbs.Queue. One goroutine executes posted work in order.
type queue struct {
	device  *device
	id      verbs.ID
	sizes   verbs.Sizes
	local   verbs.Endpoint
	own     []byte
	address uint64 // of the lent memory
	key     uint32
	posted  chan work     // capacity: Sizes.Writes
	broken  chan struct{} // closed when the queue pair is in state ERR
	done    chan struct{} // closed when the goroutine has ended

	mu struct {
		sync.Mutex
		lent      []byte // written to under the lock
		remote    verbs.Endpoint
		connected bool
		failed    bool // broken is closed
		closed    bool
		receives  int           // posted
		under     int           // posted and not completed
		more      chan struct{} // closed and replaced when receives are posted
	}
}

// work is a posted write or message.
type work struct {
	verbs.Write
	message []byte // nil: a write
}

func newQueue(d *device, s verbs.Sizes) *queue {
	f := d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	n := f.last
	q := &queue{
		device: d, id: verbs.ID(n), sizes: s, own: make([]byte, s.Own), address: uint64(n) << 32, key: n * 7919,
		local:  verbs.Endpoint{GID: d.port.GID, QPN: 16 + n, PSN: n * 104729 & 0xffffff, MTU: d.port.MTU},
		posted: make(chan work, s.Writes), broken: make(chan struct{}), done: make(chan struct{}),
	}
	q.mu.lent, q.mu.more = make([]byte, s.Lent), make(chan struct{})
	if f.queues == nil {
		f.queues = make(map[address]*queue)
	}
	f.queues[address{q.local.GID, q.local.QPN}] = q
	go q.run()
	return q
}

// ID implements verbs.Queue.
func (q *queue) ID() verbs.ID { return q.id }

// Local implements verbs.Queue.
func (q *queue) Local() verbs.Endpoint { return q.local }

// Lent implements verbs.Queue.
func (q *queue) Lent() ([]byte, uint64, uint32) { return q.mu.lent, q.address, q.key }

// Own implements verbs.Queue.
func (q *queue) Own() []byte { return q.own }

// Connect implements verbs.Queue.
func (q *queue) Connect(remote verbs.Endpoint) error {
	if err := remote.Validate(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.mu.closed:
		return verbs.ErrClosed
	case q.mu.connected || q.mu.failed:
		return fmt.Errorf("the queue pair to INIT: it was used already")
	}
	q.mu.remote, q.mu.connected = remote, true
	return nil
}

// Receive implements verbs.Queue.
func (q *queue) Receive(n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.mu.closed:
		return verbs.ErrClosed
	case n < 1 || q.mu.receives+n > q.sizes.Receives:
		return fmt.Errorf("%d receives exceed the limit of %d", n, q.sizes.Receives)
	}
	q.mu.receives += n
	close(q.mu.more)
	q.mu.more = make(chan struct{})
	return nil
}

// Send implements verbs.Queue.
func (q *queue) Send(message []byte, tag uint32) error {
	if len(message) > verbs.MaxMessage {
		return fmt.Errorf("message of %d bytes exceeds the limit of %d", len(message), verbs.MaxMessage)
	}
	return q.post(work{verbs.Write{Tag: tag}, append([]byte{}, message...)})
}

// Write implements verbs.Queue.
func (q *queue) Write(batch []verbs.Write) error {
	if len(batch) == 0 || len(batch) > verbs.MaxBatch {
		return fmt.Errorf("%d writes at once, want 1 to %d", len(batch), verbs.MaxBatch)
	}
	all := make([]work, len(batch))
	for i, w := range batch {
		if w.From < 0 || w.Length < 0 || w.From > len(q.own)-w.Length {
			return fmt.Errorf("write from [%d, %d) exceeds the memory of %d bytes", w.From, w.From+w.Length, len(q.own))
		}
		all[i].Write = w
	}
	return q.post(all...)
}

func (q *queue) post(all ...work) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.mu.closed:
		return verbs.ErrClosed
	case !q.mu.connected:
		return fmt.Errorf("post: the queue pair is not connected")
	case q.mu.under+len(all) > q.sizes.Writes:
		return fmt.Errorf("post: cannot allocate memory")
	}
	q.mu.under += len(all)
	for _, w := range all {
		q.posted <- w
	}
	return nil
}

// run executes posted work until the queue is closed.
func (q *queue) run() {
	defer close(q.done)
	quiet := 0 // quiet writes that have arrived and are not covered by a completion yet
	for w := range q.posted {
		err := q.do(w)
		if err != nil {
			q.fail()
		}
		if err == nil && w.Quiet {
			quiet++
			continue
		}
		q.mu.Lock()
		q.mu.under -= 1 + quiet
		q.mu.Unlock()
		quiet = 0
		q.device.complete(verbs.Completion{Queue: q.id, Kind: verbs.Sent, Tag: w.Tag, Err: err})
	}
}

// do transfers a write or a message and returns when the other side has acknowledged it.
func (q *queue) do(w work) error {
	fate := q.device.fabric.fate(w.message == nil)
	if !q.pause(fate.delay) {
		return ErrFlushed
	}
	peer := q.device.fabric.find(q.mu.remote)
	if peer == nil || fate.cut || fate.breaks || peer.hasFailed() {
		if !q.pause(cmp.Or(q.device.fabric.Retry, retryTime)) {
			return ErrFlushed
		}
		return ErrRetries
	}
	for waited := false; ; waited = true {
		more, err := peer.take(q.local, w, q.own, fate.alter)
		if err != ErrNotReady { //nolint:errorlint // it is take's own
			return err
		}
		if waited {
			return err
		}
		t := time.NewTimer(notReadyTime)
		select {
		case <-more:
		case <-t.C:
		case <-q.broken:
		}
		if t.Stop(); q.hasFailed() {
			return ErrFlushed
		}
	}
}

// pause waits for d and reports whether the queue pair still works.
func (q *queue) pause(d time.Duration) bool {
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-q.broken:
		}
	}
	return !q.hasFailed()
}

// take executes work at the receiving device. With ErrNotReady it also returns a channel that is
// closed when receives are posted.
func (q *queue) take(from verbs.Endpoint, w work, own []byte, alter uint64) (<-chan struct{}, error) {
	q.mu.Lock()
	if !q.mu.connected || q.mu.remote.QPN != from.QPN || q.mu.remote.GID != from.GID {
		q.mu.Unlock()
		return nil, ErrRetries
	}
	if q.mu.receives == 0 {
		defer q.mu.Unlock()
		return q.mu.more, ErrNotReady
	}
	q.mu.Unlock()
	if w.message == nil {
		b := own[w.From : w.From+w.Length]
		if alter != 0 && len(b) > 0 {
			b = append([]byte{}, b...)
			b[alter%uint64(len(b))] ^= 1 << (alter >> 32 % 8)
		}
		return nil, q.land(b, w.To, w.Key, w.Immediate)
	}
	c := verbs.Completion{Queue: q.id, Kind: verbs.Received, Length: len(w.message)}
	copy(c.Message[:], w.message)
	return nil, q.arrive(c)
}

// land copies a write into the lent memory. An invalid write breaks the queue pair.
func (q *queue) land(b []byte, at uint64, key, immediate uint32) error {
	q.mu.Lock()
	n := uint64(len(q.mu.lent))
	if q.mu.failed {
		q.mu.Unlock()
		return ErrRetries
	}
	if key != q.key || at < q.address || at-q.address > n || uint64(len(b)) > n-(at-q.address) {
		q.mu.Unlock()
		q.fail()
		return ErrAccess
	}
	copy(q.mu.lent[at-q.address:], b)
	q.mu.Unlock()
	return q.arrive(verbs.Completion{Queue: q.id, Kind: verbs.Landed, Immediate: immediate, Length: len(b)})
}

// arrive consumes a receive.
func (q *queue) arrive(c verbs.Completion) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.failed || q.mu.receives == 0 {
		return ErrRetries
	}
	q.mu.receives--
	q.device.complete(c)
	return nil
}

func (q *queue) hasFailed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.failed
}

func (q *queue) fail() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mu.failed {
		q.mu.failed = true
		close(q.broken)
	}
}

// Break implements verbs.Queue.
func (q *queue) Break() error {
	q.mu.Lock()
	closed := q.mu.closed
	q.mu.Unlock()
	if closed {
		return verbs.ErrClosed
	}
	q.fail()
	return nil
}

// Close implements verbs.Queue.
func (q *queue) Close() error {
	q.fail()
	q.mu.Lock()
	if q.mu.closed {
		q.mu.Unlock()
		return nil
	}
	q.mu.closed = true
	close(q.posted)
	q.mu.Unlock()
	<-q.done
	f, d := q.device.fabric, q.device
	f.mu.Lock()
	delete(f.queues, address{q.local.GID, q.local.QPN})
	f.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mu.queues, q.id)
	d.mu.room += q.sizes.Writes + q.sizes.Receives
	return nil
}

package server

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

// Errors of Receive and of verdicts.
var (
	// ErrFarAhead: the update's height is too far above the next one.
	ErrFarAhead = errors.New("the update is too far ahead")
	// ErrTooLarge: the update is larger than the replica accepts.
	ErrTooLarge = errors.New("the update is too large")
	// ErrFull: too many updates wait. The condition is temporary.
	ErrFull = errors.New("too many updates are waiting")
	// ErrRefusedSender: the sender is refused for some heights after a false or slow update, or is
	// not allowed to send at all.
	ErrRefusedSender = errors.New("the sender is refused")
	// ErrFalse: the update does not lead to the state that a header proves.
	ErrFalse = errors.New("the update is false")
	// ErrSlow: an update was started but arrived too slowly.
	ErrSlow = errors.New("the update arrived too slowly")
)

// Limits bound the waiting updates. A zero field means its default.
type Limits struct {
	Ahead       int64         // heights, from the next one, whose updates may wait; default 64
	Senders     int           // waiting updates per height, complete or not; default 4
	UpdateBytes int           // per update, at most dsm.MaxUpdateBytes; default 128 MiB
	Bytes       int           // all waiting updates; default and minimum: Senders × UpdateBytes
	Patience    time.Duration // how long a sender may be behind Rate; default 10 s
	Rate        int           // minimum bytes per second of a sender; default 64 KiB
	Refused     int64         // heights for which a faulty sender is refused; default 1000
}

func (l *Limits) setDefaults() {
	defaults := Limits{Ahead: 64, Senders: 4, UpdateBytes: 128 << 20, Patience: 10 * time.Second, Rate: 64 << 10, Refused: 1000}
	l.Ahead = orDefault(l.Ahead, defaults.Ahead)
	l.Senders = orDefault(l.Senders, defaults.Senders)
	l.UpdateBytes = min(orDefault(l.UpdateBytes, defaults.UpdateBytes), dsm.MaxUpdateBytes)
	l.Patience = orDefault(l.Patience, defaults.Patience)
	l.Rate = orDefault(l.Rate, defaults.Rate)
	l.Refused = orDefault(l.Refused, defaults.Refused)
	// The next height always has enough memory: updates of later heights are evicted for it.
	l.Bytes = max(l.Bytes, l.Senders*l.UpdateBytes)
}

func orDefault[N int | int64 | time.Duration](n, otherwise N) N {
	if n > 0 {
		return n
	}
	return otherwise
}

// Strangers is the budget of all replicas of a node for the waiting updates of unknown senders. A
// host may have as many bytes as it leaves free for others, so one host has at most half of the
// budget, and a newcomer always gets some (dynamic thresholds: Choudhury and Hahne, "Dynamic Queue
// Length Thresholds for Shared-Memory Packet Switches", section III, with α = 1). Its methods may
// be called concurrently.
type Strangers struct {
	limit int64
	mu    sync.Mutex
	used  int64            // sum of hosts; guarded by mu
	hosts map[string]int64 // bytes of each host, never 0; guarded by mu
}

// NewStrangers returns a budget in bytes.
func NewStrangers(limit int64) *Strangers {
	return &Strangers{limit: limit, hosts: make(map[string]int64)}
}

// Used returns the bytes that wait. It can exceed the limit by a part of an update of each range.
func (s *Strangers) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// allows reports whether a host may have more bytes.
func (s *Strangers) allows(host string, bytes int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosts[host]+int64(bytes) <= s.limit-s.used
}

// add adds bytes, which may be negative, to those of a host.
func (s *Strangers) add(host string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used += bytes
	if s.hosts[host] += bytes; s.hosts[host] == 0 {
		delete(s.hosts, host)
	}
}

// maxRefused limits the remembered refusals; the oldest are forgotten first.
const maxRefused = 1024

// waiting holds the updates that wait until a header proves their result. It is pure: time is an
// argument, and it does no I/O. Updates of one height from different senders wait side by side,
// because any of them may be false.
//
//	height   next          next+1     …   next+Ahead-1
//	whole    a's, b's      a's
//	begun    c: 40 %       b: 10 %        (evicted for nearer heights when Bytes are used up)
//
// If all places of a height are taken, a known sender displaces an unknown one, and an unknown one
// displaces another whose host has at least two places more.
type waiting struct {
	limits    Limits
	known     func(transport.ID) bool // nil: no sender is known
	strangers *Strangers              // nil: no budget
	charged   map[string]int64        // to strangers, by host

	next    int64     // next height to apply
	whole   []arrived // in the order of arrival
	begun   []*begun  // in the order of arrival
	refused []refusal // in the order of refusal
	bytes   int       // bytes received of whole and begun
	slow    []late    // since the last takeSlow
}

// source is a sender and its host, which is empty if it is not known.
type source struct {
	sender transport.ID
	host   string
}

// late is an update that arrived too slowly.
type late struct {
	sender transport.ID
	height int64
}

// arrived is a complete update.
type arrived struct {
	height int64
	sum    [32]byte
	from   source
	update []byte
}

// begun is an incomplete update from one sender.
type begun struct {
	height int64
	sum    [32]byte
	from   source
	parts  dsm.Assembly
	have   uint32
	due    time.Time // deadline for more bytes
}

type refusal struct {
	sender transport.ID
	until  int64 // height from which it may send again
	// The sender may also send again from this time on; zero: only the height counts. Without it, a
	// height that only this sender has would never arrive.
	end time.Time
}

func newWaiting(l Limits, next int64) *waiting {
	l.setDefaults()
	return &waiting{limits: l, next: next}
}

// add adds a part and returns the number of bytes received of its update. Errors: those above;
// ErrSum and ErrOtherUpdate of package dsm. ErrFalse and dsm.ErrSum prove that the sender is
// faulty.
func (w *waiting) add(now time.Time, from source, p dsm.UpdatePart) (have uint32, err error) {
	defer w.charge()
	sender := from.sender
	w.expire(now)
	switch {
	case p.Height < w.next:
		return p.Total, nil // already applied
	case w.isRefused(now, sender):
		return 0, fmt.Errorf("%w: %s", ErrRefusedSender, sender)
	case int64(p.Total) > int64(w.limits.UpdateBytes):
		return 0, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, p.Total, w.limits.UpdateBytes)
	case p.Height-w.next >= w.limits.Ahead:
		return 0, fmt.Errorf("%w: height %d, while %d is next, and the limit is %d heights", ErrFarAhead, p.Height, w.next, w.limits.Ahead)
	case w.has(p.Height, p.Sum):
		return p.Total, nil
	case w.hasOf(sender, p.Height):
		return 0, fmt.Errorf("%w: %s has already sent an update of height %d", dsm.ErrOtherUpdate, sender, p.Height)
	}
	b := w.find(sender, p.Height)
	switch {
	case b == nil && (len(p.Part) == 0 || p.Offset > 0):
		return 0, nil // a probe, or the rest of an evicted update
	case b == nil:
		if err := w.placeFor(from, p.Height); err != nil {
			return 0, err
		}
		b = &begun{height: p.Height, sum: p.Sum, from: from, due: now.Add(w.limits.Patience)}
		w.begun = append(w.begun, b)
	case len(p.Part) == 0 && b.sum == p.Sum:
		return b.have, nil
	}
	return w.addTo(now, b, p)
}

// addTo adds a part to an update that its sender has started.
func (w *waiting) addTo(now time.Time, b *begun, p dsm.UpdatePart) (have uint32, err error) {
	if err := w.roomFor(b.from, b.height, len(p.Part)); err != nil {
		if b.have == 0 { // an empty entry would occupy a slot
			w.dropBegun(b)
		}
		return b.have, err
	}
	have, update, err := b.parts.Add(p)
	if err == nil {
		w.bytes += int(have - b.have)
		// Received bytes extend the deadline; announced bytes do not.
		b.due = b.due.Add(time.Duration(have-b.have) * time.Second / time.Duration(w.limits.Rate))
		b.have = have
	}
	switch {
	case errors.Is(err, dsm.ErrOtherUpdate): // otherwise it could restart forever
		w.dropBegun(b)
		w.refuse(b.from.sender, w.next+1, now.Add(w.limits.Patience))
		return 0, err
	case err != nil:
		w.dropBegun(b)
		return 0, err
	case update != nil:
		w.dropBegun(b)
		w.bytes += len(update)
		w.whole = append(w.whole, arrived{b.height, b.sum, b.from, update})
	}
	return have, nil
}

func (w *waiting) has(height int64, sum [32]byte) bool {
	return slices.ContainsFunc(w.whole, func(a arrived) bool { return a.height == height && a.sum == sum })
}

// hasOf reports whether a sender has completed an update of a height.
func (w *waiting) hasOf(sender transport.ID, height int64) bool {
	return slices.ContainsFunc(w.whole, func(a arrived) bool { return a.height == height && a.from.sender == sender })
}

func (w *waiting) find(sender transport.ID, height int64) *begun {
	for _, b := range w.begun {
		if b.from.sender == sender && b.height == height {
			return b
		}
	}
	return nil
}

func (w *waiting) isRefused(now time.Time, sender transport.ID) bool {
	return slices.ContainsFunc(w.refused, func(r refusal) bool {
		return r.sender == sender && w.next < r.until && (r.end.IsZero() || now.Before(r.end))
	})
}

// placeFor returns ErrFull if the maximum number of updates of a height is waiting, and the sender
// displaces none of them.
func (w *waiting) placeFor(from source, height int64) error {
	n, strangers := 0, map[string]int{} // by host
	count := func(h int64, from source) {
		if h != height {
			return
		}
		n++
		if !w.isKnown(from.sender) {
			strangers[from.host]++
		}
	}
	for _, a := range w.whole {
		count(a.height, a.from)
	}
	for _, b := range w.begun {
		count(b.height, b.from)
	}
	displaced := func(other source) bool {
		if w.isKnown(other.sender) {
			return false
		}
		return w.isKnown(from.sender) || strangers[other.host] >= strangers[from.host]+2
	}
	if n < w.limits.Senders || w.displace(height, displaced) {
		return nil
	}
	return fmt.Errorf("%w: %d of height %d", ErrFull, n, height)
}

func (w *waiting) isKnown(sender transport.ID) bool { return w.known != nil && w.known(sender) }

// displace drops the last update of a height from one of the selected sources, an incomplete one if
// there is one. It returns false if there is none.
func (w *waiting) displace(height int64, which func(source) bool) bool {
	for _, b := range slices.Backward(w.begun) {
		if b.height == height && which(b.from) {
			w.dropBegun(b)
			return true
		}
	}
	for i, a := range slices.Backward(w.whole) {
		if a.height == height && which(a.from) {
			w.whole = slices.Delete(w.whole, i, i+1)
			w.bytes -= len(a.update)
			return true
		}
	}
	return false
}

// charge updates the charge to strangers.
func (w *waiting) charge() {
	if w.strangers == nil {
		return
	}
	now := make(map[string]int64)
	for _, a := range w.whole {
		if !w.isKnown(a.from.sender) {
			now[a.from.host] += int64(len(a.update))
		}
	}
	for _, b := range w.begun {
		if !w.isKnown(b.from.sender) {
			now[b.from.host] += int64(b.have)
		}
	}
	for host, n := range now {
		w.strangers.add(host, n-w.charged[host])
	}
	for host, n := range w.charged {
		if _, has := now[host]; !has {
			w.strangers.add(host, -n)
		}
	}
	w.charged = now
}

// close drops all updates.
func (w *waiting) close() {
	w.drop(func(int64, source) bool { return true })
	w.charge()
}

// roomFor makes room for bytes of a height by evicting updates of later heights, the latest first.
// It returns ErrFull if that does not suffice.
func (w *waiting) roomFor(from source, height int64, bytes int) error {
	if s := w.strangers; s != nil && !w.isKnown(from.sender) {
		// A host that has used up its share for later heights could not send the next one.
		of := func(other source) bool { return other.host == from.host && !w.isKnown(other.sender) }
		for !s.allows(from.host, bytes) {
			if !w.dropLatest(height, of) {
				return fmt.Errorf("%w: senders that the operator has not named may have %d bytes in all ranges, and each host a share", ErrFull, s.limit)
			}
			w.charge()
		}
	}
	for w.bytes+bytes > w.limits.Bytes {
		if !w.dropLatest(height, func(source) bool { return true }) {
			return fmt.Errorf("%w: %d bytes, the limit is %d", ErrFull, w.bytes, w.limits.Bytes)
		}
	}
	return nil
}

// dropLatest drops the updates from the selected sources of the latest height that has any. It
// returns false if that height is not above the given one.
func (w *waiting) dropLatest(height int64, which func(source) bool) bool {
	latest := height
	for _, a := range w.whole {
		if which(a.from) {
			latest = max(latest, a.height)
		}
	}
	for _, b := range w.begun {
		if which(b.from) {
			latest = max(latest, b.height)
		}
	}
	if latest == height {
		return false
	}
	w.drop(func(h int64, from source) bool { return h == latest && which(from) })
	return true
}

// drop drops the updates selected by which.
func (w *waiting) drop(which func(height int64, from source) bool) {
	w.whole = slices.DeleteFunc(w.whole, func(a arrived) bool { return which(a.height, a.from) })
	w.begun = slices.DeleteFunc(w.begun, func(b *begun) bool { return which(b.height, b.from) })
	w.bytes = 0
	for _, a := range w.whole {
		w.bytes += len(a.update)
	}
	for _, b := range w.begun {
		w.bytes += int(b.have)
	}
}

func (w *waiting) dropBegun(b *begun) {
	w.begun = slices.DeleteFunc(w.begun, func(other *begun) bool { return other == b })
	w.bytes -= int(b.have)
}

// candidate returns the first complete update of the next height, in order of arrival.
func (w *waiting) candidate() (arrived, bool) {
	for _, a := range w.whole {
		if a.height == w.next {
			return a, true
		}
	}
	return arrived{}, false
}

// needs returns the lowest height, from the next one, without a complete update.
func (w *waiting) needs() int64 {
	for height := w.next; ; height++ {
		if !slices.ContainsFunc(w.whole, func(a arrived) bool { return a.height == height }) {
			return height
		}
	}
}

// refute drops all updates of a faulty sender and refuses it for some heights.
func (w *waiting) refute(sender transport.ID) {
	defer w.charge()
	w.drop(func(_ int64, from source) bool { return from.sender == sender })
	w.refuse(sender, w.next+w.limits.Refused, time.Time{})
}

func (w *waiting) refuse(sender transport.ID, until int64, end time.Time) {
	w.refused = append(w.refused, refusal{sender, until, end})
	if n := len(w.refused); n > maxRefused {
		w.refused = slices.Delete(w.refused, 0, n-maxRefused)
	}
}

// expire drops updates that arrive too slowly. Their senders are refused until the next height or
// for Patience, so that another sender gets the slot.
func (w *waiting) expire(now time.Time) {
	for _, b := range slices.Clone(w.begun) {
		if now.After(b.due) {
			w.slow = append(w.slow, late{b.from.sender, b.height})
			w.dropBegun(b)
			w.refuse(b.from.sender, w.next+1, now.Add(w.limits.Patience))
		}
	}
}

// takeSlow returns the updates that expired since the last call.
func (w *waiting) takeSlow() []late {
	slow := w.slow
	w.slow = nil
	return slow
}

// advance drops the updates of height and below: they are no longer needed.
func (w *waiting) advance(height int64) {
	defer w.charge()
	w.next = height + 1
	w.drop(func(h int64, _ source) bool { return h < w.next })
	w.refused = slices.DeleteFunc(w.refused, func(r refusal) bool { return r.until <= w.next })
}

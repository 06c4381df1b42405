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

// Shares is a budget in bytes of all replicas of a node for the waiting updates of one kind of
// sender. The host of senders that are not named may have as many bytes as it leaves free for
// others, and a named sender half as many, so no holder has more than half of the budget, and a
// newcomer always gets some (dynamic thresholds: Choudhury and Hahne, "Dynamic Queue Length
// Thresholds for Shared-Memory Packet Switches", section III, with α = 1 and 1/2). Its methods may
// be called concurrently.
type Shares struct {
	limit   int64
	mu      sync.Mutex
	used    int64            // sum of holders; guarded by mu
	holders map[string]int64 // bytes of each holder, never 0; guarded by mu
}

// NewShares returns a budget in bytes.
func NewShares(limit int64) *Shares {
	return &Shares{limit: limit, holders: make(map[string]int64)}
}

// Used returns the bytes that are taken. For named senders it can exceed the limit by updates of
// the next height of each range.
func (s *Shares) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// take adds bytes to those of a holder if the holder then has at most the bytes that are free now,
// divided by of. Otherwise it returns false.
func (s *Shares) take(holder string, bytes, of int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders[holder]+bytes > (s.limit-s.used)/of {
		return false
	}
	s.add(holder, bytes)
	return true
}

// fits reports whether take succeeds once the holder has given back freed bytes.
func (s *Shares) fits(holder string, bytes, freed, of int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holders[holder]-freed+bytes <= (s.limit-s.used+freed)/of
}

// change adds bytes, which may be negative, to those of a holder.
func (s *Shares) change(holder string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(holder, bytes)
}

// add is change for a caller that holds mu.
func (s *Shares) add(holder string, bytes int64) {
	s.used += bytes
	if s.holders[holder] += bytes; s.holders[holder] == 0 {
		delete(s.holders, holder)
	}
}

// share is what a holder has of a budget.
type share struct {
	budget *Shares // never nil
	holder string
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
// displaces another whose host has at least two places more. A host without a place displaces the
// slowest unknown sender that has taken longer than Patience and will take longer than six times
// that: otherwise as many hosts as there are places could hold a height, with bytes that trickle
// in.
type waiting struct {
	limits Limits
	known  func(transport.ID) bool // nil: no sender is known
	// The budgets of known and of other senders; nil: none. A known sender's update of a later
	// height takes its whole length when it begins, so that what has begun can be completed; others
	// take what has arrived. A known sender's update of the next height is never refused for the
	// budget: no range depends on what is sent to others.
	named, strangers *Shares
	charged          map[share]int64

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
	total  uint32
	have   uint32
	began  time.Time
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
	return &waiting{limits: l, next: next, charged: make(map[share]int64)}
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
		if err := w.shareFor(from, p.Height, int(p.Total), true); err != nil {
			return 0, err
		}
		if err := w.placeFor(now, from, p.Height, len(p.Part)); err != nil {
			return 0, err
		}
		b = &begun{height: p.Height, sum: p.Sum, from: from, total: p.Total, began: now, due: now.Add(w.limits.Patience)}
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

// placeFor returns ErrFull if the maximum number of updates of a height is waiting, and the sender,
// which has sent some bytes, displaces none of them.
func (w *waiting) placeFor(now time.Time, from source, height int64, bytes int) error {
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
	s, limited := w.shareOf(from)
	fits := !limited || s.budget.fits(s.holder, int64(bytes), w.chargeAbove(height, w.chargedTo(s)), 1)
	if strangers[from.host] == 0 && fits && w.displaceSlowest(now, height) {
		return nil
	}
	return fmt.Errorf("%w: %d of height %d", ErrFull, n, height)
}

// maxPatience is how long a whole update of an unknown sender may take if others wait for its
// place, in Patience.
const maxPatience = 6

// displaceSlowest drops the incomplete update of a height whose sender is not known, has taken
// longer than Patience, will not be complete within maxPatience, and is the slowest of these. It
// returns false if there is none.
func (w *waiting) displaceSlowest(now time.Time, height int64) bool {
	var slowest *begun
	rate := func(b *begun) float64 { return float64(b.have) / now.Sub(b.began).Seconds() }
	for _, b := range w.begun {
		late := b.height == height && !w.isKnown(b.from.sender) && now.Sub(b.began) > w.limits.Patience &&
			rate(b)*(maxPatience*w.limits.Patience).Seconds() < float64(b.total)
		if late && (slowest == nil || rate(b) < rate(slowest)) {
			slowest = b
		}
	}
	if slowest == nil {
		return false
	}
	w.dropBegun(slowest)
	return true
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

// shareOf returns the share to which the updates of a source are charged; false: none.
func (w *waiting) shareOf(from source) (s share, limited bool) {
	if w.isKnown(from.sender) {
		s = share{w.named, string(from.sender)}
	} else {
		s = share{w.strangers, from.host}
	}
	return s, s.budget != nil
}

// chargedTo selects the sources whose updates are charged to a share.
func (w *waiting) chargedTo(s share) func(source) bool {
	return func(from source) bool {
		of, _ := w.shareOf(from)
		return of == s
	}
}

// charge makes the budgets agree with the updates.
func (w *waiting) charge() {
	now := make(map[share]int64)
	add := func(from source, bytes int) {
		if s, limited := w.shareOf(from); limited {
			now[s] += int64(bytes)
		}
	}
	for _, a := range w.whole {
		add(a.from, len(a.update))
	}
	for _, b := range w.begun {
		add(b.from, w.chargeOf(b))
	}
	for s, n := range now {
		s.budget.change(s.holder, n-w.charged[s])
	}
	for s, n := range w.charged {
		if _, has := now[s]; !has {
			s.budget.change(s.holder, -n)
		}
	}
	w.charged = now
}

// chargeOf returns the bytes that an incomplete update takes of its source's share.
func (w *waiting) chargeOf(b *begun) int {
	if w.isKnown(b.from.sender) && b.height > w.next {
		return int(b.total)
	}
	return int(b.have)
}

// chargeAbove returns the bytes that the selected sources' updates of later heights than the given
// one take of their shares.
func (w *waiting) chargeAbove(height int64, which func(source) bool) (bytes int64) {
	for _, a := range w.whole {
		if a.height > height && which(a.from) {
			bytes += int64(len(a.update))
		}
	}
	for _, b := range w.begun {
		if b.height > height && which(b.from) {
			bytes += int64(w.chargeOf(b))
		}
	}
	return bytes
}

// close drops all updates.
func (w *waiting) close() {
	w.drop(func(int64, source) bool { return true })
	w.charge()
}

// shareFor takes bytes of a source's share for an update of a height, if the source is known as the
// argument says. It drops the source's updates of later heights in this range, the latest first, to
// make room: a source that has used up its share for these could not send the next height. If that
// is not enough, because the source has the rest of its share in other ranges, or others have used
// up the budget, it drops nothing and returns ErrFull.
func (w *waiting) shareFor(from source, height int64, bytes int, known bool) error {
	s, limited := w.shareOf(from)
	if !limited || w.isKnown(from.sender) != known || known && height == w.next {
		return nil
	}
	same := w.chargedTo(s)
	of, holder := int64(1), "host of other senders"
	if known {
		of, holder = 2, "named sender"
	}
	for !s.budget.take(s.holder, int64(bytes), of) {
		if !s.budget.fits(s.holder, int64(bytes), w.chargeAbove(height, same), of) || !w.dropLatest(height, same) {
			return fmt.Errorf("%w: the budget of all ranges is %d bytes, and each %s has a share", ErrFull, s.budget.limit, holder)
		}
		w.charge()
	}
	w.charged[s] += int64(bytes)
	return nil
}

// roomFor makes room for bytes of a height by evicting updates of later heights, the latest first.
// It returns ErrFull if that does not suffice.
func (w *waiting) roomFor(from source, height int64, bytes int) error {
	if err := w.shareFor(from, height, bytes, false); err != nil {
		return err
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

// expireNow drops the updates whose deadlines have passed, and returns their bytes to the budgets.
func (w *waiting) expireNow() {
	defer w.charge()
	w.expire(time.Now())
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

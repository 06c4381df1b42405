package rdma

import (
	"errors"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// Stats describes the resources that a fabric holds.
type Stats struct {
	Devices    int // open devices
	QueuePairs int // including those of paths that are being set up or released
	Up         int // paths on which both sides have greeted and that have not ended
	// UpTo counts Up by peer.
	UpTo   map[transport.ID]int
	Memory int64 // registered, in bytes, in one or two regions for each queue pair
	// Quarantined is the number of slots whose calls have ended at this side only. The server may
	// still write to them.
	Quarantined int
	// Events counts how often the goroutines of open devices have slept and were woken by
	// completions.
	Events uint64
}

// Stats returns the resources that the fabric holds.
func (f *Fabric) Stats() Stats {
	f.mu.Lock()
	paths := make([]*path, 0, len(f.mu.paths))
	for p := range f.mu.paths {
		paths = append(paths, p)
	}
	s := Stats{Devices: len(f.mu.devices), QueuePairs: len(paths), Memory: f.mu.memory, UpTo: map[transport.ID]int{}}
	for _, d := range f.mu.devices {
		s.Events += d.verbs.Events()
	}
	f.mu.Unlock()
	for _, p := range paths {
		if p.isUp() && p.why() == nil {
			s.Up++
			s.UpTo[p.peer]++
		}
		if l, is := p.side.(*lending); is {
			s.Quarantined += l.quarantined()
		}
	}
	return s
}

func (s *lending) quarantined() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.mu.slots {
		if t.abandoned && !t.ended {
			n++
		}
	}
	return n
}

// reasons are short names of the errors that end paths, the more specific ones first.
var reasons = []struct {
	is    error
	label string
}{
	{errors.ErrUnsupported, "not_supported"}, {verbs.ErrNoDevice, "no_device"}, {verbs.ErrFull, "device_full"},
	{ErrMemory, "memory"}, {ErrNotAllowed, "not_allowed"}, {ErrPeerEnded, "peer"}, {ErrDoubted, "doubted"},
	{ErrBreach, "breach"}, {ErrStalled, "stalled"}, {ErrConnEnded, "connection"}, {transport.ErrClosed, "connection"},
	{transport.ErrRefused, "refused"},
}

// otherReason stands for all errors of devices.
const otherReason = "device"

// Reason returns a short name, one of Reasons, of the error that ended or prevented a path.
func Reason(why error) string {
	for _, r := range reasons {
		if errors.Is(why, r.is) {
			return r.label
		}
	}
	return otherReason
}

// Reasons returns all results of Reason.
func Reasons() (all []string) {
	seen := map[string]bool{}
	for _, r := range reasons {
		if !seen[r.label] {
			seen[r.label] = true
			all = append(all, r.label)
		}
	}
	return append(all, otherReason)
}

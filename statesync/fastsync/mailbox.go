package fastsync

import "sync"

// event is something that another goroutine reports to the loop of a join. The loop calls handle;
// only there, and in what it calls, may the loop's fields be used. The kinds:
//
//	peerUp, peerStatus, peerDown   of Peers               join.go
//	answered                       of a call              request.go
//	checked                        of a worker            request.go
//	chosen                         of a search            round.go
type event interface{ handle(j *joiner) }

// mailbox collects events from any goroutine, in order. It has no limit, since the number of events
// is bounded by that of requests and peers; and put never blocks, since Peers calls it under a
// lock.
type mailbox struct {
	wake chan struct{} // has an element when there may be something to take

	mu    sync.Mutex
	queue []event // guarded by mu
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

func (m *mailbox) put(e event) {
	m.mu.Lock()
	m.queue = append(m.queue, e)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default: // the loop is about to wake up, and will take everything
	}
}

// take returns everything that was put since the last call.
func (m *mailbox) take() []event {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.queue
	m.queue = nil
	return all
}

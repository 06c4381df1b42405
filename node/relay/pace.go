package relay

import "time"

const (
	// maxUnderWay limits the unanswered messages to a peer.
	maxUnderWay = 8
	// lateAfter is the time after which a message is also sent over p2p.
	lateAfter = 100 * time.Millisecond
	// A relay that fails to deliver pauses, first for leastPause, then twice as long each time, up
	// to mostPause.
	leastPause = time.Second
	mostPause  = time.Minute
)

// pace limits the messages in flight to a peer. A slow connection gets fewer, and one that delivers
// nothing gets none for some time, because each late message is sent twice. It does its own
// counting and has no clock.
type pace struct {
	window   int // limit of messages in flight, from 1 to maxUnderWay; 0 means maxUnderWay
	underWay int
	taken    int           // consecutive messages accepted since the window changed
	pause    time.Duration // the last pause; 0: none since a message was accepted
	until    time.Time     // end of the pause
	shrunk   time.Time     // when the window was last reduced, or a pause began
}

// may returns whether a message may be relayed now, and, if not, whether it may once another one
// has ended.
func (p *pace) may(now time.Time) (send, later bool) {
	if p.window == 0 {
		p.window = maxUnderWay
	}
	switch {
	case now.Before(p.until):
		return false, false
	case p.underWay >= p.window:
		return false, true
	}
	p.underWay++
	return true, true
}

// ended releases the slot that may granted.
func (p *pace) ended() { p.underWay-- }

// delivered records that a message was accepted.
func (p *pace) delivered() {
	p.pause = 0
	if p.taken++; p.taken >= p.window && p.window < maxUnderWay {
		p.window++
		p.taken = 0
	}
}

// late records that a message sent at began was not answered in time. Messages in flight together
// count once.
func (p *pace) late(began, now time.Time) {
	if began.Before(p.shrunk) {
		return
	}
	if p.window == 1 {
		p.failed(began, now)
		return
	}
	p.window, p.taken, p.shrunk = p.window/2, 0, now
}

// failed records that a message sent at began was refused or could not be delivered. A pause
// begins.
func (p *pace) failed(began, now time.Time) {
	if began.Before(p.shrunk) {
		return
	}
	p.pause = min(max(2*p.pause, leastPause), mostPause)
	p.window, p.taken, p.shrunk, p.until = 1, 0, now, now.Add(p.pause)
}

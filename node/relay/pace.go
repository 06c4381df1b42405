package relay

import "time"

const (
	// maxUnderWay limits the messages to a peer that are not answered yet.
	maxUnderWay = 8
	// lateAfter is the time after which a message goes by p2p, too.
	lateAfter = 100 * time.Millisecond
	// A relay that does not deliver pauses, at first leastPause, then twice as long, up to
	// mostPause.
	leastPause = time.Second
	mostPause  = time.Minute
)

// pace decides how many messages to a peer are under way. A line that delivers late gets fewer,
// and one that delivers nothing gets none for some time: each late message is sent twice. It does
// its own counting and has no clock.
type pace struct {
	window   int // of messages under way, from 1 to maxUnderWay; 0 stands for maxUnderWay
	underWay int
	taken    int           // messages in a row, since the window has changed
	pause    time.Duration // the last one; 0: none since a message was taken
	until    time.Time     // of the pause
	shrunk   time.Time     // when the window was last reduced, or a pause began
}

// may returns whether a message may be sent by the relay, and, if not, whether it may once another
// one has ended.
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

// ended takes the place of a message back that may had given.
func (p *pace) ended() { p.underWay-- }

// delivered: a message was taken.
func (p *pace) delivered() {
	p.pause = 0
	if p.taken++; p.taken >= p.window && p.window < maxUnderWay {
		p.window++
		p.taken = 0
	}
}

// late: a message that was sent at began was not answered in time. Those that were under way
// together count once.
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

// failed: a message that was sent at began was refused, or could not be delivered. A pause begins.
func (p *pace) failed(began, now time.Time) {
	if began.Before(p.shrunk) {
		return
	}
	p.pause = min(max(2*p.pause, leastPause), mostPause)
	p.window, p.taken, p.shrunk, p.until = 1, 0, now, now.Add(p.pause)
}

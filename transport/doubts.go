package transport

// MaxDoubts is the number of wrong unproved answers of a peer that are excused.
const MaxDoubts = 4

// Doubts counts the wrong answers of a peer that came Unproved, so that another sender may have
// sent them. They do not incriminate the peer, but each may cost an answer. After one, the peer is
// asked for proved answers only (Call.Proved), one at a time, until one is right. After MaxDoubts
// it is always asked for proved answers, because a Byzantine peer can send right answers that are
// proved, and wrong ones that are not. The zero value has no doubts.
type Doubts struct {
	count int
	open  bool // the last answer was wrong and unproved, and no right proved answer has followed
}

// Wrong records a wrong answer that came unproved.
func (d *Doubts) Wrong() { d.count, d.open = d.count+1, true }

// Right records a right answer. It reports whether the answer has ended a doubt.
func (d *Doubts) Right(unproved bool) (ended bool) {
	ended = d.open && !unproved
	d.open = d.open && unproved
	return ended
}

// Reconnected records that the peer has a new connection. The count stays.
func (d *Doubts) Reconnected() { d.open = false }

// Open reports whether the peer may have only one request at a time.
func (d Doubts) Open() bool { return d.open }

// MustProve reports whether the next answer must prove its sender.
func (d Doubts) MustProve() bool { return d.open || d.count >= MaxDoubts }

package feed

import "time"

// This file decides in which order validators send an update. All of them derive the same order,
// and each leaves out those before it that it has found to be silent.

// silence counts the turns in which a validator has sent a replica nothing: it is down or
// Byzantine, or it has the whole state and makes no updates.
type silence struct {
	turns int   // that it missed, one after another
	last  int64 // height of the last one
}

const (
	// silentAfter is the number of missed turns after which a validator counts as silent.
	silentAfter = 3
	// silentRounds is the number of turns for which it then counts as silent. Afterwards it has one
	// turn to show that it sends again.
	silentRounds = 16
)

// isSilent reports whether a validator is left out at a height.
func (m *Machine) isSilent(s silence, height int64) bool {
	return s.turns >= silentAfter && height-s.last <= silentRounds*int64(m.validators)
}

// missed notes that a Send delivered an update that the replica waited for, long after the turn of
// the first validator. What is known about one replica is not applied to others: a replica that
// claims to have nothing harms only itself.
//
// A replica does not say what it has of another sender's update. So a Send counts only if it took
// less time than the first validator had before it: then the first one is not merely still sending.
// So slow uploads do not make validators send more copies.
func (m *Machine) missed(r *replica, height int64) {
	first := m.first(r, height)
	if first == m.self {
		return
	}
	if r.silent == nil {
		r.silent = make([]silence, m.validators)
	}
	s, n := &r.silent[first], int64(m.validators)
	if gap := height - s.last; gap > 2*silentRounds*n || s.turns < silentAfter && gap > 2*n {
		s.turns = 0
	}
	s.turns, s.last = s.turns+1, max(s.last, height)
}

// mayMiss reports whether a Send that begins now may show a missed turn: the block ended at least
// Stagger ago, this node could send to the replica ever since, and the replica is not catching up.
func (m *Machine) mayMiss(r *replica, height int64) bool {
	at := r.queue.updates[height-r.queue.first].at
	return at >= r.ready && r.since <= at+m.policy.Poll && m.now-at >= m.policy.Stagger
}

// delay returns how long a validator leaves an update to its predecessors in the order.
func (m *Machine) delay(position int) time.Duration {
	senders := m.policy.Senders
	if position < senders {
		return time.Duration(position) * m.policy.Stagger
	}
	return time.Duration(senders)*m.policy.Stagger + time.Duration(position/senders)*m.policy.Patience
}

// first returns the index of the validator that sends the update of a height to a replica at once.
func (m *Machine) first(r *replica, height int64) int {
	return int((uint64(height) + uint64(r.number)) % uint64(m.validators))
}

// rank returns this node's place in the order of all validators.
func (m *Machine) rank(r *replica, height int64) int {
	if m.self < 0 || m.self >= m.validators {
		return m.validators
	}
	return (m.self - m.first(r, height) + m.validators) % m.validators
}

// position is rank without the silent validators before this node.
func (m *Machine) position(r *replica, height int64) int {
	rank, first := m.rank(r, height), m.first(r, height)
	position := rank
	for i := 0; i < rank && len(r.silent) > 0; i++ {
		if m.isSilent(r.silent[(first+i)%m.validators], height) {
			position--
		}
	}
	return position
}

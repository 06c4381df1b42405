package hedge

import "time"

// Policy says how eagerly candidates are asked. There are no defaults: Start, Most and After must
// be positive, and with ByRate also Rate and Turn.
type Policy struct {
	Pace  Pace
	Start int           // number of questions asked at the start
	Most  int           // maximum number of questions in flight; with ByRate at least 2
	After time.Duration // a question or proof that takes longer is slow

	// ByRate only. Rate is the minimum rate of an answer, in bytes per second, below which its
	// question is slow. Turn is the minimum time that a slow question keeps its slot while others
	// wait for one; it doubles for a candidate whenever the candidate gives up its slot.
	Rate int64
	Turn time.Duration

	// Compare limits how long the search listens for other answers after the first proof. With 0
	// the first proof ends the search.
	Compare time.Duration
	// Linger keeps the questions and proofs in flight when the search is settled, and examines
	// their results. Without it they are cancelled.
	Linger bool
}

// Pace says what allows another question after the first Policy.Start.
type Pace int

const (
	// EachSlow allows one more for each question that was answered, failed, or has taken longer
	// than After.
	EachSlow Pace = iota
	// ByRate is for large answers. It allows one more at once after a failure, and one more at each
	// multiple of After at which all questions are slow. Questions younger than After are not slow,
	// nor are those whose answers arrive at Rate. If all slots are taken, the slowest question
	// whose turn is over is parked to make room, but never the fastest one. So candidates that send
	// a byte at a time delay a search only for the time that it takes to ask all candidates, and a
	// slow candidate continues as long as no other is faster.
	ByRate
	// Doubling allows one more at once after a failure, and at each multiple of After as many more
	// as were asked so far.
	Doubling
)

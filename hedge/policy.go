package hedge

import "time"

// Policy says how eagerly candidates are asked. There are no defaults: Start, Most and After must
// be positive.
type Policy struct {
	Pace  Pace
	Start int           // number of questions asked at the start
	Most  int           // maximum number of questions in flight
	After time.Duration // a question or proof that takes longer is slow

	// Compare limits how long the search listens for other answers after the first proof. With 0
	// the first proof ends the search.
	Compare time.Duration
	// Linger keeps questions and proofs that are in flight when the search is settled. Their
	// results are still examined. Without it they are cancelled.
	Linger bool
}

// Pace says what allows another question after the first Policy.Start.
type Pace int

const (
	// EachSlow allows one more for each question that was answered, failed, or has taken longer
	// than After.
	EachSlow Pace = iota
	// WhenQuiet allows one more after a failure, at once, and one more whenever nothing has
	// happened for After: no question was asked, none failed, and no part of an answer arrived
	// (Moved).
	WhenQuiet
	// Doubling allows one more after a failure, at once, and at each multiple of After as many more
	// as were asked so far.
	Doubling
)

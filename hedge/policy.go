package hedge

import "time"

// Policy says how eagerly candidates are asked. There are no defaults: Start, Most and After must
// be positive, with ByRate also Rate and Turn.
type Policy struct {
	Pace  Pace
	Start int           // number of questions asked at the start
	Most  int           // maximum number of questions in flight; with ByRate at least 2
	After time.Duration // a question or proof that takes longer is slow

	// ByRate only. Rate is how many bytes a second of an answer must arrive for its question not to
	// be slow. Turn is how long a slow question keeps its place at least while others are waiting
	// for one; it doubles for a candidate whenever that has given its place up.
	Rate int64
	Turn time.Duration

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
	// ByRate is for large answers. It allows one more after a failure, at once, and one more at
	// each multiple of After at which all questions are slow: younger ones than After are not, nor
	// are those whose answers arrive at Rate. If all places are taken, the slowest question whose
	// turn is over is parked to make room, but never the fastest one. So those that send a byte at
	// a time hold up a search for no longer than it takes to ask everybody, and a slow candidate
	// continues as long as nobody is faster.
	ByRate
	// Doubling allows one more after a failure, at once, and at each multiple of After as many more
	// as were asked so far.
	Doubling
)

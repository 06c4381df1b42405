package hedge

// ID identifies a candidate together with its question, answer and proof. The caller chooses it.
type ID int

// Event is one of the types below, by value. Events about unknown candidates, and about questions
// or proofs that are not in flight, are ignored.
type Event interface{ event() }

type (
	// Add adds candidates in the order in which to ask them. Candidates added before are ignored.
	Add struct{ IDs []ID }
	// Known means that Answer is already proved. The candidates, which must have been added before,
	// are asked only to compare their answers.
	Known struct{ Answer string }
	// Answered means that a candidate answered. Equal answers have the same Answer; the empty
	// string is not equal to any other answer. Proved means that the answer needs no proof: the
	// Machine returns Accept for it instead of Prove.
	Answered struct {
		ID     ID
		Answer string
		Proved bool
	}
	// Failed means that a question will have no usable answer.
	Failed struct{ ID ID }
	// Proved answers Prove.
	Proved struct{ ID ID }
	// Refuted answers Prove: the proof failed, for any reason.
	Refuted struct{ ID ID }
	// Standing reports whether a candidate is worth waiting for after the first proof: Prompt while
	// it has not answered, Trusted while its differing answer is being proved. Both are initially
	// true.
	Standing struct {
		ID              ID
		Prompt, Trusted bool
	}
	// Moved means that part of an answer arrived: Bytes in total, over all questions to the
	// candidate.
	Moved struct {
		ID    ID
		Bytes int64
	}
	// Stop abandons the search.
	Stop struct{}
	// Tick means only that time has passed, as with every other event.
	Tick struct{}
)

func (Add) event()      {}
func (Known) event()    {}
func (Answered) event() {}
func (Failed) event()   {}
func (Proved) event()   {}
func (Refuted) event()  {}
func (Standing) event() {}
func (Moved) event()    {}
func (Stop) event()     {}
func (Tick) event()     {}

// Action is what the caller must do: one of the types below, by value.
type Action interface{ action() }

type (
	// Ask asks a candidate. The caller reports Answered or Failed.
	Ask struct{ ID ID }
	// Park abandons a question: its candidate gives up its slot. The candidate is queued behind the
	// others and is asked again; the caller keeps what arrived until then.
	Park struct{ ID ID }
	// Prove proves a candidate's answer. The caller reports Proved or Refuted.
	Prove struct{ ID ID }
	// Accept says that a candidate's answer, which needed no proof, counts. Like a proved one, it
	// is the first or differs from the first.
	Accept struct{ ID ID }
	// Overdue comes at most once, when Policy.Compare has passed since the first proof. It names
	// the candidates that are still being asked, and those whose answers are still being proved.
	Overdue struct{ Asked, Proving []ID }
	// Settled comes at most once: an answer is proved, and no further comparison is awaited.
	Settled struct{}
	// Cancel abandons a question or a proof. It is sent for all that are in flight, right before
	// End.
	Cancel struct{ ID ID }
	// End is the last action. Without a Settled before it, no answer was proved.
	End struct{}
)

func (Ask) action()     {}
func (Park) action()    {}
func (Prove) action()   {}
func (Accept) action()  {}
func (Overdue) action() {}
func (Settled) action() {}
func (Cancel) action()  {}
func (End) action()     {}

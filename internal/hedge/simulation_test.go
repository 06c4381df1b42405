package hedge

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/worlds"
)

// TestRandomWorlds runs searches with random policies among candidates that give right or wrong
// answers, fail, or are silent until they time out. Candidates join at any time and change their
// standing. watch checks each step. In addition, every search ends, and if an asked candidate has
// an answer that can be proved, some answer is proved.
func TestRandomWorlds(t *testing.T) {
	var steps, won int
	n := worlds.Run(t, 3000, newWorld, func(w *world) {
		steps += w.steps
		if w.won {
			won++
		}
	})
	t.Logf("%d worlds, %d steps, %d found an answer", n, steps, won)
	if n > 0 {
		require.NotZero(t, won)
		require.Less(t, won, n, "in some worlds no answer can be proved")
	}
}

// giveUp is the timeout of a question, as callers of the package have one.
const giveUp = 10 * time.Second

// world is a search among simulated candidates in virtual time.
type world struct {
	*watch
	seed   uint64
	rng    *rand.Rand
	now    time.Duration
	events worlds.Timeline[happening]
	peers  []simPeer
	steps  int
}

type simPeer struct {
	answer  string // "": it fails
	asked   int    // number of times; a parked question does not end
	moved   int64
	proves  bool
	proved  bool // its answer needs no proof
	silent  bool // does not answer until giveUp
	drips   bool // sends a byte at a time and never finishes
	latency time.Duration
}

// happening is an event, possibly the end of a question.
type happening struct {
	event Event
	id    ID  // candidate whose question it ends
	asked int // which question; 0: none
}

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 12))
	p := Policy{
		Pace: Pace(rng.IntN(3)), Start: 1 + rng.IntN(5), After: time.Duration(20+rng.IntN(1000)) * time.Millisecond,
		Linger: rng.IntN(2) == 0, Rate: 1 + rng.Int64N(100_000), Turn: time.Duration(1+rng.IntN(3000)) * time.Millisecond,
	}
	p.Most = p.Start + rng.IntN(10)
	if p.Pace == ByRate {
		p.Most = max(p.Most, 2)
	}
	if rng.IntN(3) > 0 {
		p.Compare = time.Duration(1+rng.IntN(3000)) * time.Millisecond
	}
	w := &world{watch: newWatch(p), seed: seed, rng: rng}
	answers := []string{"true", "lie", "other lie", "late truth"}[:1+rng.IntN(4)]
	helpful := rng.IntN(4) > 0
	var added []ID
	for id := range ID(1 + rng.IntN(40)) {
		peer := simPeer{silent: rng.IntN(4) == 0, drips: p.Pace == ByRate && rng.IntN(3) == 0, latency: time.Duration(rng.IntN(2_000_000)) * time.Microsecond}
		if rng.IntN(3) > 0 {
			peer.answer = answers[rng.IntN(len(answers))]
			if rng.IntN(5) == 0 {
				peer.answer = fmt.Sprintf("like no other %d", id)
			}
			peer.proves = helpful && rng.IntN(2) == 0
			peer.proved = peer.proves && rng.IntN(2) == 0
		}
		w.peers = append(w.peers, peer)
		added = append(added, id)
	}
	first := 1 + rng.IntN(len(added))
	w.at(0, Add{added[:first]})
	if rng.IntN(8) == 0 {
		w.at(0, Known{answers[0]})
	}
	for _, id := range added[first:] {
		w.at(time.Duration(rng.IntN(4_000_000))*time.Microsecond, Add{[]ID{id}})
	}
	for range rng.IntN(3) { // some of them were added before
		w.at(time.Duration(rng.IntN(4_000_000))*time.Microsecond, Add{added[:rng.IntN(len(added)+1)]})
	}
	for range rng.IntN(2 * len(added)) {
		st := Standing{ID(rng.IntN(len(added))), rng.IntN(2) == 0, rng.IntN(2) == 0}
		w.at(time.Duration(rng.IntN(5_000_000))*time.Microsecond, st)
	}
	if rng.IntN(20) == 0 {
		w.at(time.Duration(rng.IntN(3_000_000))*time.Microsecond, Stop{})
	}
	return w
}

func (w *world) at(at time.Duration, e Event) {
	w.events.Add(at, happening{event: e})
}

// end schedules the end of a question to a candidate, which is dropped if the question was parked.
// parked.
func (w *world) end(at time.Duration, id ID, e Event) {
	w.events.Add(at, happening{e, id, w.peers[id].asked})
}

// Run implements worlds.World.
func (w *world) Run(trace func(string, ...any)) error {
	for !w.ended {
		next, has := w.Next()
		at, planned := w.events.Next()
		var e Event = Tick{}
		switch {
		case planned && (!has || at <= next):
			_, got := w.events.Take()
			if got.asked != 0 && got.asked != w.peers[got.id].asked {
				continue
			}
			w.now, e = max(w.now, at), got.event
		case has:
			w.now = max(w.now, next)
		default:
			return fmt.Errorf("at %v: no event is left, and the search has not ended", w.now)
		}
		if w.steps++; w.steps > 100_000 {
			return fmt.Errorf("at %v: the search does not end", w.now)
		}
		actions, err := w.step(w.now, e)
		trace("%v: %T%+v: %+v", w.now, e, e, actions)
		if err != nil {
			return fmt.Errorf("at %v, after %T%+v: %w", w.now, e, e, err)
		}
		for _, a := range actions {
			w.perform(a)
		}
	}
	if at, has := w.Next(); has {
		return fmt.Errorf("it has ended, and Next returns %v", at)
	}
	if !w.won && !w.stopped {
		for id, p := range w.peers {
			if _, asked := w.asked[ID(id)]; asked && p.proves && !p.silent && !p.drips {
				return fmt.Errorf("%d could prove its answer, and nothing was proved", id)
			}
		}
	}
	return nil
}

// perform simulates the candidate for an action.
func (w *world) perform(a Action) {
	switch a := a.(type) {
	case Park:
		w.peers[a.ID].asked++
	case Ask:
		p := &w.peers[a.ID]
		p.asked++
		switch {
		case p.silent:
			w.end(w.now+giveUp, a.ID, Failed{a.ID})
		case p.drips:
			for after := time.Duration(0); after < 6*giveUp; after += giveUp / 10 {
				p.moved++
				w.end(w.now+after, a.ID, Moved{a.ID, p.moved})
			}
			w.end(w.now+6*giveUp, a.ID, Failed{a.ID})
		case p.answer == "":
			w.end(w.now+p.latency, a.ID, Failed{a.ID})
		default:
			for range w.rng.IntN(3) {
				p.moved += w.rng.Int64N(100_000)
				w.end(w.now+time.Duration(w.rng.Int64N(int64(p.latency)+1)), a.ID, Moved{a.ID, p.moved})
			}
			w.end(w.now+p.latency, a.ID, Answered{a.ID, p.answer, p.proved})
		}
		if w.rng.IntN(10) == 0 {
			w.end(w.now+p.latency, a.ID, Failed{a.ID}) // a duplicate, which must be ignored
		}
	case Prove:
		p := w.peers[a.ID]
		took := w.now + time.Duration(w.rng.Int64N(int64(p.latency)+1))
		if p.proves {
			w.at(took, Proved{a.ID})
		} else {
			w.at(took, Refuted{a.ID})
		}
	}
}

package catchup

import (
	"cmp"
	"slices"
)

// span is the heights from from to to, inclusive.
type span struct{ from, to int64 }

// window hands out heights to request, in ascending order, each once until it is given back. The
// zero window begins at height 0; see newWindow.
type window struct {
	next int64  // heights from here on have not been handed out
	back []span // to be handed out again; ascending, disjoint, below next
}

// newWindow returns a window that begins above height.
func newWindow(height int64) window { return window{next: height + 1} }

// lowest returns the height that take would begin with.
func (w *window) lowest() int64 {
	if len(w.back) > 0 {
		return w.back[0].from
	}
	return w.next
}

// take hands out at most count heights, up to last. ok is false if there are none.
func (w *window) take(last int64, count int) (s span, ok bool) {
	s = span{w.next, w.next + int64(count) - 1}
	again := len(w.back) > 0
	if again {
		s.from, s.to = w.back[0].from, min(w.back[0].to, w.back[0].from+int64(count)-1)
	}
	if s.to = min(s.to, last); s.from > s.to {
		return span{}, false
	}
	switch {
	case !again:
		w.next = s.to + 1
	case s.to == w.back[0].to:
		w.back = w.back[1:]
	default:
		w.back[0].from = s.to + 1
	}
	return s, true
}

// giveBack returns heights to the window. An empty span has no effect.
func (w *window) giveBack(s span) {
	if s.from > s.to {
		return
	}
	i, _ := slices.BinarySearchFunc(w.back, s, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	w.back = slices.Insert(w.back, i, s)
}

package store

import (
	"runtime"

	"github.com/starling-kv/starling/avlstar"
)

// held is a reference to a version. Unless release is called, a cleanup releases the reference when
// the held becomes unreachable: the SDK does not close stores of past heights, nor all of its
// iterators.
type held struct {
	v       *avlstar.Version
	cleanup runtime.Cleanup
}

// hold adds a reference to v. The caller must already hold one.
func hold(v *avlstar.Version) *held {
	v.Retain()
	h := &held{v: v}
	h.cleanup = runtime.AddCleanup(h, (*avlstar.Version).Release, v)
	return h
}

// release releases the reference now. Further calls have no effect.
func (h *held) release() {
	if h.v != nil {
		h.cleanup.Stop()
		h.v.Release()
		h.v = nil
	}
}

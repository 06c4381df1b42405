package store

import (
	"runtime"

	"github.com/starling-kv/starling/avlstar"
)

// held is a reference to a version that is given up at the latest when nobody has the held any
// more: the SDK closes neither the stores of past heights nor, everywhere, its iterators.
type held struct {
	v       *avlstar.Version
	cleanup runtime.Cleanup
}

// hold adds a reference to v, which has one.
func hold(v *avlstar.Version) *held {
	v.Retain()
	h := &held{v: v}
	h.cleanup = runtime.AddCleanup(h, (*avlstar.Version).Release, v)
	return h
}

// release gives the reference up now; a second call does nothing.
func (h *held) release() {
	if h.v != nil {
		h.cleanup.Stop()
		h.v.Release()
		h.v = nil
	}
}

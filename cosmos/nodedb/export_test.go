package nodedb

import "testing"

// Swept reports whether a store has been swept, and whether the sweep is still kept.
func (s *State) Swept(store string) (made, kept bool) {
	w := &s.byName[store].sweeping
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idle != nil, w.ready != nil
}

// SweepRoom returns the number of leaves by which sweeps may still grow.
func SweepRoom() int64 { return sweepRoom.leaves.Load() }

// LimitSweeps sets SweepRoom until the test ends.
func LimitSweeps(t *testing.T, leaves int64) {
	before := sweepRoom
	t.Cleanup(func() { sweepRoom = before })
	sweepRoom = newRoom(leaves)
}

// Changes returns the number of keys by which a store's fast index is corrected; ok is false if the
// index cannot be used.
func (s *State) Changes(store string) (n int, ok bool) {
	x := s.byName[store].index(false)
	if x == nil {
		return 0, false
	}
	return len(x.changes), true
}

// Compare compares the trees of a store. It fails if it would need more than most bytes of memory.
func (s *State) Compare(store string, most int) error {
	_, err := s.byName[store].difference(most)
	return err
}

// SetDiscardedKeys sets the number of keys that Discard deletes in a batch, until the test ends.
func SetDiscardedKeys(t *testing.T, n int) {
	before := discardedKeys
	t.Cleanup(func() { discardedKeys = before })
	discardedKeys = n
}

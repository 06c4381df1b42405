package nodedb

// Swept reports whether a sweep of a store was made, and whether it is kept.
func (s *State) Swept(store string) (made, kept bool) {
	w := &s.byName[store].sweeping
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idle != nil, w.ready != nil
}

// SweepRoom returns how many leaves more the sweeps of a state may have.
func (s *State) SweepRoom() int64 { return s.room.leaves.Load() }

// LimitSweeps sets SweepRoom.
func (s *State) LimitSweeps(leaves int64) { s.room.leaves.Store(leaves) }

// MostSwept is SweepRoom of a state without sweeps.
const MostSwept = mostSwept

// Changes returns how many keys a store's fast index is corrected by; ok is false if that is of no
// use.
func (s *State) Changes(store string) (n int, ok bool) {
	x := s.byName[store].index(false)
	if x == nil {
		return 0, false
	}
	return len(x.changes), true
}

// Compare compares the trees of a store; it keeps most bytes of memory, or fewer.
func (s *State) Compare(store string, most int) error {
	_, err := s.byName[store].difference(most)
	return err
}

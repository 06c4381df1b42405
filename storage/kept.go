package storage

import (
	"bytes"
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// Kept is a reference to a kept state. The state stays readable until Release, even if Trim drops
// it. Until then the leaves replaced by newer states stay on disk. All methods may be called
// concurrently.
type Kept struct {
	zone *Zone
	g    *generation
}

// Kept returns the newest kept state at or below height. It returns nil if there is none, and for a
// restored state before it is settled. The caller must release it.
func (s *Zone) Kept(height int64) *Kept {
	if !s.users.enter() {
		return nil
	}
	defer s.users.leave()
	return s.generations.lend(s, height)
}

// Height returns the height of the state.
func (k *Kept) Height() int64 { return k.g.height }

// Get returns a copy of the value of a leaf. ok is false if the state does not contain the key, or
// if the zone was emptied since. Errors: ErrClosed, and read errors.
func (k *Kept) Get(key []byte) (value []byte, ok bool, err error) {
	s := k.zone
	if !s.users.enter() {
		return nil, false, s.closedErr("read a leaf")
	}
	defer s.users.leave()
	var buf [64]byte
	found, closer, err := k.g.reader.Get(append(append(buf[:0], kindLeaf), key...))
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, s.readErr(err)
	}
	value, _, err = splitLeaf(key, found)
	value = bytes.Clone(value)
	if err = errors.Join(err, closer.Close()); err != nil {
		return nil, false, s.readErr(err)
	}
	// Checked after the read: the bytes belong to that state only if it was not revoked meanwhile.
	if k.g.revoked.Load() {
		return nil, false, nil
	}
	s.generations.records.Add(1)
	return value, true, nil
}

// Release releases the reference. Further calls have no effect. It does no I/O.
func (k *Kept) Release() {
	// Close has already released the references of a closed zone.
	if !k.zone.users.enter() {
		return
	}
	defer k.zone.users.leave()
	k.zone.generations.takeBack(k)
}

// lend returns a reference to the newest state at or below height; nil if there is none.
func (gs *generations) lend(s *Zone, height int64) *Kept {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for i := len(gs.mu.kept) - 1; i >= 0; i-- {
		g := gs.mu.kept[i]
		if g.height > height || g.reader == nil {
			continue
		}
		g.refs.Add(1)
		k := &Kept{s, g}
		if gs.mu.lent == nil {
			gs.mu.lent = make(map[*Kept]struct{})
		}
		gs.mu.lent[k] = struct{}{}
		return k
	}
	return nil
}

func (gs *generations) takeBack(k *Kept) {
	gs.mu.Lock()
	_, lent := gs.mu.lent[k]
	delete(gs.mu.lent, k)
	gs.mu.Unlock()
	if lent {
		_ = k.g.release() // an iterator's error was returned by its reader
	}
}

// takeBackAll releases all Kept before the database is closed.
func (gs *generations) takeBackAll() {
	gs.mu.Lock()
	lent := gs.mu.lent
	gs.mu.lent = nil
	gs.mu.Unlock()
	for k := range lent {
		_ = k.g.release()
	}
}

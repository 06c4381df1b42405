package storage

import (
	"bytes"
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// Kept is a reference to a kept state: it stays readable, whatever Trim drops, until Release. As
// long as it does, the disk keeps what that state has and newer ones have replaced. All methods may
// be called concurrently.
type Kept struct {
	zone *Zone
	g    *generation
}

// Kept returns the newest kept state that is not above height; nil if there is none, and for a
// restored state before it is settled. The caller releases it.
func (s *Zone) Kept(height int64) *Kept {
	if !s.users.enter() {
		return nil
	}
	defer s.users.leave()
	return s.generations.lend(s, height)
}

// Height is that of the block after which the state was.
func (k *Kept) Height() int64 { return k.g.height }

// Get returns a copy of the value of the leaf with this key; ok is false if the state has none, or
// if the zone was emptied since. Errors: ErrClosed, and those of reading.
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
	if value = found; k.g.layout != layout1 {
		value, _, err = splitLeaf(key, found)
	}
	value = bytes.Clone(value)
	if err = errors.Join(err, closer.Close()); err != nil {
		return nil, false, s.readErr(err)
	}
	// Only now: while it is not revoked, what it shows is that state.
	if k.g.revoked.Load() {
		return nil, false, nil
	}
	s.generations.records.Add(1)
	return value, true, nil
}

// Release gives up the reference; a second call does nothing. It does no I/O.
func (k *Kept) Release() {
	// A zone that is closed has released it: see Close.
	if !k.zone.users.enter() {
		return
	}
	defer k.zone.users.leave()
	k.zone.generations.takeBack(k)
}

// lend returns a reference to the newest state that is not above height, nil if there is none.
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
		_ = k.g.release() // an iterator's error was returned where it was used
	}
}

// takeBackAll ends every Kept: the database, which is about to be closed, must not be read any
// more.
func (gs *generations) takeBackAll() {
	gs.mu.Lock()
	lent := gs.mu.lent
	gs.mu.lent = nil
	gs.mu.Unlock()
	for k := range lent {
		_ = k.g.release()
	}
}

package sgc

import "bytes"

// entry is the record of a key. Entries have no pointers, so the garbage collector does not scan
// them. They are numbered from 1 without gaps: when one is removed, the last one moves there.
type entry struct {
	hash       uint32
	next, prev uint32 // in its list, most recently used first
	chain      uint32 // next entry of the bucket
	slot       uint32 // index in its class, or in outside
	class      uint8
	protected  bool
}

// outsideClass is the class of entries without a slot.
const outsideClass = numClasses

// outside is the key and value of an entry whose value is an object or does not fit into any slot.
type outside struct {
	key    string
	value  any
	charge int64
	entry  uint32
}

// Overheads, as measured by TestMemory.
const (
	// entryOverhead is the cost of an entry in addition to its slot: the entry, its bucket, and a
	// ghost with its bucket, because there may be as many ghosts as entries.
	entryOverhead = 24 + 5 + 16 + 5
	// outsideOverhead is the additional cost of an outside, without its key and its value.
	outsideOverhead = 48
	boxOverhead     = 24 // of bytes stored as an object
)

// store contains the entries of a zone: a segmented LRU list, a hash table, and slots.
//
//	buckets ─► entry ─chain─► entry        slots of 160 bytes  [slot ‖ slot ‖ …]  [slot ‖ …]
//	             │ slot ────────────────────────────────────────► ▲
//	             └ next, prev: probation, protected       outside  [large value, object, …]
type store struct {
	entries              table[entry] // the first is none
	index                index
	probation, protected list
	arena                arena
	outside              []outside
}

// list is a doubly linked list of entries, with the sum of their charges.
type list struct {
	front, back uint32
	bytes       int64
}

func newStore(budget int64) (s store) {
	s.entries.push(entry{})
	s.index.init()
	s.arena = newArena(budget)
	return s
}

func (s *store) hashOf(e uint32) uint32  { return s.entries.at(e).hash }
func (s *store) linkOf(e uint32) *uint32 { return &s.entries.at(e).chain }

// count returns the number of entries.
func (s *store) count() int { return int(s.entries.n) - 1 }

// bytes returns the sum of all charges.
func (s *store) bytes() int64 { return s.probation.bytes + s.protected.bytes }

// slotSize returns the size of the slot for a key and a value; false: no slot is large enough.
func (s *store) slotSize(key, value int) (int, bool) {
	size := rounded(slotHeader + key + value)
	return size, size <= s.arena.largest
}

// chargeOfBytes returns the charge for an entry of bytes.
func (s *store) chargeOfBytes(key, value int) int64 {
	if size, fits := s.slotSize(key, value); fits {
		return int64(size) + entryOverhead
	}
	return chargeOf(key, rounded(value)+boxOverhead)
}

// chargeOf returns the charge for an entry of an object.
func chargeOf(key, size int) int64 {
	return int64(max(size, 0)+rounded(key)) + outsideOverhead + entryOverhead
}

func (s *store) chargeAt(e uint32) int64 {
	at := s.entries.at(e)
	if at.class == outsideClass {
		return s.outside[at.slot].charge
	}
	return int64(s.arena.classes[at.class].size) + entryOverhead
}

// find returns the entry of a key, or none.
func (s *store) find(hash uint32, key []byte) uint32 {
	for e := s.index.first(hash); e != none; {
		at := s.entries.at(e)
		if at.hash == hash && s.hasKey(at, key) {
			return e
		}
		e = at.chain
	}
	return none
}

func (s *store) hasKey(at *entry, key []byte) bool {
	if at.class == outsideClass {
		return s.outside[at.slot].key == string(key)
	}
	have, _ := s.arena.get(at.class, at.slot)
	return string(have) == string(key)
}

// valueOf returns the value of an entry: an object, or a copy of bytes.
func (s *store) valueOf(e uint32) any {
	at := s.entries.at(e)
	if at.class == outsideClass {
		return s.outside[at.slot].value
	}
	_, value := s.arena.get(at.class, at.slot)
	return bytes.Clone(value)
}

// bytesOf returns the value of an entry of bytes. lasting: it stays valid whatever happens to the
// store; otherwise it is valid until the next change.
func (s *store) bytesOf(e uint32) (value []byte, lasting, ok bool) {
	at := s.entries.at(e)
	if at.class == outsideClass {
		value, ok = s.outside[at.slot].value.([]byte)
		return value, true, ok
	}
	_, value = s.arena.get(at.class, at.slot)
	return value, false, true
}

// addBytes adds an entry with copies of key and value, as the most recently used one of its list.
func (s *store) addBytes(hash uint32, key, value []byte, protected bool) {
	size, fits := s.slotSize(len(key), len(value))
	if !fits {
		own := make([]byte, len(value), rounded(len(value)))
		copy(own, value)
		s.addObject(hash, key, own, s.chargeOfBytes(len(key), len(value)), protected)
		return
	}
	class, slot := s.arena.add(size, s.entries.n, key, value)
	s.add(entry{hash: hash, slot: slot, class: class, protected: protected})
}

// addObject adds an entry without a slot.
func (s *store) addObject(hash uint32, key []byte, value any, charge int64, protected bool) {
	slot := uint32(len(s.outside))
	s.outside = append(s.outside, outside{string(key), value, charge, s.entries.n})
	s.add(entry{hash: hash, slot: slot, class: outsideClass, protected: protected})
}

func (s *store) add(at entry) {
	e := s.entries.n
	s.entries.push(at)
	s.index.add(s, e)
	s.pushFront(e)
}

// remove removes an entry. The last entry gets the number e.
func (s *store) remove(e uint32) {
	s.unlink(e)
	s.index.remove(s, e)
	at := s.entries.at(e)
	if at.class == outsideClass {
		end := len(s.outside) - 1
		s.outside[at.slot] = s.outside[end]
		s.entries.at(s.outside[end].entry).slot = at.slot
		s.outside[end] = outside{}
		s.outside = s.outside[:end]
	} else if moved := s.arena.remove(at.class, at.slot); moved != none {
		s.entries.at(moved).slot = at.slot
	}
	if last := s.entries.n - 1; last != e {
		s.renumber(last, e)
	}
	s.entries.pop()
}

// renumber moves an entry to another number, which must be free.
func (s *store) renumber(from, to uint32) {
	at := s.entries.at(from)
	*s.index.place(s, from, at.hash) = to
	*s.entries.at(to) = *at
	l := s.listOf(to)
	if at.prev == none {
		l.front = to
	} else {
		s.entries.at(at.prev).next = to
	}
	if at.next == none {
		l.back = to
	} else {
		s.entries.at(at.next).prev = to
	}
	if at.class == outsideClass {
		s.outside[at.slot].entry = to
	} else {
		s.arena.setOwner(at.class, at.slot, to)
	}
}

func (s *store) listOf(e uint32) *list {
	if s.entries.at(e).protected {
		return &s.protected
	}
	return &s.probation
}

// pushFront links an entry into its list, as the most recently used one.
func (s *store) pushFront(e uint32) {
	l, at := s.listOf(e), s.entries.at(e)
	at.prev, at.next = none, l.front
	if l.front == none {
		l.back = e
	} else {
		s.entries.at(l.front).prev = e
	}
	l.front = e
	l.bytes += s.chargeAt(e)
}

// unlink removes an entry from its list.
func (s *store) unlink(e uint32) {
	l, at := s.listOf(e), s.entries.at(e)
	if at.prev == none {
		l.front = at.next
	} else {
		s.entries.at(at.prev).next = at.next
	}
	if at.next == none {
		l.back = at.prev
	} else {
		s.entries.at(at.next).prev = at.prev
	}
	l.bytes -= s.chargeAt(e)
}

// move moves an entry to the front of the protected list, or of the other one.
func (s *store) move(e uint32, protected bool) {
	s.unlink(e)
	s.entries.at(e).protected = protected
	s.pushFront(e)
}

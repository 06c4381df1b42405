package sgc

import (
	"encoding/binary"
	"math/bits"
)

// A slot contains the key and the value of an entry:
//
//	entry:u32 ‖ length of key:u16 ‖ length of value:u16 ‖ key ‖ value        (little-endian)
//
// Slots of one size form a class. They are stored densely in slabs: when a slot is freed, the last
// slot of the class moves there. So a class has at most one slab that is not full, whatever is
// evicted, and a change of the requested sizes wastes no memory.
const (
	slotHeader = 8
	leastSlot  = 32
	fineSlots  = 256     // up to here, sizes are multiples of fineStep ...
	fineStep   = 16      //
	coarse     = 8       // ... above, there are this many sizes for each doubling
	largestAny = 4 << 10 // limit of slot sizes

	numClasses = (fineSlots-leastSlot)/fineStep + 1 + 4*coarse

	leastSlab, largestSlab = 16 << 10, 64 << 10
	slabPart               = 2048 // a slab has about the budget / slabPart
	slotsInSlab            = 8    // at least, to limit the unused rest of a slab
)

// rounded returns the size of the slot for n bytes. Above the largest slot it approximates the
// rounding of Go's allocator.
func rounded(n int) int {
	switch {
	case n <= leastSlot:
		return leastSlot
	case n <= fineSlots:
		return (n + fineStep - 1) / fineStep * fineStep
	case n > 32<<10:
		return (n + 8<<10 - 1) &^ (8<<10 - 1)
	}
	step := 1 << (bits.Len(uint(n-1)) - 1) / coarse
	return (n + step - 1) / step * step
}

// classOf returns the class of slots with size bytes. size must be rounded.
func classOf(size int) int {
	if size <= fineSlots {
		return (size - leastSlot) / fineStep
	}
	double := bits.Len(uint(size-1)) - bits.Len(uint(fineSlots)) // 0: up to twice fineSlots
	base := fineSlots << double
	return (fineSlots-leastSlot)/fineStep + 1 + double*coarse + (size-base)/(base/coarse) - 1
}

// slots contains the slots of one class.
type slots struct {
	size, perSlab uint32
	slabs         [][]byte
	n             uint32
}

func (s *slots) at(i uint32) []byte {
	from := i % s.perSlab * s.size
	return s.slabs[i/s.perSlab][from : from+s.size : from+s.size]
}

// arena contains all slots of a store.
type arena struct {
	slab    int // size of a slab in bytes
	largest int // size of the largest slots
	classes [numClasses]slots
	spare   []byte // an unused slab, or nil
}

func newArena(budget int64) (a arena) {
	a.slab = leastSlab
	for a.slab < largestSlab && int64(a.slab) < budget/slabPart {
		a.slab *= 2
	}
	a.largest = min(largestAny, a.slab/slotsInSlab)
	for size := leastSlot; size <= a.largest; size = rounded(size + 1) {
		a.classes[classOf(size)] = slots{size: uint32(size), perSlab: uint32(a.slab / size)}
	}
	return a
}

// add writes a slot. size must be rounded, and not above the largest.
func (a *arena) add(size int, owner uint32, key, value []byte) (class uint8, i uint32) {
	class = uint8(classOf(size))
	s := &a.classes[class]
	if s.n == uint32(len(s.slabs))*s.perSlab {
		slab := a.spare
		if a.spare = nil; slab == nil {
			slab = make([]byte, a.slab)
		}
		s.slabs = append(s.slabs, slab)
	}
	i = s.n
	s.n++
	b := s.at(i)
	binary.LittleEndian.PutUint32(b, owner)
	binary.LittleEndian.PutUint16(b[4:], uint16(len(key)))
	binary.LittleEndian.PutUint16(b[6:], uint16(len(value)))
	copy(b[slotHeader+copy(b[slotHeader:], key):], value)
	return class, i
}

// remove frees a slot. The last slot of the class moves there; its owner is returned.
func (a *arena) remove(class uint8, i uint32) (moved uint32) {
	s := &a.classes[class]
	s.n--
	if i != s.n {
		last := s.at(s.n)
		copy(s.at(i), last)
		moved = binary.LittleEndian.Uint32(last)
	}
	if end := len(s.slabs) - 1; s.n == uint32(end)*s.perSlab {
		a.spare, s.slabs[end] = s.slabs[end], nil
		s.slabs = s.slabs[:end]
	}
	return moved
}

// setOwner changes the number of the entry that owns a slot.
func (a *arena) setOwner(class uint8, i, owner uint32) {
	binary.LittleEndian.PutUint32(a.classes[class].at(i), owner)
}

// get returns the contents of a slot, valid until the next add or remove.
func (a *arena) get(class uint8, i uint32) (key, value []byte) {
	b := a.classes[class].at(i)
	end := slotHeader + int(binary.LittleEndian.Uint16(b[4:]))
	return b[slotHeader:end], b[end : end+int(binary.LittleEndian.Uint16(b[6:]))]
}

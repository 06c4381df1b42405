package events

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"slices"
	"sort"
	"sync"

	"github.com/starling-kv/starling/app/event"
)

// block is a block whose events are in memory.
type block struct {
	height int64
	bytes  int64 // approximate size of its events

	once sync.Once    // of encode
	from *event.Block // set until encode
	// Results of encode. The fields of events alias list.
	events []event.Event
	list   []byte // written by event.AppendEvent, with previous values
	ends   []int  // ends of the events in list
	byKey  []int  // indexes of the events, ordered by key and then number
}

// bytesOf estimates the memory of a block's events.
func bytesOf(b *event.Block) int64 {
	n := int64(128)
	for i := range b.Changes {
		c := &b.Changes[i]
		n += int64(len(c.Key)+len(c.Value)+len(c.Previous)) + 160
	}
	return n
}

// encode numbers the events and encodes them. The first reader or the writer calls it, so it does
// not delay the block.
func (n *block) encode() {
	n.once.Do(func() {
		b := n.from
		hashes := make([][]byte, len(b.Txs))
		n.list = make([]byte, 0, n.bytes)
		n.ends = make([]int, len(b.Changes))
		for i := range b.Changes {
			c := &b.Changes[i]
			if hashes[c.Tx] == nil {
				hash := sha256.Sum256(b.Txs[c.Tx])
				hashes[c.Tx] = hash[:]
			}
			n.list = event.AppendEvent(n.list, &event.Event{
				Height: b.Height, Index: uint32(i), Tx: hashes[c.Tx], Kind: c.Kind, Key: c.Key, Value: c.Value, Previous: c.Previous, Omitted: c.Omitted,
			}, true)
			n.ends[i] = len(n.list)
		}
		n.events = make([]event.Event, len(b.Changes))
		rest := n.list
		for i := range n.events {
			var err error
			if n.events[i], rest, err = event.NextEvent(rest); err != nil {
				panic(err) // AppendEvent has just written it
			}
		}
		n.byKey = make([]int, len(n.events))
		for i := range n.byKey {
			n.byKey[i] = i
		}
		slices.SortFunc(n.byKey, func(i, j int) int {
			return cmp.Or(bytes.Compare(n.events[i].Key, n.events[j].Key), cmp.Compare(i, j))
		})
		n.from = nil
	})
}

// between returns the places in byKey of the events of keys. It requires that n is encoded.
func (n *block) between(keys event.Keys) (lo, hi int) {
	lo = sort.Search(len(n.byKey), func(i int) bool { return bytes.Compare(n.events[n.byKey[i]].Key, keys.Start) >= 0 })
	hi = len(n.byKey)
	if len(keys.End) > 0 {
		hi = sort.Search(len(n.byKey), func(i int) bool { return bytes.Compare(n.events[n.byKey[i]].Key, keys.End) >= 0 })
	}
	return lo, max(lo, hi)
}

// find returns the numbers, in ascending order, of the events of keys from a number on.
func (n *block) find(keys event.Keys, from uint32) []int {
	n.encode()
	lo, hi := n.between(keys)
	if lo == hi {
		return nil
	}
	found := make([]int, 0, hi-lo)
	for _, i := range n.byKey[lo:hi] {
		if uint64(i) >= uint64(from) {
			found = append(found, i)
		}
	}
	slices.Sort(found)
	return found
}

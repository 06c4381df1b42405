// Package view publishes the progress of a join, for instance to the status page.
package view

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/scheduler"
)

// Join is the published state of a join, during the join and afterwards. The join updates it under
// a lock that is held only while a few bytes per chunk are copied. A nil Join ignores updates. The
// zero Join shows nothing.
type Join struct {
	mu struct {
		sync.Mutex
		peers    *peers.Peers
		progress Progress // Phase is empty: no join
		started  time.Time
		stats    []scheduler.PeerStats
		index    map[scheduler.PeerID]uint16 // peers' numbers in cells, from 1
		round    scheduler.Group
		height   int64
		cells    []cell
		version  uint64 // number of changes of cells
	}
}

// cell is the state of one chunk.
type cell struct {
	state CellState
	lied  bool
	out   uint8  // requests in flight; saturates
	peer  uint16 // index of the peer asked last, or of the sender; 0: none
}

// CellState is the state of one or more chunks.
type CellState uint8

// The states. CellPartly occurs only for a Cell of several chunks.
const (
	CellWaiting  CellState = iota // to be requested
	CellAsked                     // in flight
	CellChecking                  // arrived and being verified
	CellStored                    // verified and written
	CellHere                      // already here: from an interrupted join or another state
	CellPartly                    // some are stored, the others wait
)

// Cell is the state of one chunk or of several consecutive ones.
type Cell struct {
	State CellState
	Lied  bool   // a peer sent an invalid answer
	Peer  uint16 // Peer.Index of the peer asked last or of the sender; 0: none
}

// Cells are the chunks of a snapshot, in order.
type Cells struct {
	Version uint64 // changes with every other field
	Height  int64
	Chunks  int
	PerCell int // chunks per cell; the last may have fewer
	Cells   []Cell
}

// Peer is a peer of a join.
type Peer struct {
	scheduler.PeerStats
	Index   uint16 // number in cells; 0: none
	Address string // empty: not connected
	Reason  string // reason of its ban; empty: not banned
}

// Progress returns the progress of the current or last join; false if there was none.
func (v *Join) Progress() (Progress, bool) {
	v.mu.Lock()
	p, from, started := v.mu.progress, v.mu.peers, v.mu.started
	v.mu.Unlock()
	if p.Phase == PhaseLooking {
		p.Peers, p.Banned = from.Count()
		p.Elapsed = time.Since(started)
	}
	return p, p.Phase != ""
}

// Version returns Cells.Version.
func (v *Join) Version() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.version
}

// Peers returns the peers that were asked, are connected, or were banned, those that sent the most
// first.
func (v *Join) Peers() []Peer {
	v.mu.Lock()
	from, stats, index := v.mu.peers, v.mu.stats, maps.Clone(v.mu.index)
	v.mu.Unlock()
	if from == nil {
		return nil
	}
	all := map[scheduler.PeerID]*Peer{}
	of := func(id scheduler.PeerID) *Peer {
		if all[id] == nil {
			all[id] = &Peer{PeerStats: scheduler.PeerStats{ID: id, State: scheduler.StateNew}, Index: index[id]}
		}
		return all[id]
	}
	for _, s := range stats {
		of(s.ID).PeerStats = s
	}
	connected, banned := from.Addresses()
	for id, address := range connected {
		of(scheduler.PeerID(id)).Address = address
	}
	for id, reason := range banned {
		p := of(scheduler.PeerID(id))
		p.State, p.Reason = scheduler.StateBanned, reason
	}
	list := make([]Peer, 0, len(all))
	for _, p := range all {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(b.VerifiedBytes, a.VerifiedBytes), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// Cells returns the chunks in at most limit cells; 0: one cell per chunk.
func (v *Join) Cells(limit int) Cells {
	v.mu.Lock()
	chunks := slices.Clone(v.mu.cells)
	c := Cells{Version: v.mu.version, Height: v.mu.height, Chunks: len(chunks), PerCell: 1}
	v.mu.Unlock()
	if limit > 0 && len(chunks) > limit {
		c.PerCell = (len(chunks) + limit - 1) / limit
	}
	for group := range slices.Chunk(chunks, c.PerCell) {
		c.Cells = append(c.Cells, together(group))
	}
	return c
}

// together combines several chunks into one cell. If one is being verified or was requested, that
// is the state; otherwise the state depends on how many are stored.
func together(group []cell) Cell {
	var count [CellPartly]int
	t := Cell{}
	for _, c := range group {
		count[c.state]++
		t.Lied = t.Lied || c.lied
		if t.Peer == 0 || c.state == CellAsked || c.state == CellChecking {
			t.Peer = cmp.Or(c.peer, t.Peer)
		}
	}
	switch {
	case count[CellChecking] > 0:
		t.State = CellChecking
	case count[CellAsked] > 0:
		t.State = CellAsked
	case count[CellWaiting] == len(group):
		t.State = CellWaiting
	case count[CellWaiting] > 0:
		t.State = CellPartly
	case count[CellHere] == len(group):
		t.State = CellHere
	default:
		t.State = CellStored
	}
	return t
}

// Connecting records the start of a join and its peers. restore.Run calls it, too.
func (v *Join) Connecting(p *peers.Peers) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.peers == p {
		return
	}
	v.mu.peers, v.mu.started, v.mu.progress = p, time.Now(), Progress{Phase: PhaseLooking}
	v.mu.stats, v.mu.index, v.mu.cells = nil, map[scheduler.PeerID]uint16{}, nil
	v.mu.version++
}

// Over records that the join ended without a state; it is no longer shown.
func (v *Join) Over() {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.progress, v.mu.stats, v.mu.cells = Progress{}, nil, nil
	v.mu.version++
}

// Begin records that a snapshot is being fetched, its number of chunks and the missing ones. group
// identifies it.
func (v *Join) Begin(group scheduler.Group, height int64, chunks int, missing func(k uint32) bool) {
	if v == nil {
		return
	}
	cells := make([]cell, chunks)
	for k := range cells {
		if !missing(uint32(k)) {
			cells[k].state = CellHere
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.cells, v.mu.round, v.mu.height = cells, group, height
	v.mu.version++
}

// Report stores the progress of the join.
func (v *Join) Report(p Progress, stats []scheduler.PeerStats) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.progress = p
	if stats != nil {
		v.mu.stats = stats
	}
}

// Chunk identifies a chunk of the snapshot being fetched.
type Chunk struct {
	Group scheduler.Group
	K     uint32
}

// change changes the cell of a chunk, unless the chunk is stored or belongs to another snapshot.
func (v *Join) change(chunk Chunk, f func(*cell)) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if chunk.Group != v.mu.round || int(chunk.K) >= len(v.mu.cells) {
		return
	}
	c := &v.mu.cells[chunk.K]
	if c.state == CellStored || c.state == CellHere {
		return
	}
	before := *c
	if f(c); *c != before {
		v.mu.version++
	}
}

// number returns the index of a peer in cells. The caller holds v.mu.
func (v *Join) number(peer scheduler.PeerID) uint16 {
	n, known := v.mu.index[peer]
	if !known && len(v.mu.index) < math.MaxUint16 {
		n = uint16(len(v.mu.index) + 1)
		v.mu.index[peer] = n
	}
	return n
}

// Asked records that a peer was asked for a part of a chunk.
func (v *Join) Asked(chunk Chunk, peer scheduler.PeerID) {
	v.change(chunk, func(c *cell) {
		c.state, c.peer, c.out = CellAsked, v.number(peer), min(c.out, math.MaxUint8-1)+1
	})
}

// Arrived records that an answer has arrived and is about to be verified.
func (v *Join) Arrived(chunk Chunk, peer scheduler.PeerID) {
	v.change(chunk, func(c *cell) { c.state, c.peer = CellChecking, v.number(peer) })
}

// Wrong records that a peer sent an invalid answer.
func (v *Join) Wrong(chunk Chunk) {
	v.change(chunk, func(c *cell) { c.lied = true })
}

// Stored records that a chunk was written; peer sent its last bytes.
func (v *Join) Stored(chunk Chunk, peer scheduler.PeerID) {
	v.change(chunk, func(c *cell) { c.state, c.peer = CellStored, v.number(peer) })
}

// Ended records that a request has ended.
func (v *Join) Ended(chunk Chunk) {
	v.change(chunk, func(c *cell) {
		c.out -= min(c.out, 1)
		c.state = CellAsked
		if c.out == 0 {
			c.state = CellWaiting
		}
	})
}

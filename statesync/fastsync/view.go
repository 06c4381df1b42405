package fastsync

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// View is a join as others see it, during the join and afterwards. The join writes into it under a
// lock that is never held for longer than copying a few bytes per chunk takes. A nil View ignores
// what it is told. The zero View shows no join.
type View struct {
	mu struct {
		sync.Mutex
		peers    *Peers
		progress Progress // Phase is empty: no join
		started  time.Time
		stats    []scheduler.PeerStats
		index    map[scheduler.PeerID]uint16 // what cells call the peers, from 1
		round    scheduler.Group
		height   int64
		cells    []cell
		version  uint64 // counts the changes of cells
	}
}

// cell is the state of one chunk.
type cell struct {
	state CellState
	lied  bool
	out   uint8  // requests that have not ended; it saturates
	peer  uint16 // index of the peer that was asked last, or has sent it; 0: none
}

// CellState is the state of a chunk, or of several.
type CellState uint8

// The states. CellPartly is for a Cell of several chunks only.
const (
	CellWaiting  CellState = iota // to be requested
	CellAsked                     // in flight
	CellChecking                  // here, and being verified
	CellStored                    // verified and written
	CellHere                      // was here before: from a killed join, or another state
	CellPartly                    // some are stored, the others wait
)

// Cell is the state of a chunk, or of several in a row.
type Cell struct {
	State CellState
	Lied  bool   // a peer sent something else instead
	Peer  uint16 // PeerView.Index of the peer asked last, or that has sent it; 0: none
}

// Cells are the chunks of a snapshot, in order.
type Cells struct {
	Version uint64 // changes when anything else here does
	Height  int64
	Chunks  int
	PerCell int // chunks per cell; the last may have fewer
	Cells   []Cell
}

// PeerView is a peer of a join.
type PeerView struct {
	scheduler.PeerStats
	Index   uint16 // what cells call it; 0: no cell does
	Address string // empty: not connected
	Reason  string // why it was banned; empty: it is not
}

// Progress returns how far the join is; false if there is and was none.
func (v *View) Progress() (Progress, bool) {
	v.mu.Lock()
	p, peers, started := v.mu.progress, v.mu.peers, v.mu.started
	v.mu.Unlock()
	if p.Phase == PhaseLooking {
		p.Peers, p.Banned = peers.Count()
		p.Elapsed = time.Since(started)
	}
	return p, p.Phase != ""
}

// Version returns Cells.Version.
func (v *View) Version() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.version
}

// Peers returns the peers that were asked for something, are connected or were banned. Those that
// gave most come first.
func (v *View) Peers() []PeerView {
	v.mu.Lock()
	peers, stats, index := v.mu.peers, v.mu.stats, maps.Clone(v.mu.index)
	v.mu.Unlock()
	if peers == nil {
		return nil
	}
	all := map[scheduler.PeerID]*PeerView{}
	of := func(id scheduler.PeerID) *PeerView {
		if all[id] == nil {
			all[id] = &PeerView{PeerStats: scheduler.PeerStats{ID: id, State: scheduler.StateNew}, Index: index[id]}
		}
		return all[id]
	}
	for _, s := range stats {
		of(s.ID).PeerStats = s
	}
	connected, banned := peers.addresses()
	for id, address := range connected {
		of(scheduler.PeerID(id)).Address = address
	}
	for id, reason := range banned {
		p := of(scheduler.PeerID(id))
		p.State, p.Reason = scheduler.StateBanned, reason
	}
	list := make([]PeerView, 0, len(all))
	for _, p := range all {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b PeerView) int {
		return cmp.Or(cmp.Compare(b.VerifiedBytes, a.VerifiedBytes), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// Cells returns the chunks, in at most limit cells; 0: one cell per chunk.
func (v *View) Cells(limit int) Cells {
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

// together returns one cell for several chunks. If one is being checked or was requested, that is
// its state; otherwise it depends on how many are stored.
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

// Connecting notes that a join begins, and its peers. Join calls it too.
func (v *View) Connecting(peers *Peers) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.peers == peers {
		return
	}
	v.mu.peers, v.mu.started, v.mu.progress = peers, time.Now(), Progress{Phase: PhaseLooking}
	v.mu.stats, v.mu.index, v.mu.cells = nil, map[scheduler.PeerID]uint16{}, nil
	v.mu.version++
}

// Over notes that the join has ended without a state: it is no longer shown.
func (v *View) Over() {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.progress, v.mu.stats, v.mu.cells = Progress{}, nil, nil
	v.mu.version++
}

// begin notes that a round has begun, and which of its chunks are missing.
func (v *View) begin(r *round) {
	if v == nil {
		return
	}
	cells := make([]cell, len(r.manifest.Entries))
	for k := range cells {
		if _, missing := r.restorer.Want(uint32(k)); !missing {
			cells[k].state = CellHere
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.cells, v.mu.round, v.mu.height = cells, r.group, r.height
	v.mu.version++
}

// report notes how far the join is.
func (v *View) report(p Progress, stats []scheduler.PeerStats) {
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

// change changes the cell of an item's chunk, unless that is stored, or of another round.
func (v *View) change(it *item, f func(*cell)) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if it.r.group != v.mu.round || int(it.k) >= len(v.mu.cells) {
		return
	}
	c := &v.mu.cells[it.k]
	if c.state == CellStored || c.state == CellHere {
		return
	}
	before := *c
	if f(c); *c != before {
		v.mu.version++
	}
}

// number returns the index of a peer in cells. The caller holds v.mu.
func (v *View) number(peer scheduler.PeerID) uint16 {
	n, known := v.mu.index[peer]
	if !known && len(v.mu.index) < math.MaxUint16 {
		n = uint16(len(v.mu.index) + 1)
		v.mu.index[peer] = n
	}
	return n
}

func (v *View) asked(it *item, peer scheduler.PeerID) {
	v.change(it, func(c *cell) {
		c.state, c.peer, c.out = CellAsked, v.number(peer), min(c.out, math.MaxUint8-1)+1
	})
}

func (v *View) arrived(it *item, peer scheduler.PeerID) {
	v.change(it, func(c *cell) { c.state, c.peer = CellChecking, v.number(peer) })
}

func (v *View) lied(it *item) {
	v.change(it, func(c *cell) { c.lied = true })
}

func (v *View) stored(it *item, peer transport.ID) {
	v.change(it, func(c *cell) { c.state, c.peer = CellStored, v.number(scheduler.PeerID(peer)) })
}

// ended notes that a request has ended, for whatever reason.
func (v *View) ended(it *item) {
	v.change(it, func(c *cell) {
		c.out -= min(c.out, 1)
		c.state = CellAsked
		if c.out == 0 {
			c.state = CellWaiting
		}
	})
}

package statesync

import (
	"context"
	"iter"
	"slices"
	"sync"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
)

const (
	// maxManifestBytes: CometBFT drops a peer that sends a snapshot message above 4,000,000 bytes. The other fields fit the rest.
	maxManifestBytes = 3_999_900
	// minEntryBytes is the least length of a manifest's entry but the first: boundary height, key hash, root height, bytes, root
	// hash. It bounds a manifest from below without encoding it; so no snapshot reaches CometBFT's 100,000 chunks either.
	minEntryBytes = 1 + 32 + 1 + 1 + 32
)

// Committed tells that block height is committed and v the state after it. Where a snapshot is due it pins v, which it then retains,
// and it drops what is neither among the newest nor asked for. It returns at once: what a joiner asks for is made when it asks.
func (m *Manager) Committed(height int64, v *avlstar.Version) {
	m.serving.Lock()
	defer m.serving.Unlock()
	s := &m.serving
	defer m.drop()
	if m.opts.Keep <= 0 || s.interval <= 0 || height <= 0 || height%s.interval != 0 || v.NumChunks() == 0 || m.ctx.Err() != nil {
		return
	}
	if n := len(s.pins); n > 0 && s.pins[n-1].height >= height {
		return // told before
	}
	if (int64(v.NumChunks())-1)*minEntryBytes > maxManifestBytes {
		m.sayTooLarge(height, int64(v.NumChunks())*minEntryBytes)
		return
	}
	v.Retain()
	s.pins = append(s.pins, &pin{height: height, version: v, manifest: sync.OnceValue(func() []byte { return v.Manifest().Encode() })})
}

// drop lets go of the pins before the newest, but for those that were asked for lately. Where snapshots follow each other faster
// than a join goes, a joiner could otherwise never end. The caller holds m.serving.
func (m *Manager) drop() {
	s := &m.serving
	old := len(s.pins) - m.opts.Keep
	if old <= 0 {
		return
	}
	now := m.opts.Now()
	kept := make([]*pin, 0, len(s.pins))
	for i, p := range s.pins[:old] {
		if now.Sub(p.asked) < m.opts.Hold && old-i <= maxHeld {
			kept = append(kept, p)
		} else {
			p.version.Release() // who serves from it has a reference of its own
		}
	}
	s.pins = append(kept, s.pins[old:]...)
}

// note marks a pin as asked for.
func (m *Manager) note(p *pin) {
	m.serving.Lock()
	defer m.serving.Unlock()
	p.asked = m.opts.Now()
}

// sayTooLarge logs, once, why snapshots are missing. The caller holds m.serving.
func (m *Manager) sayTooLarge(height, bytes int64) {
	if m.serving.tooLarge {
		return
	}
	m.serving.tooLarge = true
	m.log.Error("The state has too many chunks to be offered over CometBFT's state sync; new nodes cannot join from this one. "+
		"A larger chunk_bytes in genesis makes fewer.", "height", height, "manifest_bytes", bytes, "limit", maxManifestBytes)
}

// pinned returns the newest pins, newest first. The caller releases them.
func (m *Manager) pinned() []*pin {
	m.serving.Lock()
	defer m.serving.Unlock()
	all := m.serving.pins
	pins := slices.Clone(all[max(0, len(all)-m.opts.Keep):])
	for _, p := range pins {
		p.version.Retain()
	}
	slices.Reverse(pins)
	return pins
}

// offered yields the pins that can be offered, newest first, each valid while it is looked at. It encodes manifests, outside of locks.
func (m *Manager) offered() iter.Seq[*pin] {
	return func(yield func(*pin) bool) {
		pins := m.pinned()
		defer release(pins)
		for _, p := range pins {
			if size := len(p.manifest()); size > maxManifestBytes {
				m.serving.Lock()
				m.sayTooLarge(p.height, int64(size))
				m.serving.Unlock()
			} else if !yield(p) {
				return
			}
		}
	}
}

// find returns the pin of height, nil where there is none. The caller releases its version.
func (m *Manager) find(height uint64) *pin {
	m.serving.Lock()
	defer m.serving.Unlock()
	for _, p := range m.serving.pins {
		if uint64(p.height) == height {
			p.version.Retain()
			return p
		}
	}
	return nil
}

// OldestServed returns the lowest height of a pinned version, 0 if there is none. Joiners need the blocks from there on.
// It depends on what was asked for and when, so it is for pruning, never for anything that nodes must agree on.
func (m *Manager) OldestServed() int64 {
	m.serving.Lock()
	defer m.serving.Unlock()
	if len(m.serving.pins) == 0 {
		return 0
	}
	return m.serving.pins[0].height
}

// Snapshot describes a snapshot that this node offers.
type Snapshot struct {
	Height  int64
	Chunks  uint32
	AppHash avlstar.Hash
}

// List describes the snapshots that this node offers, newest first.
func (m *Manager) List() []Snapshot {
	list := []Snapshot{}
	for p := range m.offered() {
		list = append(list, Snapshot{Height: p.height, Chunks: p.version.NumChunks(), AppHash: p.version.AppHash()})
	}
	return list
}

// ListSnapshots answers the ABCI call: newest first, since CometBFT passes on the first ten.
func (m *Manager) ListSnapshots(context.Context, *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	resp := &abci.ResponseListSnapshots{}
	for p := range m.offered() {
		m.note(p)
		hash := p.version.AppHash()
		resp.Snapshots = append(resp.Snapshots, &abci.Snapshot{
			Height: uint64(p.height), Format: Format, Chunks: p.version.NumChunks(), Hash: hash[:], Metadata: p.manifest(),
		})
	}
	return resp, nil
}

// LoadSnapshotChunk answers the ABCI call. What is not there is a nil chunk, which CometBFT passes on as "missing"; an empty one
// that is not nil would get this node disconnected.
func (m *Manager) LoadSnapshotChunk(_ context.Context, req *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	if req.Format != Format {
		return &abci.ResponseLoadSnapshotChunk{}, nil
	}
	p := m.find(req.Height)
	if p == nil {
		return &abci.ResponseLoadSnapshotChunk{}, nil
	}
	defer p.version.Release()
	if req.Chunk >= p.version.NumChunks() {
		return &abci.ResponseLoadSnapshotChunk{}, nil
	}
	chunk, err := p.version.Chunk(req.Chunk)
	if err != nil {
		m.log.Error("Cannot encode a chunk", "height", req.Height, "chunk", req.Chunk, "err", err)
		return &abci.ResponseLoadSnapshotChunk{}, nil
	}
	m.note(p)
	m.opts.Metrics.chunkServed(len(chunk))
	return &abci.ResponseLoadSnapshotChunk{Chunk: chunk}, nil
}

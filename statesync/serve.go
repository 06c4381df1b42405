package statesync

import (
	"context"
	"errors"
	"iter"
	"slices"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
)

const (
	// maxManifestBytes: CometBFT drops a peer that sends a snapshot message above 4,000,000 bytes.
	// The remainder is for the other fields.
	maxManifestBytes = 3_999_900
	// minEntryBytes is the minimum length of a manifest entry after the first: boundary height, key
	// hash, root height, bytes, root hash. It yields a lower bound of a manifest's size without
	// encoding it, and keeps snapshots below CometBFT's limit of 100,000 chunks.
	minEntryBytes = 1 + 32 + 1 + 1 + 32
)

// Committed is called when block height is committed; v is the state after it. If a snapshot is
// due, Committed retains v as a pin. It drops pins that are neither among the newest nor recently
// requested. It returns at once; chunks are encoded when a joiner requests them.
func (m *Manager) Committed(height int64, v *avlstar.Version) {
	m.serving.Lock()
	defer m.serving.Unlock()
	s := &m.serving
	s.told, s.state = max(s.told, height), v.Root().Bytes
	defer m.drop()
	if !m.due(height) || v.NumChunks() == 0 {
		return
	}
	if n := len(s.pins); n > 0 && s.pins[n-1].height >= height {
		return // already passed, or stored before a restart
	}
	p := &pin{height: height}
	if !s.closed {
		p.source = newInMemory(v)
	}
	s.pins = append(s.pins, p)
}

// due reports whether a snapshot is to be taken at height. The caller holds m.serving.
func (m *Manager) due(height int64) bool {
	n := m.serving.interval
	return m.opts.Keep > 0 && n > 0 && height > 0 && height%n == 0
}

// Due reports whether a snapshot is to be taken at height.
func (m *Manager) Due(height int64) bool {
	m.serving.Lock()
	defer m.serving.Unlock()
	return m.due(height)
}

// PinData describes v, the state after block height, if its snapshot is worth storing now. It
// returns nil if no snapshot is due or newer ones have replaced it. A snapshot stored with the
// description can be served after a restart, see AddStored.
func (m *Manager) PinData(height int64, v *avlstar.Version) []byte {
	if !m.wanted(height) || v.NumChunks() == 0 {
		return nil
	}
	data, err := EncodePin(v)
	if err != nil {
		m.log.Error("A snapshot cannot be stored: a restart will forget it", "height", height, "err", err)
		return nil
	}
	return data
}

func (m *Manager) wanted(height int64) bool {
	m.serving.Lock()
	defer m.serving.Unlock()
	return m.due(height) && (height > m.serving.told || slices.ContainsFunc(m.serving.pins, func(p *pin) bool { return p.height == height }))
}

// AddStored adds a snapshot that was on disk before a restart, with its description from PinData.
// The caller adds snapshots in ascending order of height, before it calls Committed. They are
// served like others, with two differences. Every chunk is verified before it is sent; a damaged
// chunk drops the snapshot. And if CometBFT no longer has the blocks that follow the snapshot
// (BlocksFrom: they were pruned or replaced manually), the snapshot does not prevent later blocks
// from being pruned; a joiner then gets the blocks from other peers, which it asks anyway. The
// owner of the stored snapshots removes those that Held does not list. A snapshot without a
// description was not worth storing and is ignored.
func (m *Manager) AddStored(height int64, data []byte) {
	if len(data) == 0 {
		return
	}
	d, err := decodePin(height, data)
	m.serving.Lock()
	defer m.serving.Unlock()
	s := &m.serving
	switch n := len(s.pins); {
	case err != nil:
		m.log.Error("Dropping a snapshot that is on disk", "height", height, "err", err)
	case m.opts.OpenPin == nil || s.closed || m.opts.Keep <= 0 || s.interval > 0 && height%s.interval != 0:
	case n > 0 && s.pins[n-1].height >= height:
	default:
		s.pins = append(s.pins, &pin{height: height, source: newOnDisk(d, m.opts.OpenPin, m.log), noBlocks: height+1 < m.opts.BlocksFrom})
		m.log.Info("Serving a snapshot that is on disk", "height", height, "chunks", len(d.decoded.Entries))
	}
}

// Held returns the heights of the pinned snapshots, ascending. A stored snapshot that is no longer
// listed may still be open while a chunk of it is served.
func (m *Manager) Held() []int64 {
	m.serving.Lock()
	defer m.serving.Unlock()
	heights := make([]int64, 0, len(m.serving.pins))
	for _, p := range m.serving.pins {
		heights = append(heights, p.height)
	}
	return heights
}

// remove drops a snapshot whose stored copy turned out to be damaged, as err says.
func (m *Manager) remove(damaged *pin, err error) {
	m.serving.Lock()
	defer m.serving.Unlock()
	s := &m.serving
	if i := slices.Index(s.pins, damaged); i >= 0 {
		s.pins = slices.Delete(s.pins, i, i+1)
		m.letGo(damaged)
		m.log.Error("Dropping a snapshot that is on disk: it is not served any more", "height", damaged.height, "err", err)
	}
}

// letGo releases the list's reference to a pin. The caller holds m.serving.
func (m *Manager) letGo(p *pin) {
	if !m.serving.closed {
		p.release() // readers have their own references
	}
}

// drop releases the pins before the newest ones, except those requested recently, and those that
// keep too much. Otherwise, if snapshots follow each other faster than a join completes, a joiner
// could never finish. The caller holds m.serving.
func (m *Manager) drop() {
	s := &m.serving
	if old := len(s.pins) - m.opts.Keep; old > 0 {
		now := m.opts.now()
		kept := make([]*pin, 0, len(s.pins))
		for i, p := range s.pins[:old] {
			if p.left.IsZero() {
				p.left = now
			}
			if now.Sub(p.asked) < m.opts.Hold && old-i <= maxHeld && now.Sub(p.left) < longestHold {
				kept = append(kept, p)
			} else {
				m.letGo(p)
			}
		}
		s.pins = append(kept, s.pins[old:]...)
	}
	m.dropLarge()
}

// dropLarge releases the oldest pins while all together keep too much. The caller holds m.serving.
func (m *Manager) dropLarge() {
	s := &m.serving
	kept, limit := m.kept(), m.limits()
	for len(s.pins) > 1 && (kept.Memory > limit.Memory || kept.Disk > limit.Disk || kept.Manifests > limit.Manifests) {
		oldest := s.pins[0]
		s.pins = slices.Delete(s.pins, 0, 1)
		rest := m.kept()
		m.log.Info("Dropped the oldest snapshot: all snapshots together exceed a limit", "height", oldest.height,
			"memory_bytes", kept.Memory, "disk_bytes", kept.Disk, "limit_bytes", limit.Memory,
			"manifest_bytes", kept.Manifests, "manifest_limit_bytes", limit.Manifests)
		m.letGo(oldest)
		kept = rest
	}
}

// Kept is what only snapshots keep, in bytes.
type Kept struct{ Memory, Disk, Manifests int64 }

// Kept returns what all snapshots keep, and the limits of it. Nodes of the tree that a snapshot
// shares with states that can be queried do not count until these are given up. Memory does not
// include manifests.
func (m *Manager) Kept() (kept, limits Kept) {
	m.serving.Lock()
	defer m.serving.Unlock()
	return m.kept(), m.limits()
}

// kept implements Kept. The caller holds m.serving.
func (m *Manager) kept() (k Kept) {
	var onDisk map[int64]uint64
	if m.opts.OnDisk != nil {
		onDisk = m.opts.OnDisk()
	}
	for _, p := range m.serving.pins {
		k.Disk += int64(onDisk[p.height])
		if !m.serving.closed {
			memory, manifest := p.kept()
			k.Memory, k.Manifests = k.Memory+int64(memory), k.Manifests+int64(manifest)
		}
	}
	return k
}

// limits returns the limits of kept. The caller holds m.serving.
func (m *Manager) limits() Kept {
	most := m.opts.MaxBytes
	if most <= 0 {
		most = int64(max(m.serving.state, MinKept))
	}
	return Kept{Memory: most, Disk: most, Manifests: MaxManifestBytes}
}

// note records a request for a pin.
func (m *Manager) note(p *pin) {
	m.serving.Lock()
	defer m.serving.Unlock()
	p.asked = m.opts.now()
}

// sayTooLarge logs, once, why snapshots are not offered. The caller holds m.serving.
func (m *Manager) sayTooLarge(height, bytes int64) {
	if m.serving.tooLarge {
		return
	}
	m.serving.tooLarge = true
	m.log.Error("The state has too many chunks for CometBFT's state sync: this node serves new nodes over its own transport only",
		"height", height, "manifest_bytes", bytes, "limit", maxManifestBytes)
}

// pinned returns the newest pins, newest first. The caller releases them.
func (m *Manager) pinned() []*pin {
	m.serving.Lock()
	defer m.serving.Unlock()
	if m.serving.closed {
		return nil
	}
	all := m.serving.pins
	pins := slices.Clone(all[max(0, len(all)-m.opts.Keep):])
	pins = slices.DeleteFunc(pins, func(p *pin) bool { return p.part != nil })
	for _, p := range pins {
		p.retain()
	}
	slices.Reverse(pins)
	return pins
}

// offered yields the pins that can be offered, newest first; each is valid during its iteration. It
// encodes manifests without holding locks.
func (m *Manager) offered() iter.Seq[*pin] {
	return func(yield func(*pin) bool) {
		pins := m.pinned()
		defer release(pins)
		for _, p := range pins {
			if least := (int64(p.numChunks()) - 1) * minEntryBytes; least > maxManifestBytes {
				m.serving.Lock()
				m.sayTooLarge(p.height, least)
				m.serving.Unlock()
			} else if size := len(p.manifest()); size > maxManifestBytes {
				m.serving.Lock()
				m.sayTooLarge(p.height, int64(size))
				m.serving.Unlock()
			} else if !yield(p) {
				return
			}
		}
	}
}

// find returns the pin of height, or nil if there is none. The caller releases it.
func (m *Manager) find(height uint64) *pin {
	m.serving.Lock()
	defer m.serving.Unlock()
	for _, p := range m.serving.pins {
		if uint64(p.height) == height && !m.serving.closed {
			p.retain()
			return p
		}
	}
	return nil
}

// OldestServed returns the lowest height of a pin, or 0 if there is none. Joiners need the blocks
// from that height on. Stored pins count only if those blocks exist (see AddStored). The result
// depends on requests and their timing, so it is for pruning only, never for consensus.
func (m *Manager) OldestServed() int64 {
	m.serving.Lock()
	defer m.serving.Unlock()
	for _, p := range m.serving.pins {
		if !p.noBlocks {
			return p.height
		}
	}
	return 0
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
		list = append(list, Snapshot{Height: p.height, Chunks: p.numChunks(), AppHash: p.appHash()})
	}
	return list
}

// ListSnapshots answers the ABCI call, newest first, since CometBFT forwards the first ten.
func (m *Manager) ListSnapshots(context.Context, *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	resp := &abci.ResponseListSnapshots{}
	for p := range m.offered() {
		m.note(p)
		hash := p.appHash()
		resp.Snapshots = append(resp.Snapshots, &abci.Snapshot{
			Height: uint64(p.height), Format: Format, Chunks: p.numChunks(), Hash: hash[:], Metadata: p.manifest(),
		})
	}
	return resp, nil
}

// LoadSnapshotChunk answers the ABCI call. A missing chunk is nil, which CometBFT forwards as
// "missing"; an empty non-nil chunk would get this node disconnected.
func (m *Manager) LoadSnapshotChunk(_ context.Context, req *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	if req.Format != Format {
		return &abci.ResponseLoadSnapshotChunk{}, nil
	}
	p := m.find(req.Height)
	if p == nil {
		return &abci.ResponseLoadSnapshotChunk{}, nil
	}
	defer p.release()
	if req.Chunk >= p.numChunks() {
		return &abci.ResponseLoadSnapshotChunk{}, nil
	}
	chunk, err := p.chunk(req.Chunk)
	switch {
	case errors.Is(err, ErrDamagedPin):
		m.remove(p, err)
		return &abci.ResponseLoadSnapshotChunk{}, nil
	case err != nil:
		m.log.Error("Cannot encode a chunk", "height", req.Height, "chunk", req.Chunk, "err", err)
		return &abci.ResponseLoadSnapshotChunk{}, nil
	}
	m.note(p)
	m.opts.Metrics.chunkServed(len(chunk))
	return &abci.ResponseLoadSnapshotChunk{Chunk: chunk}, nil
}

package statesync

import (
	"errors"
	"fmt"
	"slices"

	"github.com/starling-kv/starling/statesync/scheduler"
)

// Part lists the chunks of a snapshot that a node has, if it does not have all of them.
type Part struct {
	Height int64
	Chunks uint32           // of the whole snapshot
	Spans  []scheduler.Span // ascending, separated by at least one missing chunk
}

// Has reports whether the node has chunk k.
func (p Part) Has(k uint32) bool {
	return slices.ContainsFunc(p.Spans, func(s scheduler.Span) bool { return s.From <= k && k < s.To })
}

// Check returns an error unless the spans are valid and there is at least one.
func (p Part) Check() error {
	last := int64(-1)
	for _, s := range p.Spans {
		if int64(s.From) <= last || s.From >= s.To || s.To > p.Chunks {
			return fmt.Errorf("chunks [%d, %d) of %d, after chunk %d", s.From, s.To, p.Chunks, last)
		}
		last = int64(s.To)
	}
	if last < 0 {
		return errors.New("no chunks")
	}
	return nil
}

// AddPart serves a part of a snapshot from its description (EncodePin) and the leaves of the chunks
// in spans; pin need not have others. Every chunk is verified before it is sent, as with AddStored.
// The height must be above those of all other snapshots. The newest Options.Keep parts are served.
// The Manager closes pin when the part is no longer served, or at once on an error.
func (m *Manager) AddPart(height int64, description []byte, spans []scheduler.Span, pin Pin) error {
	err := m.addPart(height, description, spans, pin)
	if err != nil {
		return errors.Join(fmt.Errorf("a part of the snapshot of height %d: %w", height, err), pin.Close())
	}
	return nil
}

func (m *Manager) addPart(height int64, description []byte, spans []scheduler.Span, source Pin) error {
	d, err := decodePin(height, description)
	if err != nil {
		return err
	}
	part := Part{height, uint32(len(d.decoded.Entries)), slices.Clone(spans)}
	if err := part.Check(); err != nil {
		return err
	}
	m.serving.Lock()
	defer m.serving.Unlock()
	s := &m.serving
	switch n := len(s.pins); {
	case s.closed:
		return errors.New("serving has ended")
	case n > 0 && s.pins[n-1].height >= height:
		return fmt.Errorf("height %d is served already", s.pins[n-1].height)
	}
	served := newOnDisk(d, nil, m.log)
	served.mu.pin = source
	s.pins = append(s.pins, &pin{height: height, source: served, noBlocks: true, part: &part})
	m.drop()
	return nil
}

// Measured says that Options.OnDisk has another result, and that the keys and values of which this
// node serves parts have so many bytes. It drops the oldest snapshots if they keep too much.
func (m *Manager) Measured(state uint64) {
	m.serving.Lock()
	defer m.serving.Unlock()
	m.serving.state = state
	m.drop()
}

// Parts lists the served parts of snapshots, ascending.
func (m *Manager) Parts() []Part {
	m.serving.Lock()
	defer m.serving.Unlock()
	var parts []Part
	for _, p := range m.serving.pins {
		if p.part != nil && !m.serving.closed {
			parts = append(parts, *p.part)
		}
	}
	return parts
}

// GiveUp stops serving a snapshot, even if peers are requesting it, to free its memory.
func (m *Manager) GiveUp(height int64) {
	m.serving.Lock()
	defer m.serving.Unlock()
	s := &m.serving
	if i := slices.IndexFunc(s.pins, func(p *pin) bool { return p.height == height }); i >= 0 {
		m.letGo(s.pins[i])
		s.pins = slices.Delete(s.pins, i, i+1)
	}
}

// Has reports whether this node has chunk k; if not, another node may have it.
func (s *Served) Has(k uint32) bool { return s.p.part == nil || s.p.part.Has(k) }

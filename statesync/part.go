package statesync

import (
	"errors"
	"fmt"
	"slices"
)

// Span is the chunks [From, To) of a snapshot.
type Span struct{ From, To uint32 }

// Part says which chunks of a snapshot a node has that does not have all of them.
type Part struct {
	Height int64
	Chunks uint32 // of the whole snapshot
	Spans  []Span // ascending, with a chunk between two at least that is missing
}

// Has reports whether chunk k is among them.
func (p Part) Has(k uint32) bool {
	return slices.ContainsFunc(p.Spans, func(s Span) bool { return s.From <= k && k < s.To })
}

// Check returns an error unless the spans are as they must be, and one at least.
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

// AddPart serves a part of a snapshot, of which the node has the description (EncodePin) and the
// leaves of some chunks: pin needs to have those of spans only. Every chunk is verified before it
// is sent, as with AddStored. The height is to be above those of all other snapshots; of parts,
// too, the newest Options.Keep are served. The Manager closes pin when the part is no longer
// served, or at once if there is an error.
func (m *Manager) AddPart(height int64, description []byte, spans []Span, pin Pin) error {
	err := m.addPart(height, description, spans, pin)
	if err != nil {
		return errors.Join(fmt.Errorf("a part of the snapshot of height %d: %w", height, err), pin.Close())
	}
	return nil
}

func (m *Manager) addPart(height int64, description []byte, spans []Span, source Pin) error {
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
		return errors.New("nothing is served any more")
	case n > 0 && s.pins[n-1].height >= height:
		return fmt.Errorf("height %d is served already", s.pins[n-1].height)
	}
	served := newOnDisk(d, nil, m.log)
	served.mu.pin = source
	s.pins = append(s.pins, &pin{height: height, source: served, noBlocks: true, part: &part})
	m.drop()
	return nil
}

// Parts lists the parts of snapshots that are served, ascending.
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

// GiveUp ends the serving of a snapshot, whoever asks for it, so that its memory is free again.
func (m *Manager) GiveUp(height int64) {
	m.serving.Lock()
	defer m.serving.Unlock()
	s := &m.serving
	if i := slices.IndexFunc(s.pins, func(p *pin) bool { return p.height == height }); i >= 0 {
		m.letGo(s.pins[i])
		s.pins = slices.Delete(s.pins, i, i+1)
	}
}

// Has reports whether chunk k is there; if not, another node may have it.
func (s *Served) Has(k uint32) bool { return s.p.part == nil || s.p.part.Has(k) }

package storage

import "encoding/binary"

// The heights and outline records of a block are copied right after Write, concurrently with the
// next blocks, so that the owner need not keep their source until the flush.
//
//	Write ──► queue ──────────► flush: waits until they are copied, for each of its blocks
//	  └─────► take

// take copies the heights and outline records of the block. If another call is copying them, or the
// block is being dropped, it waits for that.
func (s *Zone) take(w *waiting) {
	w.once.Do(func() {
		if w.Owner == nil {
			return
		}
		var heights, outline []byte
		w.Owner.Take(func(key []byte, height uint8) {
			heights = append(append(binary.AppendUvarint(heights, uint64(len(key))), key...), height)
		}, func(key, record []byte) {
			outline = append(binary.AppendUvarint(outline, uint64(len(key))), key...)
			outline = append(binary.AppendUvarint(outline, uint64(len(record))), record...)
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		taken := int64(len(heights) + len(outline))
		w.heights, w.outline, w.bytes = heights, outline, w.bytes+taken
		if w.counted != nil {
			*w.counted += taken
		}
		if s.mu.waitingBytes >= s.opts.FlushBytes {
			s.wakeFlusher()
		}
	})
}

// done reports to the owner whether the block is durable.
func (w *waiting) done(durable bool) {
	w.once.Do(func() {}) // waits for take, or prevents it
	if w.Owner != nil {
		w.Owner.Done(durable)
	}
}

// eachHeight calls f with the keys and heights that take copied.
func (w *waiting) eachHeight(f func(key []byte, height uint8)) {
	for b := w.heights; len(b) > 0; {
		n, at := binary.Uvarint(b)
		end := at + int(n)
		f(b[at:end:end], b[end])
		b = b[end+1:]
	}
}

// eachOutline calls f with the keys and outline records that take copied.
func (w *waiting) eachOutline(f func(key, record []byte)) {
	next := func(b []byte) (field, rest []byte) {
		n, at := binary.Uvarint(b)
		end := at + int(n)
		return b[at:end:end], b[end:]
	}
	for b := w.outline; len(b) > 0; {
		var key, record []byte
		key, b = next(b)
		record, b = next(b)
		f(key, record)
	}
}

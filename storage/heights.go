package storage

import "encoding/binary"

// The heights of a block are copied right after Write, concurrently with the next blocks, so that
// the owner need not keep their source until the flush.
//
//	Write ──► queue ──────────► flush: waits for the heights of its blocks
//	  └─────► takeHeights

// takeHeights copies the heights of the block. If another call is copying them, or the block is
// being dropped, it waits for that.
func (s *Zone) takeHeights(w *waiting) {
	w.once.Do(func() {
		if w.Owner == nil {
			return
		}
		var heights []byte
		w.Owner.TakeHeights(func(key []byte, height uint8) {
			heights = append(append(binary.AppendUvarint(heights, uint64(len(key))), key...), height)
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		w.heights, w.bytes = heights, w.bytes+int64(len(heights))
		if w.counted != nil {
			*w.counted += int64(len(heights))
		}
		if s.mu.waitingBytes >= s.opts.FlushBytes {
			s.wakeFlusher()
		}
	})
}

// done reports to the owner whether the block is durable.
func (w *waiting) done(durable bool) {
	w.once.Do(func() {}) // waits for takeHeights, or prevents it
	if w.Owner != nil {
		w.Owner.Done(durable)
	}
}

// eachHeight calls f with the keys and heights that takeHeights copied.
func (w *waiting) eachHeight(f func(key []byte, height uint8)) {
	for b := w.heights; len(b) > 0; {
		n, at := binary.Uvarint(b)
		end := at + int(n)
		f(b[at:end:end], b[end])
		b = b[end+1:]
	}
}

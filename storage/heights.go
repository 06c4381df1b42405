package storage

import "encoding/binary"

// The heights of a block, and its records of the page list, are copied right after Write,
// concurrently with the next blocks, so that the owner need not keep their source until the flush.
//
//	Write ──► queue ──────────► flush: waits until they are copied, for each of its blocks
//	  └─────► take

// take copies the heights of the block, and its records of the page list. If another call is
// copying them, or the block is being dropped, it waits for that. A whole page list does not count
// towards the limits: blocks would wait for it.
func (s *Zone) take(w *waiting) {
	w.once.Do(func() {
		if w.Owner == nil {
			return
		}
		var heights, list []byte
		w.Owner.Take(func(key []byte, height uint8) {
			heights = append(append(binary.AppendUvarint(heights, uint64(len(key))), key...), height)
		}, func(key, record []byte) {
			list = append(binary.AppendUvarint(list, uint64(len(key))), key...)
			list = append(binary.AppendUvarint(list, uint64(len(record))), record...)
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		taken := int64(len(heights))
		if !w.NewPageList {
			taken += int64(len(list))
		}
		w.heights, w.list, w.bytes = heights, list, w.bytes+taken
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

// eachPage yields the keys and records of the page list that take copied.
func (w *waiting) eachPage(yield func(key, record []byte) bool) {
	next := func(b []byte) (field, rest []byte) {
		n, at := binary.Uvarint(b)
		end := at + int(n)
		return b[at:end:end], b[end:]
	}
	for b := w.list; len(b) > 0; {
		var key, record []byte
		key, b = next(b)
		if record, b = next(b); !yield(key, record) {
			return
		}
	}
}

package storage

import "encoding/binary"

// The heights of a block are taken right after it was handed over, beside the blocks: so whoever
// made the block need not keep what Block.Heights reads until the flush.
//
//	Write ──► queue ───────────────► flush: waits for those of its blocks that are not taken yet
//	  └─────► takeHeights ──► Taken

// takeHeights copies what the block's Heights yields, and calls Taken. If somebody has begun to, or
// the block was dropped, it waits for that instead.
func (s *Zone) takeHeights(w *waiting) {
	w.once.Do(func() {
		var heights []byte
		if w.Heights != nil {
			for key, height := range w.Heights {
				heights = append(append(binary.AppendUvarint(heights, uint64(len(key))), key...), height)
			}
		}
		w.taken()
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

// taken tells the block's owner that Heights is not used any more.
func (w *waiting) taken() {
	if w.Taken != nil {
		w.Taken()
	}
	w.Heights = nil
}

// done tells the block's owner that it is durable, or never will be.
func (w *waiting) done() {
	w.once.Do(w.taken)
	if w.Done != nil {
		w.Done()
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

package statesync

import (
	"fmt"
	"time"

	"github.com/starling-kv/starling/avlstar"
)

// progress counts the progress of a sync for operators.
type progress struct {
	totalChunks, chunks int
	totalBytes, bytes   uint64
	bad                 int
	badPeers            map[string]bool
}

func newProgress(m *avlstar.Manifest) progress {
	p := progress{totalChunks: len(m.Entries), badPeers: map[string]bool{}}
	for _, e := range m.Entries {
		p.totalBytes += e.Root.Bytes
	}
	return p
}

func (p *progress) verified(bytes int) {
	p.chunks++
	p.bytes += uint64(bytes)
}

// rejected counts a bad chunk and reports whether it is the first from its sender.
func (p *progress) rejected(sender string) (newPeer bool) {
	p.bad++
	newPeer = sender != "" && !p.badPeers[sender]
	if newPeer {
		p.badPeers[sender] = true
	}
	return newPeer
}

// keyvals returns log fields that describe the sync after elapsed.
func (p *progress) keyvals(elapsed time.Duration) []any {
	rate := float64(p.bytes) / max(elapsed.Seconds(), 1e-3)
	return []any{
		"chunks", fmt.Sprintf("%d/%d", p.chunks, p.totalChunks), "bytes", fmt.Sprintf("%d/%d", p.bytes, p.totalBytes),
		"chunks_rejected", p.bad, "peers_rejected", len(p.badPeers),
		"seconds", fmt.Sprintf("%.1f", elapsed.Seconds()), "MB_per_s", fmt.Sprintf("%.2f", rate/1e6),
	}
}

// left estimates the remaining time; false before the first chunk.
func (p *progress) left(elapsed time.Duration) (time.Duration, bool) {
	if p.bytes == 0 {
		return 0, false
	}
	return time.Duration(float64(elapsed) * float64(p.totalBytes-p.bytes) / float64(p.bytes)), true
}

// report logs the progress periodically, even if nothing arrives.
func (s *session) report(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		elapsed := time.Since(s.started)
		s.mu.Lock()
		keyvals := s.mu.progress.keyvals(elapsed)
		if left, known := s.mu.progress.left(elapsed); known {
			keyvals = append(keyvals, "seconds_left", fmt.Sprintf("%.0f", left.Seconds()))
		}
		s.mu.Unlock()
		s.log.Info("State sync: verifying chunks", append([]any{"height", s.restorer.height}, keyvals...)...)
	}
}

// summary logs one line at the end.
func (s *session) summary() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Info("State sync: state restored", append([]any{"height", s.restorer.height}, s.mu.progress.keyvals(time.Since(s.started))...)...)
}

package tcp

import "sync"

// budget shares memory between hosts. A host may hold a quarter of the memory that is free at the
// time, and so may each network that it belongs to. So one greedy host gets a fifth of the limit,
// and some memory always remains for the next host: a tenth after ten greedy ones (dynamic
// thresholds with α = 1/4: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
// packet switches", 1998).
type budget struct {
	limit int64 // in bytes
	mu    struct {
		sync.Mutex
		held int64
		by   map[string]int64 // by network; networks that hold nothing are omitted
	}
}

// take reserves bytes for a host. It returns false if they exceed the host's share. A host that
// holds nothing always gets them, so that every host makes progress.
func (b *budget) take(from origin, bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.by[from.host()] > 0 {
		for _, net := range from.nets {
			if share := (b.limit - b.mu.held - bytes) / 4; b.mu.by[net]+bytes > share {
				return false
			}
		}
	}
	b.add(from, bytes)
	return true
}

// count adds bytes that a host holds, regardless of its share; negative bytes return some.
func (b *budget) count(from origin, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(from, bytes)
}

// add changes the count of a host. The caller holds b.mu.
func (b *budget) add(from origin, bytes int64) {
	if b.mu.by == nil {
		b.mu.by = make(map[string]int64)
	}
	b.mu.held += bytes
	for _, net := range from.nets {
		if b.mu.by[net] += bytes; b.mu.by[net] == 0 {
			delete(b.mu.by, net)
		}
	}
}

func (b *budget) held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.held
}

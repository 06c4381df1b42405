package tcp

import "sync"

// budget shares memory between hosts: a host may hold a quarter of what is then still free, and so
// may each network that it belongs to. So one greedy host gets a fifth, and whatever several take,
// something is free for who comes next: after ten of them a tenth (dynamic thresholds: Choudhury
// and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998, with
// α = 1/4).
type budget struct {
	limit int64 // in bytes
	mu    struct {
		sync.Mutex
		held int64
		by   map[string]int64 // by networks that hold anything
	}
}

// take reserves bytes for a host. It returns false if that is more than the host's share; one that
// holds nothing gets them in any case, so that nobody is kept from taking one thing at a time.
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

// count adds bytes that a host holds whether it may or not; or it gives them back, if negative.
func (b *budget) count(from origin, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(from, bytes)
}

// add does. The caller holds b.mu.
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

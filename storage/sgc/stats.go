package sgc

// ZoneStats counts since the cache was created; sizes are current.
type ZoneStats struct {
	Hits, Misses uint64
	GhostHits    uint64 // misses of recently evicted entries
	Entries      int
	Bytes        int64 // of the entries, including overhead
	Ghosts       int
	Target       int64
	Other        int64
}

// Stats describes a cache at one moment.
type Stats struct {
	Zones      [2]ZoneStats // indexed by Zone
	Budget     int64
	Moves      uint64 // number of times that budget moved between zones
	MovedBytes int64
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{Budget: c.budget, Moves: c.mu.moves, MovedBytes: c.mu.moved}
	for z := range numZones {
		zo := &c.mu.zones[z]
		s.Zones[z] = ZoneStats{
			Hits: zo.hits, Misses: zo.misses, GhostHits: zo.ghostHits,
			Entries: zo.count(), Bytes: zo.bytes(), Ghosts: int(zo.ghosts.index.n),
			Target: c.targetLocked(z), Other: zo.other,
		}
	}
	return s
}

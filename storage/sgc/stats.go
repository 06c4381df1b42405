package sgc

// ZoneStats counts since the cache was made; sizes are of now.
type ZoneStats struct {
	Hits, Misses uint64
	GhostHits    uint64 // misses of entries that were evicted lately
	Entries      int
	Bytes        int64 // of the entries, with what the cache needs for them
	Ghosts       int
	Target       int64
	Other        int64
}

// Stats of a cache, taken in one moment.
type Stats struct {
	Zones      [2]ZoneStats // indexed by Zone
	Budget     int64
	Moves      uint64 // how often budget moved from one zone to the other
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

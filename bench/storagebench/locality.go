package storagebench

import (
	"fmt"

	"github.com/starling-kv/starling/bench/harness"
)

// LocalityCell has the reads of files by account queries, with a limit for all caches.
type LocalityCell struct {
	Contestant   string     `json:"contestant"`
	Step         string     `json:"step"`
	Distribution string     `json:"distribution"`
	CacheBytes   int64      `json:"cache_bytes"` // limit
	Share        float64    `json:"cache_share"` // CacheBytes of the state
	Queries      int        `json:"queries"`
	Reads        float64    `json:"file_reads_per_query"` // system calls: a block each
	ReadBytes    float64    `json:"file_bytes_per_query"`
	HitRate      float64    `json:"hit_rate"`
	Plan         memoryPlan `json:"memory_bytes"`
}

// cacheShares are the limits of the caches, relative to the state. The last one is what memtables
// leave of the default budget.
var cacheShares = []float64{0, 1. / 64, 1. / 16, 1. / 8, 3. / 16}

// LocalityName says what a cell measured.
func LocalityName(c LocalityCell) string {
	switch {
	case c.Contestant == nameMixed:
		return "mixed (IAVL's nodes by version)"
	case c.Contestant == nameGethHash:
		return nameGethHash + " (nodes by hash)"
	case c.Contestant == nameGethRow:
		return nameGethRow + " (nodes by depth and hash)"
	case c.Contestant == nameGethColumn:
		return nameGethColumn + " (nodes by path and hash)"
	case c.Step == stepFlat:
		return nameGethPath + ", " + stepFlat
	case c.Contestant == nameGethPath:
		return nameGethPath + " (nodes by path)"
	case c.Contestant == nameStarling:
		return "Starling (leaves in key order)"
	}
	return c.Contestant
}

// locality counts how many blocks of its database an account query reads. It is a count, not a
// time: two runs differ only by the compactions before it.
func (r *runner) locality() error {
	var readers []reader
	for _, e := range r.readers() {
		if e.Name != nameLeaves && e.Name != nameZones && e.step != stepPlain {
			readers = append(readers, e)
		}
	}
	r.progress.Begin("locality", "queries", len(readers)*len(cacheShares)*2*r.o.Queries)
	for i, share := range cacheShares {
		limit := int64(share * float64(r.result.Sizes.StateBytes))
		for _, e := range readers {
			r.progress.Working(fmt.Sprintf("%s, %.1f %% in caches", e.Name, 100*share))
			mode := e.mode
			mode.Limited, mode.Bytes = true, limit
			a, err := r.query(e.entrant, mode, request{Op: opRead, Distribution: distNormal, Round: uint64(2000 + i)})
			if err != nil {
				return err
			}
			done := float64(a.Done)
			r.result.Locality = append(r.result.Locality, LocalityCell{
				Contestant: e.Name, Step: e.step, Distribution: string(distNormal), CacheBytes: limit, Share: share, Queries: a.Done, Plan: a.Plan,
				Reads: harness.Ratio(float64(a.Reads), done), ReadBytes: harness.Ratio(float64(a.ReadBytes), done), HitRate: a.Hits.rate(),
			})
		}
	}
	return nil
}

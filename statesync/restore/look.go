package restore

import (
	"context"
	"time"

	"github.com/starling-kv/starling/statesync/snapshot"
)

// A slow snapshot is abandoned only for a much faster one: otherwise Byzantine peers could make a
// joiner switch from one to the next. Other snapshots are sampled in the background, less and less
// often.

const (
	// firstLook is how long a round lasts before another snapshot is sampled, if the rest of the
	// round will take more than longLeft. It doubles with each look, up to maxLook: the best
	// snapshot may be slow, and needs most of the time. A look takes at most lookLimit.
	firstLook = 5 * time.Second
	longLeft  = 10 * time.Second
	lookLimit = 30 * time.Second
	maxLook   = 24 * time.Hour
	// maxLeft is the estimate before anything has arrived.
	maxLeft = 10_000 * time.Hour
)

// left estimates the remaining time of the round.
func (j *joiner) left() time.Duration { return j.leftWith(j.loop.Arriving()) }

// leftWith is left with the given number of bytes received of answers in flight.
func (j *joiner) leftWith(arriving int64) time.Duration {
	p := &j.count.progress
	arrived := float64(p.BytesDone-min(j.count.start, p.BytesDone)) + float64(arriving)
	since := time.Since(j.count.began).Seconds()
	rest := float64(p.Bytes - min(p.BytesDone, p.Bytes))
	return time.Duration(min(rest*since/max(arrived, 1), float64(maxLeft)/float64(time.Second)) * float64(time.Second))
}

// unlooked reports whether a peer claims a comparable snapshot that the current one was not
// compared with. Once all have been compared, it starts over.
func (j *joiner) unlooked() bool {
	all := 0
	for _, s := range j.has {
		for _, h := range s.Heights() {
			if j.comparable(h) {
				if !j.compared[h] {
					return true
				}
				all++
			}
		}
	}
	if all > 0 {
		clear(j.compared)
	}
	return all > 0
}

func (j *joiner) comparable(h int64) bool {
	return h != j.round.Height && h >= j.round.Height-snapshot.LateIntervals*max(j.o.Interval, 1)
}

// lookAround searches in the background for a snapshot that arrives faster than the current one,
// which is still being fetched: it fetches one chunk and measures the time.
func (j *joiner) lookAround() {
	r := j.round
	r.searching = true
	among := map[int64]bool{}
	for _, s := range j.has {
		for _, h := range s.Heights() {
			among[h] = j.comparable(h) && !j.compared[h]
		}
	}
	j.loop.Go(func() {
		timed, cancel := context.WithTimeout(r.ctx, lookLimit)
		defer cancel()
		c, err := j.finder.Choose(timed, func(h int64) int {
			if among[h] {
				return 0
			}
			return -1
		})
		var rate float64
		if err == nil {
			rate = j.finder.Rate(timed, c)
		}
		j.loop.Post(func() { j.looked(r, c, rate) })
	})
}

// looked handles the end of lookAround. c is nil if no snapshot was found. rate is the rate of one
// chunk in bytes per second, 0 if none arrived.
func (j *joiner) looked(of *round, c *snapshot.Choice, rate float64) {
	r := j.round
	if of != r {
		return
	}
	r.searching = false
	r.looked = time.Now()
	j.look = min(2*j.look, maxLook)
	if c == nil {
		return
	}
	j.compared[c.Height] = true
	rest := 0.0 // all of it: chunks in common can only reduce it
	for _, entry := range c.Manifest.Entries {
		rest += float64(entry.Root.Bytes)
	}
	if rate == 0 || 2*rest/rate > j.left().Seconds() {
		return
	}
	j.log.Info("Joining: switching to a faster snapshot", "height", c.Height, "seconds_left", int(j.left().Seconds()))
	if err := j.begin(c); err != nil {
		j.loop.Fail(err)
	}
}

package fastsync

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/hedge"
	"github.com/starling-kv/starling/transport"
)

// A snapshot that makes progress is not left for another, however slow it is, unless that is much
// faster: else liars could send a joiner from one to the next. So others are sampled, in the
// background and ever more rarely.

const (
	// firstLook is how long a round lasts before it is looked whether another snapshot comes
	// faster, if the rest of it will take more than longLeft. It doubles with each look, up to
	// maxLook, so that what is slow, but the best there is, has most of the time. A look takes
	// lookLimit at most.
	firstLook = 5 * time.Second
	longLeft  = 10 * time.Second
	lookLimit = 30 * time.Second
	maxLook   = 24 * time.Hour
	// maxLeft is the estimate where nothing has arrived.
	maxLeft = 10_000 * time.Hour
)

// left estimates how long the rest of the round will take, from what has arrived of it.
func (j *joiner) left() time.Duration {
	p := &j.count.progress
	arrived := float64(p.BytesDone - min(j.count.start, p.BytesDone))
	for _, r := range j.requests {
		arrived += float64(r.told)
	}
	since := time.Since(j.count.began).Seconds()
	rest := float64(p.Bytes - min(p.BytesDone, p.Bytes))
	return time.Duration(min(rest*since/max(arrived, 1), float64(maxLeft)/float64(time.Second)) * float64(time.Second))
}

// unlooked reports whether a peer claims a snapshot that the present one was not compared with, and
// that is not much older. After all were, it begins anew.
func (j *joiner) unlooked() bool {
	all := 0
	for _, s := range j.has {
		for _, h := range s.heights() {
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
	return h != j.round.height && h >= j.round.height-lateIntervals*max(j.o.Interval, 1)
}

// lookAround looks in the background for a snapshot that comes faster than the present one, which
// is fetched meanwhile: one chunk of it is fetched and timed.
func (j *joiner) lookAround() {
	r := j.round
	r.searching = true
	among := map[int64]bool{}
	for _, s := range j.has {
		for _, h := range s.heights() {
			among[h] = j.comparable(h) && !j.compared[h]
		}
	}
	j.wg.Go(func() {
		timed, cancel := context.WithTimeout(r.ctx, lookLimit)
		defer cancel()
		c, err := j.choose(timed, func(h int64) int {
			if among[h] {
				return 0
			}
			return -1
		})
		var rate float64
		if err == nil {
			rate = j.sample(timed, c)
		}
		j.mail.Put(looked{r, c, rate})
	})
}

// looked is the end of a look around.
type looked struct {
	of   *round
	c    *choice // nil: no snapshot was found
	rate float64 // bytes a second at which one chunk of it came; 0: none did
}

func (e looked) handle(j *joiner) {
	r := j.round
	if e.of != r {
		return
	}
	r.searching = false
	r.looked = time.Now()
	j.look = min(2*j.look, maxLook)
	if e.c == nil {
		return
	}
	j.compared[e.c.height] = true
	rest := 0.0 // all of it: what both have in common can only make it less
	for _, entry := range e.c.manifest.Entries {
		rest += float64(entry.Root.Bytes)
	}
	if e.rate == 0 || 2*rest/e.rate > j.left().Seconds() {
		return
	}
	j.log.Info("Joining: another snapshot comes faster", "height", e.c.height, "seconds_left", int(j.left().Seconds()))
	if err := j.begin(e.c); err != nil {
		j.fail(err)
	}
}

// sample returns at how many bytes a second a peer sends the largest chunk of a snapshot: the first
// that has sent it. 0: nobody has.
func (j *joiner) sample(ctx context.Context, c *choice) (rate float64) {
	if len(c.manifest.Entries) == 0 {
		return 0
	}
	largest := slices.MaxFunc(c.manifest.Entries, func(a, b avlstar.Entry) int { return cmp.Compare(a.Root.Bytes, b.Root.Bytes) })
	k := slices.Index(c.manifest.Entries, largest)
	var conns []transport.Conn
	for _, p := range j.o.Peers.conns() {
		if p.status.has(c.height, uint32(k)) {
			conns = append(conns, p.Conn)
		}
	}
	rand.Shuffle(len(conns), func(a, b int) { conns[a], conns[b] = conns[b], conns[a] })
	received := make(map[transport.Conn]*atomic.Int64, len(conns))
	for _, conn := range conns {
		received[conn] = new(atomic.Int64)
	}
	s := hedge.Search[transport.Conn, time.Duration]{
		Policy: manifestPolicy,
		Go:     j.wg.Go,
		More:   func() ([]transport.Conn, <-chan struct{}) { return conns, nil },
		Ask: func(ctx context.Context, conn transport.Conn) (time.Duration, error) {
			began := time.Now()
			err := j.chunkFrom(ctx, c, k, conn, received[conn])
			return time.Since(began), err
		},
		Received: func(conn transport.Conn) int64 { return received[conn].Load() },
		Proved: func(_ transport.Conn, took time.Duration) {
			rate = float64(largest.Root.Bytes) / max(took, time.Millisecond).Seconds()
		},
	}
	if err := s.Run(ctx); err != nil {
		return 0
	}
	return rate
}

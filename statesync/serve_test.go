package statesync

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/spectest"
)

// TestSpecExample makes the messages in docs/spec/statesync.md.
func TestSpecExample(t *testing.T) {
	v, err := avlstar.Empty(5) // each leaf is a chunk
	require.NoError(t, err)
	v = next(t, v, avlstar.Change{Key: []byte("a"), Value: []byte("1")}, avlstar.Change{Key: []byte("b"), Value: []byte("2")})
	server := serverOf(t, v, 10)
	request := &abci.RequestLoadSnapshotChunk{Height: 10, Format: 1, Chunk: 1}
	answer, err := server.LoadSnapshotChunk(t.Context(), request)
	require.NoError(t, err)
	var messages [][]byte
	for _, m := range []interface{ Marshal() ([]byte, error) }{offerOf(t, server), request, answer} {
		b, err := m.Marshal()
		require.NoError(t, err)
		messages = append(messages, b)
	}
	spectest.Require(t, "statesync.md", messages...)
}

func TestPinsTheNewestAtMultiples(t *testing.T) {
	v := randomTree(t, newRNG(t, 1), 50, 200)
	for _, c := range []struct {
		interval int64
		keep     int
		upTo     int64
		heights  []int64
	}{
		{10, 3, 9, nil}, {10, 3, 10, []int64{10}}, {10, 3, 57, []int64{50, 40, 30}}, {1, 2, 7, []int64{7, 6}},
		{10, 0, 57, nil}, {0, 3, 57, nil}, {100, 1, 250, []int64{200}}, {10, 100, 25, []int64{20, 10}},
	} {
		m := NewManager(Options{Interval: c.interval, Keep: c.keep})
		for h := int64(1); h <= c.upTo; h++ {
			m.Committed(h, v)
			m.Committed(h, v) // twice: after a restore, or during a replay
		}
		var heights []int64
		for _, s := range m.List() {
			heights = append(heights, s.Height)
		}
		require.Equal(t, c.heights, heights, "%+v", c)
		oldest := int64(0)
		if len(heights) > 0 {
			oldest = heights[len(heights)-1]
		}
		require.Equal(t, oldest, m.OldestServed())
	}
	m := NewManager(Options{Keep: 1})
	m.Committed(10, v)
	m.SetInterval(10)
	m.Committed(20, v)
	require.EqualValues(t, 20, m.OldestServed())
	require.NoError(t, m.Close())
	require.Empty(t, m.List(), "nothing is served after Close")
	require.EqualValues(t, 20, m.OldestServed(), "it may be on disk, and be served again after a restart")
	m.Committed(30, v)
	require.Empty(t, m.List())
	require.EqualValues(t, 30, m.OldestServed())
}

// A request for a range counts like one for a chunk. Listing snapshots holds none of them.
func TestSnapshotsOfWhichRangesAreRequestedStay(t *testing.T) {
	v := randomTree(t, newRNG(t, 4), 50, 200)
	now := time.Unix(1_700_000_000, 0)
	m := NewManager(Options{Interval: 1, Keep: 2, Hold: time.Minute, now: func() time.Time { return now }})
	m.Committed(1, v)
	m.Committed(2, v)
	for height, ranged := range map[int64]bool{1: false, 2: true} {
		served, ok := m.Serve(height)
		require.True(t, ok)
		if ranged {
			_, err := served.ChunkRange(0, 1, 2)
			require.NoError(t, err)
		}
		served.Release()
	}
	m.Committed(3, v)
	m.Committed(4, v)
	now = now.Add(59 * time.Second)
	m.Committed(5, v)
	require.Equal(t, []int64{2, 4, 5}, m.Heights())
	require.NoError(t, m.Close())
}

// A joiner that has chosen a snapshot can finish, however fast snapshots follow each other.
func TestSnapshotsThatAreAskedForStay(t *testing.T) {
	v := randomTree(t, newRNG(t, 3), 50, 200)
	now := time.Unix(1_700_000_000, 0)
	m := NewManager(Options{Interval: 1, Keep: 2, Hold: time.Minute, now: func() time.Time { return now }})
	commit := func(from, to int64) {
		for h := from; h <= to; h++ {
			m.Committed(h, v)
		}
	}
	offered := func() (heights []int64) {
		for _, s := range m.List() {
			heights = append(heights, s.Height)
		}
		return heights
	}
	commit(1, 5)
	_, err := m.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
	require.NoError(t, err)
	commit(6, 50)
	require.Equal(t, []int64{50, 49}, offered(), "only the newest are offered")
	require.EqualValues(t, 4, m.OldestServed(), "their blocks stay, too")
	now = now.Add(40 * time.Second)
	require.NotNil(t, load(t, m, 5, 1, 0))
	now = now.Add(40 * time.Second)
	commit(51, 51)
	require.Nil(t, load(t, m, 4, 1, 0), "it was no longer requested")
	require.NotNil(t, load(t, m, 5, 1, 0))
	now = now.Add(time.Minute)
	commit(52, 52)
	require.Nil(t, load(t, m, 5, 1, 0))
	require.EqualValues(t, 51, m.OldestServed())

	for h := int64(53); h < 53+3*maxHeld; h++ { // a peer that requests all the time
		commit(h, h)
		_, err := m.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
		require.NoError(t, err)
	}
	require.Len(t, m.serving.pins, maxHeld+2)
}

func TestServedSnapshots(t *testing.T) {
	v := randomTree(t, newRNG(t, 2), 200, 300)
	m := serverOf(t, v, 10, 20)
	list, err := m.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
	require.NoError(t, err)
	require.Len(t, list.Snapshots, 2)
	for i, s := range list.Snapshots {
		hash := v.AppHash()
		require.Equal(t, abci.Snapshot{
			Height: uint64(20 - 10*i), Format: 1, Chunks: v.NumChunks(), Hash: hash[:], Metadata: v.Manifest().Encode(),
		}, *s)
		_, err := avlstar.VerifyManifest(s.Metadata, hash)
		require.NoError(t, err)
	}
	for k, want := range chunksOf(t, v) {
		require.Equal(t, want, load(t, m, 20, 1, uint32(k)))
	}
	for _, c := range [][3]uint64{{30, 1, 0}, {0, 1, 0}, {20, 0, 0}, {20, 2, 0}, {20, 1, uint64(v.NumChunks())}, {20, 1, 1<<32 - 1}, {1<<64 - 10, 1, 0}} {
		require.Nil(t, load(t, m, c[0], uint32(c[1]), uint32(c[2])), "not even an empty chunk: %v", c)
	}
	require.Equal(t, Snapshot{Height: 10, Chunks: v.NumChunks(), AppHash: v.AppHash()}, m.List()[1])
	require.Empty(t, NewManager(Options{}).List())
}

// With one leaf per chunk, a manifest grows by about 70 bytes per key.
func TestTooLargeSnapshotsAreNotOffered(t *testing.T) {
	v, err := avlstar.Empty(1)
	require.NoError(t, err)
	grow := func(from, to int) {
		var changes []avlstar.Change
		for i := from; i < to; i++ {
			changes = append(changes, avlstar.Change{Key: []byte(fmt.Sprintf("%08d", i)), Value: []byte{1}})
		}
		v = next(t, v, changes...)
	}
	var lines lines
	m := NewManager(Options{Interval: 1, Keep: 5, Logger: log.NewTMLogger(&lines)})
	grow(0, 10)
	m.Committed(1, v)
	grow(10, 59_701) // the manifest is a few bytes too long, which only its encoding shows
	require.Greater(t, len(v.Manifest().Encode()), maxManifestBytes)
	m.Committed(2, v)
	require.Len(t, m.List(), 1)
	grow(59_701, 59_702) // too many chunks, which their number shows
	m.Committed(3, v)
	for range 3 {
		require.Len(t, m.List(), 1)
	}
	require.Equal(t, 1, lines.count("over its own transport only"))
	require.Equal(t, []int64{1, 2, 3}, m.Heights(), "our own transport has no such limit")
	served, ok := m.Serve(3)
	require.True(t, ok)
	defer served.Release()
	_, err = avlstar.VerifyManifest(served.Manifest(), served.Commitment().AppHash())
	require.NoError(t, err)
}

func TestMetricsAndProgress(t *testing.T) {
	rng := newRNG(t, 4)
	v := randomTree(t, rng, 100, 200)
	registry := prometheus.NewRegistry()
	var lines lines
	target := &fakeTarget{t: t}
	m := NewManager(Options{
		Target: target, Interval: interval, Keep: 1, Logger: log.NewTMLogger(&lines),
		Metrics: NewMetrics("starling", registry), progressEvery: time.Millisecond,
	})
	NewMetrics("starling", registry) // shared, not refused
	require.Equal(t, offerAccept, offer(t, m, offerOf(t, serverOf(t, v, 10))))
	require.Eventually(t, func() bool { return lines.count("State sync: verifying chunks") > 0 }, 5*time.Minute, time.Millisecond)
	chunks := chunksOf(t, v)
	apply(t, m, 0, []byte{}, "liar")
	apply(t, m, 0, []byte{1}, "liar")
	newWorld(t, rng, m, chunks, 1, 0, 0).run()
	target.requireRestored(10, v)
	require.Equal(t, chunks[0], load(t, m, 10, 1, 0))
	size := len(bytes.Join(chunks, nil))
	for name, want := range map[string]int{
		"snapshots_offered_total": 1, "snapshot_chunks": len(chunks), "chunks_verified_total": len(chunks), "bytes_verified_total": size,
		"chunks_rejected_total": 2, "peers_banned_total": 1, "chunks_served_total": 1, "bytes_served_total": len(chunks[0]),
	} {
		require.EqualValues(t, want, gathered(t, registry, "starling_statesync_"+name), name)
	}
	summary := lines.with("State sync: state restored")
	require.Len(t, summary, 1)
	for _, text := range []string{
		"height=10", fmt.Sprintf("chunks=%d/%d", len(chunks), len(chunks)), fmt.Sprintf("bytes=%d/%d", size, size),
		"chunks_rejected=2", "peers_rejected=1", "seconds=", "MB_per_s=",
	} {
		require.Contains(t, summary[0], text)
	}
	require.NoError(t, m.Close())
}

// gathered returns the value of a metric, summed over its labels.
func gathered(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
			return sum
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// lines is an in-memory log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func (l *lines) count(text string) int { return len(l.with(text)) }

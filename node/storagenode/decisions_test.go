package storagenode

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/node/health"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

func closedContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// failedChecks returns the names of a report's failed checks.
func failedChecks(r health.Report) (names []string) {
	for _, c := range r.Checks {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}

// A node is ready once each current range has a state and is at most maxBehind blocks behind the
// headers. Next and retired ranges do not count.
func TestReadyOnceAllRangesFollow(t *testing.T) {
	_, low, high := wholeAndHalves()
	o := newOffline(t)
	p := o.add(low, current, true)
	require.Equal(t, []string{health.NameJoin}, failedChecks(o.Health()), "no header")
	o.prove(offlineHeight + 1)
	require.True(t, o.Health().Ready)
	require.Empty(t, failedChecks(o.Health()))
	require.EqualValues(t, offlineHeight, o.Health().Height)

	later := o.add(high, next, false)
	require.True(t, o.Health().Ready, "a next range does not count")
	later.role = retired
	require.True(t, o.Health().Ready, "nor does a retired one")
	later.role = current
	r := o.Health()
	require.Equal(t, []string{health.NameJoin}, failedChecks(r))
	require.Contains(t, r.Line(false), "1 range without a state ("+high.String()+")")
	o.mu.places = o.mu.places[:1]

	o.prove(offlineHeight + maxBehind)
	require.Empty(t, failedChecks(o.Health()))
	o.prove(offlineHeight + 1 + maxBehind)
	require.Equal(t, []string{health.NameSync}, failedChecks(o.Health()), "the headers are too far ahead")
	o.prove(offlineHeight + 2 + maxBehind)
	r = o.Health()
	require.Equal(t, []string{health.NameSync, health.NameReplicas}, failedChecks(r))
	require.Contains(t, r.Line(false), "range "+p.String()+" is 17 blocks behind")
	require.True(t, r.Live)
	o.fail(errors.New("broken"))
	require.False(t, o.Health().Live)
	require.EqualError(t, <-o.Failed(), "broken")
	o.fail(errors.New("later"))
	require.ErrorContains(t, o.mu.failure, "broken", "the first failure counts")
}

// The slowest range that is not retired decides which headers and snapshots are next.
func TestPositionIsThatOfTheSlowestRange(t *testing.T) {
	whole, low, high := wholeAndHalves()
	o := newOffline(t)
	_, _, some := o.position()
	require.False(t, some)
	require.Zero(t, o.chunks.due())
	a, b, old := o.add(low, current, true), o.add(high, next, true), o.add(whole, retired, true)
	for range 12 {
		o.block(offlineKey(1), 30, a)
	}
	lowest, hungry, some := o.position()
	require.EqualValues(t, offlineHeight, lowest)
	require.False(t, hungry)
	require.True(t, some)
	require.EqualValues(t, offlineHeight, o.chunks.due())
	b.role, old.role = retired, current
	lowest, _, _ = o.position()
	require.EqualValues(t, offlineHeight, lowest)
	old.role = retired
	lowest, _, _ = o.position()
	require.EqualValues(t, offlineHeight+12, lowest)
	require.EqualValues(t, offlineHeight+10, o.chunks.due())
}

func TestIsDue(t *testing.T) {
	for _, c := range []struct {
		role       role
		waited     time.Duration
		due, early bool
	}{
		{current, earlyAfter - 1, false, true},
		{current, earlyAfter, true, true},
		{current, stuckAfter - 1, true, true},
		{current, stuckAfter, true, false},
		{next, nextAfter - 1, false, false},
		{next, nextAfter, true, false},
	} {
		due, early := isDue(c.role, c.waited)
		require.Equal(t, c.due, due, "%v %v", c.role, c.waited)
		if due {
			require.Equal(t, c.early, early, "%v %v", c.role, c.waited)
		}
	}
}

// fills records the takeovers that tendPlace begins.
type fills struct {
	newest, above []int64
	early         []bool
	err           error
}

func (f *fills) fill(_ context.Context, _ *place, _ verifier, newest, above int64, early bool) error {
	f.newest, f.above, f.early = append(f.newest, newest), append(f.above, above), append(f.early, early)
	return f.err
}

// A range without a state begins with that of genesis only while the chain is young, and only if it
// is a current one. A range with a state is taken over once it cannot continue.
func TestWhatIsTakenOver(t *testing.T) {
	_, low, high := wholeAndHalves()
	o := newOffline(t)
	p, q := o.add(low, current, false), o.add(high, current, true)
	var f fills
	o.filler = &f
	tend := func(p *place, newest int64) {
		t.Helper()
		require.NoError(t, o.tendPlace(t.Context(), p, tip(newest)))
		o.taking.Wait()
		p.tryFrom = time.Time{}
	}
	tend(p, fromGenesis)
	tend(p, fromGenesis+1)
	p.role = next
	tend(p, 1)
	require.Equal(t, []int64{fromGenesis, fromGenesis + 1, 0}, f.newest, "what a current range has asked for is not asked for again")
	require.Equal(t, []int64{-1, -1, -1}, f.above)
	require.Equal(t, []bool{true, false, false}, f.early)

	require.NoError(t, o.tendPlace(t.Context(), p, tip(1)))
	o.taking.Wait()
	require.Zero(t, p.tryFrom, "nothing but the replica decides when it is due again")
	f.err = errNobody
	require.NoError(t, o.tendPlace(t.Context(), p, tip(1)))
	o.taking.Wait()
	require.NotZero(t, p.tryFrom, "a failed attempt is not repeated at once")

	f = fills{}
	p.role = current
	p.taken.Store(true)
	require.NoError(t, o.tendPlace(t.Context(), p, tip(1)))
	p.taken.Store(false)
	p.tryFrom = time.Now().Add(time.Hour)
	require.NoError(t, o.tendPlace(t.Context(), p, tip(1)))
	require.Empty(t, f.above, "it is being taken over, or was tried a moment ago")

	long := func() { q.since = time.Now().Add(-time.Hour) }
	long()
	tend(q, 1)
	require.Empty(t, f.above, "the chain has no newer block")
	require.WithinDuration(t, time.Now(), q.since, 10*time.Minute)
	o.block(offlineKey(45), 30)
	long()
	q.tryFrom = time.Now().Add(time.Hour)
	require.NoError(t, o.tendPlace(t.Context(), q, tip(1)))
	require.Empty(t, f.above)
	q.tryFrom = time.Time{}
	tend(q, 1)
	require.Equal(t, []int64{offlineHeight}, f.above)
	require.Equal(t, []bool{false}, f.early)
}

// Each range gets its part of the node's settings, the budgets of all ranges, and the names that
// the newest map has.
func TestOptionsOfAReplica(t *testing.T) {
	_, low, high := wholeAndHalves()
	o := newOffline(t)
	p := o.add(low, current, false)
	o.add(high, current, false)
	c := &o.config.App.StorageNode
	c.ServeHeights, c.ServeBytes = 321, 1000
	id := transport.ID(strings.Repeat("d", 40))
	got := o.replicaOptions(p, nil)
	require.False(t, got.Known(id))
	require.False(t, o.transportOptions().Named(id))
	require.NoError(t, o.setMap(2).NameValidators([]string{string(id)}))
	require.True(t, got.Known(id), "the map names it")
	require.True(t, o.transportOptions().Named(id))
	require.False(t, got.Known(o.ID()))
	require.True(t, o.transportOptions().Named(o.ID()), "a storage node stays connected, but is no validator")
	require.Equal(t, low, got.Range)
	require.Equal(t, 321, got.ServeHeights)
	require.EqualValues(t, 500, got.ServeBytes)
	require.EqualValues(t, 450, got.ScrubRate)
	require.EqualValues(t, offlineInterval, got.SnapshotInterval)
	require.Same(t, o.namedUpdates, got.Named)
	require.Same(t, o.strangers, got.Strangers)
	require.Same(t, o.redo, got.Log)
	require.Same(t, &o.headers, got.Headers)
	require.NotNil(t, got.Verdict)
	c.ServeBytes = 1
	require.EqualValues(t, 1, o.replicaOptions(p, nil).ServeBytes, "0 would be the default")
	require.Zero(t, scrubRate(0, 2))
	require.EqualValues(t, 1, scrubRate(1, 2))
}

// Only the senders of the settings may send updates, if there are any.
func TestSenders(t *testing.T) {
	o := newOffline(t)
	o.add(avlstar.KeyRange{}, current, true)
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	part := dsm.UpdatePart{Height: offlineHeight + 1, Total: 8, Part: []byte("part")}
	update := func(id string) error {
		_, err := o.handler.Load().Serve(t.Context(), transport.Request{Peer: transport.ID(id), Host: "h", Method: dsm.MethodUpdate, Body: part.Encode()})
		return err
	}
	o.serveAll()
	require.NoError(t, update(a))
	o.config.App.StorageNode.Senders = b
	o.serveAll()
	require.NoError(t, update(b))
	require.ErrorIs(t, update(a), transport.ErrRefused)
}

// A map that gives the node more ranges than its memory is enough for is named in the log, with
// both sums.
func TestMapBeyondTheMemory(t *testing.T) {
	o := newOffline(t)
	o.checkMemory(1)
	require.Empty(t, o.logs.String())
	o.config.App.Disk.CacheBytes = 1 << 60
	o.checkMemory(7)
	require.True(t, o.logs.Has("more ranges than its memory is enough for"))
	require.True(t, o.logs.Has("ranges=7"))
	require.True(t, o.logs.Has("this node needs 10995116"))
	require.True(t, o.logs.Has("MiB are available"))
}

// Snapshots are measured against the next one, the newest against the newest state, and those that
// take too much memory are dropped, oldest first.
func TestSnapshotsAreMeasuredAndBounded(t *testing.T) {
	o := newOffline(t)
	p := o.add(avlstar.KeyRange{}, current, true)
	o.setMap(0)
	o.serveAll()
	s := o.chunks
	require.Zero(t, s.newest())
	for height := range int64(2) {
		s.offer(t.Context(), offlineHeight+height*offlineInterval)
		for i := range offlineInterval {
			o.block(offlineKey(3), 1000+i, p) // a hot key
		}
	}
	first, second := int64(offlineHeight), int64(offlineHeight+offlineInterval)
	require.Equal(t, second, s.newest())
	s.bound()
	key := len(offlineKey(3))
	require.Equal(t, map[int64]uint64{first: record.Bytes(key, 30), second: record.Bytes(key, 1000+offlineInterval-1)}, s.onDisk())
	size, err := o.version.RangeBytes(nil, nil)
	require.NoError(t, err)
	require.Equal(t, size, s.mu.size)
	require.Len(t, s.manager.Parts(), 2)
	_, limits := s.manager.Kept()
	require.Positive(t, limits.Disk)

	held := s.held()
	require.Positive(t, held)
	s.limit = held
	s.bound()
	require.Len(t, s.manager.Parts(), 2, "exactly the limit")
	s.limit = held - 1
	s.bound()
	require.NotEmpty(t, s.manager.Parts())
	require.Equal(t, second, s.manager.Parts()[0].Height)
	require.True(t, o.logs.Has("Dropped a snapshot"))
	s.limit = 0
	s.bound()
	require.Empty(t, s.manager.Parts())
	require.Zero(t, s.newest())
	require.NoError(t, s.manager.Close())
}

func TestUntried(t *testing.T) {
	replicas := []dsm.NodeID{"self", "a", "b"}
	for want, tried := range map[dsm.NodeID]map[dsm.NodeID]bool{"a": {}, "b": {"a": true}, "": {"a": true, "b": true}} {
		got, ok := untried(replicas, tried, "self")
		require.Equal(t, want, got)
		require.Equal(t, want != "", ok)
	}
}

func TestSpansOf(t *testing.T) {
	require.Nil(t, spansOf(nil))
	require.Equal(t, []scheduler.Span{{From: 0, To: 2}, {From: 3, To: 4}, {From: 6, To: 9}}, spansOf([]uint32{0, 1, 3, 6, 7, 8}))
}

func TestNamedRanges(t *testing.T) {
	require.Equal(t, "a; b; c", named([]string{"a", "b", "c"}))
	require.Equal(t, "a; b; c; and 2 more", named([]string{"a", "b", "c", "d", "e"}))
}

// The traffic between two reports is their difference, unless the range was opened meanwhile.
func TestSubtract(t *testing.T) {
	_, low, high := wholeAndHalves()
	load := func(r avlstar.KeyRange, reads, changes uint64) dsm.Load {
		return dsm.Load{Range: r, Reads: reads, Changes: changes}
	}
	for name, c := range map[string]struct {
		earlier        []dsm.Load
		reads, changes uint64
	}{
		"the same range": {[]dsm.Load{load(low, 9, 9), load(high, 3, 5)}, 7, 15},
		"another range":  {[]dsm.Load{load(low, 3, 5)}, 0, 0},
		"fewer reads":    {[]dsm.Load{load(high, 11, 5)}, 0, 0},
		"fewer changes":  {[]dsm.Load{load(high, 3, 21)}, 0, 0},
		"no traffic":     {[]dsm.Load{load(high, 10, 20)}, 0, 0},
	} {
		l := load(high, 10, 20)
		subtract(&l, c.earlier)
		require.Equal(t, load(high, c.reads, c.changes), l, name)
	}
}

// Only data that cannot be used are put aside. Any other error of a disk ends the node.
func TestOnlyBadDataArePutAside(t *testing.T) {
	o := newOffline(t)
	p := o.add(avlstar.KeyRange{}, current, true)
	o.storeFailed(server.ErrDamaged)
	o.broken(p.replica, server.ErrGap)
	require.NoError(t, o.mu.failure)
	require.ErrorIs(t, p.broken, server.ErrGap)
	full := errors.New("no space left")
	p.broken = nil
	o.broken(p.replica, full)
	require.NoError(t, p.broken)
	require.ErrorIs(t, o.mu.failure, full)
	o.mu.failure = nil
	o.storeFailed(full)
	require.ErrorIs(t, o.mu.failure, full)
}

// placesOf has the ranges of one node in key order, with their roles.
func TestPlacesOf(t *testing.T) {
	whole, low, high := wholeAndHalves()
	a, b := transport.Address{ID: "a"}, transport.Address{ID: "b"}
	m := placed(t, 1, []dsm.Placement{at(low, a, b), at(high, b)}, []dsm.Placement{at(whole, a)}, a, b)
	places := placesOf(m, "a", "dir")
	require.Len(t, places, 2)
	roles := map[string]role{}
	for _, p := range places {
		roles[p.String()] = p.role
	}
	require.Equal(t, map[string]role{low.String(): current, whole.String(): next}, roles)
	require.NotEqual(t, places[0].dir, places[1].dir, "both begin with the same key")
	require.Empty(t, placesOf(m, "c", "dir"))
}

package storage

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// withPin returns a PinData function.
func withPin(data string) func() []byte { return func() []byte { return []byte(data) } }

// owner is an Owner whose methods a test sets as needed.
type owner struct {
	heights     iter.Seq2[[]byte, uint8]
	description func() []byte
	taken, done func()
}

var _ Owner = (*owner)(nil)

func (o *owner) Take(add func(key []byte, height uint8), _ func(key, record []byte)) {
	if o.heights != nil {
		for key, height := range o.heights {
			add(key, height)
		}
	}
	if o.taken != nil {
		o.taken()
	}
}

func (o *owner) PinData() []byte {
	if o.description == nil {
		return nil
	}
	return o.description()
}

func (o *owner) Done(bool) {
	if o.done != nil {
		o.done()
	}
}

// ownerOf returns the owner of a test's block, and sets one if necessary.
func ownerOf(b *Block) *owner {
	if b.Owner == nil {
		b.Owner = new(owner)
	}
	return b.Owner.(*owner)
}

// pinWith gives b a pin. Its owner may be shared with other blocks, so it is copied.
func pinWith(b *Block, description func() []byte) {
	o := *ownerOf(b)
	o.description = description
	b.Pin, b.Owner = true, &o
}

func blockOf(height int64, key, value string) Block {
	return Block{Meta: testMeta(height), Puts: []record.Leaf{{Key: []byte(key), Value: []byte(value)}}}
}

// TestFlushIsDue: nothing is written until a flush is due by number, by size, or by age.
func TestFlushIsDue(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*Options)
		early []Block
		last  Block
	}{
		"blocks": {func(o *Options) { o.FlushBlocks = 3 }, []Block{blockOf(1, "a", "1"), blockOf(2, "a", "2")}, blockOf(3, "b", "3")},
		"bytes":  {func(o *Options) { o.FlushBytes = 10000 }, []Block{blockOf(1, "a", "1")}, blockOf(2, "b", string(make([]byte, 10000)))},
		"pin":    {func(o *Options) {}, []Block{blockOf(1, "a", "1")}, Block{Meta: testMeta(2), Pin: true}},
	} {
		t.Run(name, func(t *testing.T) {
			opts := testOptions(vfs.NewMem())
			c.set(&opts)
			s, err := Open("zone", opts)
			require.NoError(t, err)
			defer s.Close()
			for _, b := range c.early {
				require.NoError(t, s.Write(b))
			}
			require.Zero(t, s.Safe())
			require.Equal(t, len(c.early), s.Metrics().LagBlocks)
			require.Positive(t, s.Metrics().LagBytes)
			require.Empty(t, scanAll(t, s), "only durable blocks are visible")
			durable := make(chan Metrics)
			ownerOf(&c.last).done = func() { durable <- s.Metrics() }
			require.NoError(t, s.Write(c.last))
			m := <-durable // at the call of Done, the flush must be counted
			require.Equal(t, c.last.Meta.Height, m.SafeHeight)
			require.EqualValues(t, 1, m.Flushes)
			require.Zero(t, m.LagBlocks)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		opts := testOptions(vfs.NewMem())
		opts.FlushInterval = time.Minute
		s, err := Open("zone", opts)
		require.NoError(t, err)
		started := time.Now()
		durable := make(chan struct{})
		b := blockOf(1, "a", "1")
		ownerOf(&b).done = func() { close(durable) }
		require.NoError(t, s.Write(b))
		<-durable
		require.Equal(t, time.Minute, time.Since(started))
		require.NoError(t, s.Close())
	})
}

// TestHeightsAreTakenAtOnce: the heights of a block are taken at once, however slow the disk,
// because their source may be overwritten afterwards. They count toward the lag.
func TestHeightsAreTakenAtOnce(t *testing.T) {
	for name, end := range map[string]func(s *Zone, release func()) error{
		"flushed": func(s *Zone, release func()) error {
			release()
			return s.Flush()
		},
		"dropped": func(s *Zone, release func()) error {
			reset := make(chan error)
			go func() { reset <- s.Reset() }()
			release()
			return <-reset
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs, hold := slowFS(vfs.NewMem())
			opts := testOptions(fs)
			opts.FlushBlocks = 1
			s, err := Open("zone", opts)
			require.NoError(t, err)
			defer s.Close()
			want, release := emptyModel(), hold()
			var done atomic.Int64
			bytes := int64(0)
			for height := int64(1); height <= 20; height++ {
				b := blockOf(height, fmt.Sprint("key", height), "1")
				ownerOf(&b).heights = each(keyHeight{fmt.Appendf(nil, "key%d", height), uint8(height)}, keyHeight{fmt.Appendf(nil, "key%d", max(height-1, 1)), 0})
				want = want.apply(b)
				bytes += bytesOf(b)
				memory := fmt.Appendf(nil, "key%d", height)
				before := ownerOf(&b).heights
				ownerOf(&b).heights = func(yield func([]byte, uint8) bool) {
					for key, h := range before {
						if !yield(append(memory[:0], key...), h) {
							return
						}
					}
				}
				taken := make(chan struct{})
				ownerOf(&b).taken = func() { close(taken) }
				ownerOf(&b).done = func() { done.Add(1) }
				require.NoError(t, s.Write(b))
				<-taken
			}
			require.Zero(t, done.Load(), "no block is durable yet")
			require.NoError(t, end(s, release))
			if name == "flushed" {
				want.requireIn(t, s)
				require.Greater(t, s.Metrics().FlushedBytes, uint64(bytes))
			} else {
				emptyModel().requireIn(t, s)
			}
			require.Zero(t, s.Metrics().LagBytes)
		})
	}
}

func TestCloseFlushes(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	all, history := randomHistory(newRNG(3), 9)
	for _, b := range all {
		require.NoError(t, s.Write(b))
	}
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	history[9].requireIn(t, openZone(t, fs))
}

// slowFS delays the writing of tables.
func slowFS(fs vfs.FS) (slow vfs.FS, hold func() (release func())) {
	var guard atomic.Pointer[chan struct{}]
	slow = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if g := guard.Load(); g != nil && op.Kind == errorfs.OpCreate && filepath.Ext(op.Path) == ".sst" {
			<-*g
		}
		return nil
	}))
	return slow, func() func() {
		g := make(chan struct{})
		guard.Store(&g)
		return func() {
			guard.Store(nil)
			close(g)
		}
	}
}

// TestLagIsBounded: while the disk is slow, Write continues up to the limits, and then waits.
// Owners of dropped blocks are notified.
func TestLagIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		blocks int
		bytes  int64
	}{"blocks": {10, 1 << 30}, "bytes": {1 << 20, 11000}} {
		t.Run(name, func(t *testing.T) {
			fs, hold := slowFS(vfs.NewMem())
			opts := testOptions(fs)
			opts.FlushBlocks, opts.FlushBytes, opts.MaxLagBlocks, opts.MaxLagBytes = 2, 1000, c.blocks, c.bytes
			s, err := Open("zone", opts)
			require.NoError(t, err)
			defer s.Close()
			release := hold()
			var done atomic.Int64
			written, told := make(chan int64, 100), make(chan struct{}, 30)
			go func() {
				for height := int64(1); height <= 30; height++ {
					b := blockOf(height, "a", string(make([]byte, 1000)))
					var taken atomic.Int64
					ownerOf(&b).taken = func() { taken.Add(1) }
					ownerOf(&b).done = func() {
						assert.EqualValues(t, 1, taken.Load())
						done.Add(1)
						told <- struct{}{}
					}
					if err := s.Write(b); err != nil {
						break
					}
					written <- height
				}
				close(written)
			}()
			for range 10 {
				<-written
			}
			require.Zero(t, done.Load())
			require.Equal(t, 10, s.Metrics().LagBlocks)
			require.Empty(t, written)
			release()
			for range written {
			}
			require.NoError(t, s.Flush())
			require.EqualValues(t, 30, s.Safe())
			require.Positive(t, s.Metrics().WaitSeconds)
			for range 30 {
				<-told // some after Flush has returned
			}

			release = hold()
			done.Store(0)
			var taken atomic.Int64
			for height := int64(31); height <= 36; height++ {
				b := blockOf(height, "b", "2")
				ownerOf(&b).taken = func() { taken.Add(1) }
				ownerOf(&b).done = func() { done.Add(1) }
				require.NoError(t, s.Write(b))
			}
			reset := make(chan error)
			go func() { reset <- s.Reset() }()
			release()
			require.NoError(t, <-reset)
			require.EqualValues(t, 6, done.Load())
			require.LessOrEqual(t, taken.Load(), int64(6), "a block dropped earlier is not called")
			emptyModel().requireIn(t, s)
			require.NoError(t, s.Flush())
			write(t, s, blockOf(1, "a", "1"))
		})
	}
}

// TestMerging: the last change of a key wins, whatever the blocks in between. A deletion of a leaf
// also deletes its height.
func TestMerging(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := newRNG(seed)
			all, history := randomHistory(rng, 200)
			s := openZone(t, vfs.NewMem())
			for i, b := range all {
				require.NoError(t, s.Write(b))
				if rng.IntN(40) == 0 {
					require.NoError(t, s.Flush())
					history[i+1].requireIn(t, s)
				}
			}
			require.NoError(t, s.Flush())
			history[len(all)].requireIn(t, s)
		})
	}
	m := newMerger()
	for i := range 5000 {
		m.add(takenOf(blockOf(1, fmt.Sprintf("%04d", i*7919%5000), "x")))
	}
	for n, i := range m.sorted() {
		require.Equal(t, fmt.Sprintf("%04d", n), string(m.changes[i].key))
	}
}

// TestGenerations: Page answers from the state that the caller knows, as long as Trim has not
// dropped it.
func TestGenerations(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := newRNG(seed)
			all, history := randomHistory(rng, 60)
			opts := testOptions(vfs.NewMem())
			opts.Generations = true
			s, err := Open("zone", opts)
			require.NoError(t, err)
			defer s.Close()
			var kept []int64
			for i, b := range all {
				require.NoError(t, s.Write(b))
				if rng.IntN(3) == 0 {
					require.NoError(t, s.Flush())
					kept = append(kept, b.Meta.Height)
				}
				if rng.IntN(15) == 0 && len(kept) > 1 {
					oldest, pinned := b.Meta.Height-int64(rng.IntN(12)), kept[rng.IntN(len(kept)-1)]
					s.Trim(oldest, []int64{pinned})
					base := int64(0)
					for _, h := range kept {
						if h <= oldest {
							base = h
						}
					}
					newest := kept[len(kept)-1]
					kept = slices.DeleteFunc(kept, func(h int64) bool { return h != newest && h != pinned && h < base })
				}
				require.Equal(t, len(kept), s.Metrics().Generations, "block %d", i+1)
				for range 4 {
					height := rng.IntN(i + 2)
					first, after := fmt.Appendf(nil, "%d", rng.IntN(100)), fmt.Appendf(nil, "%d", rng.IntN(100))
					if rng.IntN(5) == 0 {
						first = nil
					}
					if rng.IntN(5) == 0 {
						after = nil
					}
					want := history[height].records(first, after)
					if len(want) == 0 {
						continue
					}
					err := s.Page(first, after, uint64(len(want)), func(records []byte) bool { return bytes.Equal(records, want) })
					if slices.Contains(kept, int64(height)) {
						require.NoError(t, err)
					} else if err != nil { // another state may have the same leaves
						require.ErrorIs(t, err, ErrNoPage)
					}
					err = s.Page(first, after, uint64(len(want))-1, func(records []byte) bool { return bytes.Equal(records, want) })
					require.ErrorIs(t, err, ErrNoPage)
				}
			}
			require.NoError(t, s.Reset())
			require.ErrorIs(t, s.Page(nil, nil, 1<<40, func([]byte) bool { return true }), ErrNoPage)
		})
	}
}

func TestPins(t *testing.T) {
	fs := vfs.NewMem()
	all, history := randomHistory(newRNG(7), 40)
	s := openZone(t, fs)
	require.Empty(t, s.Pins())
	for _, b := range all {
		switch height := b.Meta.Height; {
		case height == 10:
			pinWith(&b, withPin("")) // an empty description is valid
		case height%10 == 5:
			pinWith(&b, func() []byte { return fmt.Appendf(nil, "height %d", height) })
		}
		require.NoError(t, s.Write(b)) // pins split the flushes
	}
	require.NoError(t, s.Flush())
	want := []PinInfo{{5, []byte("height 5")}, {10, nil}, {15, []byte("height 15")}, {25, []byte("height 25")}, {35, []byte("height 35")}}
	requirePins := func(s *Zone) {
		t.Helper()
		got := s.Pins()
		require.Len(t, got, len(want))
		for i, p := range got {
			require.Equal(t, want[i].Height, p.Height)
			require.Equal(t, string(want[i].Data), string(p.Data))
			require.Equal(t, history[p.Height].records(nil, nil), pinRecords(t, s, p.Height))
		}
	}
	requirePins(s)
	require.NoError(t, s.Close())
	s = openZone(t, fs)
	requirePins(s)

	_, err := s.OpenPin(6)
	require.ErrorIs(t, err, ErrNoPin)
	require.NoError(t, s.DropPin(6))

	// An open pin is kept until it was closed as often as it was opened.
	one, err := s.OpenPin(15)
	require.NoError(t, err)
	two, err := s.OpenPin(15)
	require.NoError(t, err)
	require.NoError(t, s.DropPin(15))
	want = slices.Delete(want, 2, 3)
	requirePins(s)
	_, err = s.OpenPin(15)
	require.ErrorIs(t, err, ErrNoPin)
	require.NoError(t, one.Close())
	_, err = one.Range(nil, nil, 1<<40)
	require.ErrorIs(t, err, ErrClosed)
	part := history[15].records([]byte("1"), []byte("3"))
	records, err := two.Range([]byte("1"), []byte("3"), uint64(len(part)))
	require.NoError(t, err)
	require.Equal(t, string(part), string(records))
	_, err = two.Range([]byte("1"), []byte("3"), uint64(len(part)-1))
	require.ErrorIs(t, err, ErrNoPage)
	require.NoError(t, two.Close())
	require.NoError(t, two.Close())
	names, err := fs.List("zone-pins")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"5", "10", "25", "35"}, names)

	s.Trim(40, []int64{5, 25, 35})
	more := all[len(all)-1]
	more.Meta.Height++
	for range 2 { // they are removed after the next flush, and before the one after that
		require.NoError(t, s.Write(Block{Meta: more.Meta}))
		require.NoError(t, s.Flush())
		more.Meta.Height++
	}
	want = slices.Delete(want, 1, 2)
	requirePins(s)

	// Incomplete pins, foreign folders, and pins above the height of the state.
	require.NoError(t, s.Close())
	for _, name := range []string{"made-40", "gone-7", "30", "notes"} {
		require.NoError(t, fs.MkdirAll("zone-pins/"+name, 0o755))
	}
	flip(t, fs, "zone-pins/25/PIN", 10)
	want = slices.Delete(want, 1, 2)
	s = openZone(t, fs)
	requirePins(s)
	names, err = fs.List("zone-pins")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"5", "35", "notes"}, names)
	require.NoError(t, s.Close())

	require.Error(t, RollbackToPin("zone", 6, testOptions(fs)))
	require.NoError(t, RollbackToPin("zone", 5, testOptions(fs)))
	want = want[:1]
	s = openZone(t, fs)
	history[5].requireIn(t, s)
	requirePins(s)
	for _, b := range all[5:] { // and it continues from there
		require.NoError(t, s.Write(b))
	}
	require.NoError(t, s.Flush())
	history[40].requireIn(t, s)
	requirePins(s)
	require.NoError(t, s.Reset())
	require.Empty(t, s.Pins())
}

func TestReadOnly(t *testing.T) {
	fs := vfs.NewMem()
	opts := testOptions(fs)
	opts.ReadOnly = true
	_, err := Open("zone", opts)
	require.Error(t, err, "there is no database")

	s := openZone(t, fs)
	all, history := randomHistory(newRNG(8), 10)
	pinWith(&all[9], withPin("pin"))
	for _, b := range all {
		require.NoError(t, s.Write(b))
	}
	require.NoError(t, s.Flush())
	_, err = Open("zone", opts)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, s.Close())
	require.NoError(t, fs.MkdirAll("zone-pins/made-3", 0o755))

	s, err = Open("zone", opts)
	require.NoError(t, err)
	history[10].requireIn(t, s)
	require.Len(t, s.Pins(), 1)
	require.Equal(t, history[10].records(nil, nil), pinRecords(t, s, 10))
	require.Error(t, s.Write(blockOf(11, "a", "1")))
	require.NoError(t, s.Flush())
	require.Error(t, s.Reset())
	require.Error(t, s.Compact(t.Context(), nil))
	_, err = s.BeginRestore(nil)
	require.Error(t, err)
	s.Trim(20, nil)
	require.Len(t, s.Pins(), 1)
	require.NoError(t, s.Close())
	names, err := fs.List("zone-pins")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"10", "made-3"}, names)
}

func TestCompact(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	all, history := randomHistory(newRNG(9), 60)
	for i, b := range all {
		require.NoError(t, s.Write(b))
		if i%6 == 0 {
			require.NoError(t, s.Flush())
		}
	}
	require.NoError(t, s.Flush())
	var done, total uint64
	require.NoError(t, s.Compact(t.Context(), func(d, all uint64) {
		require.GreaterOrEqual(t, d, done)
		done, total = d, all
	}))
	require.Positive(t, total)
	require.Equal(t, total, done)
	history[60].requireIn(t, s)
	m := s.Metrics()
	require.Positive(t, m.CompactionBytes)
	require.Positive(t, m.WriteAmplification)
	require.Positive(t, m.DiskBytes)
	// Tables that the database no longer needs are deleted in the background.
	require.Eventually(t, func() bool { return s.Metrics().DiskBytes == s.DiskBytes() }, 5*time.Minute, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	write(t, s, blockOf(61, "0", "1"))
	_ = s.Compact(ctx, nil) // must end
}

// TestMemTablesLeaveTheCache: memtables of the full size leave Pebble's block cache its memory.
func TestMemTablesLeaveTheCache(t *testing.T) {
	const size = 1 << 20
	o := testOptions(vfs.NewMem())
	o.MemTableBytes, o.CacheBytes, o.Generations = size, size, true
	s, err := Open("zone", o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	rng := newRNG(1)
	var keys []string
	for height := range int64(20) {
		b := Block{Meta: testMeta(height + 1)}
		for range 30 {
			keys = append(keys, fmt.Sprintf("%03d", len(keys)))
			b.Puts = append(b.Puts, record.Leaf{Key: []byte(keys[len(keys)-1]), Value: randomBytes(rng, 10<<10)})
		}
		write(t, s, b)
	}
	require.EqualValues(t, size, s.Metrics().MemTableBytes) // and as much is kept for reuse
	k := s.Kept(20)
	require.NotNil(t, k)
	defer k.Release()
	for _, key := range keys {
		_, ok, err := k.Get([]byte(key))
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.Greater(t, s.Metrics().CacheBytes, int64(size/2))
}

// TestScanOfManyTables: a scan is split into parts, which are yielded in order.
func TestScanOfManyTables(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	const runs, each, valueBytes = 60, 50, 12 << 10
	for _, run := range newRNG(1).Perm(runs) {
		var leaves []record.Leaf
		for i := range each {
			value := randomBytes(newRNG(uint64(run*each+i)), valueBytes) // incompressible
			leaves = append(leaves, record.Leaf{Key: fmt.Appendf(nil, "%06d", run*each+i), Value: value, Height: uint8(i % 5)})
		}
		require.NoError(t, addLeaves(r, RunID(fmt.Sprint(run)), leaves))
	}
	require.NoError(t, r.Commit(testMeta(1)))
	<-s.Settled()
	cuts, err := s.cuts(kindLeaf, segmentBytes)
	require.NoError(t, err)
	require.NotEmpty(t, cuts)
	n := 0
	for l, err := range s.Scan() {
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%06d", n), string(l.Key))
		require.EqualValues(t, n%each%5, l.Height)
		require.Len(t, l.Value, valueBytes)
		n++
	}
	require.Equal(t, runs*each, n)
	for l := range s.Scan() {
		if string(l.Key) == "000070" {
			break
		}
	}
	for l, err := range s.Scan() { // emptied in the middle: it must end with an error
		if string(l.Key) == "000001" {
			require.NoError(t, s.Reset())
		}
		if err != nil {
			require.ErrorIs(t, err, errEmptied)
			return
		}
		n--
	}
	require.Zero(t, n, "all parts were already open")
}

// TestConcurrency runs everything concurrently, for the race detector and to find deadlocks.
func TestConcurrency(t *testing.T) {
	const blocks = 300
	all, history := randomHistory(newRNG(11), blocks)
	opts := testOptions(vfs.NewMem())
	opts.FlushBlocks, opts.MaxLagBlocks, opts.Generations = 3, 10, true
	s, err := Open("zone", opts)
	require.NoError(t, err)
	var written atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(do func()) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					do()
				}
			}
		})
	}
	for range 2 {
		loop(func() {
			height := written.Load()
			want := history[height].records(nil, nil)
			if err := s.Page(nil, nil, 1<<40, func(records []byte) bool { return bytes.Equal(records, want) }); err != nil {
				require.ErrorIs(t, err, ErrNoPage)
			}
		})
	}
	loop(func() {
		from := s.Safe()
		var got []byte
		for l, err := range s.Scan() {
			if err != nil {
				t.Error(err)
				return
			}
			got = appendRecord(got, l)
		}
		to := s.Safe()
		// The scan may have begun just before Safe increased.
		for height := from; height <= blocks; height++ {
			if bytes.Equal(got, history[height].records(nil, nil)) {
				return
			}
		}
		t.Errorf("a scan saw no state of those from height %d to %d", from, to)
	})
	loop(func() {
		if s.Compact(t.Context(), nil) != nil {
			t.Error("compact")
		}
		_ = s.Metrics()
	})
	loop(func() {
		for _, p := range s.Pins() {
			if pin, err := s.OpenPin(p.Height); err == nil {
				records, err := pin.Range(nil, nil, 1<<40)
				if err != nil || !bytes.Equal(records, history[p.Height].records(nil, nil)) {
					t.Errorf("pin %d: %v", p.Height, err)
				}
				if err := pin.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		s.Trim(written.Load()-20, []int64{written.Load() / 50 * 50})
	})
	for _, b := range all {
		if b.Meta.Height%10 == 0 {
			pinWith(&b, withPin("x"))
		}
		require.NoError(t, s.Write(b))
		written.Store(b.Meta.Height)
	}
	require.NoError(t, s.Flush())
	close(stop)
	wg.Wait()
	history[blocks].requireIn(t, s)
	require.NoError(t, s.Close())
}

// TestTrimKeepsNewerPins: a pin is not removed by the Trim of the previous block, which could not
// name it.
func TestTrimKeepsNewerPins(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	require.NoError(t, s.Write(Block{Meta: testMeta(1), Puts: []record.Leaf{{Key: []byte("a"), Value: []byte("1")}}}))
	s.Trim(1, nil)
	require.NoError(t, s.Write(Block{Meta: testMeta(2), Pin: true, Owner: &owner{description: withPin("snapshot")}}))
	require.NoError(t, s.Flush())
	s.Trim(2, []int64{2})
	require.Len(t, s.Pins(), 1)
}

// TestTrimKeepsOnePin: the last pin on disk stays until a newer one is there, which Trim named
// before it was on disk.
func TestTrimKeepsOnePin(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	// add writes a block and waits for its Done: Flush returns before pins are removed.
	add := func(height int64, pin bool) {
		done := make(chan struct{})
		o := &owner{done: func() { close(done) }}
		if pin {
			o.description = withPin("snapshot")
		}
		require.NoError(t, s.Write(Block{Meta: testMeta(height), Pin: pin, Owner: o}))
		require.NoError(t, s.Flush())
		<-done
	}
	heights := func() (list []int64) {
		for _, p := range s.Pins() {
			list = append(list, p.Height)
		}
		return list
	}
	add(1, true)
	add(2, true)
	s.Trim(3, []int64{4})
	add(3, false)
	require.Equal(t, []int64{2}, heights())
	add(4, true)
	s.Trim(4, []int64{4})
	add(5, false)
	require.Equal(t, []int64{4}, heights())
	s.Trim(5, nil)
	add(6, false)
	require.Empty(t, heights(), "this node serves no snapshots")
}

// TestRollbackRemovesThePinsAbove: a rollback leaves no pin above its height, not even the next
// one.
func TestRollbackRemovesThePinsAbove(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	for height := int64(1); height <= 4; height++ {
		b := blockOf(height, "key", fmt.Sprint(height))
		pinWith(&b, withPin(""))
		write(t, s, b)
	}
	require.NoError(t, s.Close())
	require.NoError(t, RollbackToPin("zone", 2, testOptions(fs)))
	names, err := fs.List(s.opts.PinDir)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"1", "2"}, names)
}

// TestPageEndsWithALeaf: a page that does not end with a complete leaf is not found.
func TestPageEndsWithALeaf(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	b := Block{Meta: testMeta(1), Puts: []record.Leaf{{Key: []byte("a"), Value: []byte("value")}, {Key: []byte("b"), Value: []byte("value")}}}
	write(t, s, b)
	m := emptyModel().apply(b)
	all, one := uint64(len(m.records(nil, nil))), uint64(len(m.records(nil, []byte("b"))))
	for size := uint64(1); size <= all+1; size++ {
		err := s.Page(nil, nil, size, func([]byte) bool { return true })
		if size == one || size == all {
			require.NoError(t, err, size)
		} else {
			require.ErrorIs(t, err, ErrNoPage, size)
		}
	}
}

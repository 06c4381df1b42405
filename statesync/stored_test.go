package statesync

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// fakePins is an in-memory store of snapshots. It checks that the Manager obeys the contract of
// Pin.
type fakePins struct {
	t     *testing.T
	reads atomic.Int64 // calls of Range
	mu    struct {
		sync.Mutex
		stored map[int64][]avlstar.Leaf // with their heights in the whole tree
		data   map[int64][]byte
		open   map[int64]int
		faults map[int64]error
	}
}

func newFakePins(t *testing.T) *fakePins {
	f := &fakePins{t: t}
	f.mu.stored, f.mu.data, f.mu.open, f.mu.faults = map[int64][]avlstar.Leaf{}, map[int64][]byte{}, map[int64]int{}, map[int64]error{}
	return f
}

// store stores v as the node does: if the Manager wants it.
func (f *fakePins) store(m *Manager, height int64, v *avlstar.Version) {
	data := m.PinData(height, v)
	if data == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.data[height] = data
	for l, err := range v.Leaves() {
		require.NoError(f.t, err)
		f.mu.stored[height] = append(f.mu.stored[height], avlstar.Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: l.Height})
	}
}

// trim removes snapshots that the Manager does not hold.
func (f *fakePins) trim(m *Manager) {
	held := m.Held()
	require.True(f.t, slices.IsSorted(held))
	f.mu.Lock()
	defer f.mu.Unlock()
	for height := range f.mu.stored {
		if !slices.Contains(held, height) && f.mu.open[height] == 0 {
			delete(f.mu.stored, height)
			delete(f.mu.data, height)
		}
	}
}

func (f *fakePins) heights() []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	var heights []int64
	for h := range f.mu.stored {
		heights = append(heights, h)
	}
	slices.Sort(heights)
	return heights
}

func (f *fakePins) openPin(height int64) (Pin, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.mu.faults[height]; err != nil {
		return nil, err
	}
	if f.mu.stored[height] == nil {
		return nil, errors.New("no such snapshot")
	}
	f.mu.open[height]++
	return &fakePin{f, height}, nil
}

type fakePin struct {
	pins   *fakePins
	height int64
}

func (p *fakePin) Range(first, after []byte, size uint64) ([]byte, error) {
	p.pins.mu.Lock()
	defer p.pins.mu.Unlock()
	p.pins.reads.Add(1)
	if p.pins.mu.open[p.height] == 0 {
		p.pins.t.Error("Range of a closed pin")
	}
	records := make([]byte, 0, size)
	for _, l := range p.pins.mu.stored[p.height] {
		if bytes.Compare(l.Key, first) < 0 || after != nil && bytes.Compare(l.Key, after) >= 0 {
			continue
		}
		records = append(records, l.Height)
		records = append(binary.AppendUvarint(records, uint64(len(l.Key))), l.Key...)
		records = append(binary.AppendUvarint(records, uint64(len(l.Value))), l.Value...)
	}
	return records, nil
}

func (p *fakePin) Close() error {
	p.pins.mu.Lock()
	defer p.pins.mu.Unlock()
	p.pins.mu.open[p.height]--
	return nil
}

// chain creates versions and stores snapshots, with restarts in between.
type chain struct {
	t      *testing.T
	pins   *fakePins
	opts   Options
	m      *Manager
	v      *avlstar.Version
	height int64
}

func newChain(t *testing.T, seed uint64, opts Options) *chain {
	t.Helper()
	c := &chain{t: t, pins: newFakePins(t), opts: opts}
	c.opts.OpenPin = c.pins.openPin
	c.v = randomTree(t, newRNG(t, seed), 300, 300)
	c.start()
	return c
}

func (c *chain) start() {
	c.m = NewManager(c.opts)
	for _, h := range c.pins.heights() {
		c.m.AddStored(h, c.pins.mu.data[h])
	}
	if c.height > 0 {
		c.m.Committed(c.height, c.v)
	}
	c.pins.trim(c.m)
}

func (c *chain) restart() {
	require.NoError(c.t, c.m.Close())
	require.Empty(c.t, c.m.List())
	for h, open := range c.pins.mu.open {
		require.Zero(c.t, open, "the snapshot of height %d is open after Close", h)
	}
	c.start()
}

func (c *chain) commit(upTo int64) {
	for c.height < upTo {
		c.height++
		c.v = next(c.t, c.v, avlstar.Change{Key: fmt.Appendf(nil, "%x", c.height%64), Value: fmt.Appendf(nil, "value %d", c.height)})
		c.pins.store(c.m, c.height, c.v) // storing may be faster than the block
		c.m.Committed(c.height, c.v)
		c.pins.trim(c.m)
	}
}

func (c *chain) offered() (heights []int64) {
	for _, s := range c.m.List() {
		heights = append(heights, s.Height)
	}
	return heights
}

// served returns everything that a joiner can get.
func (c *chain) served() map[string][]byte {
	c.t.Helper()
	all := map[string][]byte{}
	list, err := c.m.ListSnapshots(context.Background(), &abci.RequestListSnapshots{})
	require.NoError(c.t, err)
	for _, s := range list.Snapshots {
		encoded, err := s.Marshal()
		require.NoError(c.t, err)
		all[fmt.Sprint(s.Height)] = encoded
		for k := range s.Chunks {
			all[fmt.Sprintf("%d, chunk %d", s.Height, k)] = load(c.t, c.m, s.Height, 1, k)
		}
		require.Nil(c.t, load(c.t, c.m, s.Height, 1, s.Chunks))
	}
	return all
}

// Snapshots offered before a restart are offered after it, byte for byte, and dropped in their
// turn.
func TestStoredSnapshotsSurviveARestart(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	c := newChain(t, 11, Options{Interval: 10, Keep: 3, Hold: time.Minute, now: func() time.Time { return now }})
	c.commit(45)
	before := c.served()
	require.Greater(t, len(before), 3*20)
	for range 2 {
		c.restart()
		require.Equal(t, []int64{40, 30, 20}, c.offered())
		require.Equal(t, before, c.served())
		require.EqualValues(t, 20, c.m.OldestServed())
	}
	now = now.Add(2 * time.Minute)
	c.commit(50)
	require.Equal(t, []int64{50, 40, 30}, c.offered())
	require.Equal(t, []int64{30, 40, 50}, c.pins.heights())
	require.NotNil(t, load(t, c.m, 30, 1, 0))
	c.commit(60)
	require.Nil(t, load(t, c.m, 20, 1, 0))
	require.NotNil(t, load(t, c.m, 30, 1, 0), "it was requested")
	require.EqualValues(t, 30, c.m.OldestServed())
	c.restart()
	require.Equal(t, []int64{60, 50, 40}, c.offered(), "earlier joiners have to choose again")

	c.opts.Keep = 1
	c.restart()
	require.Equal(t, []int64{60}, c.offered())
	require.Equal(t, []int64{60}, c.pins.heights())
	c.opts.Keep = 0
	c.restart()
	require.Empty(t, c.offered())
	require.Empty(t, c.pins.heights())
	require.Nil(t, c.m.PinData(70, c.v))
}

// A joiner restores a whole state from a stored snapshot.
func TestJoinFromAStoredSnapshot(t *testing.T) {
	c := newChain(t, 12, Options{Interval: interval, Keep: 1})
	c.commit(20)
	want := c.v
	want.Retain()
	defer want.Release()
	c.commit(27)
	c.restart()
	j, target := joiner(t, 2)
	require.Equal(t, offerAccept, offer(t, j, offerOf(t, c.m)))
	for k := range want.NumChunks() {
		apply(t, j, k, load(t, c.m, 20, 1, k), "peer")
	}
	target.requireRestored(20, want)
}

// Every byte of a stored snapshot's leaves is verified: a damaged chunk is never served, and drops
// the snapshot.
func TestDamagedSnapshotIsDropped(t *testing.T) {
	for name, damage := range map[string]func(f *fakePins){
		"value":   func(f *fakePins) { f.mu.stored[20][7].Value[0] ^= 1 },
		"key":     func(f *fakePins) { f.mu.stored[20][7].Key = append(f.mu.stored[20][7].Key, 0) },
		"height":  func(f *fakePins) { f.mu.stored[20][7].Height ^= 1 },
		"missing": func(f *fakePins) { f.mu.stored[20] = slices.Delete(f.mu.stored[20], 7, 8) },
		"additional": func(f *fakePins) {
			f.mu.stored[20] = slices.Insert(f.mu.stored[20], 7, avlstar.Leaf{Key: append(bytes.Clone(f.mu.stored[20][6].Key), 0), Value: []byte("v")})
		},
		"nothing":    func(f *fakePins) { f.mu.stored[20] = []avlstar.Leaf{} },
		"unreadable": func(f *fakePins) { f.mu.faults[20] = errors.New("input/output error") },
		"other":      func(f *fakePins) { f.mu.stored[20] = f.mu.stored[10] },
	} {
		t.Run(name, func(t *testing.T) {
			var lines lines
			c := newChain(t, 13, Options{Interval: 10, Keep: 2, Logger: log.NewTMLogger(&lines)})
			c.commit(20)
			right := c.served()
			damage(c.pins)
			c.restart()
			require.Equal(t, []int64{20, 10}, c.offered())
			for range 2 {
				for k := range c.m.List()[0].Chunks {
					if chunk := load(t, c.m, 20, 1, k); chunk != nil {
						require.Equal(t, right[fmt.Sprintf("20, chunk %d", k)], chunk)
					}
				}
			}
			require.Equal(t, []int64{10}, c.offered())
			require.NotNil(t, load(t, c.m, 10, 1, 0))
			dropped := lines.with("Dropping a snapshot")
			require.Len(t, dropped, 1)
			require.Contains(t, dropped[0], "height=20")
			c.pins.trim(c.m)
			require.Equal(t, []int64{10}, c.pins.heights())
			c.commit(30)
			require.Equal(t, []int64{30, 10}, c.offered())
		})
	}
}

func TestDamagedDescriptionIsDropped(t *testing.T) {
	var lines lines
	c := newChain(t, 14, Options{Interval: 10, Keep: 3, Logger: log.NewTMLogger(&lines)})
	c.commit(30)
	c.pins.mu.data[10][40] ^= 1
	// package storage detects a description of another height
	c.pins.mu.data[20] = c.pins.mu.data[20][:50]
	c.restart()
	c.m.AddStored(40, nil)
	require.Equal(t, []int64{30}, c.offered())
	require.Equal(t, []int64{30}, c.pins.heights())
	dropped := lines.with("Dropping a snapshot")
	require.Len(t, dropped, 2)
	require.Contains(t, dropped[0], "height=10")
	require.Contains(t, dropped[1], "height=20")
}

// Blocks are kept for a stored snapshot, unless they are already gone.
func TestBlocksOfStoredSnapshots(t *testing.T) {
	for from, oldest := range map[int64]int64{0: 10, 1: 10, 11: 10, 12: 20, 21: 20, 22: 30, 1000: 0} {
		c := newChain(t, 15, Options{Interval: 10, Keep: 3})
		c.commit(35)
		c.opts.BlocksFrom = from
		c.restart()
		require.Equal(t, []int64{30, 20, 10}, c.offered())
		require.Equal(t, oldest, c.m.OldestServed(), "from %d", from)
		c.commit(60)
		require.EqualValues(t, 40, c.m.OldestServed())
	}
}

// A snapshot that newer ones replaced before it could be stored is not stored.
func TestSupersededSnapshotsAreNotStored(t *testing.T) {
	v := randomTree(t, newRNG(t, 16), 100, 300)
	m := NewManager(Options{Interval: 10, Keep: 2})
	require.False(t, m.Due(15))
	require.True(t, m.Due(20))
	require.NotNil(t, m.PinData(20, v), "before Committed")
	require.Nil(t, m.PinData(15, v))
	for h := int64(1); h <= 40; h++ {
		m.Committed(h, v)
	}
	require.Nil(t, m.PinData(20, v))
	require.NotNil(t, m.PinData(30, v))
	require.NotNil(t, m.PinData(40, v))
	require.NoError(t, m.Close())
	require.NotNil(t, m.PinData(40, v), "the last blocks are written after Close")
	m.Committed(50, v)
	require.NotNil(t, m.PinData(50, v))
	require.NotNil(t, m.PinData(40, v))
	require.Nil(t, m.PinData(30, v))
	require.Equal(t, []int64{40, 50}, m.Held())
	require.False(t, NewManager(Options{Keep: 1}).Due(10), "the interval is not known")
}

// ticking returns a clock that advances on every call, so that nothing is held longer.
func ticking() func() time.Time {
	var clock atomic.Int64
	return func() time.Time { return time.Unix(clock.Add(1), 0) }
}

// A stored snapshot that is dropped while its chunks are read stays open until the reads end, and
// is then closed.
func TestStoredSnapshotIsDroppedWhileItIsServed(t *testing.T) {
	c := newChain(t, 17, Options{Interval: 1, Keep: 1, Hold: 1, now: ticking()})
	c.commit(1)
	c.restart()
	require.NotNil(t, load(t, c.m, 1, 1, 0))
	p := c.m.find(1)
	require.NotNil(t, p)
	c.commit(5)
	require.Equal(t, []int64{5}, c.m.Held())
	require.Equal(t, []int64{1, 5}, c.pins.heights())
	chunk, err := p.chunk(1)
	require.NoError(t, err)
	require.NotEmpty(t, chunk)
	p.release()
	require.Zero(t, c.pins.mu.open[1])
	c.commit(6)
	require.Equal(t, []int64{6}, c.pins.heights())
}

// Joiners request chunks while blocks drop the snapshots, under the race detector.
func TestServingStoredSnapshotsConcurrently(t *testing.T) {
	c := newChain(t, 18, Options{Interval: 1, Keep: 4, Hold: 1, now: ticking()})
	c.commit(10)
	c.restart()
	var joiners sync.WaitGroup
	for i := range uint64(4) {
		joiners.Go(func() {
			for k := range uint32(200) {
				load(t, c.m, 7+(i+uint64(k))%4, 1, k%8)
			}
		})
	}
	c.commit(14)
	joiners.Wait()
	c.commit(15)
	require.Equal(t, []int64{12, 13, 14, 15}, c.pins.heights())
	for h, open := range c.pins.mu.open {
		require.Zero(t, open, "height %d", h)
	}
}

func TestPinDescription(t *testing.T) {
	for seed := range uint64(20) {
		rng := newRNG(t, seed)
		v := randomTree(t, rng, 1+rng.IntN(200), uint64(20+rng.IntN(500)))
		b, err := EncodePin(v)
		require.NoError(t, err)
		d, err := decodePin(int64(1+seed), b)
		require.NoError(t, err)
		require.EqualValues(t, 1+seed, d.height)
		require.Equal(t, v.AppHash(), d.hash)
		require.Equal(t, v.Manifest(), d.decoded)
		for k := range v.NumChunks() {
			want, err := v.Chunk(k)
			require.NoError(t, err)
			first, after := d.keys(k)
			if n, err := v.RangeBytes(first, after); err != nil || n != uint64(len(want)) {
				t.Fatalf("chunk %d of %d: the range from %q to %q is another", k, v.NumChunks(), first, after)
			}
		}
		for range 50 { // any damage is detected, without a checksum
			damaged := bytes.Clone(b)
			damaged[rng.IntN(len(b))] ^= byte(1 + rng.IntN(255))
			_, err := decodePin(5, damaged)
			require.ErrorIs(t, err, ErrDamagedPin)
			_, err = decodePin(5, b[:rng.IntN(len(b))])
			require.ErrorIs(t, err, ErrDamagedPin)
		}
	}
}

// Wrong descriptions with a right checksum.
func TestPinDescriptionIsStrict(t *testing.T) {
	v := randomTree(t, newRNG(t, 21), 100, 200)
	b, err := EncodePin(v)
	require.NoError(t, err)
	body := b
	d, err := decodePin(5, b)
	require.NoError(t, err)
	last := d.firsts[len(d.firsts)-1]
	at := hashBytes
	splice := func(at, gone int, with ...byte) []byte {
		return slices.Concat(body[:at], with, body[at+gone:])
	}
	for name, c := range map[string]struct {
		body []byte
		says string
	}{
		"app hash":        {splice(0, 1, body[0]^1), "it leads to the app hash"},
		"manifest":        {splice(at+10, 1, body[at+10]^1), "manifest"},
		"long length":     {splice(at, 0, 0x80|body[at]&0x7f), ""},
		"long form":       {splice(len(body)-len(last)-1, 1, 0x80|byte(len(last)), 0), "shortest form"},
		"other first key": {splice(len(body)-1, 1, body[len(body)-1]^1), "does not match the manifest"},
		"more":            {append(bytes.Clone(body), 0), "1 bytes after"},
		"less":            {body[:len(body)-1], "too early"},
		"no more keys":    {body[:len(body)-1-len(last)], "too early"},
		"empty":           {nil, "too early"},
	} {
		_, err := decodePin(5, c.body)
		require.ErrorIs(t, err, ErrDamagedPin, name)
		require.ErrorContains(t, err, c.says, name)
	}
	empty, err := avlstar.Empty(100)
	require.NoError(t, err)
	b, err = EncodePin(empty)
	require.NoError(t, err)
	_, err = decodePin(5, b)
	require.ErrorContains(t, err, "no chunk")
}

// Any description that decodes is consistent and encodes to itself.
func FuzzPinDescription(f *testing.F) {
	for _, keys := range []int{1, 5, 40} {
		v, err := avlstar.Empty(100)
		if err != nil {
			f.Fatal(err)
		}
		var changes []avlstar.Change
		for i := range keys {
			changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key-%03d", i), Value: []byte("value")})
		}
		if v, err = v.Apply(changes); err != nil {
			f.Fatal(err)
		}
		b, err := EncodePin(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodePin(7, b)
		if err != nil {
			require.ErrorIs(t, err, ErrDamagedPin)
			return
		}
		again := bytes.Clone(d.hash[:])
		again = append(binary.AppendUvarint(again, uint64(len(d.encoded))), d.encoded...)
		for _, key := range d.firsts {
			again = append(binary.AppendUvarint(again, uint64(len(key))), key...)
		}
		require.Equal(t, b, again)
		require.Len(t, d.firsts, len(d.decoded.Entries)-1)
		require.Equal(t, d.encoded, d.decoded.Encode())
	})
}

// A target that builds the version itself: the restorer keeps no chunk.
type buildingTarget struct {
	*fakeTarget
	fault error
	wrong bool
}

func (b *buildingTarget) Build() (*avlstar.Version, error) {
	if b.fault != nil {
		return nil, b.fault
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return avlstar.FromLeaves(b.mu.manifest.ChunkBytes, func(yield func(avlstar.Leaf, error) bool) {
		for k := range uint32(len(b.mu.manifest.Entries)) {
			for _, leaf := range b.mu.leaves[k] {
				if b.wrong {
					leaf.Value = []byte("another")
				}
				if !yield(leaf, nil) {
					return
				}
			}
		}
	})
}

func TestTargetThatBuilds(t *testing.T) {
	want := randomTree(t, newRNG(t, 22), 200, 300)
	for name, target := range map[string]*buildingTarget{"": {}, "no space left": {fault: errDisk}, "does not match the manifest": {wrong: true}} {
		target.fakeTarget = &fakeTarget{t: t}
		r, err := BeginRestore(target, 10, want.Manifest())
		require.NoError(t, err)
		for k, chunk := range chunksOf(t, want) {
			fresh, err := r.Accept(uint32(k), bytes.Clone(chunk))
			require.NoError(t, err)
			require.True(t, fresh)
			require.Nil(t, r.assembler, "no chunk is kept")
			_, missing := r.Want(uint32(k))
			require.False(t, missing)
		}
		v, err := r.Commit()
		if name != "" {
			require.ErrorContains(t, err, name)
			target.requireEmpty()
			continue
		}
		require.NoError(t, err)
		v.Release()
		target.requireRestored(10, want)
	}
}

// A range of a chunk is the same from memory and from disk. From disk, the chunk is read once for
// all of its ranges.
func TestRangesOfChunks(t *testing.T) {
	rnd := newRNG(t, 23)
	c := newChain(t, 23, Options{Interval: 10, Keep: 2})
	c.commit(10)
	check := func(onDisk bool) {
		t.Helper()
		served, ok := c.m.Serve(10)
		require.True(t, ok)
		defer served.Release()
		for k := range served.Commitment().Chunks {
			n, ok := served.ChunkBytes(k)
			require.True(t, ok)
			whole, err := served.ChunkRange(k, 0, n)
			require.NoError(t, err)
			require.Len(t, whole, int(n))
			for range 20 {
				from := rnd.Uint64N(n + 1)
				to := from + rnd.Uint64N(n-from+1)
				part, err := served.ChunkRange(k, from, to)
				require.NoError(t, err)
				require.Equal(t, whole[from:to], part)
				require.LessOrEqual(t, cap(part), int(to-from)+64, "the chunk is not kept for it")
				cost := to - from
				if onDisk && cost < n {
					cost += n
				}
				require.Equal(t, cost, served.RangeCost(k, from, to))
			}
			for _, r := range [][2]uint64{{0, n + 1}, {2, 1}, {n + 1, n + 1}} {
				_, err := served.ChunkRange(k, r[0], r[1])
				require.Error(t, err)
				require.Zero(t, served.RangeCost(k, r[0], r[1]))
			}
		}
		_, ok = served.ChunkBytes(served.Commitment().Chunks)
		require.False(t, ok)
		_, err := served.ChunkRange(served.Commitment().Chunks, 0, 0)
		require.Error(t, err)
	}
	check(false)
	c.restart()
	before := c.pins.reads.Load()
	check(true)
	served, ok := c.m.Serve(10)
	require.True(t, ok)
	defer served.Release()
	require.LessOrEqual(t, c.pins.reads.Load()-before, 2*int64(served.Commitment().Chunks))
}

// Damaged chunks are not served, neither as a whole nor in ranges.
func TestRangesOfADamagedSnapshot(t *testing.T) {
	c := newChain(t, 24, Options{Interval: 10, Keep: 2})
	c.commit(10)
	c.restart()
	served, ok := c.m.Serve(10)
	require.True(t, ok)
	defer served.Release()
	last := len(c.pins.mu.stored[10]) - 1
	c.pins.mu.stored[10][last].Value[0] ^= 1
	k := served.Commitment().Chunks - 1
	_, err := served.ChunkRange(k, 0, 1) // not the damaged bytes
	require.ErrorIs(t, err, ErrDamagedPin)
	_, ok = c.m.Serve(10)
	require.False(t, ok)
}

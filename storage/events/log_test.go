package events

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// blockOf returns the block of a height, which is always the same.
func blockOf(chain uint64, height int64) event.Block {
	rng := rand.New(rand.NewPCG(chain, uint64(height))) //nolint:gosec // must be reproducible
	b := event.Block{Height: height}
	for t := range rng.IntN(4) {
		b.Txs = append(b.Txs, fmt.Appendf(nil, "tx %d of %d", t, height))
		for range rng.IntN(6) {
			c := event.Change{Tx: t, Kind: event.Put, Key: fmt.Appendf(nil, "%c/%d", 'a'+rng.IntN(3), rng.IntN(20)), Value: make([]byte, 1+rng.IntN(200))}
			if rng.IntN(20) == 0 {
				c.Value = make([]byte, segmentBytes)
			}
			if rng.IntN(3) == 0 {
				c.Previous = []byte("before")
			} else {
				c.Omitted = rng.IntN(9) == 0
			}
			if rng.IntN(4) == 0 {
				c.Kind, c.Value = event.Delete, nil
			}
			b.Changes = append(b.Changes, c)
		}
	}
	return b
}

// eventsOf is the reference: the events of a block for a watcher.
func eventsOf(b event.Block, keys event.Keys, from event.Token, previous bool) []event.Event {
	var all []event.Event
	for i, c := range b.Changes {
		hash := sha256.Sum256(b.Txs[c.Tx])
		e := event.Event{Height: b.Height, Index: uint32(i), Tx: hash[:], Kind: c.Kind, Key: c.Key, Value: c.Value, Omitted: c.Omitted}
		if previous {
			e.Previous = c.Previous
		}
		if keys.Contains(c.Key) && !(event.Token{Height: e.Height, Index: e.Index}).Before(from) {
			all = append(all, e)
		}
	}
	return all
}

func open(t *testing.T, fs vfs.FS, o Options) *Log {
	t.Helper()
	o.FS = fs
	l, err := Open("events", o)
	require.NoError(t, err)
	return l
}

func give(t *testing.T, l *Log, b event.Block) {
	t.Helper()
	require.NoError(t, l.Commit(b))
	l.Committed(b.Height)
}

// all reads everything from a token on, in answers of a few bytes.
func all(t *testing.T, l *Log, r event.Request) (events []event.Event, next event.Token) {
	t.Helper()
	for {
		a, err := l.Answer(t.Context(), r, 0)
		require.NoError(t, err)
		require.False(t, a.Compacted(r.From))
		require.False(t, a.Next.Before(r.From))
		events = append(events, a.Events...)
		r.From = a.Next
		if a.Next.Height > a.Head {
			return events, a.Next
		}
	}
}

func ranges() []event.Keys {
	return []event.Keys{
		{}, {Start: []byte("b/"), End: []byte("b0")}, {Start: []byte("a/7"), End: []byte("a/7\x00")}, {Start: []byte("a/9"), End: []byte("c/11")}, {Start: []byte("x")},
	}
}

// TestAgainstReference: reads from any token and for any keys return the changes of the blocks,
// across restarts, crashes of the machine, replays from an earlier state, and trimming.
func TestAgainstReference(t *testing.T) {
	t.Parallel()
	rng := seeds.Rand(t)
	fs := vfs.NewCrashableMem()
	o := Options{KeepBlocks: 300, KeepBytes: 1 << 20}
	l := open(t, fs, o)
	chain := rng.Uint64()
	head, safe := int64(0), int64(0)
	check := func() {
		t.Helper()
		require.NoError(t, l.settle())
		l.writing.Lock() // now trimming is finished, too
		s := l.Stats()
		l.writing.Unlock()
		require.Equal(t, head, s.Head)
		least := max(s.Least, 1)
		for range 4 {
			keys := ranges()[rng.IntN(len(ranges()))]
			from := event.Token{Height: least + rng.Int64N(head-least+2)}
			if rng.IntN(2) == 0 {
				from.Index = uint32(rng.IntN(8))
			}
			r := event.Request{From: from, Keys: keys, Previous: rng.IntN(2) == 0, MaxBytes: uint32(rng.IntN(3000))}
			got, next := all(t, l, r)
			var want []event.Event
			for h := from.Height; h <= head; h++ {
				start := event.Token{Height: h}
				if h == from.Height {
					start = from
				}
				want = append(want, eventsOf(blockOf(chain, h), keys, start, r.Previous)...)
			}
			require.Equal(t, want, got)
			require.Equal(t, max(head+1, from.Height), next.Height)
		}
		if least > 1 {
			r := event.Request{From: event.Token{Height: least - 1}}
			a, err := l.Answer(t.Context(), r, time.Hour)
			require.NoError(t, err)
			require.True(t, a.Compacted(r.From))
			require.Equal(t, s.Least, a.Least)
			require.Empty(t, a.Events)
		}
	}
	for range 120 {
		switch rng.IntN(12) {
		case 0: // the state becomes durable
			require.NoError(t, l.Sync(head))
			safe = head
		case 1: // the machine crashes: synced data survives, and maybe more
			clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
			require.NoError(t, l.Close())
			fs = clone
			l = open(t, fs, o)
			if safe > 0 {
				before := l.Stats()
				require.NoError(t, l.Begin(safe))
				if before.Least <= safe+1 { // otherwise it was trimmed beyond what was synced
					require.Equal(t, before.Least, l.Stats().Least, "it was replaced although it was synced")
				}
			}
			head = safe
		case 2: // a clean restart: everything is durable
			require.NoError(t, l.Close())
			l = open(t, fs, o)
			require.NoError(t, l.Begin(head))
			safe = head
		default:
			for range rng.IntN(20) {
				head++
				give(t, l, blockOf(chain, head))
			}
		}
		if head > 0 {
			check()
		}
	}
	require.NoError(t, l.settle())
	s := l.Stats()
	require.LessOrEqual(t, s.Head-s.Least, int64(304))
	require.LessOrEqual(t, s.Bytes, uint64(1<<20+1<<17))
	require.NoError(t, l.Close())
}

// TestLogIsReplaced: if the log does not reach the state, or is older, it is replaced by one that
// starts there.
func TestLogIsReplaced(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	l := open(t, fs, Options{})
	for h := int64(5); h <= 9; h++ { // the chain's first block is 5
		give(t, l, blockOf(1, h))
	}
	require.EqualValues(t, 5, l.Stats().Least)
	for _, height := range []int64{20, 3} {
		require.NoError(t, l.Begin(height))
		require.Equal(t, height+1, l.Stats().Least)
		give(t, l, blockOf(1, height+1))
		got, _ := all(t, l, event.Request{From: event.Token{Height: height + 1}})
		require.Equal(t, eventsOf(blockOf(1, height+1), event.Keys{}, event.Token{}, false), got)
	}
	give(t, l, blockOf(1, 30)) // a block without a Begin for its state
	require.EqualValues(t, 30, l.Stats().Least)
	require.NoError(t, l.Close())
}

// TestUnreadableLog: an unreadable log is replaced by an empty one.
func TestUnreadableLog(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Log) error{
		"newer":         func(l *Log) error { return l.db.Set(formatKey, []byte{FormatVersion + 1}, nil) },
		"layout record": func(l *Log) error { return l.db.Set(formatKey, []byte("?!"), nil) },
		"first block":   func(l *Log) error { return l.db.Set(blockKey(0), []byte("?"), nil) },
	} {
		fs := vfs.NewMem()
		l := open(t, fs, Options{})
		give(t, l, blockOf(1, 1))
		require.NoError(t, spoil(l), name)
		require.NoError(t, l.Close())
		l = open(t, fs, Options{})
		require.Zero(t, l.Stats().Head, name)
		require.NoError(t, l.Begin(1))
		give(t, l, blockOf(1, 2))
		require.NoError(t, l.Close())
	}
}

// TestDamagedWhereItContinues: a log that is damaged where it must continue is replaced, too.
func TestDamagedWhereItContinues(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Log) error{
		"gone":  func(l *Log) error { return l.db.Delete(blockKey(2), nil) },
		"short": func(l *Log) error { return l.db.Set(blockKey(2), []byte("?"), nil) },
	} {
		fs := vfs.NewMem()
		l := open(t, fs, Options{})
		for h := int64(1); h <= 3; h++ {
			give(t, l, blockOf(1, h))
		}
		require.NoError(t, l.settle())
		require.NoError(t, spoil(l), name)
		require.NoError(t, l.Close())
		l = open(t, fs, Options{})
		require.NoError(t, l.Begin(2), name)
		require.EqualValues(t, 3, l.Stats().Least, name)
		give(t, l, blockOf(1, 3))
		got, _ := all(t, l, event.Request{From: event.Token{Height: 3}})
		require.Equal(t, eventsOf(blockOf(1, 3), event.Keys{}, event.Token{}, false), got)
		require.NoError(t, l.Close())
	}
}

// spoilTables damages every table of an open log, except the footers.
func spoilTables(t *testing.T, fs vfs.FS) (tables int) {
	t.Helper()
	names, err := fs.List("events")
	require.NoError(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		path := fs.PathJoin("events", name)
		f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		info, err := f.Stat()
		require.NoError(t, err)
		_, err = f.WriteAt(bytes.Repeat([]byte("rubbish!"), int(max(info.Size()-100, 8))/8), 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		tables++
	}
	return tables
}

// TestDamagedWhileRunning: damage found at run time, by any goroutine, replaces the log by one with
// the blocks in memory. Watchers of older heights get a compaction error, no event is missed, and
// the node does not stop.
func TestDamagedWhileRunning(t *testing.T) {
	t.Parallel()
	const head = tailBlocks + 500
	for name, meet := range map[string]func(*testing.T, *Log){
		"a watcher": func(t *testing.T, l *Log) {
			a, err := l.Answer(t.Context(), event.Request{From: event.Token{Height: 7, Index: 1}}, 0)
			require.NoError(t, err)
			require.True(t, a.Compacted(event.Token{Height: 7}))
			require.Equal(t, event.Token{Height: 7, Index: 1}, a.Next)
			require.Equal(t, l.Stats().Least, a.Least)
		},
		"compaction": func(t *testing.T, l *Log) {
			ctx, cancel := context.WithCancel(t.Context())
			db, ended := l.db, make(chan error)
			go func() { ended <- db.Compact(ctx, []byte{0}, []byte{0xff}, false) }()
			require.NoError(t, l.until(func(*state) bool { return l.mu.number > 1 }))
			cancel() // it may not notice that the database was closed
			require.Error(t, <-ended)
		},
		"trimming": func(t *testing.T, l *Log) {
			l.writing.Lock()
			l.o.KeepBlocks = head / 2 // the record that is looked up there was not read yet
			l.writing.Unlock()
			give(t, l, blockOf(1, head+1))
			require.NoError(t, l.until(func(*state) bool { return l.mu.number > 1 }))
			l.writing.Lock()
			l.o.KeepBlocks = DefaultKeepBlocks
			l.writing.Unlock()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewMem()
			o := Options{FS: fs, Fatal: func(err error) { panic(err) }, Failed: func(err error) { t.Error(err) }}
			l := open(t, fs, o)
			for h := int64(1); h <= head; h++ {
				give(t, l, blockOf(1, h))
			}
			require.NoError(t, l.settle())
			require.NoError(t, l.db.Flush())
			require.NoError(t, l.Close())
			l = open(t, fs, o) // no table is open, and no block is in memory
			require.NoError(t, l.Begin(head))
			require.Eventually(t, func() bool { return l.db.Metrics().Table.InitialStatsCollectionComplete }, 5*time.Minute, time.Millisecond,
				"a goroutine of Pebble reads the tables")
			require.NotZero(t, spoilTables(t, fs))
			meet(t, l)
			require.EqualValues(t, 1, l.Stats().Replaced)
			last := l.Stats().Head
			require.Equal(t, head+1, int(l.Stats().Least))
			for h := last + 1; h <= head+20; h++ {
				give(t, l, blockOf(1, h))
			}
			check := func() {
				got, _ := all(t, l, event.Request{From: event.Token{Height: head + 1}})
				var want []event.Event
				for h := int64(head + 1); h <= head+20; h++ {
					want = append(want, eventsOf(blockOf(1, h), event.Keys{}, event.Token{}, false)...)
				}
				require.Equal(t, want, got)
			}
			check()
			require.NoError(t, l.Sync(head+20))
			require.NoError(t, l.Close())
			l = open(t, fs, Options{})
			require.NoError(t, l.Begin(head+20))
			check()
			require.NoError(t, l.Close())
		})
	}
}

// TestReplacedLogKeepsMemory: blocks in memory when damage is found are available afterwards, also
// on disk.
func TestReplacedLogKeepsMemory(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	l := open(t, fs, Options{})
	head, first := int64(0), int64(1)
	for first == 1 { // until some have left memory, which happens after waiting requests were woken
		for range tailBlocks / 2 {
			head++
			give(t, l, put(head, "k"))
		}
		require.NoError(t, l.settle())
		l.mu.Lock()
		first = l.mu.tail[0].height
		l.mu.Unlock()
	}
	require.NoError(t, l.replaceDamaged(damage{l.number(), errors.New("damaged")}))
	require.Equal(t, first, l.Stats().Least)
	require.NoError(t, l.Sync(head))
	require.NoError(t, l.Close())
	l = open(t, fs, Options{})
	require.NoError(t, l.Begin(head))
	require.Equal(t, first, l.Stats().Least)
	got, _ := all(t, l, event.Request{From: event.Token{Height: first}})
	require.Len(t, got, int(head-first+1))
	require.NoError(t, l.Close())
}

// TestUnpublished: unpublished blocks are not answered, although they are in the log.
func TestUnpublished(t *testing.T) {
	t.Parallel()
	l := open(t, vfs.NewMem(), Options{})
	require.NoError(t, l.Begin(0))
	require.NoError(t, l.Commit(blockOf(1, 1)))
	require.NoError(t, l.Sync(1))
	a, err := l.Answer(t.Context(), event.Request{From: event.Token{Height: 1}}, 0)
	require.NoError(t, err)
	require.Empty(t, a.Events)
	require.Equal(t, event.Token{Height: 1}, a.Next)
	l.Committed(1)
	got, _ := all(t, l, event.Request{From: event.Token{Height: 1}})
	require.Equal(t, eventsOf(blockOf(1, 1), event.Keys{}, event.Token{}, false), got)
	require.NoError(t, l.Close())
}

func put(height int64, keys ...string) event.Block {
	b := event.Block{Height: height, Txs: [][]byte{{1}}}
	for _, k := range keys {
		b.Changes = append(b.Changes, event.Change{Kind: event.Put, Key: []byte(k), Value: []byte("v")})
	}
	return b
}

// TestWaiting: waiting requests are woken by events of their keys and by no others. After their
// time, the answer has the height of the log.
func TestWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := open(t, vfs.NewMem(), Options{MaxWaiting: len(ranges())})
		give(t, l, put(1, "seed"))
		type result struct {
			answer event.Answer
			after  time.Duration
		}
		results := make([]result, len(ranges()))
		var wg sync.WaitGroup
		began := time.Now()
		for i, keys := range ranges() {
			wg.Go(func() {
				a, err := l.Answer(t.Context(), event.Request{Keys: keys, WaitMS: 60_000}, 5*time.Second)
				if err != nil {
					t.Error(err)
				}
				results[i] = result{a, time.Since(began)}
			})
		}
		synctest.Wait()
		require.Equal(t, len(ranges()), l.Stats().Waiting)
		_, err := l.Answer(t.Context(), event.Request{WaitMS: 1}, time.Second)
		require.ErrorIs(t, err, ErrBusy)
		give(t, l, put(2, "b/1"))
		give(t, l, put(3, "a/7"))
		wg.Wait()
		want := []struct {
			key  string
			next event.Token
		}{{"b/1", event.Token{}}, {"b/1", event.Token{}}, {"a/7", event.Token{}}, {"b/1", event.Token{}}, {"", event.Token{Height: 4}}}
		for i, w := range want {
			if w.key == "" {
				require.Empty(t, results[i].answer.Events)
				require.Equal(t, w.next, results[i].answer.Next, "it need not read these blocks again")
				require.Equal(t, 5*time.Second, results[i].after)
				continue
			}
			require.NotEmpty(t, results[i].answer.Events, i)
			require.Equal(t, w.key, string(results[i].answer.Events[0].Key))
			require.Zero(t, results[i].after)
		}
		require.Zero(t, l.Stats().Waiting)
		require.Empty(t, l.waiting.exact)
		require.Empty(t, l.waiting.prefixes)
		require.Empty(t, l.waiting.lengths)
		require.Empty(t, l.waiting.ranges)

		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_, err = l.Answer(ctx, event.Request{WaitMS: 60_000}, time.Minute)
		require.ErrorIs(t, err, context.Canceled)
		time.AfterFunc(time.Second, l.Stop)
		_, err = l.Answer(t.Context(), event.Request{WaitMS: 60_000}, time.Minute)
		require.ErrorIs(t, err, ErrClosed)
		require.NoError(t, l.Close())
	})
}

// TestTrimmedWhileWaiting: if blocks are trimmed after they were searched for a request, the answer
// does not contradict itself.
func TestTrimmedWhileWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := open(t, vfs.NewMem(), Options{KeepBlocks: 1})
		give(t, l, put(1, "other"))
		r := event.Request{From: event.Token{Height: 1}, Keys: event.Keys{Start: []byte("x")}, WaitMS: 60_000}
		answered := make(chan *event.Answer)
		ask := func() {
			a, err := l.Answer(t.Context(), r, 5*time.Second)
			if err != nil {
				t.Error(err)
			}
			answered <- &a
		}
		go ask()
		synctest.Wait()
		give(t, l, put(2, "other"))
		a, err := event.DecodeAnswer((<-answered).Encode(), &r)
		require.NoError(t, err)
		require.EqualValues(t, 2, l.Stats().Least)
		require.Equal(t, event.Token{Height: 3}, a.Next)

		// If it has missed something, it is compacted from the token of the request on.
		r.From = event.Token{Height: 2}
		go ask()
		synctest.Wait()
		for h := int64(3); h < 6; h++ {
			give(t, l, put(h, "other"))
			synctest.Wait()
		}
		a, err = event.DecodeAnswer((<-answered).Encode(), &r)
		require.NoError(t, err)
		require.True(t, a.Compacted(r.From))
		require.NoError(t, l.Close())
	})
}

// TestManyWatchers: a thousand watchers of a key each, and ten of everything, receive each change
// once and in order, in any interleaving with the blocks.
func TestManyWatchers(t *testing.T) {
	t.Parallel()
	const blocks, each = 50, 200
	watchers := 1000
	if testing.Short() {
		watchers = 200
	}
	l := open(t, vfs.NewMem(), Options{})
	require.NoError(t, l.Begin(0))
	var wg sync.WaitGroup
	wrong := make(chan error, watchers+10)
	watch := func(keys event.Keys, want int, next func(i int) (height int64)) {
		r := event.Request{From: event.Token{Height: 1}, Keys: keys, WaitMS: 60_000}
		n := 0
		for r.From.Height <= blocks {
			a, err := l.Answer(t.Context(), r, time.Minute)
			if err != nil {
				wrong <- err
				return
			}
			for _, e := range a.Events {
				if e.Height != next(n) {
					wrong <- fmt.Errorf("event %d is of height %d, not %d", n, e.Height, next(n))
					return
				}
				n++
			}
			r.From = a.Next
			if n == want {
				break
			}
		}
		if n != want {
			wrong <- fmt.Errorf("%d events, not %d", n, want)
		}
	}
	for w := range watchers {
		key := fmt.Sprintf("k/%04d", w)
		first := int64(w*blocks/watchers) + 1 // of the blocks
		wg.Go(func() {
			watch(event.Keys{Start: []byte(key), End: []byte(key + "\x00")}, 1, func(int) int64 { return first })
		})
	}
	for range 10 {
		wg.Go(func() { watch(event.Keys{}, blocks*each, func(i int) int64 { return int64(i/each) + 1 }) })
	}
	for h := int64(1); h <= blocks; h++ {
		var keys []string
		for w := range watchers {
			if int64(w*blocks/watchers)+1 == h {
				keys = append(keys, fmt.Sprintf("k/%04d", w))
			}
		}
		for i := len(keys); i < each; i++ {
			keys = append(keys, fmt.Sprintf("other/%d", i))
		}
		give(t, l, put(h, keys...))
	}
	wg.Wait()
	close(wrong)
	for err := range wrong {
		t.Error(err)
	}
	require.NoError(t, l.Close())
}

// TestDiskFails: a failing disk ends the log. Commit and Sync return the reason, and Failed is
// called once.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	var failing atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return broken
		}
		return nil
	}))
	fatal := make(chan error, 100)
	l, err := Open("events", Options{FS: fs, Fatal: func(err error) {
		select {
		case fatal <- err:
		default:
		}
		select {} // it must not return
	}})
	require.NoError(t, err)
	give(t, l, blockOf(1, 1))
	require.NoError(t, l.Sync(1))
	failing.Store(true)
	go func() {
		_ = l.Commit(blockOf(1, 2))
		_ = l.Sync(2)
	}()
	require.ErrorIs(t, <-fatal, broken)
}

// TestLogFileCannotBeWritten: a write-ahead log that cannot be written, or created, ends the
// process with the reason, even for writes that are not synced: Pebble would panic in the writing
// goroutine.
func TestLogFileCannotBeWritten(t *testing.T) {
	t.Parallel()
	for _, kind := range []errorfs.OpKind{errorfs.OpFileWrite, errorfs.OpCreate, errorfs.OpReuseForWrite} {
		var failing atomic.Bool
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if failing.Load() && op.Kind == kind && strings.HasSuffix(op.Path, ".log") {
				return syscall.ENOSPC
			}
			return nil
		}))
		fatal := make(chan error, 100)
		l, err := Open("events", Options{FS: fs, Fatal: func(err error) {
			fatal <- err
			select {} // it must not return
		}})
		require.NoError(t, err)
		give(t, l, blockOf(1, 1))
		require.NoError(t, l.Sync(1))
		failing.Store(true)
		go func() { // each block fills a buffer of the log file
			value := make([]byte, 64<<10)
			for h := int64(2); h < 1000; h++ {
				c := event.Change{Kind: event.Put, Key: []byte("key"), Value: value}
				if l.Commit(event.Block{Height: h, Txs: [][]byte{{1}}, Changes: []event.Change{c}}) != nil {
					return
				}
			}
		}()
		err = <-fatal
		require.ErrorIs(t, err, engine.ErrDiskFull)
		require.ErrorContains(t, err, "events folder events")
		require.ErrorContains(t, err, "make room on the disk")
	}
}

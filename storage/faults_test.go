package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

type recorder struct {
	mu  sync.Mutex
	got []string
}

func (r *recorder) Info(string, ...any) {}

func (r *recorder) Error(msg string, keyvals ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, fmt.Sprint(append([]any{msg}, keyvals...)...))
}

func (r *recorder) errors() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// faultyWorld runs a random workload over a file system that fails from time to time. It remembers
// every state that was written.
type faultyWorld struct {
	rng     *rand.Rand
	mem     *vfs.MemFS
	failing atomic.Bool
	fatal   chan error

	mu struct {
		sync.Mutex
		ended     bool             // the process has ended, and no goroutine continues
		written   map[string]model // by app hash
		confirmed int64            // height that must not be lost; 0: the zone may be empty
	}
}

// confirm records what must not be lost from now on.
func (w *faultyWorld) confirm(height int64) {
	w.note(func() { w.mu.confirmed = height })
}

func (w *faultyWorld) writes(m Meta, state model) {
	w.note(func() { w.mu.written[string(m.AppHash)] = state })
}

func (w *faultyWorld) note(what func()) {
	w.mu.Lock()
	if w.mu.ended {
		w.mu.Unlock()
		select {}
	}
	what()
	w.mu.Unlock()
}

func newFaultyWorld(seed uint64) (*faultyWorld, vfs.FS) {
	w := &faultyWorld{rng: newRNG(seed), mem: vfs.NewCrashableMem(), fatal: make(chan error, 10)}
	w.mu.written = map[string]model{}
	var mu sync.Mutex
	rng, one, sticky, all := newRNG(seed+1<<32), 20+w.rng.IntN(500), w.rng.IntN(2) == 0, w.rng.IntN(2) == 0
	broken := false
	fs := errorfs.Wrap(w.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !w.failing.Load() || !all && op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpStat {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(one) == 0 {
			broken = true
		}
		if !broken {
			return nil
		}
		broken = sticky
		return []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO}[rng.IntN(3)]
	}))
	return w, fs
}

func (w *faultyWorld) meta(height int64) Meta {
	m := testMeta(height)
	w.note(func() { m.AppHash = fmt.Appendf(nil, "state %d", len(w.mu.written)) })
	return m
}

var errWrong = errors.New("the zone does not contain the written state")

// run ends at the first error that ends the zone, or after a while.
func (w *faultyWorld) run(t *testing.T, s *Zone) error {
	height, last := int64(0), emptyModel()
	for range 120 {
		switch n := w.rng.IntN(100); {
		case n < 70:
			height++
			b := randomBlock(w.rng, last, height)
			b.Meta = w.meta(height)
			if w.rng.IntN(10) == 0 {
				pinWith(&b, withPin(string(b.Meta.AppHash)))
			}
			last = last.apply(b)
			w.writes(b.Meta, last)
			if err := s.Write(b); err != nil {
				return err
			}
		case n < 85:
			if err := s.Flush(); err != nil {
				return err
			}
			w.confirm(height)
			var got []record.Leaf
			for l, err := range s.Scan() {
				if err != nil {
					return err
				}
				got = append(got, record.Leaf{Key: bytes.Clone(l.Key), Value: append([]byte{}, l.Value...), Height: l.Height})
			}
			if !assert.ObjectsAreEqual(last.list(), got) {
				return fmt.Errorf("%w: after block %d: %d leaves, want %d", errWrong, height, len(got), len(last.leaves))
			}
		case n < 90:
			first := fmt.Appendf(nil, "%d", w.rng.IntN(10))
			if err := s.Page(first, nil, 1<<40, func(records []byte) bool { return true }); err != nil && !errors.Is(err, ErrNoPage) {
				return err
			}
			s.Trim(height-10, nil)
		case n < 93:
			if err := s.Compact(t.Context(), nil); err != nil {
				return err
			}
		case n < 95:
			w.confirm(0)
			height, last = 0, emptyModel()
			if err := s.Reset(); err != nil {
				return err
			}
		case n < 98:
			w.confirm(0)
			height, last = height+1000, emptyModel()
			for i := range 200 {
				key := fmt.Sprintf("%03d", 3*i)
				last.leaves[key], last.heights[key] = strings.Repeat(key, 1+w.rng.IntN(300)), uint8(1+w.rng.IntN(9))
			}
			m := w.meta(height)
			last.meta = m
			last.meta.Restored = true
			w.writes(m, last)
			r, err := s.BeginRestore(nil)
			if err != nil {
				return err
			}
			for piece := range slices.Chunk(last.list(), 1+w.rng.IntN(100)) {
				if err := addLeaves(r, RunID(piece[0].Key), piece); err != nil {
					return err
				}
			}
			if err := r.Commit(m); err != nil {
				return err
			}
			w.confirm(height)
		}
	}
	return nil
}

// TestInjectedErrors: whatever fails, and whenever, the zone then opens with a state that was
// written and is not older than the confirmed height. The state of an unfinished restore counts as
// none. There is no false report of damage, and no panic except through Fatal.
func TestInjectedErrors(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range uint64(150) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w, fs := newFaultyWorld(seed)
			opts := testOptions(fs)
			opts.FlushBlocks, opts.Generations = 1+w.rng.IntN(10), true
			var failed atomic.Int64
			opts.Failed = func(err error) { failed.Add(1) }
			opts.Fatal = func(err error) {
				w.fatal <- err
				select {} // a real Fatal ends the process
			}
			w.failing.Store(w.rng.IntN(3) == 0)
			ended := make(chan string, 1)
			go func() {
				s, err := Open("zone", opts)
				w.failing.Store(true)
				if err != nil {
					ended <- "not opened"
					return
				}
				switch err := w.run(t, s); {
				case errors.Is(err, errWrong):
					ended <- err.Error()
				case err == nil:
					ended <- "nothing failed before Close"
					_ = s.Close()
				case s.failure.get() == nil:
					ended <- "told, not failed"
					_ = s.Close()
				default:
					ended <- "failed"
					if err2 := s.Close(); err2 != nil {
						t.Error(err2)
					}
					if !s.failure.dead.Load() && failed.Load() != 1 {
						t.Errorf("Failed was called %d times: %v", failed.Load(), s.failure.get())
					}
				}
			}()
			var outcome string
			select {
			case outcome = <-ended:
			case err := <-w.fatal:
				require.ErrorContains(t, err, "zone")
				outcome = "fatal"
			}
			require.NotContains(t, outcome, errWrong.Error())
			outcomes[outcome]++
			w.mu.Lock()
			w.mu.ended = true
			w.mu.Unlock()
			w.failing.Store(false)
			rng := newRNG(seed + 2<<32)

			percent := 100 // 100 if a process was killed, otherwise a power loss
			if rng.IntN(2) == 0 {
				percent = rng.IntN(100)
			}
			s := openZone(t, w.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}))
			meta, ok := s.Meta()
			if !ok {
				require.Zero(t, w.mu.confirmed)
				return
			}
			if w.mu.confirmed > 0 {
				require.GreaterOrEqual(t, meta.Height, w.mu.confirmed)
			}
			require.Contains(t, w.mu.written, string(meta.AppHash))
			want := w.mu.written[string(meta.AppHash)]
			want.requireIn(t, s)
			for _, p := range s.Pins() {
				require.Contains(t, w.mu.written, string(p.Data))
				require.Equal(t, w.mu.written[string(p.Data)].records(nil, nil), pinRecords(t, s, p.Height))
			}
		})
	}
	t.Log(outcomes)
}

// TestFullDisk: a full disk is reported as such, once. Confirmed data is available afterwards, and
// the zone continues once there is space.
func TestFullDisk(t *testing.T) {
	for name, suffix := range map[string]string{"tables": ".sst", "list of files": "MANIFEST"} {
		t.Run(name, func(t *testing.T) {
			var full, failed atomic.Bool
			var begun atomic.Int64 // tables begun after the failure was reported
			mem := vfs.NewMem()
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if failed.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
					begun.Add(1)
				}
				if full.Load() && op.Kind == errorfs.OpFileWrite && strings.Contains(op.Path, suffix) {
					return syscall.ENOSPC
				}
				return nil
			}))
			log, told, fatal := &recorder{}, make(chan error, 2), make(chan error, 2)
			opts := testOptions(fs)
			opts.Logger = log
			opts.Failed = func(err error) { told <- err }
			opts.Fatal = func(err error) {
				fatal <- err
				select {}
			}
			s, err := Open("zone", opts)
			require.NoError(t, err)
			m := emptyModel()
			for height := int64(1); height <= 3; height++ {
				b := Block{Meta: testMeta(height), Puts: []record.Leaf{{Key: []byte{byte(height)}, Value: []byte("x")}}}
				write(t, s, b)
				m = m.apply(b)
			}
			full.Store(true)
			done := make(chan struct{}, 10)
			b := Block{Meta: testMeta(4), Puts: []record.Leaf{{Key: []byte{4}, Value: []byte("x")}}, Owner: &owner{done: func() { done <- struct{}{} }}}
			require.NoError(t, s.Write(b))
			require.ErrorIs(t, s.Flush(), ErrDiskFull)
			if suffix == ".sst" {
				require.ErrorIs(t, <-told, ErrDiskFull)
				<-done
				failed.Store(true)
			} else {
				require.ErrorIs(t, <-fatal, ErrDiskFull)
			}
			fourth := b
			b.Meta = testMeta(5)
			require.ErrorIs(t, s.Write(b), ErrDiskFull)
			require.ErrorContains(t, s.Flush(), "make room on the disk")
			require.NotEmpty(t, log.errors())
			require.EqualValues(t, 3, s.Safe())
			full.Store(false) // still nothing is written
			require.ErrorIs(t, s.Flush(), ErrDiskFull)
			_, err = s.BeginRestore(nil)
			require.ErrorIs(t, err, ErrDiskFull)
			require.NoError(t, s.Close())
			if suffix != ".sst" {
				return // its process holds the folder until it ends
			}
			require.LessOrEqual(t, begun.Load(), int64(1), "a zone that failed begins no table, except one under way")
			s = openZone(t, mem)
			// If a compaction failed first, the current flush may still have written its table:
			// then the block is complete.
			if s.Safe() == 4 {
				m = m.apply(fourth)
			}
			m.requireIn(t, s)
			ownerOf(&b).done = nil
			write(t, s, b)
			m.apply(b).requireIn(t, s)
		})
	}
}

// TestDiskFailureIsFatal: other disk failures are reported to Fatal when the list of files cannot
// be written.
func TestDiskFailureIsFatal(t *testing.T) {
	var broken atomic.Bool
	mem := vfs.NewCrashableMem()
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		kinds := []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}
		if broken.Load() && slices.Contains(kinds, op.Kind) && strings.Contains(op.Path, "MANIFEST") {
			return syscall.EIO
		}
		return nil
	}))
	fatal := make(chan error, 1)
	opts := testOptions(fs)
	opts.Fatal = func(err error) {
		fatal <- err
		select {}
	}
	s, err := Open("zone", opts)
	require.NoError(t, err)
	b := Block{Meta: testMeta(1), Puts: []record.Leaf{{Key: []byte{1}, Value: []byte("x")}}}
	write(t, s, b)
	m := emptyModel().apply(b)
	broken.Store(true)
	last := Block{Meta: testMeta(2), Puts: []record.Leaf{{Key: []byte{2}, Value: []byte("x")}}}
	require.NoError(t, s.Write(last))
	require.ErrorContains(t, s.Flush(), "check the disk")
	require.ErrorContains(t, <-fatal, "zone")
	require.ErrorIs(t, s.Write(Block{Meta: testMeta(3)}), syscall.EIO)
	require.NoError(t, s.Close())
	after := openZone(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	require.Contains(t, []model{m, m.apply(last)}, read(t, after))
}

// TestDamagedTables: with any byte of any table flipped, the state is read correctly, or not at all
// with an error that names the file.
func TestDamagedTables(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "zone")
	opts := Options{FlushBlocks: 1 << 20, PinDir: filepath.Join(dir, "..", "pins")}
	s, err := Open(dir, opts)
	require.NoError(t, err)
	m := emptyModel()
	for height := int64(1); height <= 3; height++ {
		b := Block{Meta: testMeta(height)}
		var heights []keyHeight
		for i := range 60 {
			key := fmt.Appendf(nil, "key %d %d", height, i)
			b.Puts = append(b.Puts, record.Leaf{Key: key, Value: bytes.Repeat(key, 20)})
			heights = append(heights, keyHeight{key, uint8(1 + i%7)})
		}
		ownerOf(&b).heights = each(heights...)
		if height == 3 {
			pinWith(&b, withPin("x"))
		}
		m = m.apply(b)
		write(t, s, b)
	}
	require.NoError(t, s.Close())
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	require.NoError(t, err)
	require.NotEmpty(t, tables)
	rng, found, unread, byKey := newRNG(5), 0, 0, 0
	for _, table := range tables {
		good, err := os.ReadFile(table)
		require.NoError(t, err)
		for range 120 {
			at := rng.IntN(len(good))
			bad := slices.Clone(good)
			bad[at] ^= byte(1 + rng.IntN(255))
			require.NoError(t, os.WriteFile(table, bad, 0o600))
			where := fmt.Sprintf("%s, byte %d", table, at)
			named := func(err error) {
				require.ErrorIs(t, err, ErrCorrupt, where)
				require.ErrorContains(t, err, filepath.Base(table), where)
				require.ErrorContains(t, err, "starlingd unsafe-reset-all", where)
			}
			opts.ReadOnly = true
			s, err := Open(dir, opts)
			if err != nil {
				named(err)
				found++
				continue
			}
			var got []record.Leaf
			var failure error
			for l, err := range s.Scan() {
				if err != nil {
					failure = err
					break
				}
				got = append(got, record.Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: l.Height})
			}
			var page []byte
			pageFailure := s.Page(nil, nil, uint64(len(m.records(nil, nil))), func(records []byte) bool { page = bytes.Clone(records); return true })
			if failure != nil {
				found++
				named(failure)
				named(pageFailure)
			} else {
				unread++
				require.Equal(t, m.list(), got, where)
				require.NoError(t, pageFailure)
				require.Equal(t, m.records(nil, nil), page, where)
			}
			// By key, each value is right or an error.
			k := s.Kept(3)
			for key, want := range m.leaves {
				value, ok, err := k.Get([]byte(key))
				if err != nil {
					byKey++
					named(err)
					continue
				}
				require.True(t, ok, where)
				require.Equal(t, want, string(value), where)
			}
			k.Release()
			// The same file is part of the pin.
			p, err := s.OpenPin(3)
			if err == nil {
				var records []byte
				if records, err = p.Range(nil, nil, 1<<40); err == nil {
					require.Equal(t, m.records(nil, nil), records)
				}
				require.NoError(t, p.Close())
			}
			if err != nil {
				require.ErrorIs(t, err, ErrCorrupt, where)
				require.ErrorContains(t, err, filepath.Base(table), where)
			}
			require.NoError(t, s.Close())
		}
		require.NoError(t, os.WriteFile(table, good, 0o600))
	}
	t.Logf("%d tables: damage found %d times, in unread parts %d times", len(tables), found, unread)
	require.Greater(t, found, unread)
	require.Positive(t, byKey)
}

// TestDamageThatACompactionMeets: a failed compaction stops the zone, too. Otherwise compaction
// would fall behind forever.
func TestDamageThatACompactionMeets(t *testing.T) {
	mem := vfs.NewMem()
	opts := testOptions(mem)
	told := make(chan error, 1)
	opts.Failed = func(err error) { told <- err }
	s, err := Open("zone", opts)
	require.NoError(t, err)
	rng := newRNG(1)
	m := emptyModel()
	for height := int64(1); height <= 3; height++ {
		b := randomBlock(rng, m, height)
		b.Puts = append(b.Puts, record.Leaf{Key: []byte("x"), Value: make([]byte, 100)})
		m = m.apply(b)
		write(t, s, b)
	}
	require.NoError(t, s.Close())
	names, err := mem.List("zone")
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			flip(t, mem, "zone/"+name, 100)
		}
	}
	s, err = Open("zone", opts)
	if err == nil {
		require.ErrorIs(t, s.Compact(t.Context(), nil), ErrCorrupt)
		require.ErrorIs(t, <-told, ErrCorrupt)
		require.ErrorIs(t, s.Write(Block{Meta: testMeta(9)}), ErrCorrupt)
		require.NoError(t, s.Close())
	} else {
		require.ErrorIs(t, err, ErrCorrupt)
	}
}

func flip(t *testing.T, fs vfs.FS, path string, at int) {
	t.Helper()
	file, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	b := make([]byte, 1)
	_, err = file.ReadAt(b, int64(at))
	require.NoError(t, err)
	b[0] ^= 0x40
	_, err = file.WriteAt(b, int64(at))
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cosmossdk.io/log/v2"
	cmt "github.com/cometbft/cometbft/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/store/v2/rootmulti"
	"github.com/cosmos/cosmos-sdk/store/v2/snapshots"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
)

// Variables of TestLargeState.
const (
	envLeaves = "STARLING_LARGE_LEAVES" // number of leaves; empty: the test is skipped
	envStock  = "STARLING_LARGE_STOCK"  // if set, the SDK also exports and restores the state
)

const (
	largeAt     = 5_000_000 // height of the state
	largeMemory = 2 << 30   // limit of each process, which includes its page cache
)

// TestLargeState serves and joins a state in the memory of two small machines, and logs the costs:
//
//	STARLING_LARGE_LEAVES=30000000 go test -v -count=1 -timeout 2h -run TestLargeState ./cmd/starling-iavl
//
// The temporary folder (TMPDIR) then needs 25 GB. The database is generated. It is like that of a
// joined node, with the many versions of an old chain.
func TestLargeState(t *testing.T) {
	leaves, err := strconv.ParseInt(os.Getenv(envLeaves), 10, 64)
	if err != nil {
		t.Skip(envLeaves + " sets the number of leaves")
	}
	s := newGenerated(t, leaves)
	if os.Getenv(envStock) != "" {
		s.stock(t)
	}
	home := filepath.Join(t.TempDir(), "joiner")
	uncache(t, dbDir(s.home, applicationDB))
	address := make(chan string, 1)
	server := limited(t, "server", func(line string) {
		if m := regexp.MustCompile(`^serving chain demo-1, .* at (\S+)$`).FindStringSubmatch(line); m != nil {
			address <- m[1]
		}
	}, "serve", "--home", s.home, "--laddr", "127.0.0.1:0")
	joined := ""
	from := time.Now()
	joiner := limited(t, "joiner", func(line string) {
		t.Logf("%.0f s: %s", time.Since(from).Seconds(), line)
		joined = line
	}, s.join(home, <-address, "--database-only", "--trust-height", fmt.Sprint(largeAt-1), "--trust-hash", fmt.Sprintf("%X", s.blocks[largeAt-1]))...)
	require.NoError(t, joiner.wait(t))
	require.Contains(t, joined, fmt.Sprintf("joined at height %d, app hash %x:", largeAt, s.hashes[largeAt]))
	require.NoError(t, server.cmd.Process.Kill())
	require.Error(t, server.wait(t), "killed")
	t.Logf("%d bytes of the server's database, %d of the joiner's", size(dbDir(s.home, applicationDB)), size(dbDir(home, applicationDB)))
}

// limitedProcess is a process of starling-iavl with little memory.
type limitedProcess struct {
	cmd       *exec.Cmd
	name, dir string // dir is its control group
	anonymous int64  // peak; set by a goroutine until output is done
	output    sync.WaitGroup
	began     time.Time
}

// limited runs starling-iavl in a control group, and calls line with each line of its output.
func limited(t *testing.T, name string, line func(string), args ...string) *limitedProcess {
	t.Helper()
	root, limit := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		root, limit = "/sys/fs/cgroup", "memory.max"
	}
	dir, err := os.MkdirTemp(root, "starling-large-")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(largeMemory)), 0)
	}
	if err != nil {
		t.Skipf("NOT RUN: limits of memory need root, and control groups with a writable memory controller: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	p := &limitedProcess{name: name, dir: dir, began: time.Now()}
	p.cmd = exec.CommandContext(t.Context(), "/bin/sh", "-c", `echo $$ > "$0" && exec "$1"`, filepath.Join(dir, "cgroup.procs"), os.Args[0])
	p.cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(args, "\n"))
	out, in := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = in, in
	require.NoError(t, p.cmd.Start())
	p.output.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line(lines.Text())
		}
	})
	status := fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)
	p.output.Go(func() {
		for range time.Tick(20 * time.Millisecond) {
			b, err := os.ReadFile(status)
			m := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(b)
			if err != nil || m == nil { // the process has ended
				_ = in.Close()
				return
			}
			kib, _ := strconv.ParseInt(string(m[1]), 10, 64)
			p.anonymous = max(p.anonymous, kib<<10)
		}
	})
	return p
}

// wait waits for the end of the process, and logs its costs.
func (p *limitedProcess) wait(t *testing.T) error {
	t.Helper()
	err := p.cmd.Wait()
	took := time.Since(p.began)
	p.output.Wait()
	peak, _ := os.ReadFile(filepath.Join(p.dir, "memory.max_usage_in_bytes"))
	t.Logf("%s: %.0f s, %.1f CPU s (%.1f of the kernel), %d MiB of anonymous memory at most, with page cache %s", p.name, took.Seconds(),
		(p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()).Seconds(), p.cmd.ProcessState.SystemTime().Seconds(), p.anonymous>>20,
		strings.TrimSpace(string(peak)))
	return err
}

// uncache removes the files in a folder from the page cache, which their reader then pays for.
func uncache(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		const dontNeed = 4 // POSIX_FADV_DONTNEED
		_, _, _ = syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0)
		require.NoError(t, f.Close())
	}
}

// mix returns a random number for leaf i and a purpose (SplitMix64).
func mix(i int64, purpose uint64) uint64 {
	x := uint64(i)*0x9e3779b97f4a7c15 + purpose*0xd1342543de82ef95
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// account returns the address of account i of n, which ascends with i, and its text.
func account(i, n int64) (address []byte, text string) {
	spread, _ := bits.Div64(1, 0, uint64(n)+1)
	b := binary.BigEndian.AppendUint64(nil, uint64(i)*spread+mix(i, 1)%spread)
	b = binary.BigEndian.AppendUint64(b, mix(i, 2))
	b = binary.BigEndian.AppendUint32(b, uint32(mix(i, 3)))
	return b, "cosmos1" + hex.EncodeToString(b)[:38]
}

// generatedStores have keys and values like those of the SDK's modules. share is a store's part of
// 30 leaves.
var generatedStores = []struct {
	name  string
	share int64
	leaf  func(i, n int64) (key, value []byte)
}{
	{"acc", 8, func(i, n int64) (key, value []byte) {
		address, text := account(i, n)
		value = append([]byte("\n\x20/cosmos.auth.v1beta1.BaseAccount\x12\x7a\n\x2d"), text...)
		value = append(value, "\x12\x46\n\x1f/cosmos.crypto.secp256k1.PubKey\x12\x23\n\x21\x02"...)
		for j := range uint64(4) {
			value = binary.BigEndian.AppendUint64(value, mix(i, 10+j))
		}
		return append([]byte{1}, address...), binary.AppendUvarint(append(value, 0x18), uint64(i))
	}},
	{"bank", 15, func(i, n int64) (key, value []byte) {
		address, _ := account(i/2, n/2)
		key, denom := append([]byte{2, 20}, address...), "uatom"
		if i%2 == 0 {
			denom = fmt.Sprintf("ibc/%X", sha256.Sum256(binary.BigEndian.AppendUint64(nil, mix(i, 4)%500)))
		}
		return append(key, denom...), strconv.AppendUint(nil, mix(i, 5)%1e9, 10)
	}},
	{"ibc", 5, func(i, _ int64) (key, value []byte) {
		value = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, mix(i, 6)), mix(i, 7))
		return fmt.Appendf(nil, "acks/ports/transfer/channels/channel-%03d/sequences/%09d", i>>18, i), append(value, value...)
	}},
	{"staking", 2, func(i, n int64) (key, value []byte) {
		address, text := account(i, n)
		validator, name := account(int64(mix(i, 8)%200), 200)
		key = append(append(append([]byte{0x31, 20}, address...), 20), validator...)
		return key, fmt.Appendf(nil, "\n\x2d%s\x12\x34cosmosvaloper%s\x1a\x1a%d000000000000000000", text, name[6:], mix(i, 9)%1e8)
	}},
}

// generated is a store of n leaves in an AVL tree that divides leaves evenly.
type generated struct {
	n    int64
	leaf func(i, n int64) (key, value []byte)
}

func (g *generated) version(i int64) int64 { return 1 + int64(mix(i, uint64(g.n))%largeAt) }

// divide returns the number of leaves of the left child of a node with n leaves, and its height.
func divide(n int64) (left int64, height uint8) { return (n + 1) / 2, uint8(bits.Len64(uint64(n - 1))) }

// parent returns the image of an inner node that is as new as its newer child.
func parent(l, r iavlsync.Image) iavlsync.Image {
	return iavlsync.Image{Height: max(l.Height, r.Height) + 1, Size: l.Size + r.Size, Version: max(l.Version, r.Version), Left: l.Hash(), Right: r.Hash()}
}

// chunk encodes the subtree of n leaves from first, and returns the image of its root.
func (g *generated) chunk(first, n int64) (b []byte, root iavlsync.Image) {
	newest := int64(0)
	for i := range n {
		newest = max(newest, g.version(first+i))
	}
	var add func(first, n int64, above uint8) iavlsync.Image
	add = func(first, n int64, above uint8) iavlsync.Image {
		if n > 1 {
			left, height := divide(n)
			l := add(first, left, above)
			return parent(l, add(first+left, n-left, height))
		}
		if above > 0 {
			b = iavlsync.AppendInner(b, above, 0)
		}
		key, value := g.leaf(first, g.n)
		b = iavlsync.AppendLeaf(b, newest, g.version(first), key, value)
		return iavlsync.Image{Size: 1, Version: g.version(first), Key: key, ValueHash: sha256.Sum256(value)}
	}
	root = add(first, n, 0)
	return b, root
}

// chunks returns the first leaves of all chunks, and their numbers of leaves.
func (g *generated) chunks() (chunks [][2]int64) {
	var cut func(first, n int64)
	cut = func(first, n int64) {
		if limit, _ := iavlsync.Format8192.Leaves(); n <= limit {
			chunks = append(chunks, [2]int64{first, n})
			return
		}
		left, _ := divide(n)
		cut(first, left)
		cut(first+left, n-left)
	}
	cut(0, g.n)
	return chunks
}

// bound sets the boundaries of chunks whose roots are known.
func (g *generated) bound(entries []iavlsync.Entry, first, n int64) (version int64, rest []iavlsync.Entry) {
	if limit, _ := iavlsync.Format8192.Leaves(); n <= limit {
		return entries[0].Root.Version, entries[1:]
	}
	left, height := divide(n)
	l, rest := g.bound(entries, first, left)
	right := rest
	r, rest := g.bound(right, first+left, n-left)
	right[0].Boundary = iavlsync.Boundary{Height: height, Version: max(l, r)}
	return max(l, r), rest
}

// each calls fn with 0 … n-1 on all processors.
func each(n int, fn func(k int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for k := int(next.Add(1)) - 1; k < n; k = int(next.Add(1)) - 1 {
				fn(k)
			}
		})
	}
	wg.Wait()
}

// newGenerated makes the home of a stopped node with this number of leaves.
func newGenerated(t *testing.T, leaves int64) *stopped {
	from := time.Now()
	s := &stopped{home: filepath.Join(t.TempDir(), "server"), hashes: map[int64][]byte{}, blocks: map[int64][]byte{}, params: *cmt.DefaultConsensusParams()}
	require.NoError(t, os.MkdirAll(dataDir(s.home), 0o700))
	m := &iavlsync.Manifest{Format: iavlsync.Format8192, Height: largeAt}
	var trees []*generated
	for _, store := range generatedStores {
		g := &generated{store.share * leaves / 30, store.leaf}
		chunks := g.chunks()
		entries := make([]iavlsync.Entry, len(chunks))
		each(len(chunks), func(k int) { _, entries[k].Root = g.chunk(chunks[k][0], chunks[k][1]) })
		g.bound(entries, 0, g.n)
		m.Stores, trees = append(m.Stores, iavlsync.Store{Name: store.name, Entries: entries}), append(trees, g)
	}
	hash, err := m.AppHash()
	require.NoError(t, err)
	s.hashes[largeAt] = hash[:]
	spool, err := nodedb.NewSpool(filepath.Join(s.home, "chunks"), m)
	require.NoError(t, err)
	start := 0
	for i, g := range trees {
		chunks := g.chunks()
		each(len(chunks), func(k int) {
			b, root := g.chunk(chunks[k][0], chunks[k][1])
			c, err := iavlsync.VerifyChunk(&root, b)
			if err == nil {
				err = spool.Install(start+k, c, b)
			}
			if err != nil {
				panic(fmt.Sprintf("chunk %d of %s: %v", k, m.Stores[i].Name, err))
			}
		})
		start += len(chunks)
	}
	tables, err := newTables(dbDir(s.home, applicationDB), dbm.GoLevelDBBackend)
	require.NoError(t, err)
	require.NoError(t, spool.Finish(tables))
	require.NoError(t, spool.Remove())
	s.consensus(t, largeAt-2, largeAt+2)
	t.Logf("%d leaves in %d chunks generated in %.0f s", leaves, m.Chunks(), time.Since(from).Seconds())
	return s
}

// stock logs the costs of the SDK's snapshot of the state, and of its restore.
func (s *stopped) stock(t *testing.T) {
	open := func(dir string) (*rootmulti.Store, *snapshots.Manager, func()) {
		db, err := dbm.NewDB(applicationDB, dbm.GoLevelDBBackend, dir)
		require.NoError(t, err)
		store := rootmulti.NewStore(db, log.NewNopLogger())
		store.SetIAVLCacheSize(781_250) // the default of the SDK's server
		for _, g := range generatedStores {
			store.MountStoreWithDB(types.NewKVStoreKey(g.name), types.StoreTypeIAVL, nil)
		}
		require.NoError(t, store.LoadLatestVersion())
		meta := dbm.NewMemDB()
		files, err := snapshots.NewStore(meta, filepath.Join(dir, "snapshots"))
		require.NoError(t, err)
		return store, snapshots.NewManager(files, snapshottypes.NewSnapshotOptions(0, 0), store, nil, log.NewNopLogger()), func() { require.NoError(t, db.Close()) }
	}
	cpu := func() time.Duration {
		var u syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	source, from, closeSource := open(dataDir(s.home))
	require.Equal(t, s.hashes[largeAt], source.LastCommitID().Hash)
	began, used := time.Now(), cpu()
	snapshot, err := from.Create(largeAt)
	require.NoError(t, err)
	t.Logf("the SDK's snapshot: %.0f s, %.1f CPU s", time.Since(began).Seconds(), (cpu() - used).Seconds())

	dir := t.TempDir()
	target, to, closeTarget := open(dir)
	began, used = time.Now(), cpu()
	require.NoError(t, to.Restore(*snapshot))
	for k, done := uint32(0), false; !done; k++ {
		chunk, err := from.LoadChunk(snapshot.Height, snapshot.Format, k)
		require.NoError(t, err)
		done, err = to.RestoreChunk(chunk)
		require.NoError(t, err)
	}
	require.Equal(t, s.hashes[largeAt], target.LastCommitID().Hash)
	t.Logf("the SDK's restore: %.0f s, %.1f CPU s", time.Since(began).Seconds(), (cpu() - used).Seconds())
	closeSource()
	closeTarget()
	require.NoError(t, os.RemoveAll(filepath.Join(dataDir(s.home), "snapshots")))
}

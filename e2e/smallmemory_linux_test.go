package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/tx"
)

const (
	memoryChain  = "small-memory"
	memoryPrefix = "memory/"

	memoryLimit  = 288 << 20 // of each process
	memoryGo     = 208 << 20 // GOMEMLIMIT; the rest is for the kernel: sockets, page cache
	memoryRange  = 320 << 20 // values in each range
	memoryRanges = 2

	memoryValue   = 64 << 10
	memoryPerTx   = 28 // two transactions in a block
	memoryWriters = 6
	memoryReads   = 16

	tmpfs = 0x01021994 // TMPFS_MAGIC of statfs(2)
)

// smallMachines is a network of three sharded validators, and of two storage nodes for each range.
// Each process has the memory of a small machine: memoryLimit.
type smallMachines struct {
	*testing.T
	ctx                 context.Context
	procs               *runner.Processes
	seed                uint64
	random              *rand.Rand
	validators, storage []*runner.Home
	full                *runner.Home // keeps the whole state in memory, and starts last
	groups              map[*runner.Home]*runner.MemoryGroup
	running             map[*runner.Home]*runner.Process
}

// TestSmallMemory runs a network whose state is more than twice as large as the memory of each
// process. The ranges of each storage node are larger than its memory, too. The kernel kills none
// of these processes, but it does kill a node that keeps the state in memory.
func TestSmallMemory(t *testing.T) {
	n := newSmallMachines(t)
	keys := n.write("", memoryRanges*memoryRange)
	n.read("after the load", keys)

	killed, others := n.storage[:memoryRanges], n.storage[memoryRanges:]
	for _, h := range killed {
		n.running[h].Kill()
		n.start(h)
	}
	keys = append(keys, n.write("again/", memoryWriters*memoryPerTx*memoryValue)...)
	for _, h := range others {
		require.NoError(t, n.running[h].Stop(time.Minute))
	}
	n.read("from storage nodes that were killed", keys)

	began := time.Now()
	n.start(n.full)
	select {
	case <-n.running[n.full].Done():
	case <-n.ctx.Done():
		t.Fatalf("the kernel does not kill a node that keeps the state in memory: %v", context.Cause(n.ctx))
	}
	t.Logf("the kernel killed the full node after %.1f s", time.Since(began).Seconds())
	for h, group := range n.groups {
		kills, err := group.Kills()
		require.NoError(t, err)
		if h == n.full {
			require.Equal(t, 1, kills, strings.Join(runner.Tail(h.Log(), 12), "\n"))
		} else {
			require.Zero(t, kills, h.Name)
		}
	}
}

func newSmallMachines(t *testing.T) *smallMachines {
	var disk syscall.Statfs_t
	require.NoError(t, syscall.Statfs(t.TempDir(), &disk))
	if disk.Type == tmpfs { // its files are memory of the group, and cannot be reclaimed
		t.Skip("NOT RUN: little memory needs a disk: the temporary folder is a tmpfs (TMPDIR chooses another one)")
	}
	seed := seeds.New(t)
	n := &smallMachines{
		T: t, seed: seed, random: rand.New(rand.NewPCG(seed, 0)),
		groups: map[*runner.Home]*runner.MemoryGroup{}, running: map[*runner.Home]*runner.Process{},
	}
	var names []string
	for i := range 2 * memoryRanges {
		names = append(names, fmt.Sprintf("storage-%d", i))
	}
	names = append(names, "validator-0", "validator-1", "validator-2", "full")
	groups := make([]*runner.MemoryGroup, len(names))
	for i, name := range names {
		group, err := runner.NewMemoryGroup(name, memoryLimit)
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skipf("NOT RUN: limits of memory need root, and control groups with a writable memory controller: %v", err)
		}
		require.NoError(t, err)
		groups[i] = group
		// registered before the processes: so they have ended
		t.Cleanup(func() { require.NoError(t, group.Remove()) })
	}
	n.procs, n.ctx = processes(t, 3*time.Minute)
	homes := makeHomes(n.ctx, t, memoryChain, names...)
	for i, h := range homes {
		n.groups[h] = groups[i]
	}
	n.storage, n.validators, n.full = homes[:2*memoryRanges], homes[2*memoryRanges:len(homes)-1], homes[len(homes)-1]
	_, err := runner.Genesis(n.validators, slices.Concat(n.storage, []*runner.Home{n.full}), memoryChain, map[string]any{
		"open": false, "admins": []string{}, "grants": []map[string]any{{"grantee": "*", "prefix": memoryPrefix}},
	})
	require.NoError(t, err)
	ranges, err := runner.Divide(n.storage, memoryRanges, func(i int) string { return memoryPrefix + strconv.Itoa(i) })
	require.NoError(t, err)
	for _, h := range homes {
		require.NoError(t, h.SetRanges(ranges))
		dialled := n.validators
		if i := slices.Index(n.validators, h); i >= 0 {
			dialled = n.validators[:i] // only one node of each pair dials the other
		}
		require.NoError(t, h.Configure(func(c *cfg.Config) {
			c.P2P.PersistentPeers = runner.Peers(dialled...)
			c.LogLevel = "consensus:error,state:error,p2p:none,mempool:error,txindex:error,statesync:error,*:info"
			c.TxIndex.Indexer = "null"
			// Each validator has writers of its own, so that every block is full without it.
			c.Mempool.Broadcast = false
			c.Mempool.MaxTxsBytes = 16 << 20
		}))
	}
	for _, h := range slices.Concat(n.storage, n.validators) {
		n.start(h)
	}
	for _, h := range n.validators {
		await(t, n.ctx, h, 1)
	}
	return n
}

// start starts a node with small budgets (docs/reference/limits.md). Some budgets grow with the
// number of processors.
func (n *smallMachines) start(h *runner.Home) {
	n.Helper()
	h.Release()
	args := []string{"start", "--state.keep_events=0", "--state.pruning_keep_recent_bytes=4194304"}
	switch {
	case slices.Contains(n.storage, h):
		args = []string{"storage", "start", "--storage_node.serve_bytes=16777216"}
	case slices.Contains(n.validators, h):
		args = append(args, "--state.mode=sharded", "--state.retain_window_blocks=8", "--state.keep_updates_bytes=4194304", "--state.max_lag_bytes=16777216")
	}
	args = append(args, "--home", h.Dir, "--disk.cache_bytes=16777216", "--join.memory_bytes=16777216", fmt.Sprintf("--min_memory_bytes=%d", memoryGo))
	n.running[h] = start(n.T, n.procs, runner.Spec{
		Name: h.Name, Path: starlingd, Args: args, Env: []string{fmt.Sprintf("GOMEMLIMIT=%d", memoryGo), "GOMAXPROCS=2"}, Log: h.Log(),
		Memory: n.groups[h], Ends: h == n.full,
	})
}

// value returns the value of a key. It is random, so that no disk keeps it in fewer bytes.
func (n *smallMachines) value(key string) []byte {
	value := make([]byte, memoryValue)
	seed := sha256.Sum256(fmt.Appendf(nil, "%d %s", n.seed, key))
	_, _ = rand.NewChaCha8(seed).Read(value) // it never fails
	return value
}

// write writes this many bytes of values, in equal parts to all ranges, and returns their keys.
func (n *smallMachines) write(name string, size int) []string {
	n.Helper()
	began := time.Now()
	keys := make([]string, size/memoryValue)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%d/%s%x", memoryPrefix, i%memoryRanges, name, sha256.Sum256([]byte(strconv.Itoa(i))))
	}
	batches := make(chan []string, len(keys))
	for batch := range slices.Chunk(keys, memoryPerTx) {
		batches <- batch
	}
	close(batches)
	writers, ctx := errgroup.WithContext(n.ctx)
	for i := range memoryWriters {
		writers.Go(func() error {
			c, err := client.Dial(ctx, []string{n.validators[i%len(n.validators)].RPC()}, client.WithChainID(memoryChain),
				client.WithKey(ed25519.GenPrivKeyFromSecret([]byte(name+strconv.Itoa(i)))))
			if err != nil {
				return err
			}
			for batch := range batches {
				operations := make([]tx.Operation, len(batch))
				for i, key := range batch {
					operations[i] = tx.NewPut([]byte(key), n.value(key))
				}
				if _, err := c.Submit(ctx, operations...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := writers.Wait(); err != nil {
		// the cause names a process that has ended
		require.NoError(n, errors.Join(err, context.Cause(n.ctx)))
	}
	n.Logf("%d MiB written in %.1f s; %s", size>>20, time.Since(began).Seconds(), n.memory())
	return keys
}

// read reads the last key and random ones through each validator, with proofs.
func (n *smallMachines) read(when string, keys []string) {
	n.Helper()
	began := time.Now()
	for i, h := range n.validators {
		trusted, err := h.Header(n.ctx, 1)
		require.NoError(n, err)
		c, err := client.Dial(n.ctx, []string{h.RPC()}, client.WithWitnesses(n.validators[(i+1)%len(n.validators)].RPC()), client.WithChainID(memoryChain),
			client.WithVerification(client.Trust{Height: trusted.Height, Hash: trusted.Hash}))
		require.NoError(n, err)
		for j := range memoryReads {
			key := keys[len(keys)-1]
			if j > 0 {
				key = keys[n.random.IntN(len(keys))]
			}
			got, err := c.Get(n.ctx, []byte(key))
			require.NoError(n, err, "%s: %s, %s", h.Name, key, when)
			require.True(n, bytes.Equal(n.value(key), got.Value), "%s: %s, %s: %d bytes", h.Name, key, when, len(got.Value))
		}
	}
	n.Logf("%s: %d proved reads in %.1f s; %s", when, len(n.validators)*memoryReads, time.Since(began).Seconds(), n.memory())
}

// memory returns the resident memory of the running processes that the kernel cannot reclaim.
func (n *smallMachines) memory() string {
	var all []string
	for _, h := range slices.Concat(n.storage, n.validators) {
		// there is none if the process has ended
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.running[h].Pid()))
		for line := range strings.Lines(string(status)) {
			if kib, ok := strings.CutPrefix(line, "RssAnon:"); ok {
				all = append(all, h.Name+" "+strings.Join(strings.Fields(kib), " "))
			}
		}
	}
	return strings.Join(all, ", ")
}

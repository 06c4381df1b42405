package syncbench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/contestant"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/internal/child"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// ChildName is the name of the child processes.
const ChildName = "sync"

// worker is a child with one role.
type worker struct {
	begin
	work    *workload.Workload
	newest  *avlstar.Version      // server
	server  *server               // server, while it serves
	memiavl contestant.Contestant // memiavl

	validator *validator
	downloads *downloads
	besieger  *besieger
	strangers *strangers
}

// Serve runs a child process.
func Serve(in io.Reader, out io.Writer) error {
	return child.Run(in, out, func(b begin) (child.Worker[request, answer], answer, error) {
		w := &worker{begin: b}
		return w, answer{}, w.open()
	})
}

func (c *worker) open() (err error) {
	switch c.Role {
	case roleServer, roleBesieger:
		if c.newest, err = avlstar.Empty(cmp.Or(c.ChunkBytes, avlstar.DefaultChunkBytes)); err != nil {
			return err
		}
	case roleMemiavl:
		if c.memiavl, err = contestant.Open(nameMemiavl, c.Dir); err != nil {
			return err
		}
	case roleValidator:
		c.validator, err = openValidator(c.begin)
		return err
	case roleDownload:
		c.downloads, err = newDownloads()
		return err
	case roleStrangers:
		// The attackers of a real network have processors of their own. An error only makes the
		// figures worse.
		_ = syscall.Setpriority(syscall.PRIO_PGRP, 0, 10)
		c.strangers, err = openStrangers()
		return err
	case roleJoiner, roleImporter:
		return nil
	default:
		return fmt.Errorf("unknown role %q", c.Role)
	}
	c.work, err = workload.New(c.Spec, 0)
	return err
}

// Close implements child.Worker.
func (c *worker) Close() (err error) {
	if c.server != nil {
		err = c.server.close()
	}
	if c.besieger != nil {
		err = errors.Join(err, c.besieger.close())
	}
	if c.strangers != nil {
		err = errors.Join(err, c.strangers.close())
	}
	if c.newest != nil {
		c.newest.Release()
	}
	if c.memiavl != nil {
		err = errors.Join(err, c.memiavl.Close())
	}
	if c.validator != nil {
		err = errors.Join(err, c.validator.close())
	}
	if c.downloads != nil {
		c.downloads.close()
	}
	return err
}

// Do implements child.Worker.
func (c *worker) Do(r request, _ *bufio.Reader) (answer, error) {
	a, err := c.do(r)
	a.RSS = harness.OwnMemory().Peak
	return a, err
}

func (c *worker) do(r request) (answer, error) {
	switch {
	case c.validator != nil:
		return c.validator.do(r)
	case c.downloads != nil:
		return c.downloads.do(r)
	case r.Op == opUsage && c.strangers != nil:
		return answer{CPU: harness.CPUTime().Seconds(), Done: int(c.strangers.sent.Load()), Refused: int(c.strangers.busy.Load())}, nil
	case r.Op == opUsage:
		return answer{CPU: harness.CPUTime().Seconds()}, nil
	case r.Op == opPrepare && c.strangers != nil:
		return answer{}, c.strangers.prepare(r.Kind)
	case r.Op == opServe && c.strangers != nil:
		return answer{Target: c.strangers.relay.target}, nil
	case r.Op == opAttack && c.strangers != nil:
		return answer{}, c.strangers.attack(r.Kind, r.Victims)
	case r.Op == opLoad && c.work != nil:
		return c.load(r.N)
	case r.Op == opServe && c.newest != nil:
		return c.serve(r)
	case (r.Op == opBesiege || r.Op == opAttack) && c.Role == roleBesieger:
		return c.besiege(r)
	case r.Op == opWrite && c.memiavl != nil:
		return answer{}, c.memiavl.(contestant.Snapshotter).Snapshot(filepath.Join(c.Dir, snapshotFolder))
	case r.Op == opJoin && c.Role == roleImporter:
		return c.importMemiavl()
	case r.Op == opJoin && c.Role == roleJoiner:
		return c.join(r)
	}
	return answer{}, fmt.Errorf("unknown request for a %s: %q", c.Role, r.Op)
}

func (c *worker) load(n int) (a answer, err error) {
	for ; a.Done < n && !c.work.Loaded(); a.Done++ {
		changes := c.work.Next()
		if c.memiavl != nil {
			_, err = c.memiavl.Prepare(changes)()
		} else {
			c.newest, err = applied(c.newest, changes)
		}
		if err != nil {
			return a, err
		}
	}
	return a, nil
}

// applied applies changes to v, releases v, and returns the new version.
func applied(v *avlstar.Version, changes []workload.Change) (*avlstar.Version, error) {
	given := make([]avlstar.Change, len(changes))
	for i, c := range changes {
		given[i] = avlstar.Change{Key: c.Key, Value: c.Value}
	}
	next, err := v.Apply(given)
	if err != nil {
		return v, err
	}
	v.Release()
	return next, nil
}

// serve listens on new addresses. The last peers are Byzantine.
func (c *worker) serve(r request) (a answer, err error) {
	if c.server == nil {
		if err := checkLen(c.newest.Len(), c.Spec.Keys); err != nil {
			return a, err
		}
		c.server = serveOnly(c.newest)
		debug.FreeOSMemory() // the load's garbage must not count as the server's memory
	}
	if err := c.server.silence(); err != nil {
		return a, err
	}
	for i := range r.Peers {
		var wrap func(transport.Handler) transport.Handler
		if n := i - (r.Peers - len(r.Lies)); n >= 0 {
			wrap = func(h transport.Handler) transport.Handler { return liar{h, r.Lies[n], c.newest} }
		}
		if err := c.server.listen(tcp.Options{RatePerPeer: r.Rate}, wrap); err != nil {
			return a, err
		}
	}
	a.Target = c.server.target
	runtime.GC() // earlier garbage must not count for the join
	return a, nil
}

// besiege starts and stops attacks.
func (c *worker) besiege(r request) (answer, error) {
	if c.besieger == nil {
		if err := checkLen(c.newest.Len(), c.Spec.Keys); err != nil {
			return answer{}, err
		}
		c.besieger = &besieger{version: c.newest}
	}
	if r.Op == opBesiege {
		return c.besieger.besiege(r)
	}
	if c.besieger.attack != nil {
		c.besieger.attack()
	}
	c.besieger.attack = siegeOf(r.Kind, r.Target)
	return answer{}, nil
}

// join makes one join into a new folder.
func (c *worker) join(r request) (a answer, err error) {
	dir := filepath.Join(c.Dir, "state")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return a, fmt.Errorf("creating a folder for the joined state: %w", err)
	}
	ctx := context.Background() // the parent kills this process to cancel
	if r.LimitS > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.LimitS*float64(time.Second)))
		defer cancel()
	}
	cpu, from := harness.CPUTime(), time.Now()
	var blocks *settlingBlocks
	if r.Commit {
		blocks = &settlingBlocks{rng: rand.New(rand.NewPCG(c.Spec.Seed, 0))}
	}
	a.Stats, err = join(ctx, r.Target, dir, r.Memory, blocks)
	a.Seconds, a.CPU = time.Since(from).Seconds(), (harness.CPUTime() - cpu).Seconds()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return a, nil // with Ended false
	}
	if err != nil {
		return a, err
	}
	a.Ended, a.Seconds = true, a.Stats.DurableS // closing files is not part of a join
	if blocks != nil {
		a.Nanos, a.Later = blocks.meanwhile, blocks.late
	}
	return a, checkLen(uint64(a.Stats.Keys), int(r.Target.Keys))
}

// snapshotFolder is the name of memiavl's snapshot in the folder of the role that wrote it.
const snapshotFolder = "snapshot"

// importMemiavl pipes the snapshot's export into an import, which writes another snapshot to disk.
func (c *worker) importMemiavl() (answer, error) {
	to := filepath.Join(c.Dir, "imported")
	cpu, from := harness.CPUTime(), time.Now()
	bytes, err := contestant.PipeMemiavl(filepath.Join(c.Dir, snapshotFolder), to)
	a := answer{Seconds: time.Since(from).Seconds(), CPU: (harness.CPUTime() - cpu).Seconds(), Bytes: int64(bytes)}
	return a, errors.Join(err, os.RemoveAll(to))
}

func checkLen(have uint64, want int) error {
	if have != uint64(want) {
		return fmt.Errorf("the state has %d keys, want %d", have, want)
	}
	return nil
}

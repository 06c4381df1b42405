package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/bench/sdk/usage"
	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/tables"
)

// join makes a home from the source's database with chunks verified against the app hash, as
// starling-iavl does. Like restore, it uses no network. First it runs each stage alone, with at
// most one processor; then the whole join, from the database on disk to a home that the SDK has
// opened.
func (n *node) join() (a Answer, err error) {
	debug.FreeOSMemory() // free the load's garbage, so that it does not count for the join
	j, err := n.open()
	if err != nil {
		return a, err
	}
	a.ManifestMS, a.Chunks = j.manifestMS, j.m.Chunks()
	answers, sent := make([][]byte, a.Chunks), make([][]byte, a.Chunks)
	chunks := make([]*iavlsync.Chunk, a.Chunks)
	each := func(fn func(k int) error) (seconds float64, err error) {
		debug.FreeOSMemory()
		cpu := usage.CPUSeconds()
		for k := range answers {
			if err := fn(k); err != nil {
				return 0, err
			}
		}
		return usage.CPUSeconds() - cpu, nil
	}
	if a.ServeCPUS, err = each(func(k int) (err error) { answers[k], err = j.answer(k); return err }); err != nil {
		return a, err
	}
	if a.PackCPUS, err = each(func(k int) error { sent[k] = n.packer.Pack(answers[k]); return nil }); err != nil {
		return a, err
	}
	data := make([][]byte, a.Chunks)
	if a.UnpackCPUS, err = each(func(k int) (err error) { data[k], err = n.unpack(sent[k]); return err }); err != nil {
		return a, err
	}
	if a.VerifyCPUS, err = each(func(k int) (err error) { chunks[k], err = j.verify(k, data[k]); return err }); err != nil {
		return a, err
	}
	leaves, content := 0, 0
	a.Bytes = int64(len(j.m.Encode()))
	a.PlainBytes = a.Bytes
	for k, c := range chunks {
		a.Bytes += int64(len(sent[k]))
		a.PlainBytes += int64(len(answers[k]))
		leaves += len(c.Leaves)
		for _, leaf := range c.Leaves {
			content += len(leaf.Key) + len(leaf.Value)
		}
	}
	a.Overhead = float64(a.PlainBytes-int64(content)) / float64(max(1, leaves))
	err = n.inTarget(func(dir string) error {
		in, err := nodedb.NewSpool(filepath.Join(dir, "spool"), j.m)
		if err != nil {
			return err
		}
		if a.WriteCPUS, err = each(func(k int) error { return in.Install(k, chunks[k], data[k]) }); err != nil {
			return err
		}
		cpu := usage.CPUSeconds()
		err = n.finish(in, dir)
		a.WriteCPUS += usage.CPUSeconds() - cpu
		return err
	})
	if err != nil {
		return a, err
	}
	for _, b := range [][][]byte{answers, sent, data} {
		clear(b)
	}
	clear(chunks)
	debug.FreeOSMemory()
	// Join from a server that has served before, which the first stage made j; then from a new one.
	err = n.inTarget(func(dir string) error { return n.joinAt(dir, j, &a) })
	if err != nil {
		return a, err
	}
	a.AgainS, a.AgainCPUS = a.Seconds, a.CPUS
	debug.FreeOSMemory()
	return a, n.inTarget(func(dir string) error { return n.joinAt(dir, nil, &a) })
}

// fetch does what a server and a joiner do for chunk k.
func (n *node) fetch(j *source, in *nodedb.Spool, k int) error {
	answer, err := j.answer(k)
	if err != nil {
		return err
	}
	data, err := n.unpack(n.packer.Pack(answer))
	if err != nil {
		return err
	}
	c, err := j.verify(k, data)
	if err != nil {
		return err
	}
	return in.Install(k, c, data)
}

// finish builds the database from a spool, as starling-iavl does.
func (n *node) finish(in *nodedb.Spool, dir string) (err error) {
	path := filepath.Join(dir, "application"+dbm.DBFileSuffix)
	var into nodedb.Tables
	if n.backend == dbm.PebbleDBBackend {
		into, err = tables.NewPebble(path)
	} else {
		into, err = tables.NewGoLevelDB(path)
	}
	if err != nil {
		return err
	}
	return errors.Join(in.Finish(into), in.Remove())
}

// source is a state on disk and its verified manifest.
type source struct {
	state      *nodedb.State
	m          *iavlsync.Manifest
	first      []int64
	manifestMS float64
}

// reads returns the source's database, opened as starling-iavl does.
func (n *node) reads() nodedb.DB {
	switch db := n.db.(type) {
	case *dbm.GoLevelDB:
		return tables.ReadGoLevelDB(db.DB())
	case *dbm.PebbleDB:
		return tables.ReadPebble(db.DB())
	}
	return nodedb.Of(n.db)
}

func (n *node) open() (j *source, err error) {
	id := n.state.LastCommitID()
	from := time.Now()
	j = &source{}
	if j.state, err = nodedb.Open(n.reads(), id.Version); err != nil {
		return nil, err
	}
	cut, err := j.state.Manifest(iavlsync.Format8192)
	if err != nil {
		return nil, err
	}
	encoded := cut.Encode()
	j.manifestMS = float64(time.Since(from).Microseconds()) / 1e3
	if j.m, err = iavlsync.VerifyManifest(iavlsync.Format8192, encoded, id.Version, iavlsync.Hash(id.Hash)); err != nil {
		return nil, err
	}
	for i := range j.m.Stores {
		u, err := j.m.Upper(i)
		if err != nil {
			return nil, err
		}
		j.first = append(j.first, u.First...)
	}
	return j, nil
}

func (j *source) answer(k int) ([]byte, error) {
	i, e := j.m.At(k)
	s := &j.m.Stores[i]
	return j.state.Answer(&iavlsync.Request{Height: j.m.Height, Store: s.Name, First: j.first[k], Leaves: s.Entries[e].Root.Size})
}

// unpack returns the chunk in an answer.
func (n *node) unpack(answer []byte) ([]byte, error) {
	kind, b, err := n.unpacker.Split(answer)
	if err == nil && kind != iavlsync.AnswerWhole {
		err = errors.New("a chunk is longer than the benchmark's chunks")
	}
	return b, err
}

func (j *source) verify(k int, data []byte) (*iavlsync.Chunk, error) {
	i, e := j.m.At(k)
	return iavlsync.VerifyChunk(&j.m.Stores[i].Entries[e].Root, data)
}

// inTarget calls fn with an empty folder, and removes the folder.
func (n *node) inTarget(fn func(dir string) error) error {
	n.joins++
	dir := filepath.Join(n.dir, fmt.Sprintf("target-%d", n.joins))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return errors.Join(fn(dir), os.RemoveAll(dir))
}

// joinAt joins from a server that has served before, or from a new one if j is nil.
func (n *node) joinAt(dir string, j *source, a *Answer) (err error) {
	from, cpu := time.Now(), usage.CPUSeconds()
	if j == nil {
		if j, err = n.open(); err != nil {
			return err
		}
	}
	in, err := nodedb.NewSpool(filepath.Join(dir, "spool"), j.m)
	if err != nil {
		return err
	}
	next := make(chan int, len(j.first))
	for k := range j.first {
		next <- k
	}
	close(next)
	errs := make([]error, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for k := range next {
				if err := n.fetch(j, in, k); err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := n.finish(in, dir); err != nil {
		return err
	}
	target, err := openEnd(dir, n.backend)
	if err != nil {
		return err
	}
	a.Seconds, a.CPUS = time.Since(from).Seconds(), usage.CPUSeconds()-cpu
	a.Root = target.state.LastCommitID().Hash
	if want := n.state.LastCommitID().Hash; !bytes.Equal(a.Root, want) {
		err = fmt.Errorf("the joined state has the hash %x, the source has %x", a.Root, want)
	}
	return errors.Join(err, target.Close())
}

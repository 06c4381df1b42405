package tablebench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/starling-kv/starling/bench/harness"
)

// Options are what a run is asked for.
type Options struct {
	MB     int // MiB of records that each writer writes in a round; of small chunks a sixteenth
	Rounds int
	Seed   uint64
	Dir    string // for tables; a folder of its own is made in it
}

// Check returns an error that names the flag that is out of range.
func (o Options) Check() error {
	if o.MB < 1 || o.MB > 4096 {
		return fmt.Errorf("--mb is %d, it must be from 1 to 4096", o.MB)
	}
	if o.Rounds < 1 || o.Rounds > 1000 {
		return fmt.Errorf("--rounds is %d, it must be from 1 to 1000", o.Rounds)
	}
	return nil
}

// record is a leaf; its value begins with the height of the inner node before it.
type record struct{ key, value []byte }

// workload is a size of chunk.
type workload struct {
	name   string
	chunks [][]record
	bytes  int // of the keys and values of all chunks
}

// leafPrefix is that of keys in the state zone (storage).
const leafPrefix = 'k'

// Run measures. It reports its progress, and removes its files in any case.
func Run(ctx context.Context, o Options, progress *harness.Progress) (*Result, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	result := &Result{MB: o.MB, Rounds: o.Rounds, Seed: o.Seed, Machine: harness.ThisMachine()}
	err := harness.InFolder(ctx, o.Dir, "tables", progress, func(dir string) error {
		for _, w := range workloads(o) {
			if err := result.measure(ctx, w, dir, o.Rounds, progress); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

// sample is what one writer used in one round.
type sample struct {
	cpu           harness.CPU
	written       uint64
	allocs, alloc uint64
}

func (r *Result) measure(ctx context.Context, w workload, dir string, rounds int, progress *harness.Progress) error {
	contestants := writers()
	samples := make(map[string][]sample)
	progress.Begin(w.name, "turns", (1+rounds)*len(contestants))
	// The first round is not counted: it fills pools and the page cache, and checks what is
	// written.
	err := harness.InTurns(1+rounds, contestants, func(round int, c writer) error {
		progress.Working(c.name)
		defer progress.Add(1)
		if err := ctx.Err(); err != nil {
			return err
		}
		s, err := write(w, c, dir, round == 0)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", c.name, w.name, err)
		}
		if round > 0 {
			samples[c.name] = append(samples[c.name], s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.Workloads = append(r.Workloads, newRows(w, contestants, samples))
	return nil
}

// write lets a writer write all chunks, and removes the tables when the measurement is over.
func write(w workload, c writer, dir string, check bool) (s sample, err error) {
	paths := make([]string, 0, len(w.chunks))
	defer func() {
		for _, path := range paths {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	cpu := harness.CPUTime()
	for i, chunk := range w.chunks {
		path := filepath.Join(dir, fmt.Sprintf("%06d.sst", i))
		paths = append(paths, path)
		size, err := writeTable(path, c, chunk)
		if err != nil {
			return s, err
		}
		s.written += size
	}
	s.cpu = harness.CPUTime().Sub(cpu)
	runtime.ReadMemStats(&after)
	s.allocs, s.alloc = after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc
	if check {
		err = checkTable(paths[0], w.chunks[0])
	}
	return s, err
}

func writeTable(path string, c writer, chunk []record) (size uint64, err error) {
	file, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := c.open(file, leafPrefix)
	for _, r := range chunk {
		if err := w.add(r.key, r.value); err != nil {
			return 0, err
		}
	}
	size, _, err = w.finish()
	return size, err
}

const keyBytes = 20

// workloads makes the records: random keys in ascending order, values of random bytes.
func workloads(o Options) []workload {
	const keyBytes = 20
	of := func(name string, bytes, valueBytes, perChunk int) workload {
		chunks := max(1, bytes/((keyBytes+valueBytes)*perChunk))
		return newWorkload(name, o.Seed, chunks, perChunk, valueBytes)
	}
	return []workload{
		of("chunks of 700 KB", o.MB<<20, 100, 5800),
		of("chunks of 5 KB", o.MB<<20/16, 100, 40), // most of it is the making of files
		of("chunks of one value of 1 MiB", o.MB<<20, 1<<20, 1),
	}
}

func newWorkload(name string, seed uint64, chunks, perChunk, valueBytes int) workload {
	random := randomBytes(seed)
	keys := make([][]byte, chunks*perChunk)
	for i := range keys {
		keys[i] = random(keyBytes)
	}
	slices.SortFunc(keys, bytes.Compare)
	records := make([]record, len(keys))
	for i, key := range keys {
		value := random(1 + valueBytes)
		value[0] = byte(1 + i%20)
		records[i] = record{key, value}
	}
	return workload{name, slices.Collect(slices.Chunk(records, perChunk)), len(records) * (keyBytes + valueBytes)}
}

// perChunk is a duration for each chunk, in microseconds.
func perChunk(d time.Duration, chunks int) float64 {
	return float64(d) / float64(time.Microsecond) / float64(chunks)
}

package syncbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar/sha256mb"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// Floor is a lower bound for the time of a join of this state on this machine: the largest of its
// parts. Our own CPU time is not part of it, because a slower Starling would raise the floor; it is
// reported separately.
type Floor struct {
	Seconds float64 `json:"seconds"`
	By      string  `json:"by"` // name of the largest part

	LoopbackS float64 `json:"loopback_s"` // sending the bytes through one plain TCP connection
	HashesS   float64 `json:"hashes_s"`   // all hashes, in bulk on all cores
	DiskS     float64 `json:"disk_s"`     // writing the bytes sequentially, and syncing them
	CPUS      float64 `json:"cpu_s"`      // CPU of both sides over cores; not in the floor

	LoopbackMBPerS float64  `json:"loopback_mb_s"`
	DiskMBPerS     float64  `json:"disk_mb_s"`
	Hash           hashCost `json:"hash"`
	Cores          int      `json:"cores"`
}

// hashCost is the time in ns of one core for one message of each kind, in bulk with the best
// kernel, while all cores work.
type hashCost struct {
	Kernel string  `json:"kernel"`
	Inner  float64 `json:"inner_ns"`
	Leaf   float64 `json:"leaf_ns"`
	Value  float64 `json:"value_ns"`
	Key    float64 `json:"key_ns"`
}

// Lengths of the hashed images (docs/spec/tree.md#hashes), in bytes.
const (
	// 01 ‖ stat(left) ‖ stat(right) ‖ SHA256(key) ‖ left ‖ right
	innerImage = 1 + 2*(1+8) + 3*32
	// 00 ‖ SHA256(key) ‖ SHA256(value)
	leafImage = 1 + 2*32
)

// floorRounds is the number of measurements of each rate; their median is used.
const floorRounds = 3

// measureFloor computes the floor of a join of this size. cpu is the CPU time of both sides in
// seconds.
func measureFloor(ctx context.Context, dir string, bytes int64, keys int, cpu float64) (f Floor, err error) {
	f.Cores = runtime.GOMAXPROCS(0)
	var loopback, disk, inner, leaf, value, key []float64
	for range floorRounds {
		s, err := loopbackSeconds(ctx, bytes)
		if err != nil {
			return f, fmt.Errorf("measuring loopback: %w", err)
		}
		loopback = append(loopback, s)
		if s, err = diskSeconds(ctx, dir, bytes); err != nil {
			return f, fmt.Errorf("measuring the disk: %w", err)
		}
		disk = append(disk, s)
		inner, leaf = append(inner, messageCost(innerImage)), append(leaf, messageCost(leafImage))
		value, key = append(value, messageCost(workload.ValueBytes)), append(key, messageCost(workload.KeyBytes))
	}
	f.LoopbackS, f.DiskS = harness.Median(loopback), harness.Median(disk)
	f.LoopbackMBPerS, f.DiskMBPerS = float64(bytes)/f.LoopbackS/1e6, float64(bytes)/f.DiskS/1e6
	f.Hash = hashCost{
		Kernel: sha256mb.Best().Name,
		Inner:  harness.Median(inner), Leaf: harness.Median(leaf), Value: harness.Median(value), Key: harness.Median(key),
	}
	f.compute(keys, cpu)
	return f, nil
}

// compute finds the largest part. An inner node's key is also a leaf's key, so its hash is known.
func (f *Floor) compute(keys int, cpu float64) {
	nanos := float64(keys)*(f.Hash.Key+f.Hash.Value+f.Hash.Leaf) + float64(keys-1)*f.Hash.Inner
	f.HashesS = nanos / 1e9 / float64(f.Cores)
	f.CPUS = cpu / float64(f.Cores)
	f.Seconds = 0
	for _, part := range []struct {
		by      string
		seconds float64
	}{{"loopback", f.LoopbackS}, {"hashes", f.HashesS}, {"disk", f.DiskS}} {
		if part.seconds > f.Seconds {
			f.Seconds, f.By = part.seconds, part.by
		}
	}
}

// pieceBytes is the size of a write.
const pieceBytes = 256 << 10

func randomPiece() []byte {
	piece := make([]byte, pieceBytes)
	for i := 0; i < len(piece); i += 8 {
		binary.LittleEndian.PutUint64(piece[i:], rand.Uint64()) //nolint:gosec // the content does not matter
	}
	return piece
}

// loopbackSeconds returns the time to send n bytes through a TCP connection, from dialling to the
// last byte.
func loopbackSeconds(ctx context.Context, n int64) (float64, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	piece := randomPiece()
	sent := make(chan error, 1)
	go func() { sent <- sendBytes(listener, piece, n) }()
	from := time.Now()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	if err != nil {
		listener.Close()
		return 0, errors.Join(err, <-sent)
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	got, err := io.CopyBuffer(onlyWriter{}, onlyReader{conn}, make([]byte, pieceBytes))
	took := time.Since(from).Seconds()
	conn.Close()
	if err == nil && got != n {
		err = fmt.Errorf("only %d of %d bytes arrived", got, n)
	}
	return took, errors.Join(err, <-sent)
}

// onlyWriter discards bytes. onlyReader hides other methods of reading a connection (splice),
// because a joiner needs the bytes in its memory.
type (
	onlyWriter struct{}
	onlyReader struct{ io.Reader }
)

func (onlyWriter) Write(b []byte) (int, error) { return len(b), nil }

// sendBytes sends n bytes on the first connection, and closes the listener.
func sendBytes(listener net.Listener, piece []byte, n int64) error {
	conn, err := listener.Accept()
	listener.Close()
	if err != nil {
		return err
	}
	defer conn.Close()
	for n > 0 && err == nil {
		var wrote int
		wrote, err = conn.Write(piece[:min(n, pieceBytes)])
		n -= int64(wrote)
	}
	return err
}

// diskSeconds returns the time to write n bytes sequentially to a file and sync it.
func diskSeconds(ctx context.Context, dir string, n int64) (float64, error) {
	piece := randomPiece()
	path := filepath.Join(dir, "floor")
	defer func() { _ = os.Remove(path) }() // the folder is removed, too
	harness.SyncDisk()
	from := time.Now()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	for n > 0 && err == nil {
		var wrote int
		wrote, err = f.Write(piece[:min(n, pieceBytes)])
		n -= int64(wrote)
		err = errors.Join(err, ctx.Err())
	}
	err = errors.Join(err, f.Sync(), f.Close())
	return time.Since(from).Seconds(), err
}

// messageCost hashes messages that are laid out for the kernel, with space for their padding, in
// each core's own cache, on all cores concurrently, and returns the mean time.
func messageCost(length int) float64 {
	const messages, passes = 2048, 8
	padded := (length + 9 + 63) / 64 * 64 // FIPS 180-4, section 5.1.1
	costs := make([]float64, runtime.GOMAXPROCS(0))
	var cores sync.WaitGroup
	for core := range costs {
		cores.Go(func() {
			memory := make([]byte, messages*padded)
			for i := 0; i+8 <= len(memory); i += 8 {
				binary.LittleEndian.PutUint64(memory[i:], rand.Uint64()) //nolint:gosec // the content does not matter
			}
			msgs, out := make([][]byte, messages), make([][32]byte, messages)
			for i := range msgs {
				msgs[i] = memory[i*padded:][:length:padded]
			}
			best := sha256mb.Best()
			best.Sum(out, msgs) // loads everything into the cache
			from := time.Now()
			for range passes {
				best.Sum(out, msgs)
			}
			costs[core] = float64(time.Since(from).Nanoseconds()) / (messages * passes)
		})
	}
	cores.Wait()
	sum := 0.0
	for _, c := range costs {
		sum += c
	}
	return sum / float64(len(costs))
}

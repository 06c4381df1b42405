package sha256mb

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// lesser holds the choices that Sum would make on CPUs with fewer features than this one, by name.
var lesser = map[string][]tier{}

// sums returns all implementations of a digest: the kernels of this CPU, and the choice among them,
// here and on CPUs with fewer features.
func sums() map[string]func([][32]byte, [][]byte) {
	m := map[string]func([][32]byte, [][]byte){"Sum": Sum}
	for name, tiers := range lesser {
		m[name] = func(out [][32]byte, msgs [][]byte) { sum(tiers, out, msgs) }
	}
	for _, k := range Kernels() {
		m[k.Name] = k.Sum
	}
	return m
}

// layout is messages of one length in a buffer of garbage.
type layout struct {
	length, count int
	offset        int // start of the messages, modulo 64: message i at offset+i
	// Which messages end at their capacity, so that they must be copied.
	short func(i int) bool
}

// messages cuts them out of new bytes from fill. They lie apart from each other, so that no message
// is the garbage behind another.
func (l layout) messages(fill func([]byte)) (buffer []byte, msgs [][]byte) {
	slot := padded(l.length) + 128
	buffer = make([]byte, l.count*slot+64)
	fill(buffer)
	for i := range l.count {
		m := buffer[i*slot+(l.offset+i)%64:]
		if l.short(i) {
			m = m[:l.length:l.length]
		} else {
			m = m[:l.length:padded(l.length)]
		}
		msgs = append(msgs, m)
	}
	return buffer, msgs
}

// check hashes the first n messages with every implementation, for all n in counts, and compares
// every lane with crypto/sha256.
func check(t *testing.T, buffer []byte, msgs [][]byte, counts ...int) {
	t.Helper()
	want := make([][32]byte, len(msgs))
	for i, m := range msgs {
		want[i] = sha256.Sum256(m)
	}
	before := bytes.Clone(buffer)
	out := make([][32]byte, len(msgs)+1)
	for name, sum := range sums() {
		for _, n := range counts {
			untouched := [32]byte{0xa5, 31: 0x5a}
			for i := range out {
				out[i] = untouched
			}
			sum(out, msgs[:n])
			for i := range out {
				if i < n && out[i] != want[i] {
					t.Fatalf("%s: message %d of %d, length %d: got %x, want %x", name, i, n, len(msgs[i]), out[i], want[i])
				}
				if i >= n && out[i] != untouched {
					t.Fatalf("%s: wrote result %d of %d messages, length %d", name, i, n, len(msgs[0]))
				}
			}
		}
		if !bytes.Equal(buffer, before) {
			t.Fatalf("%s: wrote to the messages, length %d", name, len(msgs[0]))
		}
	}
}

func random(r *rand.ChaCha8) func([]byte) { return func(b []byte) { _, _ = r.Read(b) } }

func upTo(n int) (counts []int) {
	for i := range n + 1 {
		counts = append(counts, i)
	}
	return counts
}

// A kernel that this CPU cannot run is not tested here, so its name is reported (make test prints
// it).
func TestAbsent(t *testing.T) {
	var names []string
	for _, k := range Kernels() {
		names = append(names, k.Name)
	}
	t.Logf("kernels of this CPU: %v", names)
	require.Equal(t, "portable", names[len(names)-1])
	require.Same(t, Kernels()[0], Best())
	require.Len(t, Absent(), 4-len(names))
	for _, a := range Absent() {
		t.Run(a, func(t *testing.T) { t.Skip("NOT RUN: " + a) })
	}
}

func TestLengthsAndCounts(t *testing.T) {
	r := rand.NewChaCha8([32]byte{1})
	lengths := append(upTo(300), 503, 504, 511, 512, 1000, 4096, 65537)
	shorts := map[string]func(int) bool{
		"in place": func(int) bool { return false },
		"copied":   func(int) bool { return true },
		"mixed":    func(i int) bool { return i%3 == 1 || i == 18 },
	}
	for name, short := range shorts {
		t.Run(name, func(t *testing.T) {
			for _, length := range lengths {
				counts := upTo(40)
				if length > 300 {
					counts = []int{1, 2, 3, 16, 29, 40}
				}
				buffer, msgs := layout{length, 40, length % 64, short}.messages(random(r))
				check(t, buffer, msgs, counts...)
			}
		})
	}
}

func TestEveryStartWithinALine(t *testing.T) {
	r := rand.NewChaCha8([32]byte{2})
	for offset := range 64 {
		for _, length := range []int{20, 32, 65, 100, 115} {
			buffer, msgs := layout{length, 33, offset, func(int) bool { return false }}.messages(random(r))
			check(t, buffer, msgs, 33)
		}
	}
}

// All messages except one are equal: a kernel that confused lanes, or used words of a neighbour,
// would fail.
func TestOneLaneDiffers(t *testing.T) {
	for _, length := range []int{1, 55, 56, 64, 115, 119, 120} {
		for lane := range 35 {
			for _, at := range []int{0, length / 2, length - 1} {
				buffer, msgs := layout{length, 35, 0, func(int) bool { return false }}.messages(func([]byte) {})
				msgs[lane][at] ^= 1
				check(t, buffer, msgs, 35)
			}
		}
	}
}

func TestOneSliceManyTimes(t *testing.T) {
	m := make([]byte, 115, 128)
	check(t, m[:128], slices.Repeat([][]byte{m}, 35), upTo(35)...)
	check(t, nil, make([][]byte, 35), upTo(35)...)
}

func TestPanics(t *testing.T) {
	for name, sum := range sums() {
		t.Run(name, func(t *testing.T) {
			require.PanicsWithValue(t, "sha256mb: fewer results than messages", func() { sum(make([][32]byte, 1), make([][]byte, 2)) })
			require.PanicsWithValue(t, "sha256mb: messages of different lengths", func() {
				sum(make([][32]byte, 17), append(make([][]byte, 16), []byte{1}))
			})
			sum(nil, nil)
		})
	}
}

func TestDoesNotAllocate(t *testing.T) {
	r := rand.NewChaCha8([32]byte{3})
	for name, sum := range sums() {
		for _, length := range []int{0, 20, 115, 1000} {
			for _, short := range []bool{false, true} {
				_, msgs := layout{length, 30, 0, func(i int) bool { return short && i%2 == 0 }}.messages(random(r))
				out := make([][32]byte, len(msgs))
				require.Zero(t, testing.AllocsPerRun(20, func() { sum(out, msgs) }), "%s, length %d, copied %v", name, length, short)
			}
		}
	}
}

func TestConcurrentReaders(t *testing.T) {
	r := rand.NewChaCha8([32]byte{4})
	for _, short := range []bool{false, true} {
		buffer, msgs := layout{115, 40, 0, func(int) bool { return short }}.messages(random(r))
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for range 20 {
					check(t, buffer, msgs, 1, 8, 40)
				}
			})
		}
		group.Wait()
	}
}

func FuzzSum(f *testing.F) {
	f.Add([]byte("abc"), uint16(3), uint8(1), uint8(0), uint64(0))
	f.Add([]byte("a record of a leaf"), uint16(115), uint8(40), uint8(0), uint64(0))
	f.Add([]byte("a branch"), uint16(65), uint8(17), uint8(7), uint64(0xaaaa))
	f.Add([]byte{0xff}, uint16(56), uint8(11), uint8(63), ^uint64(0))
	f.Add([]byte{0x80, 0}, uint16(600), uint8(19), uint8(1), uint64(0x10010))
	f.Fuzz(func(t *testing.T, data []byte, length uint16, count, offset uint8, short uint64) {
		l := layout{int(length % 700), 1 + int(count%64), int(offset), func(i int) bool { return short>>(i%64)&1 == 1 }}
		buffer, msgs := l.messages(func(b []byte) {
			for i := range b { // data repeated, and different each time
				if len(data) > 0 {
					b[i] = data[i%len(data)] + byte(i/len(data))
				}
			}
		})
		check(t, buffer, msgs, l.count)
	})
}

// arena returns records of 128 bytes, as many as fit into size; scattered picks n of them in random
// order, as messages of length bytes.
func arena(size, n, length int) [][]byte {
	buffer := make([]byte, size)
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < size; i += 64 {
		buffer[i] = byte(r.Uint32())
	}
	var msgs [][]byte
	for _, i := range r.Perm(size / 128)[:n] {
		msgs = append(msgs, buffer[128*i:][:length:128])
	}
	return msgs
}

func benchmark(b *testing.B, msgs [][]byte, sum func([][32]byte, [][]byte)) {
	out := make([][32]byte, len(msgs))
	for b.Loop() {
		sum(out, msgs)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(msgs)), "ns/msg")
}

// In bulk, with the records in the first-level cache; portable is crypto/sha256.
func BenchmarkBulk(b *testing.B) {
	for _, length := range []int{115, 65, 100, 20} {
		msgs := arena(32<<10, 256, length)
		for _, k := range Kernels() {
			b.Run(fmt.Sprintf("%s/%d", k.Name, length), func(b *testing.B) { benchmark(b, msgs, k.Sum) })
		}
	}
}

// BenchmarkCopied does what BenchmarkBulk does, but the messages end at their capacity and are
// copied.
func BenchmarkCopied(b *testing.B) {
	msgs := arena(32<<10, 256, 115)
	for i := range msgs {
		msgs[i] = slices.Clip(msgs[i])
	}
	for _, k := range Kernels() {
		b.Run(k.Name+"/115", func(b *testing.B) { benchmark(b, msgs, k.Sum) })
	}
}

// BenchmarkScattered hashes as a tree does: 11,000 nodes somewhere in 140 MB. There are several
// sets of nodes, so that no cache holds the next set.
func BenchmarkScattered(b *testing.B) {
	const set, sets = 11_000, 64
	all := arena(140<<20, set*sets, 115)
	for _, k := range Kernels() {
		b.Run(k.Name+"/115", func(b *testing.B) {
			i := 0
			benchmark(b, all[:set], func(out [][32]byte, _ [][]byte) {
				k.Sum(out, all[i*set:][:set])
				i = (i + 1) % sets
			})
		})
	}
}

// BenchmarkFew hashes fewer messages than lanes. Sum's thresholds come from it.
func BenchmarkFew(b *testing.B) {
	for _, length := range []int{115, 20} {
		for n := 1; n <= maxLanes; n++ {
			msgs := arena(32<<10, n, length)
			b.Run(fmt.Sprintf("%d/%02d/Sum", length, n), func(b *testing.B) { benchmark(b, msgs, Sum) })
			for _, k := range Kernels() {
				b.Run(fmt.Sprintf("%d/%02d/%s", length, n, k.Name), func(b *testing.B) { benchmark(b, msgs, k.Sum) })
			}
		}
	}
}

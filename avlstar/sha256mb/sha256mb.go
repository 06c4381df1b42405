// Package sha256mb computes SHA-256 (FIPS 180-4) of many messages of the same length, side by side
// in the lanes of vector registers.
//
//	msgs[0] ──▶ ┌────────┐ ──▶ out[0]     avx512    16 lanes
//	msgs[1] ──▶ │ kernel │ ──▶ out[1]     avx2       8 lanes
//	   ⋮        │        │       ⋮        shani      2 lanes, interleaved in the SHA instructions
//	msgs[l] ──▶ └────────┘ ──▶ out[l]     portable   1, crypto/sha256
//
// Sum passes full groups of messages, and a remainder that nearly fills a group, to the kernel with
// most lanes. It passes a smaller remainder to the next kernel that this CPU supports, and so on.
//
// Messages are read in place. A kernel reads whole blocks, so a message whose capacity ends before
// its padding would end is copied first. Bytes behind a message within its capacity are masked out
// and never written. The program in _gen generates the assembly.
package sha256mb

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

//go:generate go run -modfile=_gen/avo.mod ./_gen -out sha256_amd64.s -stubs stubs_amd64.go -pkg sha256mb

const (
	blockSize = sha256.BlockSize
	maxLanes  = 16
	// maxCopied is the largest padded length at which a message that cannot be read in place is
	// copied; longer messages are hashed one by one. maxLanes messages of this length lie on the
	// stack.
	maxCopied = 256
)

// Kernel is one implementation, for tests and benchmarks. The function Sum chooses among the
// kernels.
type Kernel struct {
	Name  string
	Lanes int

	code  code
	tiers []tier
}

// code names the assembly of a kernel.
type code uint8

const (
	portable code = iota
	shani
	avx2
	avx512
)

// tier is a kernel and the smallest number of messages for which it is fastest. The tiers of a sum
// are in order of their lanes, most first; the last has min 1.
type tier struct {
	code  code
	lanes int
	min   int
}

// The kernels of this CPU, fastest in bulk first; the absent kernels; and the tiers that Sum uses.
var (
	kernels []*Kernel
	absent  []string
	best    []tier
)

func newKernel(name string, c code, lanes int) *Kernel {
	return &Kernel{Name: name, Lanes: lanes, code: c, tiers: []tier{{c, lanes, 1}}}
}

// Kernels returns the kernels that this CPU can run, the fastest in bulk first. The last is the
// portable one.
func Kernels() []*Kernel { return append([]*Kernel(nil), kernels...) }

// Best returns the kernel that is fastest in bulk.
func Best() *Kernel { return kernels[0] }

// Absent names the kernels that this CPU cannot run, with the reason: "avx512: the CPU does not
// support AVX512BW".
func Absent() []string { return append([]string(nil), absent...) }

// Sum writes SHA-256 of msgs[i] to out[i]. It panics unless all messages have the same length and
// out is at least as long as msgs.
//
// A message whose capacity reaches the end of its padded length (its length plus 9, rounded up to
// 64) is read in place, up to that end. Other goroutines may read it at the same time. Other
// messages are copied first or, if they are long, hashed one by one.
func Sum(out [][32]byte, msgs [][]byte) { sum(best, out, msgs) }

// Sum is like the function Sum, but uses only this kernel. If fewer messages than lanes are left,
// idle lanes repeat a message.
func (k *Kernel) Sum(out [][32]byte, msgs [][]byte) { sum(k.tiers, out, msgs) }

func sum(tiers []tier, out [][32]byte, msgs [][]byte) {
	if len(out) < len(msgs) {
		panic("sha256mb: fewer results than messages")
	}
	if len(msgs) == 0 {
		return
	}
	length := len(msgs[0])
	size := padded(length)
	inPlace := true
	for i := range msgs {
		if len(msgs[i]) != length {
			panic("sha256mb: messages of different lengths")
		}
		if cap(msgs[i]) < size {
			inPlace = false
		}
	}
	if !slices.ContainsFunc(tiers, func(t tier) bool { return t.code != portable && len(msgs) >= t.min }) {
		sumPortable(out, msgs) // this avoids the cost of preparing a job
		return
	}
	var j job
	j.prepare(length)
	switch {
	case inPlace:
		j.sum(tiers, out, msgs)
	case size <= maxCopied:
		j.sumCopied(tiers, out, msgs, size)
	default:
		for i := 0; i < len(msgs); {
			if cap(msgs[i]) < size {
				out[i] = sha256.Sum256(msgs[i])
				i++
				continue
			}
			from := i
			for i < len(msgs) && cap(msgs[i]) >= size {
				i++
			}
			j.sum(tiers, out[from:i], msgs[from:i])
		}
	}
}

// padded returns the length of a message with its padding, FIPS 180-4 section 5.1.1: a one bit,
// zeros, the length in 64 bits.
func padded(length int) int { return (length + 9 + blockSize - 1) / blockSize * blockSize }

// job holds the values that are the same for all messages of a sum: the number of full blocks, and
// the padding of the one or two blocks after them.
type job struct {
	full, tail uint64
	pad        [4 * blockSize]byte // two blocks of and masks, two of or masks
}

// onesZeros is a block of ones and a block of zeros, from which the and mask of any length is cut.
var onesZeros = func() (b [2 * blockSize]byte) {
	for i := range blockSize {
		b[i] = 0xff
	}
	return b
}()

func (j *job) prepare(length int) {
	rest := length % blockSize
	j.full, j.tail = uint64(length/blockSize), 1
	if rest+9 > blockSize {
		j.tail = 2
	}
	copy(j.pad[:blockSize], onesZeros[blockSize-rest:])
	or := j.pad[2*blockSize:]
	or[rest] = 0x80
	binary.BigEndian.PutUint64(or[j.tail*blockSize-8:], uint64(length)*8)
}

// sum hashes messages that can be read in place.
func (j *job) sum(tiers []tier, out [][32]byte, msgs [][]byte) {
	for _, t := range tiers {
		if t.code == portable {
			sumPortable(out, msgs)
			return
		}
		if groups := len(msgs) / t.lanes; groups > 0 {
			j.run(t.code, &out[0], &msgs[0], groups)
			out, msgs = out[groups*t.lanes:], msgs[groups*t.lanes:]
		}
		if len(msgs) >= t.min && len(msgs) > 0 {
			j.sumFew(t, out, msgs)
			return
		}
		if len(msgs) == 0 {
			return
		}
	}
}

// sumFew hashes fewer messages than lanes. Idle lanes repeat the first message.
func (j *job) sumFew(t tier, out [][32]byte, msgs [][]byte) {
	var headers [maxLanes][]byte
	var digests [maxLanes][32]byte
	for i := range t.lanes { // not copy(): with it, the memory of the messages would escape
		headers[i] = msgs[0]
		if i < len(msgs) {
			headers[i] = msgs[i]
		}
	}
	j.run(t.code, &digests[0], &headers[0], 1)
	copy(out, digests[:len(msgs)])
}

// sumCopied hashes messages some of which must be copied, because their last blocks extend beyond
// their capacity.
//
//go:noinline
func (j *job) sumCopied(tiers []tier, out [][32]byte, msgs [][]byte, size int) {
	var scratch [maxLanes][maxCopied]byte
	var headers [maxLanes][]byte
	for len(msgs) > 0 {
		n := min(len(msgs), maxLanes)
		for i, m := range msgs[:n] {
			if cap(m) < size {
				m = scratch[i][:copy(scratch[i][:], m)]
			}
			headers[i] = m
		}
		j.sum(tiers, out[:n], headers[:n])
		out, msgs = out[n:], msgs[n:]
	}
}

func sumPortable(out [][32]byte, msgs [][]byte) {
	for i, m := range msgs {
		out[i] = sha256.Sum256(m)
	}
}

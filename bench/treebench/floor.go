package treebench

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/starling-kv/starling/avlstar/hugemem"
	"github.com/starling-kv/starling/avlstar/sha256mb"
	"github.com/starling-kv/starling/bench/workload"
)

// Lengths of the hashed images (docs/spec/tree.md#hashes), in bytes.
const (
	// 01 ‖ stat(left) ‖ stat(right) ‖ SHA256(key) ‖ left ‖ right
	innerImage = 1 + 2*(1+8) + 3*32
	// 00 ‖ SHA256(key) ‖ SHA256(value)
	leafImage = 1 + 2*32
)

// hashCost is the time in ns for one message of each kind, in bulk with the best kernel on one
// core.
type hashCost struct {
	Kernel string  `json:"kernel"`
	Inner  float64 `json:"inner_ns"`
	Leaf   float64 `json:"leaf_ns"`
	Value  float64 `json:"value_ns"`
	Key    float64 `json:"key_ns"`
}

// measureHash takes a few milliseconds.
func measureHash() hashCost {
	return hashCost{
		Kernel: sha256mb.Best().Name,
		Inner:  messageCost(innerImage),
		Leaf:   messageCost(leafImage),
		Value:  messageCost(workload.ValueBytes),
		Key:    messageCost(workload.KeyBytes),
	}
}

// messageCost hashes messages that are laid out for the kernel, with space for their padding, in a
// core's own cache.
func messageCost(length int) float64 {
	const messages, passes = 2048, 4
	padded := (length + 9 + 63) / 64 * 64 // FIPS 180-4, section 5.1.1
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
	return float64(time.Since(from).Nanoseconds()) / (messages * passes)
}

// Floor is the minimum time of a commit of these versions on one core.
type Floor struct {
	CommitMS float64 `json:"commit_ms"` // time of the hashes
	WalkMS   float64 `json:"walk_ms"`   // time of the cache misses, one after another

	Inner   float64  `json:"inner_hashes"` // per version, on average
	Leaves  float64  `json:"leaf_hashes"`
	Counted bool     `json:"counted"` // otherwise Inner and Leaves are estimates
	Hash    hashCost `json:"hash"`

	ReadNS       float64 `json:"read_ns"`       // time of a random read
	ReadMiB      int     `json:"read_mib"`      // size of the array for ReadNS
	CachedLevels int     `json:"cached_levels"` // tree levels that fit into a core's L2 cache
	Misses       float64 `json:"misses"`        // nodes below these levels that a version touches
}

// hashes computes the floor of a commit. It counts the image of each changed inner node once, and,
// for each put, the value and the image of the leaf. An insert also hashes its key; an update finds
// the key's hash in the tree.
func (f *Floor) hashes(keys int) {
	if !f.Counted {
		f.Inner, f.Leaves = distinctInner(keys, workload.Changes), workload.Updates+workload.Inserts
	}
	nanos := f.Inner*f.Hash.Inner + f.Leaves*(f.Hash.Leaf+f.Hash.Value) + workload.Inserts*f.Hash.Key
	f.CommitMS = nanos / 1e6
}

// walk computes the time for the cache misses of a commit. Every changed node is read once, except
// in the top levels, which fit into a core's own cache, and each read waits for the one before. A
// tree that prefetches on many paths concurrently can be faster.
func (f *Floor) walk(keys int, treeBytes int64) {
	nodeBytes := max(float64(treeBytes)/float64(2*keys), 1)
	f.CachedLevels = int(math.Log2(float64(l2Bytes())/nodeBytes + 1))
	f.Misses = max(0, f.Inner+f.Leaves-distinctAbove(f.CachedLevels, keys, workload.Changes))
	f.WalkMS = f.Misses * f.ReadNS / 1e6
}

// distinctInner returns the average number of inner nodes of a balanced tree on the paths to random
// leaves.
func distinctInner(keys, leaves int) float64 { return distinctAbove(math.MaxInt, keys, leaves) }

// distinctAbove counts only the nodes of the first levels. Level l has 2^l nodes, each of which is
// missed by all paths with a probability of (1 - 2^-l)^leaves.
func distinctAbove(levels, keys, leaves int) (n float64) {
	left := float64(keys - 1) // inner nodes not counted yet; the last level may not be full
	for l := 0; l < levels && left > 0; l++ {
		width := min(math.Exp2(float64(l)), left)
		left -= width
		n += width * (1 - math.Pow(1-math.Exp2(-float64(l)), float64(leaves)))
	}
	return n
}

// l2Bytes returns the size of a core's L2 cache, or 1 MiB if it is unknown.
func l2Bytes() int {
	text, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cache/index2/size")
	if err != nil {
		return 1 << 20
	}
	kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(string(text)), "K"))
	if err != nil {
		return 1 << 20
	}
	return kib << 10
}

// maxReadBytes limits the array of readLatency. Above a gigabyte, only page table misses make reads
// slower.
const maxReadBytes = 1 << 30

// readLatency returns the time of a random read in an array of n bytes, in nanoseconds. It follows
// one cycle through all cache lines of the array. Like a large tree's nodes, the array is in huge
// pages if the system has them.
func readLatency(n int) float64 {
	const words = 64 / 4 // per cache line
	lines := max(min(n, maxReadBytes)/64, 2)
	array, giveBack := frames(lines)
	defer giveBack()
	at := func(i uint32) *uint32 { return &array[i/frameLines][i%frameLines*words] }
	for i := range uint32(lines) {
		*at(i) = i
	}
	for i := uint32(lines - 1); i > 0; i-- { // Sattolo's algorithm makes a permutation of one cycle
		j := rand.Uint32N(i) //nolint:gosec // not used for security
		*at(i), *at(j) = *at(j), *at(i)
	}
	const reads = 1 << 20
	line := uint32(0)
	from := time.Now()
	for range reads {
		line = *at(line)
	}
	took := time.Since(from)
	if line >= uint32(lines) {
		// Using the result keeps the compiler from removing the loop.
		panic("treebench: the chase left the array")
	}
	return float64(took.Nanoseconds()) / reads
}

const frameLines = hugemem.FrameBytes / 64

// frames returns memory for this number of cache lines.
func frames(lines int) (array []*[hugemem.FrameBytes / 4]uint32, giveBack func()) {
	var lent []*hugemem.Frame
	for range (lines + frameLines - 1) / frameLines {
		f := hugemem.Take()
		if f == nil {
			array = append(array, new([hugemem.FrameBytes / 4]uint32))
			continue
		}
		lent = append(lent, f)
		array = append(array, (*[hugemem.FrameBytes / 4]uint32)(unsafe.Pointer(f.Bytes()))) //nolint:gosec // the lengths are equal
	}
	return array, func() {
		for _, f := range lent {
			f.Give()
		}
	}
}

package treebench

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/starling-kv/starling/avlstar/sha256mb"
	"github.com/starling-kv/starling/bench/workload"
)

// Lengths of what is hashed (design, section 2).
const (
	innerImage = 1 + 2*(1+8) + 3*32 // 115: 01 ‖ stat(left) ‖ stat(right) ‖ SHA256(key) ‖ left ‖ right
	leafImage  = 1 + 2*32           // 65: 00 ‖ SHA256(key) ‖ SHA256(value)
)

// hashCost is what one message of each kind costs with the best kernel, in bulk on one core, in nanoseconds.
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

// messageCost hashes messages that lie as the kernel wants them, with room for their padding, in a core's own cache.
func messageCost(length int) float64 {
	const messages, passes = 2048, 4
	padded := (length + 9 + 63) / 64 * 64 // FIPS 180-4, section 5.1.1
	memory := make([]byte, messages*padded)
	for i := 0; i+8 <= len(memory); i += 8 {
		binary.LittleEndian.PutUint64(memory[i:], rand.Uint64()) //nolint:gosec // what is hashed does not matter
	}
	msgs, out := make([][]byte, messages), make([][32]byte, messages)
	for i := range msgs {
		msgs[i] = memory[i*padded:][:length:padded]
	}
	best := sha256mb.Best()
	best.Sum(out, msgs) // brings all into the cache
	from := time.Now()
	for range passes {
		best.Sum(out, msgs)
	}
	return float64(time.Since(from).Nanoseconds()) / (messages * passes)
}

// Floor is what no commit of these versions can be faster than on one core.
type Floor struct {
	CommitMS float64 `json:"commit_ms"` // the hashes
	WalkMS   float64 `json:"walk_ms"`   // the cache misses, one after another

	Inner   float64  `json:"inner_hashes"` // in a version, on average
	Leaves  float64  `json:"leaf_hashes"`
	Counted bool     `json:"counted"` // by the tree; else both are estimates
	Hash    hashCost `json:"hash"`

	ReadNS       float64 `json:"read_ns"`       // a random read
	ReadMiB      int     `json:"read_mib"`      // in that much memory
	CachedLevels int     `json:"cached_levels"` // of the tree, which fit a core's L2 cache
	Misses       float64 `json:"misses"`        // nodes below them that a version touches
}

// hashes computes the floor of a commit: each changed inner node's image once; for each put its value and its leaf's image; for an
// insert the key, too, whose hash an update finds in the tree.
func (f *Floor) hashes(keys int) {
	if !f.Counted {
		f.Inner, f.Leaves = distinctInner(keys, workload.Changes), workload.Updates+workload.Inserts
	}
	nanos := f.Inner*f.Hash.Inner + f.Leaves*(f.Hash.Leaf+f.Hash.Value) + workload.Inserts*f.Hash.Key
	f.CommitMS = nanos / 1e6
}

// walk computes the cache misses of a commit: every changed node has to be read once, except the top levels that fit a core's own
// cache; each read waits for the one before. A tree that reads ahead on many paths at once can be faster.
func (f *Floor) walk(keys int, treeBytes int64) {
	nodeBytes := max(float64(treeBytes)/float64(2*keys), 1)
	f.CachedLevels = int(math.Log2(float64(l2Bytes())/nodeBytes + 1))
	f.Misses = max(0, f.Inner+f.Leaves-distinctAbove(f.CachedLevels, keys, workload.Changes))
	f.WalkMS = f.Misses * f.ReadNS / 1e6
}

// distinctInner is how many inner nodes of a balanced tree lie on the paths to random leaves, on average.
func distinctInner(keys, leaves int) float64 { return distinctAbove(math.MaxInt, keys, leaves) }

// distinctAbove counts those of the first levels only: of 2^l nodes on level l each is missed by all paths with (1 - 2^-l)^leaves.
func distinctAbove(levels, keys, leaves int) (n float64) {
	left := float64(keys - 1) // inner nodes not counted yet; the last level is not full
	for l := 0; l < levels && left > 0; l++ {
		width := min(math.Exp2(float64(l)), left)
		left -= width
		n += width * (1 - math.Pow(1-math.Exp2(-float64(l)), float64(leaves)))
	}
	return n
}

// l2Bytes is a core's own cache, 1 MiB where nobody tells.
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

// maxReadBytes bounds the array of readLatency: beyond a gigabyte a read only gets slower by its page table's misses.
const maxReadBytes = 1 << 30

// readLatency is the time of a random read in an array of n bytes, in nanoseconds: a chase along one cycle through all its cache lines.
func readLatency(n int) float64 {
	const words = 64 / 4 // in a line
	lines := max(min(n, maxReadBytes)/64, 2)
	array := make([]uint32, lines*words)
	for i := range lines {
		array[i*words] = uint32(i)
	}
	for i := lines - 1; i > 0; i-- { // Sattolo's algorithm makes a permutation of one cycle
		j := rand.IntN(i) //nolint:gosec // a shuffle, nobody guesses it
		array[i*words], array[j*words] = array[j*words], array[i*words]
	}
	const reads = 1 << 20
	at := uint32(0)
	from := time.Now()
	for range reads {
		at = array[at*words]
	}
	took := time.Since(from)
	if at >= uint32(lines) {
		panic("treebench: the chase left the array") // and so the compiler may not drop it
	}
	return float64(took.Nanoseconds()) / reads
}

// Command gen writes the assembly of package sha256mb: SHA-256 of several messages side by side,
// with one kernel per instruction set.
//
//	main.go       common to all kernels: signature, constants, the walk over groups and blocks, rounds and message schedule
//	transpose.go  from messages in registers to words in registers
//	avx512.go     16 messages, a word of each in one ZMM register
//	avx2.go       8 messages, a word of each in one YMM register
//	shani.go      2 messages in turn in the SHA instructions, so that each fills the waiting time of the other
//
// Names follow FIPS 180-4: H0 and K are constants, W is the message schedule, a…h are the working
// variables.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The arguments of a kernel, from sha256mb.go; the documentation of sumAVX512 explains them.
const (
	signature  = "func(out *[32]byte, msgs *[]byte, groups, full, tail uint64, pad *[256]byte)"
	headerSize = 24  // of a slice header; its first word is the pointer
	blockSize  = 64  // of SHA-256
	digestSize = 32  // of SHA-256
	padOr      = 128 // offset of the or masks in pad
)

// h0 is the initial hash value, FIPS 180-4 section 5.3.3.
var h0 = [8]uint32{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}

// k holds the constants of the rounds, FIPS 180-4 section 4.2.2.
var k = [64]uint32{
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}

// words puts 32-bit words into read-only memory.
func words(name string, values []uint32) Mem {
	m := GLOBL(name, RODATA|NOPTR)
	for i, v := range values {
		DATA(4*i, U32(v))
	}
	return m
}

// Constants that more than one kernel reads.
var tableK, tableH, tableSwap Mem

// swap is the byte shuffle that turns big-endian words into machine words (FIPS 180-4 section 3.1),
// for 16 bytes.
var swap = []uint32{0x00010203, 0x04050607, 0x08090a0b, 0x0c0d0e0f}

func tables() {
	tableK = words("k", k[:])
	tableH = words("h0", h0[:])
	tableSwap = words("swap", swap)
}

// walk is the frame of every kernel: the loop over groups and blocks, and the registers for
// positions.
//
//	for groups {                    lanes messages each
//	    start                       a…h = H0
//	    for full+tail blocks {
//	        load(masked?)           W = the block; for the last tail blocks, (W and pad.and) or pad.or
//	        rounds                  64 rounds
//	    }
//	    finish                      write the digests
//	}
type walk struct {
	name  string
	lanes int
	upper bool // the kernel uses the upper halves of vector registers

	out    reg.Register // digests of the group
	msgs   reg.Register // slice headers of the group
	next   reg.Register // slice headers of the next group, to prefetch; or of the last one
	groups reg.Register // number of groups left, including this one
	off    reg.Register // byte offset of the block in its message
	left   reg.Register // number of full blocks of the message left
	tail   reg.Register // number of masked blocks of the message left
	pad    reg.Register // masks of the current block
	ptr    reg.Register // temporary: a message
}

func newWalk(name string, lanes int) *walk {
	return &walk{name: name, lanes: lanes, upper: lanes > 2,
		out: GP64(), msgs: GP64(), next: GP64(), groups: GP64(), off: GP64(), left: GP64(), tail: GP64(), pad: GP64(), ptr: GP64()}
}

func (w *walk) label(s string) string { return w.name + "_" + s }

// header returns the pointer to lane's message in the group whose slice headers are at base.
func (w *walk) header(base reg.Register, lane int) Mem {
	return Mem{Base: base, Disp: lane * headerSize}
}

// message loads the address of lane's message; at is an address in its current block.
func (w *walk) message(lane int) { MOVQ(w.header(w.msgs, lane), w.ptr) }

func (w *walk) at(disp int) Mem { return Mem{Base: w.ptr, Index: w.off, Scale: 1, Disp: disp} }

// and, or are the masks of the current block, word by word in the byte order of the message.
func (w *walk) and(disp int) Mem { return Mem{Base: w.pad, Disp: disp} }
func (w *walk) or(disp int) Mem  { return Mem{Base: w.pad, Disp: padOr + disp} }

// prefetch fetches the line of the same block of the next group's message, so that it is in the
// cache when it is needed.
func (w *walk) prefetch(lane int) {
	MOVQ(w.header(w.next, lane), w.ptr)
	PREFETCHT0(w.at(0))
}

// steps are the parts that differ between kernels.
type steps struct {
	setup  func() // once per call
	start  func() // once per group
	load   func() // a block into W, still in the byte order of the message
	mask   func() // W = (W and pad.and) or pad.or
	rounds func() // from W in message order to the new hash value
	finish func() // digests to out
}

func (w *walk) function(does string, s steps) {
	TEXT(w.name, 0, signature)
	Doc(w.name+" "+does,
		"It reads full+tail blocks of message i from the pointer in the slice header msgs[i]. The last tail blocks (1 or 2) reach beyond the message:",
		"padding replaces the bytes there. A block becomes (block and mask) or bits, where masks and bits are the halves of pad.")
	Pragma("noescape")
	Load(Param("out"), w.out)
	Load(Param("msgs"), w.msgs)
	Load(Param("groups"), w.groups)
	s.setup()

	Label(w.label("group"))
	Comment("The next group, if there is one.")
	MOVQ(w.msgs, w.next)
	LEAQ(Mem{Base: w.msgs, Disp: w.lanes * headerSize}, w.ptr)
	CMPQ(w.groups, Imm(1))
	CMOVQHI(w.ptr, w.next)
	Load(Param("full"), w.left)
	Load(Param("tail"), w.tail)
	Load(Param("pad"), w.pad)
	XORQ(w.off, w.off)
	s.start()

	Label(w.label("block"))
	s.load()
	TESTQ(w.left, w.left)
	JNZ(LabelRef(w.label("full")))
	Comment("One of the last blocks: padding replaces the bytes behind the message (FIPS 180-4 section 5.1.1).")
	s.mask()
	ADDQ(Imm(blockSize), w.pad)
	DECQ(w.tail)
	JMP(LabelRef(w.label("rounds")))

	Label(w.label("full"))
	DECQ(w.left)

	Label(w.label("rounds"))
	s.rounds()
	ADDQ(Imm(blockSize), w.off)
	MOVQ(w.left, w.ptr)
	ORQ(w.tail, w.ptr)
	JNZ(LabelRef(w.label("block")))

	s.finish()
	ADDQ(U32(w.lanes*digestSize), w.out)
	ADDQ(U32(w.lanes*headerSize), w.msgs)
	DECQ(w.groups)
	JNZ(LabelRef(w.label("group")))
	if w.upper {
		VZEROUPPER()
	}
	RET()
}

// lanewise is a register-wide unit that computes one word of all lanes at a time; there is one for
// AVX-512 and one for AVX2.
type lanewise interface {
	// t1 leaves h + Σ1(e) + Ch(e,f,g) + K + W in h, FIPS 180-4 section 6.2.2 step 3. t2 then adds h
	// to d, and Σ0(a) + Maj(a,b,c) to h.
	t1(s vars, i int)
	t2(s vars)
	// schedule replaces W[i] by W[i+16], FIPS 180-4 section 6.2.2 step 1. Indexes are modulo 16.
	schedule(i int)
}

// vars are the working variables a…h. A round renames them instead of moving them; after eight
// rounds they have their old names.
type vars [8]reg.Register

func (s vars) renamed() vars { return vars{s[7], s[0], s[1], s[2], s[3], s[4], s[5], s[6]} }

// compress makes the 64 rounds of FIPS 180-4 section 6.2.2: three times 16 rounds that also make
// the next 16 words of the schedule, then 16 rounds without that. kp points to the constants of the
// current 16 rounds.
func (w *walk) compress(u lanewise, s vars, kp reg.Register) {
	again := w.label("rounds16")
	LEAQ(tableK, kp)
	count := GP64()
	MOVQ(U32(3), count)
	Label(again)
	for i := range 16 {
		Comment(fmt.Sprintf("Round i+%d and W[i+%d].", i, i+16))
		u.t1(s, i)
		u.schedule(i)
		u.t2(s)
		s = s.renamed()
	}
	ADDQ(Imm(64), kp)
	DECQ(count)
	JNZ(LabelRef(again))
	for i := range 16 {
		Comment(fmt.Sprintf("Round %d.", 48+i))
		if i < w.lanes {
			w.prefetch(i)
		}
		u.t1(s, i)
		u.t2(s)
		s = s.renamed()
	}
}

// vectors are the first n vector registers of a size.
func vectors(n int, size reg.Spec) (r []reg.Register) {
	for i := range n {
		r = append(r, reg.FamilyOfKind(reg.KindVector).Lookup(reg.Index(i), size))
	}
	return r
}

func main() {
	ConstraintExpr("amd64,!purego")
	tables()
	avx512()
	avx2()
	shani()
	Generate()
}

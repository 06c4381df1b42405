package main

import (
	"slices"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Truth tables of VPTERNLOGD: bit 4x+2y+z is the function's value of (destination, second, third
// source).
const (
	ternXor  = 0x96 // x ⊕ y ⊕ z
	ternCh   = 0xca // FIPS 180-4 formula (4.2): Ch(x,y,z) = (x ∧ y) ⊕ (¬x ∧ z)
	ternMaj  = 0xe8 // FIPS 180-4 formula (4.3): Maj(x,y,z) = (x ∧ y) ⊕ (x ∧ z) ⊕ (y ∧ z)
	ternMask = 0xec // (x ∧ z) ∨ y
)

// zunit computes in ZMM registers, with a word of 16 messages in each. VPRORD runs on one of two
// ports, so a round costs as much as its 17 operations cost on both; the moves are free.
type zunit struct {
	w  []reg.Register // the last 16 words of the schedule
	t  []reg.Register // temporary
	kp reg.Register   // constants of these 16 rounds
}

// sigma leaves ROTR r1 ⊕ ROTR r2 ⊕ last r3 of x in t[0].
func (u *zunit) sigma(x reg.Register, r1, r2 uint64, last func(...Op), r3 uint64) {
	VPRORD(Imm(r1), x, u.t[0])
	VPRORD(Imm(r2), x, u.t[1])
	last(Imm(r3), x, u.t[2])
	VPTERNLOGD(Imm(ternXor), u.t[1], u.t[2], u.t[0])
}

func (u *zunit) t1(s vars, i int) {
	e, f, g, h := s[4], s[5], s[6], s[7]
	VPADDD_BCST(Mem{Base: u.kp, Disp: 4 * i}, u.w[i], u.t[3])
	VPADDD(u.t[3], h, h)
	u.sigma(e, 6, 11, VPRORD, 25) // Σ1, formula (4.5)
	VMOVDQA32(e, u.t[3])
	VPTERNLOGD(Imm(ternCh), g, f, u.t[3])
	VPADDD(u.t[3], h, h)
	VPADDD(u.t[0], h, h)
}

func (u *zunit) t2(s vars) {
	a, b, c, d, h := s[0], s[1], s[2], s[3], s[7]
	VPADDD(h, d, d)
	u.sigma(a, 2, 13, VPRORD, 22) // Σ0, formula (4.4)
	VMOVDQA32(a, u.t[3])
	VPTERNLOGD(Imm(ternMaj), c, b, u.t[3])
	VPADDD(u.t[3], h, h)
	VPADDD(u.t[0], h, h)
}

func (u *zunit) schedule(i int) {
	w := u.w[i]
	u.sigma(u.w[(i+1)%16], 7, 18, VPSRLD, 3) // σ0, formula (4.6)
	VPADDD(u.t[0], w, w)
	VPADDD(u.w[(i+9)%16], w, w)
	u.sigma(u.w[(i+14)%16], 17, 19, VPSRLD, 10) // σ1, formula (4.7)
	VPADDD(u.t[0], w, w)
}

// avx512 hashes 16 messages. Registers: 16 for W, 8 for a…h, 8 temporary; the hash value before the
// block is on the stack.
func avx512() {
	swap512 := words("swap512", slices.Repeat(swap, 4))
	all := vectors(32, reg.S512)
	u := &zunit{w: slices.Clone(all[:16]), kp: GP64()}
	s, free := vars(all[16:24]), all[24:]
	x := exchange{spare: free[0]}
	w := newWalk("sumAVX512", 16)
	var before Mem // the hash value before the block

	w.function("hashes groups × 16 messages. It needs AVX512F and AVX512BW.", steps{
		setup: func() { before = AllocLocal(8 * 64) },
		start: func() {
			for i := range s {
				VPBROADCASTD(tableH.Offset(4*i), s[i])
			}
		},
		load: func() {
			for i := range s {
				VMOVDQU32(s[i], before.Offset(64*i))
			}
			Comment("The block of message i into register i, then word i of all messages into register i.")
			for i := range 16 {
				w.message(i)
				VMOVDQU32(w.at(0), u.w[i])
			}
			x.sixteen(u.w)
		},
		mask: func() {
			for i := range 16 {
				t := free[1+i%4]
				VPBROADCASTD(w.or(4*i), t)
				VPTERNLOGD_BCST(Imm(ternMask), w.and(4*i), t, u.w[i])
			}
		},
		rounds: func() {
			u.t = append([]reg.Register{x.spare}, free[1:]...)
			VMOVDQU32(swap512, u.t[0])
			for i := range 16 {
				VPSHUFB(u.t[0], u.w[i], u.w[i])
			}
			w.compress(u, s, u.kp)
			for i := range s {
				VPADDD(before.Offset(64*i), s[i], s[i])
			}
		},
		finish: func() {
			Comment("Register m gets the words 0 to 3, register 4+m the words 4 to 7 of the messages m, m+4, m+8, m+12.")
			r := slices.Clone(s[:])
			x.four(r[:4])
			x.four(r[4:])
			VMOVDQU32(swap512, free[1])
			for m := range r {
				VPSHUFB(free[1], r[m], r[m])
				for quarter := range 4 {
					VEXTRACTI32X4(Imm(uint64(quarter)), r[m], Mem{Base: w.out, Disp: (m%4+4*quarter)*digestSize + m/4*16})
				}
			}
		},
	})
}

package main

import (
	"slices"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// yunit computes in YMM registers, with a word of 8 messages in each. AVX2 has no rotation
// instruction, and W is on the stack.
type yunit struct {
	w  Mem            // the last 16 words of the schedule
	t  []reg.Register // temporary
	kp reg.Register   // constants of these 16 rounds
}

func (u *yunit) word(i int) Mem { return u.w.Offset(32 * (i % 16)) }

// sigma leaves ROTR r1 ⊕ ROTR r2 ⊕ (ROTR or, if shift is set, SHR) r3 of x in t[0].
func (u *yunit) sigma(x reg.Register, r1, r2, r3 uint64, shift bool) {
	VPSRLD(Imm(r1), x, u.t[0])
	xor := func(op func(i, mxy, xy Op), n uint64, t reg.Register) {
		op(Imm(n), x, t)
		VPXOR(t, u.t[0], u.t[0])
	}
	xor(yshift(VPSLLD), 32-r1, u.t[1])
	xor(yshift(VPSRLD), r2, u.t[2])
	xor(yshift(VPSLLD), 32-r2, u.t[1])
	xor(yshift(VPSRLD), r3, u.t[2])
	if !shift {
		xor(yshift(VPSLLD), 32-r3, u.t[1])
	}
}

func yshift(op func(...Op)) func(i, x, dst Op) { return func(i, x, dst Op) { op(i, x, dst) } }

func (u *yunit) t1(s vars, i int) {
	e, f, g, h := s[4], s[5], s[6], s[7]
	VPBROADCASTD(Mem{Base: u.kp, Disp: 4 * i}, u.t[3])
	VPADDD(u.word(i), u.t[3], u.t[3])
	VPADDD(u.t[3], h, h)
	u.sigma(e, 6, 11, 25, false) // Σ1, formula (4.5)
	Comment("Ch(e,f,g) = g ⊕ (e ∧ (f ⊕ g)), the same as formula (4.2) with one operation less.")
	VPXOR(f, g, u.t[3])
	VPAND(e, u.t[3], u.t[3])
	VPXOR(g, u.t[3], u.t[3])
	VPADDD(u.t[3], h, h)
	VPADDD(u.t[0], h, h)
}

func (u *yunit) t2(s vars) {
	a, b, c, d, h := s[0], s[1], s[2], s[3], s[7]
	VPADDD(h, d, d)
	u.sigma(a, 2, 13, 22, false) // Σ0, formula (4.4)
	Comment("Maj(a,b,c) = (a ∧ b) ∨ (c ∧ (a ∨ b)), the same as formula (4.3) with one operation less.")
	VPOR(a, b, u.t[3])
	VPAND(c, u.t[3], u.t[3])
	VPAND(a, b, u.t[4])
	VPOR(u.t[4], u.t[3], u.t[3])
	VPADDD(u.t[3], h, h)
	VPADDD(u.t[0], h, h)
}

func (u *yunit) schedule(i int) {
	sum, x := u.t[4], u.t[5]
	VMOVDQU(u.word(i+1), x)
	u.sigma(x, 7, 18, 3, true) // σ0, formula (4.6)
	VPADDD(u.word(i), u.t[0], sum)
	VPADDD(u.word(i+9), sum, sum)
	VMOVDQU(u.word(i+14), x)
	u.sigma(x, 17, 19, 10, true) // σ1, formula (4.7)
	VPADDD(u.t[0], sum, sum)
	VMOVDQU(sum, u.word(i))
}

// avx2 hashes 8 messages. Registers: 8 for a…h, 8 temporary; W and the hash value before the block
// are on the stack.
func avx2() {
	swap256 := words("swap256", slices.Repeat(swap, 2))
	all := vectors(16, reg.S256)
	u := &yunit{t: all[8:], kp: GP64()}
	s, free := vars(all[:8]), all[8:]
	w := newWalk("sumAVX2", 8)
	var before Mem // the hash value before the block

	w.function("hashes groups × 8 messages. It needs AVX2.", steps{
		setup: func() {
			before = AllocLocal(8 * 32)
			u.w = AllocLocal(16 * 32)
		},
		start: func() {
			for i := range s {
				VPBROADCASTD(tableH.Offset(4*i), s[i])
			}
		},
		load: func() {
			for i := range s {
				VMOVDQU(s[i], before.Offset(32*i))
			}
			Comment("Twice 8 words: those of message i into register i, then word i of all messages into register i.")
			for half := 0; half < 16; half += 8 {
				r := slices.Clone(s[:])
				for i := range r {
					w.message(i)
					VMOVDQU(w.at(4*half), r[i])
				}
				(&exchange{spare: free[0]}).eight(r)
				for i := range r {
					VMOVDQU(r[i], u.word(half+i))
				}
			}
		},
		mask: func() {
			for i := range 16 {
				a, o := free[i%4], free[4+i%4]
				VPBROADCASTD(w.and(4*i), a)
				VPBROADCASTD(w.or(4*i), o)
				VPAND(u.word(i), a, a)
				VPOR(o, a, a)
				VMOVDQU(a, u.word(i))
			}
		},
		rounds: func() {
			VMOVDQU(swap256, free[0])
			for i := range 16 {
				t := free[1+i%4]
				VMOVDQU(u.word(i), t)
				VPSHUFB(free[0], t, t)
				VMOVDQU(t, u.word(i))
			}
			for i := range s {
				VMOVDQU(before.Offset(32*i), s[i])
			}
			w.compress(u, s, u.kp)
			for i := range s {
				VPADDD(before.Offset(32*i), s[i], s[i])
			}
		},
		finish: func() {
			Comment("Register m gets the hash value of message m.")
			r := slices.Clone(s[:])
			x := exchange{spare: free[0]}
			x.eight(r)
			VMOVDQU(swap256, free[1])
			for m := range r {
				VPSHUFB(free[1], r[m], r[m])
				VMOVDQU(r[m], Mem{Base: w.out, Disp: m * digestSize})
			}
		},
	})
}

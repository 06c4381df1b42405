package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// stream is the state of one message in the SHA instructions. SHA256RNDS2 computes two rounds,
// expects its words in X0, and determines the order of the working variables in their registers.
type stream struct {
	abef, cdgh reg.Register
	m          [4]reg.Register // the last 16 words of the schedule
}

// rounds4 computes the rounds 4i to 4i+3 and advances the schedule. t is temporary.
func (s *stream) rounds4(i int, t reg.Register) {
	now, before, after := s.m[i%4], s.m[(i+3)%4], s.m[(i+1)%4]
	MOVOU(tableK.Offset(16*i), reg.X0)
	PADDD(now, reg.X0)
	SHA256RNDS2(reg.X0, s.abef, s.cdgh)
	if i >= 3 && i < 15 { // the rest of W[4i+4…4i+7], FIPS 180-4 section 6.2.2 step 1
		MOVO(now, t)
		PALIGNR(Imm(4), before, t)
		PADDD(t, after)
		SHA256MSG2(now, after)
	}
	PSHUFD(Imm(0x0e), reg.X0, reg.X0)
	SHA256RNDS2(reg.X0, s.cdgh, s.abef)
	if i >= 1 && i < 13 { // W[4i+12…4i+15] so far: W[t-16] + σ0(W[t-15])
		SHA256MSG1(now, before)
	}
}

// shani hashes 2 messages. Each SHA256RNDS2 waits for the previous one in its stream; the other
// stream fills that time.
func shani() {
	first := words("h0SHANI", []uint32{h0[5], h0[4], h0[1], h0[0], h0[7], h0[6], h0[3], h0[2]})
	x := vectors(16, reg.S128)
	streams := []*stream{
		{abef: x[1], cdgh: x[2], m: [4]reg.Register(x[3:7])},
		{abef: x[7], cdgh: x[8], m: [4]reg.Register(x[9:13])},
	}
	t, shuffle := x[13], x[14]
	w := newWalk("sumSHANI", 2)
	var before Mem // the hash values before the block

	w.function("hashes groups × 2 messages. It needs SHA and SSE4.1.", steps{
		setup: func() {
			before = AllocLocal(4 * 16)
			MOVOU(tableSwap, shuffle)
		},
		start: func() {
			for _, s := range streams {
				MOVOU(first, s.abef)
				MOVOU(first.Offset(16), s.cdgh)
			}
		},
		load: func() {
			for i, s := range streams {
				MOVOU(s.abef, before.Offset(32*i))
				MOVOU(s.cdgh, before.Offset(32*i+16))
				w.message(i)
				for j := range s.m {
					MOVOU(w.at(16*j), s.m[j])
				}
			}
			for i := range streams {
				w.prefetch(i)
			}
		},
		mask: func() {
			for j := range 4 {
				MOVOU(w.and(16*j), t)
				MOVOU(w.or(16*j), reg.X0)
				for _, s := range streams {
					PAND(t, s.m[j])
					POR(reg.X0, s.m[j])
				}
			}
		},
		rounds: func() {
			for _, s := range streams {
				for j := range s.m {
					PSHUFB(shuffle, s.m[j])
				}
			}
			for i := range 16 {
				Commentf("Rounds %d to %d.", 4*i, 4*i+3)
				for _, s := range streams {
					s.rounds4(i, t)
				}
			}
			for i, s := range streams {
				MOVOU(before.Offset(32*i), t)
				PADDD(t, s.abef)
				MOVOU(before.Offset(32*i+16), t)
				PADDD(t, s.cdgh)
			}
		},
		finish: func() {
			for i, s := range streams {
				Comment("From FEBA and HGDC, lowest word first, to ABCD and EFGH.")
				PSHUFD(Imm(0x1b), s.abef, t)      // ABEF
				PSHUFD(Imm(0xb1), s.cdgh, s.cdgh) // GHCD
				MOVO(t, s.abef)
				PBLENDW(Imm(0xf0), s.cdgh, s.abef) // ABCD
				PALIGNR(Imm(8), t, s.cdgh)         // EFGH
				PSHUFB(shuffle, s.abef)
				PSHUFB(shuffle, s.cdgh)
				MOVOU(s.abef, Mem{Base: w.out, Disp: i * digestSize})
				MOVOU(s.cdgh, Mem{Base: w.out, Disp: i*digestSize + 16})
			}
		},
	})
}

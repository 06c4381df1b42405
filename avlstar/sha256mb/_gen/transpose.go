package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// exchange transposes in registers by swapping names. Each step replaces two registers by two
// mixtures of them, and needs a spare register.
type exchange struct{ spare reg.Register }

func (e *exchange) pair(x, y *reg.Register, first, second func(x, y, dst reg.Register)) {
	first(*x, *y, e.spare)
	second(*x, *y, *y)
	*x, e.spare = e.spare, *x
}

// double interleaves the words of x and y within each 128 bits: x gets the lower words, y the upper
// ones. quad does the same with pairs of words.
func (e *exchange) double(x, y *reg.Register) {
	e.pair(x, y, func(x, y, d reg.Register) { VPUNPCKLDQ(y, x, d) }, func(x, y, d reg.Register) { VPUNPCKHDQ(y, x, d) })
}

func (e *exchange) quad(x, y *reg.Register) {
	e.pair(x, y, func(x, y, d reg.Register) { VPUNPCKLQDQ(y, x, d) }, func(x, y, d reg.Register) { VPUNPCKHQDQ(y, x, d) })
}

// four transposes the 4×4 words in each 128 bits of four registers: register n gets word n of all
// four.
func (e *exchange) four(r []reg.Register) {
	e.double(&r[0], &r[1])
	e.double(&r[2], &r[3])
	e.quad(&r[0], &r[2]) // words 0 and 1
	e.quad(&r[1], &r[3]) // words 2 and 3
	r[1], r[2] = r[2], r[1]
}

// halves256 exchanges 128 bits of YMM registers: x gets the lower halves, y the upper halves.
func (e *exchange) halves256(x, y *reg.Register) {
	e.pair(x, y, func(x, y, d reg.Register) { VPERM2I128(Imm(0x20), y, x, d) }, func(x, y, d reg.Register) { VPERM2I128(Imm(0x31), y, x, d) })
}

// eight transposes 8×8 words in YMM registers.
func (e *exchange) eight(r []reg.Register) {
	e.four(r[:4])
	e.four(r[4:])
	for n := range 4 {
		e.halves256(&r[n], &r[n+4])
	}
}

// evens512 exchanges quarters of 128 bits of ZMM registers: x gets the quarters with even numbers,
// y those with odd numbers, in each case first those of x, then those of y.
func (e *exchange) evens512(x, y *reg.Register) {
	e.pair(x, y, func(x, y, d reg.Register) { VSHUFI32X4(Imm(0x88), y, x, d) }, func(x, y, d reg.Register) { VSHUFI32X4(Imm(0xdd), y, x, d) })
}

// sixteen transposes 16×16 words in ZMM registers.
func (e *exchange) sixteen(r []reg.Register) {
	for q := 0; q < 16; q += 4 {
		e.four(r[q : q+4])
	}
	for n := range 4 { // now the 4×4 squares of 128 bits
		a, b, c, d := &r[n], &r[n+4], &r[n+8], &r[n+12]
		e.evens512(a, b) // a has quarters 0 and 2 of a and b, b has 1 and 3
		e.evens512(c, d)
		e.evens512(a, c) // a has 0, c has 2
		e.evens512(b, d) // b has 1, d has 3
	}
}

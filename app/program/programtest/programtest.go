// Package programtest has a program for the EVM, and calls of it, for the tests of any package.
package programtest

import (
	"encoding/binary"
	"math/rand/v2"
)

// slots is the number of slots that the program uses.
const slots = 24

// follow is a program. Its input is a slot a and a value v. It stores v in the slot whose name is
// the value of a, and then in a. It logs v with the topic a.
//
//	CALLDATALOAD(32) CALLDATALOAD(0) DUP2 DUP2 SLOAD SSTORE DUP2 DUP2 SSTORE
//	DUP2 PUSH0 MSTORE PUSH1 32 PUSH0 LOG1 STOP
var follow = []byte{
	0x60, 32, 0x35, 0x5f, 0x35, 0x81, 0x81, 0x54, 0x55, 0x81, 0x81, 0x55,
	0x81, 0x5f, 0x52, 0x60, 32, 0x5f, 0xa1, 0x00,
}

// InitCode returns code that fills random slots, and deploys the program with up to 1,499 unused
// bytes after it. It needs at most 1.5 M gas and 30 records.
func InitCode(rng *rand.Rand) []byte {
	var init []byte
	for range rng.IntN(slots) {
		slot, value := byte(rng.IntN(slots)), byte(rng.IntN(slots))
		init = append(init, 0x60, value, 0x60, slot, 0x55) // SSTORE
	}
	size := uint16(len(follow) + rng.IntN(1500))
	at := uint16(len(init) + 13)
	init = append(binary.BigEndian.AppendUint16(append(init, 0x61), size), 0x61)
	// CODECOPY(0, at, size) RETURN(0, size)
	init = append(binary.BigEndian.AppendUint16(init, at), 0x5f, 0x39)
	init = append(binary.BigEndian.AppendUint16(append(init, 0x61), size), 0x5f, 0xf3)
	init = append(init, follow...)
	return append(init, make([]byte, int(size)-len(follow))...)
}

// Input returns the input of a random call of the program, which needs at most 120,000 gas and 5
// records.
func Input(rng *rand.Rand) []byte {
	input := make([]byte, 64)
	input[31], input[63] = byte(rng.IntN(slots)), byte(rng.IntN(slots))
	return input
}

// Package programtest has programs for the EVM, and calls of them, for the tests of any package.
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

// Hostile returns the init code of programs that use up what they may, by name. Any input is valid.
// A deployment needs at most 100,000 gas and 3 records.
func Hostile() map[string][]byte {
	all := make(map[string][]byte)
	for name, code := range map[string][]byte{
		// again: JUMP(again)
		"loop": {0x5b, 0x5f, 0x56},
		// n = 0; again: n++ SSTORE(n, n) JUMP(again)
		"bloat": {0x5f, 0x5b, 0x60, 1, 0x01, 0x80, 0x80, 0x55, 0x60, 1, 0x56},
		// n = 0; again: n += 32 MSTORE(n, n) JUMP(again)
		"memory": {0x5f, 0x5b, 0x60, 32, 0x01, 0x80, 0x80, 0x52, 0x60, 1, 0x56},
		// CALL(GAS, ADDRESS) again: JUMP(again)
		"recurse": {0x5f, 0x5f, 0x5f, 0x5f, 0x5f, 0x30, 0x5a, 0xf1, 0x5b, 0x60, 8, 0x56},
		// SELFDESTRUCT(ADDRESS)
		"self-destruct": {0x30, 0xff},
		// again: CREATE(a program that does nothing but that, while it is deployed) JUMP(again)
		"create and destroy": {0x61, 0x30, 0xff, 0x5f, 0x52, 0x5b, 0x60, 2, 0x60, 30, 0x5f, 0xf0, 0x50, 0x60, 5, 0x56},
		// REVERT with 250,000 bytes
		"long reason": {0x62, 0x03, 0xd0, 0x90, 0x5f, 0xfd},
		// CALLDATACOPY(all)
		// n = 0; again: n++ STATICCALL(65535 gas, precompile n % 16, all) JUMP(again)
		"precompiles": {
			0x36, 0x5f, 0x5f, 0x37, 0x5f, 0x5b, 0x60, 1, 0x01, 0x5f, 0x5f, 0x36, 0x5f, 0x84, 0x60, 0x0f, 0x16,
			0x61, 0xff, 0xff, 0xfa, 0x50, 0x60, 5, 0x56,
		},
	} {
		const prefix = 10 // bytes: CODECOPY(0, prefix, size) RETURN(0, size)
		size := byte(len(code))
		all[name] = append([]byte{0x60, size, 0x60, prefix, 0x5f, 0x39, 0x60, size, 0x5f, 0xf3}, code...)
	}
	return all
}

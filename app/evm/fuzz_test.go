//go:build !noevm

package evm

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/internal/seeds"
)

// choices makes decisions from fuzz data; after its end all are 0.
type choices struct{ data []byte }

func (c *choices) next(n int) int {
	if len(c.data) == 0 {
		return 0
	}
	b := c.data[0]
	c.data = c.data[1:]
	return int(b) % n
}

func (c *choices) bytes(n int) []byte {
	b := make([]byte, n)
	copy(b, c.data)
	c.data = c.data[min(n, len(c.data)):]
	return b
}

// writer writes a random program that uses the addresses of others.
type writer struct {
	*choices
	code      []byte
	addresses []common.Address
}

func (w *writer) op(ops ...vm.OpCode) {
	for _, op := range ops {
		w.code = append(w.code, byte(op))
	}
}

func (w *writer) number(n int) { w.code = append(w.code, byte(vm.PUSH2), byte(n>>8), byte(n)) }

func (w *writer) address() {
	w.op(vm.PUSH20)
	w.code = append(w.code, w.addresses[w.next(len(w.addresses))].Bytes()...)
}

// note adds the top of the stack to the result in memory, so that the output depends on it.
func (w *writer) note() {
	w.op(vm.PUSH0, vm.MLOAD, vm.PUSH1, 3, vm.MUL, vm.ADD, vm.PUSH0, vm.MSTORE)
}

var (
	constants = []vm.OpCode{
		vm.ADDRESS, vm.ORIGIN, vm.CALLER, vm.CALLVALUE, vm.CALLDATASIZE, vm.CODESIZE, vm.GASPRICE, vm.COINBASE, vm.TIMESTAMP, vm.NUMBER,
		vm.PREVRANDAO, vm.GASLIMIT, vm.CHAINID, vm.SELFBALANCE, vm.BASEFEE, vm.BLOBBASEFEE, vm.PC, vm.MSIZE, vm.GAS, vm.RETURNDATASIZE,
	}
	calls    = []vm.OpCode{vm.CALL, vm.CALLCODE, vm.DELEGATECALL, vm.STATICCALL}
	binaries = []vm.OpCode{
		vm.ADD, vm.MUL, vm.SUB, vm.DIV, vm.SDIV, vm.MOD, vm.SMOD, vm.EXP, vm.SIGNEXTEND, vm.LT, vm.SGT, vm.EQ, vm.AND, vm.BYTE, vm.SHL, vm.SAR, vm.KECCAK256,
	}
)

func (w *writer) step(depth int) {
	switch w.next(24) {
	case 0, 1, 2, 3:
		w.number(w.next(3))
		w.number(w.next(4))
		w.op(vm.SSTORE)
	case 4, 5:
		w.number(w.next(4))
		w.op(vm.SLOAD)
		w.note()
	case 6:
		w.number(w.next(3))
		w.number(w.next(3))
		w.op(vm.TSTORE)
	case 7:
		w.number(w.next(3))
		w.op(vm.TLOAD)
		w.note()
	case 8, 9, 10, 11:
		w.call()
	case 12, 13, 14:
		if depth < 2 {
			w.create(depth)
		}
	case 15:
		w.address()
		w.op([]vm.OpCode{vm.BALANCE, vm.EXTCODESIZE, vm.EXTCODEHASH, vm.BLOCKHASH, vm.BLOBHASH}[w.next(5)])
		w.note()
	case 16:
		w.number(40)
		w.number(w.next(40))
		w.op(vm.PUSH0)
		w.address()
		w.op(vm.EXTCODECOPY)
	case 17:
		topics := w.next(5)
		for range topics {
			w.number(w.next(256))
		}
		w.number(w.next(70))
		w.number(w.next(70))
		w.op(vm.LOG0 + vm.OpCode(topics))
	case 18:
		w.op(constants[w.next(len(constants))])
		w.note()
	case 19:
		w.number(w.next(256))
		w.number(w.next(256))
		w.op(binaries[w.next(len(binaries))])
		w.note()
	case 20:
		w.end()
	case 21:
		w.op(vm.CALLDATASIZE, vm.PUSH0, vm.PUSH1, 64, vm.CALLDATACOPY)
	case 22:
		w.number(w.next(100))
		w.number(w.next(200))
		w.number(w.next(200))
		w.op(vm.MCOPY)
	case 23:
		w.code = append(w.code, w.bytes(w.next(6))...)
	}
}

// call calls another program, itself or a precompiled contract, and notes success and output.
func (w *writer) call() {
	op := calls[w.next(len(calls))]
	w.number(w.next(64)) // output
	w.number(w.next(64))
	w.number(w.next(200)) // input
	w.number(w.next(64))
	if op == vm.CALL || op == vm.CALLCODE {
		w.number(max(0, w.next(8)-6)) // value
	}
	if w.next(3) == 0 {
		w.number([]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 256}[w.next(18)])
	} else {
		w.address()
	}
	if w.next(4) == 0 {
		w.number(w.next(256) * 100)
	} else {
		w.op(vm.GAS)
	}
	w.op(op)
	w.note()
	w.op(vm.RETURNDATASIZE)
	w.note()
	if w.next(2) == 0 {
		w.number(w.next(40))
		w.op(vm.PUSH0, vm.PUSH1, 96, vm.RETURNDATACOPY)
	}
}

// create deploys another random program, or one whose deployment is itself random.
func (w *writer) create(depth int) {
	inner := &writer{choices: w.choices, addresses: w.addresses}
	for range w.next(6) {
		inner.step(depth + 1)
	}
	init := inner.code
	if w.next(2) == 0 && len(init) < 200 {
		init = append([]byte{byte(vm.PUSH1), byte(len(init)), byte(vm.DUP1), byte(vm.PUSH1), 9, byte(vm.PUSH0), byte(vm.CODECOPY), byte(vm.PUSH0), byte(vm.RETURN)}, init...)
	}
	for at := 0; at < len(init); at += 32 {
		w.op(vm.PUSH32)
		w.code = append(w.code, common.RightPadBytes(init[at:min(at+32, len(init))], 32)...)
		w.number(64 + at)
		w.op(vm.MSTORE)
	}
	two := w.next(2) == 0
	if two {
		w.number(w.next(2)) // salt
	}
	w.number(len(init))
	w.number(64)
	w.number(max(0, w.next(8)-6)) // value
	if two {
		w.op(vm.CREATE2)
	} else {
		w.op(vm.CREATE)
	}
	w.op(vm.DUP1)
	w.note()
	if w.next(2) == 0 { // call it
		w.op(vm.PUSH0, vm.PUSH0, vm.PUSH0, vm.PUSH0, vm.PUSH0, vm.DUP1+5, vm.GAS, vm.CALL)
		w.note()
	}
}

func (w *writer) end() {
	switch w.next(5) {
	case 0:
		w.number(w.next(100))
		w.op(vm.PUSH0, vm.REVERT)
	case 1:
		w.number(w.next(100))
		w.op(vm.PUSH0, vm.RETURN)
	case 2, 3:
		w.address()
		w.op(vm.SELFDESTRUCT)
	case 4:
		w.op(vm.INVALID)
	}
}

// FuzzAgainstStateDB runs random calls of random programs in the engine and in go-ethereum.
func FuzzAgainstStateDB(f *testing.F) {
	random := seeds.Rand(f)
	for range 150 {
		f.Add(randomBytes(random, 100+random.IntN(900)))
	}
	f.Fuzz(againstStateDB)
}

func randomBytes(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func againstStateDB(t *testing.T, data []byte) {
	c := &choices{data}
	e := engine{}
	sender := common.Address(e.Address(alice))
	addresses := []common.Address{sender, common.Address(e.Address(bob)), {}, {0xff}}
	var programs []common.Address
	for i := range 4 {
		programs = append(programs, common.Address{19: 0xc0 + byte(i)})
	}
	addresses = append(addresses, programs...)
	for n := range uint64(3) { // of the first deployments
		addresses = append(addresses, crypto.CreateAddress(programs[0], 1+n), crypto.CreateAddress(sender, n))
	}
	w := world{}
	for _, address := range programs {
		writer := &writer{choices: c, addresses: addresses}
		for range 3 + c.next(12) {
			writer.step(0)
		}
		writer.number(32)
		writer.op(vm.PUSH0, vm.RETURN)
		w.put(address, writer.code)
		if c.next(2) == 0 {
			slot := binary.BigEndian.AppendUint64(make([]byte, 24), uint64(c.next(4))) //nolint:gosec // small
			w[string(program.SlotKey(address[:], slot))] = []byte{1 + byte(c.next(2))}
		}
	}
	r := newReference(t, w)
	for range 4 {
		call := program.Call{Gas: 300_000, Keys: 1_000, Unnamed: 1_000, Input: c.bytes(c.next(40))}
		if c.next(4) == 0 {
			call.Gas = uint64(c.next(256)) * 300 //nolint:gosec // small
		}
		if c.next(4) == 0 {
			writer := &writer{choices: c, addresses: addresses}
			for range c.next(6) {
				writer.step(1)
			}
			call.Input = writer.code
			if c.next(2) == 0 {
				call.Input = deployer(t, writer.code)
			}
		} else {
			call.To = programs[c.next(len(programs))].Bytes()
		}
		if c.next(8) == 0 {
			checkFailingReads(t, w, sender, call)
		}
		compare(t, w, r, sender, call)
	}
}

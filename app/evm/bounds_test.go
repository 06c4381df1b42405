//go:build !noevm

package evm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/app/program/programtest"
	"github.com/starling-kv/starling/internal/seeds"
)

var heavyAt = common.Address{0xbe}

// loop returns a program that repeats body for ever. The body leaves the stack as it found it;
// below it lies a number that it may use.
func loop(body string) string { return "PUSH 1 again: " + body + again }

const again = " PUSH @again JUMP"

// next replaces the number under a loop's body by the next one, and leaves a copy of it.
const next = "PUSH 1 ADD DUP1 "

// callTo calls a precompiled contract with memory as it is, and drops what it returns.
func callTo(address, input int) string {
	return fmt.Sprintf("PUSH 0 PUSH 0 PUSH %d PUSH 0 PUSH %d GAS STATICCALL POP", input, address)
}

// words stores 32-byte words at the beginning of memory.
func words(t testing.TB, data []byte) string {
	t.Helper()
	var text strings.Builder
	for at := 0; at < len(data); at += 32 {
		fmt.Fprintf(&text, "PUSH 0x%x PUSH %d MSTORE ", common.RightPadBytes(data[at:min(at+32, len(data))], 32), at)
	}
	return text.String()
}

// heavy returns programs that use all their gas, each for another kind of work. Inputs of
// precompiled contracts are valid and as slow as their price allows.
func heavy(t testing.TB) map[string]string {
	t.Helper()
	modexp := func(base, exponent, modulus []byte) string {
		var input []byte
		for _, x := range [][]byte{base, exponent, modulus} {
			input = append(input, common.LeftPadBytes([]byte{byte(len(x) >> 8), byte(len(x))}, 32)...)
		}
		input = slices.Concat(input, base, exponent, modulus)
		return words(t, input) + loop(callTo(5, len(input)))
	}
	ff := func(n int) []byte { return bytes.Repeat([]byte{0xff}, n) }
	// Generators of BN254's two groups, and the negated first one: their pairings cancel out.
	g2 := "198e9393920d483a7260bfb731fb5d25f1aa493335a9e71297e485b7aef312c21800deef121f1e76426a00665e5c4479674322d4f75edadd46debd5cd992f6ed" +
		"090689d0585ff075ec9e99ad690c3395bc4b313370b38ef355acdadcd122975b12c85ea5db8c6deb4aab71808dcb408fe3d1e7690c43d37b4ce6cc0166fa7daa"
	one := fmt.Sprintf("%064x%064x", 1, 2)
	pair := mustHex(t, one+g2)
	signature := mustHex(t, "456e9aea5e197a1f1af7a3e85a3212fa4049a3ba34c2289b4c860fc0b0c64ef3"+fmt.Sprintf("%064x", 28)+
		"9242685bf161793cc25603c231bc2f568eb630ea16aa137d2664ac8038825608"+"4f8ae3bd7535248d0bd448298cc2e2071e56992d0774dc340c368ae950852ada")
	bls := func(address int, file, name string) string {
		input := inputOf(t, file, name)
		return words(t, input) + loop(callTo(address, len(input)))
	}
	return map[string]string{
		"jumpdest":         loop(strings.Repeat("JUMPDEST ", 1000)),
		"jump":             loop(""),
		"add":              loop(strings.Repeat("DUP1 DUP1 ADD POP ", 500)),
		"exp":              loop(strings.Repeat("PUSH 0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff DUP1 EXP POP ", 20)),
		"mulmod":           loop(strings.Repeat("PUSH 0xfffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff1 DUP1 DUP1 PUSH 7 SUB DUP1 MULMOD POP POP ", 200)),
		"keccak":           loop(strings.Repeat("PUSH 32 PUSH 0 KECCAK256 POP ", 200)),
		"keccak long":      loop(strings.Repeat("PUSH 8192 PUSH 0 KECCAK256 POP ", 20)),
		"sstore warm":      loop("DUP1 PUSH 0 SSTORE PUSH 1 ADD"),
		"sstore cold":      loop(next + "DUP1 SSTORE"),
		"sload cold":       loop(next + "SLOAD POP"),
		"sload warm":       loop(strings.Repeat("PUSH 0 SLOAD POP ", 200)),
		"tstore":           loop(next + "DUP1 TSTORE"),
		"balance cold":     loop(next + "PUSH 1000 ADD BALANCE POP"),
		"extcodesize cold": loop(next + "PUSH 1000 ADD EXTCODESIZE POP"),
		"extcodehash cold": loop(next + "PUSH 1000 ADD EXTCODEHASH POP"),
		"call cold":        loop(next + "PUSH 0 PUSH 0 PUSH 0 PUSH 0 PUSH 0 DUP6 PUSH 1000 ADD GAS CALL POP POP"),
		"log":              loop("PUSH 0 PUSH 0 LOG0"),
		"log long":         loop("PUSH 4096 PUSH 0 LOG0"),
		"memory":           loop("PUSH 32 DUP2 MUL DUP1 MSTORE PUSH 1 ADD"),
		"mcopy":            loop("PUSH 8192 PUSH 1 PUSH 0 MCOPY"),
		"calldatacopy":     loop("PUSH 8192 PUSH 1 PUSH 0 CALLDATACOPY"),
		"recursion":        "PUSH 0 PUSH 0 PUSH 0 PUSH 0 PUSH 0 ADDRESS GAS CALL " + loop(""),
		"recursion, memory": "PUSH 1 PUSH 98304 MSTORE PUSH 0 PUSH 0 PUSH 0 PUSH 0 PUSH 0 ADDRESS GAS CALL " +
			loop(""),
		"return bomb":       "PUSH 1 CALLDATASIZE PUSH @bomb JUMPI " + loop("PUSH 0 PUSH 0 PUSH 1 PUSH 0 PUSH 0 ADDRESS PUSH 600000 CALL POP") + " bomb: PUSH 250000 PUSH 0 REVERT",
		"create":            loop("PUSH 0 PUSH 0 PUSH 0 CREATE POP"),
		"create long":       loop("PUSH 49152 PUSH 0 PUSH 0 CREATE POP"),
		"create recursion":  "CODESIZE PUSH 0 PUSH 0 CODECOPY " + loop("CODESIZE PUSH 0 PUSH 0 CREATE POP"),
		"selfdestruct":      "PUSH 0x30ff PUSH 0 MSTORE " + loop("PUSH 2 PUSH 30 PUSH 0 CREATE POP"),
		"ecrecover":         words(t, signature) + loop(callTo(1, 128)),
		"sha256":            loop(callTo(2, 32)),
		"sha256 long":       loop(callTo(2, 8192)),
		"ripemd160":         loop(callTo(3, 32)),
		"ripemd160 long":    loop(callTo(3, 8192)),
		"identity":          loop(callTo(4, 32)),
		"identity long":     loop(callTo(4, 8192)),
		"modexp 32":         modexp(ff(32), ff(32), ff(32)),
		"modexp 32, e 3":    modexp(ff(32), []byte{3}, ff(32)),
		"modexp 256":        modexp(ff(256), ff(32), ff(256)),
		"modexp 256, e 256": modexp(ff(256), ff(256), ff(256)),
		"modexp 1024, e 1":  modexp(ff(1024), []byte{0xff}, ff(1024)),
		"modexp even":       modexp(ff(256), ff(32), append(ff(255), 0)),
		"bn add":            words(t, mustHex(t, one+one)) + loop(callTo(6, 128)),
		"bn mul":            words(t, append(mustHex(t, one), ff(32)...)) + loop(callTo(7, 96)),
		"bn pairing 1":      words(t, pair) + loop(callTo(8, 192)),
		"bn pairing 8":      words(t, bytes.Repeat(pair, 8)) + loop(callTo(8, 8*192)),
		"blake2f":           words(t, append([]byte{0, 0, 0x10, 0}, make([]byte, 209)...)) + loop(callTo(9, 213)),
		"p256":              words(t, append(bytes.Repeat([]byte{0x11}, 96), p256Key(t)...)) + loop(callTo(256, 160)),
		"bls g1 add":        bls(11, "blsG1Add", "matter_g1_add_0"),
		"bls g1 sum 1":      bls(12, "blsG1Mul", "bls_g1mul_random*p1_unnormalized_scalar"),
		"bls g1 sum 16":     bls(12, "blsG1MultiExp", "matter_g1_multiexp_0"),
		"bls g1 sum 128":    bls(12, "blsG1MultiExp", "g1msm-128-jwasinger"),
		"bls g2 add":        bls(13, "blsG2Add", "matter_g2_add_0"),
		"bls g2 sum 1":      bls(14, "blsG2Mul", "bls_g2mul_random*p2_unnormalized_scalar"),
		"bls g2 sum 16":     bls(14, "blsG2MultiExp", "matter_g2_multiexp_0"),
		"bls g2 sum 128":    bls(14, "blsG2MultiExp", "g2msm-128-jwasinger"),
		"bls pairing 1":     bls(15, "blsPairing", "matter_pairing_0"),
		"bls pairing 10":    bls(15, "blsPairing", "bls_pairing_10paircheckstrue"),
		"bls map to g1":     bls(16, "blsMapG1", "matter_fp_to_g1_0"),
		"bls map to g2":     bls(17, "blsMapG2", "matter_fp2_to_g2_0"),
	}
}

func mustHex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	require.NoError(t, err)
	return b
}

// p256Key returns the generator of P-256 (FIPS 186-4, D.1.2.3), a valid public key.
func p256Key(t testing.TB) []byte {
	t.Helper()
	return mustHex(t, "6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"+"4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5")
}

func TestHeavyProgramsEnd(t *testing.T) {
	for name, text := range heavy(t) {
		t.Run(name, func(t *testing.T) {
			w := world{}
			w.put(heavyAt, assemble(t, text))
			call := program.Call{Account: alice, To: heavyAt[:], Gas: 300_000, Keys: 100_000, Unnamed: 100_000}
			got := compare(t, w, newReference(t, w), common.Address(New().Address(alice)), call)
			require.Equal(t, program.OutOfGas, got.Status, got.Reason)
			require.Equal(t, call.Gas, got.Gas)
		})
	}
}

// finish ends a program: it returns the top of the stack and what the last call returned.
const finish = " PUSH 0 MSTORE RETURNDATASIZE PUSH 0 PUSH 32 RETURNDATACOPY RETURNDATASIZE PUSH 32 ADD PUSH 0 RETURN"

// forwarder calls an address with an input that it receives (see forward). It returns whether that
// succeeded, and the output.
const forwarder = "PUSH 64 CALLDATASIZE SUB PUSH 64 PUSH 0 CALLDATACOPY PUSH 0 PUSH 0 PUSH 64 CALLDATASIZE SUB PUSH 0 PUSH 0 CALLDATALOAD PUSH 32 CALLDATALOAD " +
	"STATICCALL" + finish

var forwarderAt = common.Address{0xca}

// forward returns a call of the forwarder.
func forward(address common.Address, gas uint64, input []byte) program.Call {
	input = slices.Concat(common.LeftPadBytes(address[:], 32), common.LeftPadBytes(binary.BigEndian.AppendUint64(nil, gas), 32), input)
	return program.Call{Account: alice, To: forwarderAt[:], Gas: program.MaxGas, Keys: 10, Unnamed: 10, Input: input}
}

// What ends the hostile programs of other packages' tests is known here.
func TestHostilePrograms(t *testing.T) {
	random := seeds.Rand(t)
	for name, code := range programtest.Hostile() {
		w := world{}
		deployed := w.run(t, program.Call{Input: code, Gas: 100_000, Keys: 3, Unnamed: 3})
		require.Equal(t, program.Done, deployed.Status, "%s: %s", name, deployed.Reason)
		want := program.OutOfGas
		switch name {
		case "bloat", "create and destroy":
			want = program.TooMany
		case "long reason":
			want = program.Reverted
		case "self-destruct":
			want = program.Done
		}
		got := w.run(t, program.Call{To: deployed.Address, Input: randomBytes(random, random.IntN(300)), Gas: 2_000_000, Keys: 16, Unnamed: 16})
		require.Equal(t, want, got.Status, "%s: %s", name, got.Reason)
		require.LessOrEqual(t, got.Gas, uint64(2_000_000), name)
	}
}

// Precompiled contracts accept any input of any length, and agree with go-ethereum.
func TestPrecompiledContracts(t *testing.T) {
	random := seeds.Rand(t)
	w := world{}
	w.put(forwarderAt, assemble(t, forwarder))
	r := newReference(t, w)
	for _, address := range precompiles {
		for range 20 {
			input := randomBytes(random, random.IntN(500))
			if random.IntN(2) == 0 && len(input) > 96 { // lengths of modexp that fit
				clear(input[:96])
				input[30], input[31], input[63], input[94], input[95] = byte(random.IntN(5)), byte(random.IntN(256)), byte(random.IntN(256)), byte(random.IntN(5)), 9
			}
			got := compare(t, w, r, common.Address{1}, forward(address, 5_000_000, input))
			require.Equal(t, program.Done, got.Status, got.Reason)
			require.Len(t, got.Keys, 2, "a precompiled contract has no record")
		}
	}
}

func TestRefusedCalls(t *testing.T) {
	w := world{}
	for name, call := range map[string]program.Call{
		"address":    {To: []byte{1}},
		"gas":        {To: heavyAt[:], Gas: program.MaxGas + 1},
		"init code":  {Input: make([]byte, program.MaxInitBytes+1)},
		"no program": {To: heavyAt[:]},
		"precompile": {To: []byte{19: 4}},
	} {
		got := w.run(t, call)
		require.Equal(t, program.Failed, got.Status, name)
		require.Zero(t, got.Gas)
	}
	require.Equal(t, program.OutOfGas, w.run(t, program.Call{Input: deployer(t, make([]byte, 1000)), Gas: 1000}).Status)
	require.Equal(t, program.Failed, w.run(t, program.Call{Input: deployer(t, make([]byte, program.MaxCodeBytes+1)), Gas: program.MaxGas}).Status)
	require.Equal(t, program.Done, w.run(t, program.Call{Input: deployer(t, make([]byte, program.MaxCodeBytes)), Gas: program.MaxGas}).Status)
	require.Equal(t, program.Failed, w.run(t, program.Call{Input: deployer(t, []byte{0xef})}).Status)
}

// Damaged records cannot come from this engine. They fail the call, on every node alike.
func TestDamagedRecords(t *testing.T) {
	for name, damage := range map[string]func(w world){
		"short account": func(w world) { w[string(program.AccountKey(heavyAt[:]))] = []byte{1} },
		"no code":       func(w world) { delete(w, string(program.CodeKey(heavyAt[:]))) },
		"empty code":    func(w world) { w[string(program.CodeKey(heavyAt[:]))] = []byte{} },
	} {
		w := world{}
		w.put(heavyAt, []byte{byte(vm.STOP)})
		damage(w)
		require.Equal(t, program.Failed, w.run(t, program.Call{To: heavyAt[:]}).Status, name)
	}
	require.Panics(t, func() {
		_, _ = New().Run(testEnv, program.Call{To: heavyAt[:], Keys: 9, Unnamed: 9}, func([]byte) ([]byte, error) { panic("a fault of the caller") })
	})
}

func TestConcurrentCalls(t *testing.T) {
	w := world{}
	w.put(heavyAt, assemble(t, loop("DUP1 SLOAD POP DUP1 DUP1 SSTORE PUSH 1 ADD")))
	call := program.Call{Account: alice, To: heavyAt[:], Gas: 200_000, Keys: 100, Unnamed: 100}
	want, err := New().Run(testEnv, call, w.read)
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				if got, err := New().Run(testEnv, call, w.read); err != nil || !reflect.DeepEqual(want, got) {
					t.Errorf("another result: %v %v", got, err)
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkHeavy reports the gas per second of processor time of each program of heavy.
func BenchmarkHeavy(b *testing.B) {
	programs := heavy(b)
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		b.Run(name, func(b *testing.B) {
			w := world{}
			w.put(heavyAt, assemble(b, programs[name]))
			for n := range 9_000 { // accounts that "cold" programs read
				w.put(common.Address{18: byte((1000 + n) >> 8), 19: byte(1000 + n)}, []byte{byte(vm.STOP)})
			}
			call := program.Call{Account: alice, To: heavyAt[:], Gas: program.MaxGas, Keys: 100_000, Unnamed: 100_000}
			peak := watchHeap(b)
			var gas uint64
			cpu := cpuTime(b)
			for b.Loop() {
				got, err := New().Run(testEnv, call, w.read)
				require.NoError(b, err)
				require.NotEqual(b, program.TooMany, got.Status)
				gas += got.Gas
			}
			b.ReportMetric(float64(gas)/(cpuTime(b)-cpu).Seconds()/1e6, "Mgas/s")
			b.ReportMetric(float64(peak())/(1<<20), "MiB-peak")
		})
	}
}

// watchHeap samples the heap until the returned function stops it and returns the most bytes beyond
// those of now.
func watchHeap(b *testing.B) func() uint64 {
	b.Helper()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before, most := m.HeapAlloc, m.HeapAlloc
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-stopped
		return most - before
	}
}

// cpuTime returns the processor time of this process. Unlike a clock's, it does not depend on what
// else the machine does.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

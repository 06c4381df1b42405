//go:build !noevm

package evm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/program"
)

// readTests reads the files of go-ethereum's tests of core/vm that match a pattern, by name.
func readTests[T any](t testing.TB, pattern string) map[string][]T {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(geth(t, "core/vm/testdata"), pattern))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	files := map[string][]T{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		var tests []T
		require.NoError(t, json.Unmarshal(b, &tests), path)
		require.NotEmpty(t, tests, path)
		files[strings.TrimSuffix(filepath.Base(path), ".json")] = tests
	}
	return files
}

// precompileTest is a test of core/vm/testdata/precompiles.
type precompileTest struct {
	Input, Expected, ExpectedError, Name string
	Gas                                  uint64
}

// precompileOf names the contract of each file of core/vm/testdata/precompiles, and of those with
// the prefix fail-, in lower case.
var precompileOf = map[string]uint64{
	"ecrecover": 1, "modexp": 5, "modexp_eip2565": 5, "modexp_eip7883": 5, "bn256add": 6, "bn256scalarmul": 7, "bn256pairing": 8, "blake2f": 9,
	"pointevaluation": 10, "blsg1add": 11, "blsg1mul": 12, "blsg1multiexp": 12, "blsg2add": 13, "blsg2mul": 14, "blsg2multiexp": 14,
	"blspairing": 15, "blsmapg1": 16, "blsmapg2": 17, "p256verify": 256,
}

// otherPrecompile names tests that our rules forbid.
var otherPrecompile = map[string]string{
	"pointEvaluation":      "there is no contract for blobs",
	"g1msm-2048-jwasinger": "it costs more gas than a call may use",
	"g1msm-4877-jwasinger": "it costs more gas than a call may use",
	"g2msm-1024-jwasinger": "it costs more gas than a call may use",
}

// otherPrice names files whose prices are not those of Osaka.
var otherPrice = map[string]string{"modexp": "EIP-198", "modexp_eip2565": "EIP-2565"}

// TestPrecompileVectors calls precompiled contracts with the inputs of go-ethereum's tests, through
// a program. A call with one gas less than the price fails.
func TestPrecompileVectors(t *testing.T) {
	w := world{}
	w.put(forwarderAt, assemble(t, forwarder))
	run := func(t *testing.T, address common.Address, gas uint64, input []byte) (ok bool, output []byte) {
		t.Helper()
		r, err := New().Run(testEnv, forward(address, gas, input), w.read)
		require.NoError(t, err)
		require.Equal(t, program.Done, r.Status, r.Reason)
		require.Len(t, r.Keys, 2, "a precompiled contract has no record")
		require.Contains(t, []byte{0, 1}, r.Output[31])
		return r.Output[31] == 1, r.Output[32:]
	}
	for file, tests := range readTests[precompileTest](t, "precompiles/*.json") {
		name, fails := strings.CutPrefix(file, "fail-")
		number, known := precompileOf[strings.ToLower(name)]
		require.True(t, known, "no contract for the file %s", file)
		address := common.Address{18: byte(number >> 8), 19: byte(number)}
		for _, test := range tests {
			t.Run(file+"/"+test.Name, func(t *testing.T) {
				if reason, is := otherPrecompile[file]; is {
					t.Skip(reason)
				}
				if reason, is := otherPrecompile[test.Name]; is {
					t.Skip(reason)
				}
				input := mustHex(t, test.Input)
				if fails {
					ok, output := run(t, address, 1_000_000, input)
					require.False(t, ok, test.ExpectedError)
					require.Empty(t, output)
					return
				}
				gas := test.Gas
				if number == 1 || number == 12 || number == 14 {
					gas *= 2
				}
				if _, is := otherPrice[file]; is {
					gas = contracts[address].RequiredGas(input)
				}
				ok, output := run(t, address, gas, input)
				require.True(t, ok)
				require.Equal(t, test.Expected, common.Bytes2Hex(output))
				if gas > 0 {
					ok, output = run(t, address, gas-1, input)
					require.False(t, ok, "with one gas less")
					require.Empty(t, output)
				}
			})
		}
	}
}

// inputOf returns the input of a test of core/vm/testdata/precompiles.
func inputOf(t testing.TB, file, name string) []byte {
	t.Helper()
	for _, test := range readTests[precompileTest](t, "precompiles/"+file+".json")[file] {
		if test.Name == name {
			return mustHex(t, test.Input)
		}
	}
	t.Fatalf("%s has no test %s", file, name)
	return nil
}

// TestInstructionVectors executes instructions with the operands of go-ethereum's tests.
func TestInstructionVectors(t *testing.T) {
	type vector struct{ X, Y, Expected string }
	files := readTests[vector](t, "testcases_*.json")
	require.GreaterOrEqual(t, len(files), 21)
	for file, tests := range files {
		name := strings.ToUpper(strings.TrimPrefix(file, "testcases_"))
		if name == "SIGNEXT" {
			name = "SIGNEXTEND"
		}
		t.Run(name, func(t *testing.T) {
			w := world{}
			w.put(heavyAt, assemble(t, "PUSH 0 CALLDATALOAD PUSH 32 CALLDATALOAD "+name+finish))
			for _, test := range tests {
				input := append(common.LeftPadBytes(mustHex(t, test.X), 32), common.LeftPadBytes(mustHex(t, test.Y), 32)...)
				r, err := New().Run(testEnv, program.Call{Account: alice, To: heavyAt[:], Input: input, Gas: 100_000, Keys: 10, Unnamed: 10}, w.read)
				require.NoError(t, err)
				require.Equal(t, program.Done, r.Status, r.Reason)
				require.Equal(t, common.LeftPadBytes(mustHex(t, test.Expected), 32), r.Output, "%s %s", test.X, test.Y)
			}
		})
	}
}

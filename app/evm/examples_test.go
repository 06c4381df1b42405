//go:build !noevm

package evm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/internal/seeds"
)

var updateExamples = flag.Bool("update-examples", false, "write the bytecode of examples/programs")

// example is a deployed program of examples/programs.
type example struct {
	t       *testing.T
	w       world
	address []byte
	env     program.Env
}

// deployExample checks the bytecode of an example, and deploys it from alice's account.
func deployExample(t *testing.T, name string, arguments ...[]byte) *example {
	t.Helper()
	path := filepath.Join("..", "..", "examples", "programs", name)
	source, err := os.ReadFile(path + ".asm")
	require.NoError(t, err)
	code := assemble(t, string(source))
	if *updateExamples {
		require.NoError(t, os.WriteFile(path+".hex", []byte(hex.EncodeToString(code)+"\n"), 0o644)) //nolint:gosec // not secret
	}
	text, err := os.ReadFile(path + ".hex")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(text)), hex.EncodeToString(code), "go test ./app/evm -run Example -update-examples")
	for _, a := range arguments {
		code = append(code, common.LeftPadBytes(a, 32)...)
	}
	e := &example{t: t, w: world{}, env: testEnv}
	e.address = e.call(alice, nil, code).Address
	return e
}

// call calls a program, which must succeed, and applies the changes.
func (e *example) call(account, to, input []byte) *program.Result {
	e.t.Helper()
	r := e.run(account, to, input)
	require.Equal(e.t, program.Done, r.Status, r.Reason)
	e.w.apply(r.Changes)
	return r
}

func (e *example) run(account, to, input []byte) *program.Result {
	e.t.Helper()
	r, err := New().Run(e.env, program.Call{Account: account, To: to, Input: input, Gas: 1_000_000, Keys: 100, Unnamed: 100}, e.w.read)
	require.NoError(e.t, err)
	return r
}

// as calls a method from an account, and returns the number that it returns.
func (e *example) as(account []byte, method string, arguments ...[]byte) uint64 {
	e.t.Helper()
	output := e.call(account, e.address, selector(method, arguments...)).Output
	if len(output) == 0 {
		return 0
	}
	require.Len(e.t, output, 32)
	return binary.BigEndian.Uint64(output[24:])
}

// refused calls a method that must fail and change nothing, and returns the reason.
func (e *example) refused(account []byte, method string, arguments ...[]byte) string {
	e.t.Helper()
	r := e.run(account, e.address, selector(method, arguments...))
	require.Equal(e.t, program.Reverted, r.Status)
	require.Empty(e.t, r.Changes)
	return r.Reason
}

func TestExampleToken(t *testing.T) {
	e := deployExample(t, "token", []byte{100})
	a, b := New().Address(alice), New().Address(bob)
	carol := bytes.Repeat([]byte{0xca}, 32)
	c := New().Address(carol)
	holds := func(of []byte) uint64 { return e.as(alice, "balanceOf(address)", of) }
	require.EqualValues(t, 100, e.as(bob, "totalSupply()"))
	require.Zero(t, e.as(bob, "decimals()"))
	require.EqualValues(t, 100, holds(a))

	r := e.call(alice, e.address, selector("transfer(address,uint256)", b, []byte{30}))
	require.Equal(t, []program.Log{{
		Address: e.address,
		Topics:  [][]byte{crypto.Keccak256([]byte("Transfer(address,address,uint256)")), common.LeftPadBytes(a, 32), common.LeftPadBytes(b, 32)},
		Data:    common.LeftPadBytes([]byte{30}, 32),
	}}, r.Logs)
	require.Equal(t, []uint64{70, 30, 0}, []uint64{holds(a), holds(b), holds(c)})
	require.EqualValues(t, 1, e.as(bob, "transfer(address,uint256)", b, []byte{30}), "to itself")
	require.EqualValues(t, 30, holds(b))
	require.Contains(t, e.refused(bob, "transfer(address,uint256)", a, []byte{31}), "the balance is too small")

	require.EqualValues(t, 1, e.as(alice, "approve(address,uint256)", c, []byte{50}))
	require.EqualValues(t, 50, e.as(bob, "allowance(address,address)", a, c))
	require.Contains(t, e.refused(bob, "transferFrom(address,address,uint256)", a, b, []byte{1}), "the allowance is too small")
	require.EqualValues(t, 1, e.as(carol, "transferFrom(address,address,uint256)", a, b, []byte{45}))
	require.EqualValues(t, 5, e.as(bob, "allowance(address,address)", a, c))
	require.Contains(t, e.refused(carol, "transferFrom(address,address,uint256)", a, b, []byte{6}), "the allowance is too small")
	require.Equal(t, []uint64{25, 75, 0}, []uint64{holds(a), holds(b), holds(c)})
	require.EqualValues(t, 100, e.as(bob, "totalSupply()"))

	// What is not an address is refused, also the slot of the supply.
	high := append([]byte{1}, make([]byte, 20)...)
	for method, arguments := range map[string][][]byte{
		"transfer(address,uint256)": {high, {1}}, "balanceOf(address)": {high}, "approve(address,uint256)": {high, {1}},
		"allowance(address,address)": {a, high}, "transferFrom(address,address,uint256)": {a, high, {0}}, "unknown()": nil,
	} {
		e.refused(carol, method, arguments...)
		if len(arguments) > 0 { // too few
			e.refused(carol, method, arguments[1:]...)
		}
	}
	requireArgument(t, "token")
}

// requireArgument checks that an example is not deployed without the argument of its constructor.
func requireArgument(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "programs", name+".hex"))
	require.NoError(t, err)
	e := &example{t: t, w: world{}, env: testEnv}
	require.Equal(t, program.Reverted, e.run(alice, nil, common.FromHex(strings.TrimSpace(string(text)))).Status)
}

func TestExampleIndex(t *testing.T) {
	e := deployExample(t, "index")
	rnd := seeds.Rand(t)
	want := map[byte]byte{}
	for range 300 {
		key, value := byte(1+rnd.IntN(12)), byte(rnd.IntN(4))
		e.as(alice, "put(bytes32,bytes32)", []byte{key}, []byte{value})
		want[key] = value
		listed, total := map[byte]byte{}, 0
		for value := byte(1); value < 4; value++ {
			n := e.as(bob, "count(bytes32)", []byte{value})
			total += int(n)
			for i := range n {
				listed[byte(e.as(bob, "find(bytes32,uint256)", []byte{value}, []byte{byte(i)}))] = value
			}
			e.refused(bob, "find(bytes32,uint256)", []byte{value}, []byte{byte(n)})
		}
		for key, value := range want {
			require.EqualValues(t, value, e.as(bob, "get(bytes32)", []byte{key}))
			require.Equal(t, value, listed[key])
			if value > 0 {
				total--
			}
		}
		require.Zero(t, total, "a key is listed twice")
	}
	for key := range want {
		e.as(alice, "put(bytes32,bytes32)", []byte{key}, nil)
	}
	require.Len(t, e.w, 3, "the program, its code and alice's account are left")
}

func TestExampleRule(t *testing.T) {
	e := deployExample(t, "rule", []byte{3})
	left := func(account []byte) uint64 { return e.as(alice, "left(address)", New().Address(account)) }
	for range 2 { // two days
		require.EqualValues(t, 3, left(bob))
		for i := range uint64(3) {
			e.as(bob, "use()")
			require.Equal(t, 2-i, left(bob))
		}
		require.Contains(t, e.refused(bob, "use()"), "no calls are left until 0:00")
		require.EqualValues(t, 3, left(alice))
		e.env.Time += 86400
	}
	e.refused(bob, "unknown()")
	e.refused(bob, "left(address)")
	requireArgument(t, "rule")
}

//go:build !noevm

package evm

import (
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/program"
)

// erc20 deploys the token of a fixture, compiled from Solidity, and gives alice all its units. It
// returns the token's address.
func erc20(t testing.TB, w world) []byte {
	t.Helper()
	f := readFixture(t, filepath.Join(geth(t, "eth/tracers/internal/tracetest/testdata/call_tracer"), "oog.json"))
	tx, sender := f.transaction(t)
	deployed := w.run(t, program.Call{Input: deployer(t, f.Genesis.Alloc[*tx.To()].Code), Gas: program.MaxGas})
	require.Equal(t, program.Done, deployed.Status, deployed.Reason)
	// The constructor is unknown. Balances are a mapping: the slot of the fixture's sender says
	// which.
	for mapping := range byte(20) {
		slot := mappingSlot(sender[:], mapping)
		if f.Genesis.Alloc[*tx.To()].Storage[common.Hash(slot)] != (common.Hash{}) {
			w[string(program.SlotKey(deployed.Address, mappingSlot(New().Address(alice), mapping)))] = []byte{0x7f, 0, 0, 0, 0, 0}
			return deployed.Address
		}
	}
	t.Fatal("the fixture's sender has no balance")
	return nil
}

// mappingSlot returns the slot of a key in Solidity's n-th variable, a mapping.
func mappingSlot(key []byte, n byte) []byte {
	return crypto.Keccak256(common.LeftPadBytes(key, 32), common.LeftPadBytes([]byte{n}, 32))
}

func TestERC20(t *testing.T) {
	w := world{}
	token := erc20(t, w)
	to := New().Address(bob)
	balance := func(account []byte) []byte {
		r := w.run(t, program.Call{To: token, Input: selector("balanceOf(address)", New().Address(account))})
		require.Equal(t, program.Done, r.Status, r.Reason)
		require.Empty(t, r.Changes)
		return common.TrimLeftZeroes(r.Output)
	}
	require.Empty(t, balance(bob))
	r := w.run(t, program.Call{To: token, Input: selector("transfer(address,uint256)", to, []byte{9})})
	require.Equal(t, program.Done, r.Status, r.Reason)
	require.Len(t, r.Changes, 2)
	require.Equal(t, []program.Log{{
		Address: token,
		Topics:  [][]byte{crypto.Keccak256([]byte("Transfer(address,address,uint256)")), common.LeftPadBytes(New().Address(alice), 32), common.LeftPadBytes(to, 32)},
		Data:    common.LeftPadBytes([]byte{9}, 32),
	}}, r.Logs)
	require.Equal(t, []byte{9}, balance(bob))
	require.Equal(t, []byte{0x7e, 0xff, 0xff, 0xff, 0xff, 0xf7}, balance(alice))

	// A transfer of more than the balance, and one with too little gas, change nothing.
	refused := w.run(t, program.Call{Account: bob, To: token, Input: selector("transfer(address,uint256)", to, []byte{10})})
	require.NotEqual(t, program.Done, refused.Status)
	require.Equal(t, program.OutOfGas, w.run(t, program.Call{To: token, Gas: 20_000, Input: selector("transfer(address,uint256)", New().Address([]byte{1}), []byte{9})}).Status)
	require.Equal(t, []byte{9}, balance(bob))

	// All of bob's units: his slot is deleted.
	r = w.run(t, program.Call{Account: bob, To: token, Input: selector("transfer(address,uint256)", New().Address(alice), []byte{9})})
	require.Equal(t, program.Done, r.Status, r.Reason)
	require.Empty(t, balance(bob))

	call := program.Call{Account: alice, To: token, Gas: 100_000, Keys: 100, Unnamed: 100, Input: selector("transfer(address,uint256)", to, []byte{1})}
	checkFailingReads(t, w, common.Address(New().Address(alice)), call)
	checkFailingReads(t, w, common.Address(New().Address(alice)), program.Call{Gas: 1_000_000, Keys: 100, Unnamed: 100, Input: deployer(t, []byte{0})})
}

// BenchmarkERC20 transfers to 10,000 accounts in turn, and applies the changes to a map.
func BenchmarkERC20(b *testing.B) {
	w := world{}
	token := erc20(b, w)
	engine, n, gas := New(), 0, uint64(0)
	cpu := cpuTime(b)
	for b.Loop() {
		to := engine.Address(binary.BigEndian.AppendUint64(nil, uint64(n%10_000))) //nolint:gosec // small
		call := program.Call{Account: alice, To: token, Gas: 100_000, Keys: 100, Unnamed: 100, Input: selector("transfer(address,uint256)", to, []byte{1})}
		r, err := engine.Run(testEnv, call, w.read)
		if err != nil || r.Status != program.Done {
			b.Fatal(r, err)
		}
		w.apply(r.Changes)
		n, gas = n+1, gas+r.Gas
	}
	used := (cpuTime(b) - cpu).Seconds()
	b.ReportMetric(float64(n)/used, "transfers/s")
	b.ReportMetric(float64(gas)/used/1e6, "Mgas/s")
}

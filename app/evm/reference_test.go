//go:build !noevm

package evm

import (
	"encoding/binary"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/tracing"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/params"
	"github.com/holiman/uint256"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/program"
)

// reference is go-ethereum with its own StateDB in memory, used as in a block of transactions.
type reference struct {
	t  testing.TB
	db *state.StateDB
}

func newReference(t testing.TB, w world) *reference {
	t.Helper()
	db, err := state.New(types.EmptyRootHash, state.NewDatabaseForTesting())
	require.NoError(t, err)
	for key, value := range w {
		address := common.Address([]byte(key[2:22]))
		switch key[22] {
		case 0:
			db.SetNonce(address, binary.BigEndian.Uint64(value), tracing.NonceChangeUnspecified)
		case 1:
			db.SetState(address, common.Hash([]byte(key[23:])), common.BytesToHash(value))
		default:
			db.SetCode(address, value, tracing.CodeChangeUnspecified)
		}
	}
	db.Finalise(rules)
	return &reference{t, db}
}

func (r *reference) root() common.Hash { return r.db.Copy().IntermediateRoot(rules) }

type outcomeOf struct {
	status program.Status
	output []byte
	gas    uint64
	logs   []program.Log
	err    error
}

// run executes a call as go-ethereum's state transition does, except for coins and intrinsic gas. A
// failed deployment does not change the nonce.
func (r *reference) run(sender common.Address, call program.Call) outcomeOf {
	config := osaka
	config.ChainID = chainNumber(testEnv.ChainID)
	context := newMachine(testEnv, sender, &journal{StateDB: r.db}).Context
	context.CanTransfer = func(db vm.StateDB, address common.Address, amount *uint256.Int) bool {
		return db.GetBalance(address).Cmp(amount) >= 0
	}
	context.Transfer = func(db vm.StateDB, from, to common.Address, amount *uint256.Int, _ *params.Rules) {
		db.SubBalance(from, amount, tracing.BalanceChangeTransfer)
		db.AddBalance(to, amount, tracing.BalanceChangeTransfer)
	}
	machine := vm.NewEVM(context, r.db, &config, vm.Config{})
	machine.SetPrecompiles(contracts)
	machine.SetTxContext(vm.TxContext{Origin: sender, GasPrice: new(uint256.Int)})
	former := len(r.db.Logs())
	snapshot := r.db.Snapshot()

	before := vm.NewGasBudget(call.Gas, 0)
	var result outcomeOf
	var left vm.GasBudget
	if len(call.To) == 0 {
		r.db.Prepare(rules, sender, common.Address{}, nil, precompiles, nil)
		result.output, _, left, result.err = machine.Create(sender, call.Input, before, new(uint256.Int))
		if result.err == nil {
			result.output = nil
		}
	} else {
		to := common.Address(call.To)
		r.db.Prepare(rules, sender, common.Address{}, &to, precompiles, nil)
		result.output, left, result.err = machine.Call(sender, to, call.Input, before, new(uint256.Int))
	}
	result.gas = left.Used(before)
	if result.status, _ = outcome(result.err, result.output); result.status == program.Done {
		result.logs = (&journal{StateDB: r.db}).logs()[former:]
	} else {
		if result.status != program.Reverted {
			result.output = nil
		}
		r.db.RevertToSnapshot(snapshot)
	}
	r.db.Finalise(rules)
	return result
}

// compare runs a call in both engines and applies it.
func compare(t testing.TB, w world, r *reference, sender common.Address, call program.Call) *program.Result {
	t.Helper()
	got := w.runAs(t, sender, call)
	want := r.run(sender, call)
	require.Equal(t, want.status, got.Status, "%v", want.err)
	require.Equal(t, string(want.output), string(got.Output))
	require.Equal(t, want.gas, got.Gas)
	require.Equal(t, len(want.logs), len(got.Logs))
	for i := range want.logs {
		require.Equal(t, want.logs[i], got.Logs[i])
	}
	w.apply(got.Changes)
	require.Equal(t, r.root(), newReference(t, w).root(), "states differ")
	return got
}

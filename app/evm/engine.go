//go:build !noevm

package evm

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/params"
	"github.com/holiman/uint256"

	"github.com/starling-kv/starling/app/program"
)

// New returns the engine.
func New() program.Engine { return engine{} }

type engine struct{}

var (
	zero = new(big.Int)
	then = new(uint64) // forks are active from time 0

	// osaka lists all forks up to Osaka and none after it. A fork that a newer go-ethereum adds is
	// inactive, because its field is nil.
	osaka = params.ChainConfig{
		HomesteadBlock: zero, EIP150Block: zero, EIP155Block: zero, EIP158Block: zero, ByzantiumBlock: zero,
		ConstantinopleBlock: zero, PetersburgBlock: zero, IstanbulBlock: zero, MuirGlacierBlock: zero,
		BerlinBlock: zero, LondonBlock: zero, ArrowGlacierBlock: zero, GrayGlacierBlock: zero,
		MergeNetsplitBlock: zero, TerminalTotalDifficulty: zero,
		ShanghaiTime: then, CancunTime: then, PragueTime: then, OsakaTime: then,
	}
	rules       = osaka.Rules(zero, true, 0)
	contracts   = precompiled()
	precompiles = slices.SortedFunc(maps.Keys(contracts), common.Address.Cmp)
)

// Address returns the last 20 bytes of the Keccak-256 of account.
func (engine) Address(account []byte) []byte { return crypto.Keccak256(account)[12:] }

// Run executes a call. It reads no record after an error of read.
func (e engine) Run(env program.Env, call program.Call, read program.Reader) (*program.Result, error) {
	return runAs(common.Address(e.Address(call.Account)), env, call, read)
}

func runAs(sender common.Address, env program.Env, call program.Call, read program.Reader) (result *program.Result, err error) {
	if reason := malformed(call); reason != "" {
		return &program.Result{Status: program.Failed, Reason: reason}, nil
	}
	records := newRecords(read, call)
	defer func() {
		if p := recover(); p != nil {
			result, err = records.stopped(call, p)
		}
	}()
	database, err := state.NewWithReader(common.Hash{}, noDatabase{}, records)
	if err != nil {
		panic(err) // it never fails
	}
	return execute(env, call, sender, &journal{database, records}), nil
}

// malformed returns why a call cannot be executed, or "".
func malformed(call program.Call) string {
	switch {
	case len(call.To) != 0 && len(call.To) != program.AddressBytes:
		return fmt.Sprintf("an address has %d bytes", program.AddressBytes)
	case len(call.To) == 0 && len(call.Input) > program.MaxInitBytes:
		return fmt.Sprintf("code and arguments of a deployment exceed %d bytes", program.MaxInitBytes)
	case call.Gas > program.MaxGas:
		return fmt.Sprintf("a call may use up to %d gas", program.MaxGas)
	}
	return ""
}

func execute(env program.Env, call program.Call, sender common.Address, j *journal) *program.Result {
	machine := newMachine(env, sender, j)
	defer machine.Release()

	before := vm.NewGasBudget(call.Gas, 0)
	result := &program.Result{Address: call.To}
	var left vm.GasBudget
	var failure error
	if len(call.To) == 0 {
		j.Prepare(rules, sender, common.Address{}, nil, precompiles, nil)
		var address common.Address
		result.Output, address, left, failure = machine.Create(sender, call.Input, before, new(uint256.Int))
		result.Address = address.Bytes()
	} else {
		to := common.Address(call.To)
		if j.GetCodeSize(to) == 0 {
			result.Status, result.Reason = program.Failed, "no program has this address"
			result.Keys, result.Records = j.records.keys(), j.records.count()
			return result
		}
		j.Prepare(rules, sender, common.Address{}, &to, precompiles, nil)
		result.Output, left, failure = machine.Call(sender, to, call.Input, before, new(uint256.Int))
	}
	result.Gas = left.Used(before)
	result.Status, result.Reason = outcome(failure, result.Output)
	if result.Status == program.Done {
		j.Finalise(rules)
		result.Logs, result.Changes = j.logs(), j.changes()
	}
	if deployed := result.Status == program.Done && len(call.To) == 0; deployed || result.Status > program.Reverted {
		result.Output = nil // the code, or nothing
	}
	result.Keys, result.Records = j.records.keys(), j.records.count()
	return result
}

// precompiled returns the precompiled contracts of Osaka with two differences, so that no program
// takes much longer for its gas than others. The point evaluation of EIP-4844 (address 10) is not
// there: there are no blobs. Recovery of signatures and the sums of BLS12-381 (EIP-2537) cost twice
// as much as on Ethereum.
func precompiled() vm.PrecompiledContracts {
	all := maps.Clone(vm.ActivePrecompiledContracts(rules))
	at := func(n byte) common.Address { return common.BytesToAddress([]byte{n}) }
	delete(all, at(10))
	for _, address := range []common.Address{at(1), at(0x0c), at(0x0e)} {
		all[address] = doubled{all[address]}
	}
	return all
}

// doubled is a precompiled contract at twice its price.
type doubled struct{ vm.PrecompiledContract }

// RequiredGas implements vm.PrecompiledContract.
func (d doubled) RequiredGas(input []byte) uint64 {
	return 2 * d.PrecompiledContract.RequiredGas(input)
}

// newMachine returns an EVM in the block env. It serves one call.
func newMachine(env program.Env, sender common.Address, j *journal) *vm.EVM {
	config := osaka
	config.ChainID = chainNumber(env.ChainID)
	machine := vm.NewEVM(vm.BlockContext{
		CanTransfer: func(_ vm.StateDB, _ common.Address, value *uint256.Int) bool { return value.IsZero() },
		Transfer:    func(vm.StateDB, common.Address, common.Address, *uint256.Int, *params.Rules) {},
		GetHash:     func(uint64) common.Hash { return common.Hash{} },
		GasLimit:    program.MaxGas,
		BlockNumber: new(big.Int).SetUint64(env.Height),
		Time:        env.Time,
		Difficulty:  zero,
		BaseFee:     zero,
		BlobBaseFee: zero,
		Random:      new(common.Hash),
	}, j, &config, vm.Config{})
	machine.SetPrecompiles(contracts)
	machine.SetTxContext(vm.TxContext{Origin: sender, GasPrice: new(uint256.Int)})
	return machine
}

// chainNumber returns what CHAINID returns on a chain.
func chainNumber(chain string) *big.Int {
	hash := sha256.Sum256([]byte(chain))
	return new(big.Int).SetBytes(hash[:6])
}

// outcome returns the status and the reason for an error of the EVM.
func outcome(failure error, output []byte) (program.Status, string) {
	switch {
	case failure == nil:
		return program.Done, ""
	case errors.Is(failure, vm.ErrExecutionReverted):
		reason, err := abi.UnpackRevert(output)
		if err != nil {
			reason = "the program refused the call"
		}
		return program.Reverted, short(reason)
	case errors.Is(failure, vm.ErrOutOfGas), errors.Is(failure, vm.ErrCodeStoreOutOfGas), errors.Is(failure, vm.ErrGasUintOverflow):
		return program.OutOfGas, "the call needs more gas"
	}
	return program.Failed, short(failure.Error())
}

// short returns the reason of a program, which may choose any text, as Result.Reason.
func short(reason string) string {
	reason = strings.ToValidUTF8(reason[:min(len(reason), program.MaxReasonBytes)], "")
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 { // it could control a terminal
			return ' '
		}
		return r
	}, reason)
}

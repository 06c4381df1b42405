//go:build !noevm

package evm

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/tracing"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/starling-kv/starling/app/program"
)

const accountBytes = 8 + 32 // nonce, Keccak-256 of the code

// records reads what a call needs, each record once, and serves it to the StateDB as a
// state.Reader. The StateDB reads an account before it uses it, and a slot before it writes it, so
// former holds all records that the call touches.
//
// A StateDB returns zero for a record that it cannot read, and goes on. records ends the call with
// a panic instead, which Run recovers: nothing is computed with a value that was not read.
type records struct {
	read    program.Reader
	limit   int // of len(former) + long
	long    int // records that the values count in addition to their own
	named   map[string]struct{}
	unnamed int               // records that named does not have, which may still be read
	former  map[string][]byte // by key, as read
	reading bool              // a panic now is one of read
}

// stop is the panic that ends a call early.
type stop struct {
	err     error // of the reader
	tooMany bool  // the call needs more than limit records
}

func newRecords(read program.Reader, call program.Call) *records {
	named := make(map[string]struct{}, len(call.Touch))
	for _, key := range call.Touch {
		named[string(key)] = struct{}{}
	}
	return &records{read: read, limit: call.Keys, named: named, unnamed: call.Unnamed, former: make(map[string][]byte)}
}

func (r *records) get(key []byte) []byte {
	if value, ok := r.former[string(key)]; ok {
		return value
	}
	if _, ok := r.named[string(key)]; !ok {
		if r.unnamed == 0 {
			panic(stop{tooMany: true})
		}
		r.unnamed--
	}
	if r.count() >= r.limit {
		panic(stop{tooMany: true})
	}
	r.reading = true
	value, err := r.read(key)
	r.reading = false
	if err != nil {
		panic(stop{err: err})
	}
	r.former[string(key)] = value
	if r.long += len(value) / program.RecordBytes; r.count() > r.limit {
		panic(stop{tooMany: true})
	}
	return value
}

// stopped returns what Run returns after the panic p. Faults of go-ethereum fail the call, with all
// gas used: they depend only on the call and its records, so every node sees the same.
func (r *records) stopped(call program.Call, p any) (*program.Result, error) {
	if r.reading {
		panic(p) // of read: a fault of the caller
	}
	result := &program.Result{Address: call.To, Gas: call.Gas, Keys: r.keys(), Records: r.count()}
	switch reason, _ := p.(stop); {
	case reason.err != nil:
		return nil, reason.err
	case reason.tooMany:
		result.Status, result.Reason = program.TooMany, "the call needs more records"
	default:
		result.Status, result.Reason = program.Failed, "the engine failed"
	}
	return result, nil
}

// count returns how many of Call.Keys are used.
func (r *records) count() int { return len(r.former) + r.long }

// keys returns the keys of all records that the call touched, in ascending order.
func (r *records) keys() [][]byte {
	keys := make([][]byte, 0, len(r.former))
	for _, key := range slices.Sorted(maps.Keys(r.former)) {
		keys = append(keys, []byte(key))
	}
	return keys
}

// Account implements state.StateReader. Precompiled contracts never have a record.
func (r *records) Account(address common.Address) (*types.StateAccount, error) {
	if _, ok := contracts[address]; ok {
		return nil, nil
	}
	value := r.get(program.AccountKey(address[:]))
	if value == nil {
		return nil, nil
	}
	if len(value) != accountBytes { // a longer capacity would hide it
		panic(stop{})
	}
	account := types.NewEmptyStateAccount()
	account.Nonce = binary.BigEndian.Uint64(value[:8])
	if hash := value[8:accountBytes]; !bytes.Equal(hash, make([]byte, 32)) {
		account.CodeHash = bytes.Clone(hash)
	}
	return account, nil
}

// Storage implements state.StateReader.
func (r *records) Storage(address common.Address, slot common.Hash) (common.Hash, error) {
	return common.BytesToHash(r.get(program.SlotKey(address[:], slot[:]))), nil
}

// Code implements state.ContractCodeReader. The StateDB asks only for code that the account has.
func (r *records) Code(address common.Address, _ common.Hash) []byte {
	code := r.get(program.CodeKey(address[:]))
	if len(code) == 0 {
		panic(stop{})
	}
	return code
}

// CodeSize implements state.ContractCodeReader.
func (r *records) CodeSize(address common.Address, hash common.Hash) int {
	return len(r.Code(address, hash))
}

// Has implements state.ContractCodeReader.
func (r *records) Has(address common.Address, hash common.Hash) bool {
	return r.CodeSize(address, hash) > 0
}

// noDatabase satisfies a StateDB that never commits: it asks only for the type.
type noDatabase struct{ state.Database }

func (noDatabase) Type() state.DatabaseType { return state.TypeMPT }

// journal is the state of one call.
type journal struct {
	*state.StateDB
	records *records
}

// SetCode counts the record of the code.
func (j *journal) SetCode(address common.Address, code []byte, reason tracing.CodeChangeReason) []byte {
	j.records.get(program.CodeKey(address[:]))
	return j.StateDB.SetCode(address, code, reason)
}

// changes returns the records whose values differ from before. The call must be finalised.
func (j *journal) changes() []program.Change {
	var changes []program.Change
	for _, key := range j.records.keys() {
		if value := j.value(key); !bytes.Equal(value, j.records.former[string(key)]) {
			changes = append(changes, program.Change{Key: key, Value: value})
		}
	}
	return changes
}

// value returns the present value of a record, or nil if it is absent.
func (j *journal) value(key []byte) []byte {
	part := len(program.Prefix(nil)) + program.AddressBytes
	address := common.Address(key[part-program.AddressBytes : part])
	switch {
	case bytes.Equal(key, program.AccountKey(address[:])):
		nonce, hash := j.GetNonce(address), j.GetCodeHash(address)
		if hash == types.EmptyCodeHash {
			hash = common.Hash{}
		}
		if nonce == 0 && hash == (common.Hash{}) {
			return nil
		}
		return append(binary.BigEndian.AppendUint64(make([]byte, 0, accountBytes), nonce), hash[:]...)
	case bytes.Equal(key, program.CodeKey(address[:])):
		return j.GetCode(address)
	default:
		value := j.GetState(address, common.Hash(key[part+1:]))
		if value == (common.Hash{}) {
			return nil
		}
		return common.TrimLeftZeroes(value[:])
	}
}

func (j *journal) logs() []program.Log {
	var logs []program.Log
	for _, l := range j.Logs() {
		topics := make([][]byte, len(l.Topics))
		for i, topic := range l.Topics {
			topics[i] = topic.Bytes()
		}
		logs = append(logs, program.Log{Address: l.Address.Bytes(), Topics: topics, Data: l.Data})
	}
	return logs
}

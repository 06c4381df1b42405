// Package program is the interface between the application and the engine that executes programs
// (contracts). app/evm implements it with go-ethereum's EVM. A build without the engine does not
// execute chains of app version 2.
//
// Everything that a program stores is in ordinary records of the state, so proofs, chunks, quotas,
// sharding and joins treat it like any other key:
//
//	00 'x' ‖ address (20) ‖ 00             account: nonce (8, big-endian) ‖ Keccak-256 of its code (32; zero: it has none)
//	00 'x' ‖ address (20) ‖ 01 ‖ slot (32) storage slot: its value without leading zero bytes; a zero value is absent
//	00 'x' ‖ address (20) ‖ 02             code, up to 24,576 bytes
package program

import "github.com/starling-kv/starling/tx"

// Sizes in bytes.
const (
	AddressBytes   = tx.AddressBytes
	SlotBytes      = 32
	MaxCodeBytes   = 24_576 // of a deployed contract (EIP-170)
	RecordBytes    = 1024   // of a record's value that count as another record
	MaxInitBytes   = tx.MaxProgramBytes
	MaxReasonBytes = 256 // of Result.Reason
)

// MaxGas is the most gas that a call may ask for. It bounds the memory and the time of a call.
const MaxGas = tx.MaxProgramGas

// Env is what a program may know of the block that executes it. There is no randomness, and no hash
// of a block: NUMBER and TIMESTAMP are these fields, BLOCKHASH and PREVRANDAO return 0.
type Env struct {
	ChainID string
	Height  uint64
	Time    uint64 // of the block, in Unix seconds
}

// Call is one call of a program by an account.
type Call struct {
	Account []byte // ed25519 public key, 32 bytes
	To      []byte // address of the program; nil: Input deploys a new one
	Input   []byte // ABI-encoded call; for a deployment, init code followed by its arguments
	Gas     uint64 // most gas that the call may use
	Keys    int    // most records that the call may read or write; see Result.Records
	Unnamed int    // most of them that are not in Touch
	Touch   [][]byte
}

// Reader reads one record of the state; nil means that it is absent. The caller must not modify the
// result.
type Reader func(key []byte) ([]byte, error)

// Status says how a call ended.
type Status uint8

// The ways in which a call ends. Only Done has changes.
const (
	Done     Status = iota
	Reverted        // the program refused the call; Output is its reason
	OutOfGas        // the call needs more gas than Call.Gas
	TooMany         // the call needs more records than Call.Keys, or than Call.Unnamed and Touch
	Failed          // the program broke a rule of the EVM, for example with an invalid instruction
)

// Result is the result of a call.
type Result struct {
	Status  Status
	Reason  string // for people, printable, and equal on every node; empty if done
	Output  []byte // returned by the program; after a deployment empty
	Address []byte // of the program that was called or deployed
	Gas     uint64 // used
	Logs    []Log
	Changes []Change // in ascending key order; only records whose values differ from before
	Keys    [][]byte // all records that the call read or wrote, in ascending order
	Records int      // of Call.Keys: one for each, and one for each RecordBytes of values
}

// Log is an event that a program emitted.
type Log struct {
	Address []byte
	Topics  [][]byte // 0 to 4 topics of 32 bytes
	Data    []byte
}

// Change is the new value of a record; nil deletes it.
type Change struct{ Key, Value []byte }

// Engine executes programs. Its results depend only on its arguments and on the records that it
// reads. Its methods may be called concurrently.
type Engine interface {
	// Run executes a call. An error is one of read, and Run returns it unchanged: the node could
	// not read the state. Everything else is a Result, on every node alike.
	Run(env Env, call Call, read Reader) (*Result, error)

	// Address returns the address by which programs see an account, and by which an account's
	// deployments are derived.
	Address(account []byte) []byte
}

const (
	tag byte = 'x' // second byte of the records of programs

	partAccount byte = 0x00
	partSlot    byte = 0x01
	partCode    byte = 0x02
)

// Prefix returns the prefix of the records of the program at address, or with nil of all programs.
func Prefix(address []byte) []byte { return append([]byte{tx.Reserved, tag}, address...) }

// AccountKey returns the key of the account record of address.
func AccountKey(address []byte) []byte { return append(Prefix(address), partAccount) }

// SlotKey returns the key of a storage slot.
func SlotKey(address, slot []byte) []byte { return append(append(Prefix(address), partSlot), slot...) }

// CodeKey returns the key of the code of address.
func CodeKey(address []byte) []byte { return append(Prefix(address), partCode) }

package tx

import (
	"bytes"
	"math"

	"github.com/starling-kv/starling/internal/protowalk"
)

// Operations of app version 2: programs, and numbers that are added to. Earlier versions refuse
// them as they refuse every unknown operation.

// Limits of the operations of programs. Gas and keys are part of Keys, so MaxOperations limits
// those of a whole transaction.
const (
	AddressBytes     = 20
	MaxProgramBytes  = 49_152    // code and input of a Deploy together (EIP-3860)
	MaxInputBytes    = 128 << 10 // input of a Call
	MaxProgramGas    = 1 << 24   // of one operation: Osaka's limit of a transaction (EIP-7825)
	MaxProgramKeys   = 4096      // of one operation
	GasPerKey        = 3_200     // gas that costs as much of a block as one key
	UnnamedCost      = 100       // keys that cost as much as a record that no touch names
	NewestAppVersion = 2         // newest app version whose transactions this package decodes
)

var callTable = protowalk.Message{Name: "Call", Fields: []protowalk.Field{
	opaque(1, "to"), opaque(2, "input"), {Number: 3, Name: "gas", Kind: protowalk.Varint}, {Number: 4, Name: "keys", Kind: protowalk.Varint},
	{Number: 5, Name: "unnamed", Kind: protowalk.Varint},
	// MaxOperations limits those of a Body: see nested.
	protowalk.Repeated(6, "touch", nil, MaxProgramKeys, 0),
}}

// NewAdd adds delta to the number at key. An absent key counts as 0.
func NewAdd(key []byte, delta int64) Operation {
	return Operation{Op: &Operation_Add{Add: &Add{Key: key, Delta: delta}}}
}

// NewBoundedAdd does what NewAdd does, and makes the transaction fail unless the new number is from
// least to most.
func NewBoundedAdd(key []byte, delta, least, most int64) Operation {
	return Operation{Op: &Operation_Add{Add: &Add{Key: key, Delta: delta, Bounds: &Bounds{Min: least, Max: most}}}}
}

// NewDeploy executes init code followed by input, with at most gas and at most keys records, and
// stores the code that it returns as a program.
func NewDeploy(code, input []byte, gas uint64, keys uint32) Operation {
	return Operation{Op: &Operation_Deploy{Deploy: &Deploy{Code: code, Input: input, Gas: gas, Keys: keys, Unnamed: keys}}}
}

// NewCall calls the program at the address to, with at most gas and at most keys records, of which
// touch names all but unnamed. A node that does not have the whole state fetches the named ones at
// once, and each other one in a round of its own, so these cost UnnamedCost keys each.
func NewCall(to, input []byte, gas uint64, keys, unnamed uint32, touch ...[]byte) Operation {
	return Operation{Op: &Operation_Call{Call: &Call{To: to, Input: input, Gas: gas, Keys: keys, Unnamed: unnamed, Touch: touch}}}
}

// Limits returns the inclusive bounds of the new number.
func (a *Add) Limits() (least, most int64) {
	if a.Bounds == nil {
		return math.MinInt64, math.MaxInt64
	}
	return a.Bounds.Min, a.Bounds.Max
}

// IsProgramKey reports whether key is that of a record of a program (docs/spec/records.md).
func IsProgramKey(key []byte) bool { return bytes.HasPrefix(key, []byte{Reserved, 'x'}) }

// Gas returns the most gas that the operation may use.
func (o *Operation) Gas() uint64 {
	switch op := o.Op.(type) {
	case *Operation_Deploy:
		return op.Deploy.Gas
	case *Operation_Call:
		return op.Call.Gas
	}
	return 0
}

func programCost(gas uint64, keys, unnamed uint32) int {
	return 1 + int(keys) + UnnamedCost*int(unnamed) + int((gas+GasPerKey-1)/GasPerKey)
}

// checkPrograms checks the kinds of operations that this file declares.
func (o *Operation) checkPrograms() *Error {
	switch op := o.Op.(type) {
	case *Operation_Add:
		if op.Add != nil {
			return op.Add.check()
		}
	case *Operation_Deploy:
		if op.Deploy != nil {
			return op.Deploy.check()
		}
	case *Operation_Call:
		if op.Call != nil {
			return op.Call.check()
		}
	}
	return Errorf(CodeMalformed, "empty, or of a kind that this version does not know")
}

func (a *Add) check() *Error {
	if b := a.Bounds; b != nil && b.Min > b.Max {
		return Errorf(CodeMalformed, "the bounds of an add are %d to %d, so no number is within them", b.Min, b.Max)
	}
	return checkWrite(a.Key)
}

func (d *Deploy) check() *Error {
	return firstError(checkSize("code", d.Code, 1, MaxProgramBytes), checkSize("input", d.Input, 0, MaxProgramBytes-len(d.Code)),
		checkGas(d.Gas, d.Keys, d.Unnamed))
}

func (c *Call) check() *Error {
	if len(c.To) != AddressBytes {
		return Errorf(CodeMalformed, "the address of the program has %d bytes, it must have %d", len(c.To), AddressBytes)
	}
	if err := firstError(checkSize("input", c.Input, 0, MaxInputBytes), checkGas(c.Gas, c.Keys, c.Unnamed)); err != nil {
		return err
	}
	if len(c.Touch) > int(c.Keys) {
		return Errorf(CodeMalformed, "the call touches %d keys, but may read or write only %d records", len(c.Touch), c.Keys)
	}
	for i, key := range c.Touch {
		if err := checkSize("key", key, 1, MaxKeyBytes); err != nil {
			return Errorf(err.Code, "touch %d: %s", i, err.Reason)
		}
		if key[0] == Reserved && !IsProgramKey(key) {
			return Errorf(CodeReserved, "touch %d: programs do not read the chain's own records", i)
		}
	}
	return nil
}

func checkGas(gas uint64, keys, unnamed uint32) *Error {
	switch {
	case gas == 0:
		return Errorf(CodeMalformed, "a program must have gas, from 1 to %d", MaxProgramGas)
	case gas > MaxProgramGas:
		return Errorf(CodeTooLarge, "the gas is %d, at most %d is allowed", gas, MaxProgramGas)
	case keys == 0:
		return Errorf(CodeMalformed, "a program must have a limit of 1 to %d records", MaxProgramKeys)
	case keys > MaxProgramKeys:
		return Errorf(CodeTooLarge, "the limit of records is %d, at most %d is allowed", keys, MaxProgramKeys)
	case unnamed > keys:
		return Errorf(CodeMalformed, "%d records may be unnamed, but only %d may be read or written", unnamed, keys)
	}
	return nil
}

package tx

import (
	"fmt"

	"github.com/starling-kv/starling/internal/protowalk"
)

// These tables describe the messages that are walked before they are decoded. Decoding would refuse
// the same messages with the same code. But if a message repeated a oneof field, it would allocate
// an operation for each of these two-byte fields, although only the last one counts.

var (
	opaque = protowalk.Opaque

	// Body by app version. Fields that a table does not name are not walked: see later.
	bodyTables = [...]protowalk.Message{
		bodyTable(operationTable(txnTable(branchTable(plainKinds(), 13, 20, 21, 22)))),
		bodyTable(operationTable(txnTable(branchTable(append(plainKinds(), opaque(14, "add")), 13, 15, 16, 20, 21, 22)),
			opaque(14, "add"), opaque(15, "deploy"), protowalk.Sub(16, "call", &callTable))),
	}

	compareTable = protowalk.Message{Name: "Compare", Fields: []protowalk.Field{
		opaque(1, "key"), opaque(2, "value"), {Number: 3, Name: "present", Kind: protowalk.Varint},
	}}

	resultTable = protowalk.Message{Name: "Result", Fields: []protowalk.Field{
		protowalk.Repeated(1, "results", &operationResultTable, MaxOperations, 0),
	}, Rule: func(b []byte) error {
		if protowalk.Count(b, 1, 7) > MaxOperations {
			return fmt.Errorf("%w: more than %d results of operations in txns", protowalk.ErrTooMany, MaxOperations)
		}
		if protowalk.Count(b, 1, 3)+protowalk.Count(b, 1, 7, 3) > MaxOperations {
			return fmt.Errorf("%w: more than %d keys of ranges", protowalk.ErrTooMany, MaxOperations)
		}
		return nil
	}}
	operationResultTable = protowalk.Message{Name: "OperationResult", Fields: append(plainResult(),
		protowalk.Repeated(7, "results", &branchResultTable, MaxOperations, 0))}
	branchResultTable = protowalk.Message{Name: "OperationResult", Fields: plainResult(), Rule: func(b []byte) error {
		return none(b, 7, "results in a result in a txn")
	}}
	keyValueTable = protowalk.Message{Name: "KeyValue", Fields: []protowalk.Field{opaque(1, "key"), opaque(2, "value")}}
)

func bodyTable(operation protowalk.Message) protowalk.Message {
	return protowalk.Message{Name: "Body", Fields: []protowalk.Field{
		opaque(1, "account"), {Number: 2, Name: "nonce", Kind: protowalk.Varint},
		protowalk.Repeated(3, "operations", &operation, MaxOperations, 0),
	}}
}

func operationTable(txn protowalk.Message, later ...protowalk.Field) protowalk.Message {
	fields := append(plainKinds(), protowalk.Sub(13, "txn", &txn),
		protowalk.Sub(20, "propose", &proposeTable), opaque(21, "approve"), opaque(22, "set_threshold"))
	return protowalk.Message{Name: "Operation", OneOf: true, Fields: append(fields, later...)}
}

// txnTable returns the table of a Txn. MaxOperations limits the lists of all Txns and proposals of
// a Body together: see nested.
func txnTable(branch protowalk.Message) protowalk.Message {
	return protowalk.Message{Name: "Txn", Fields: []protowalk.Field{
		protowalk.Repeated(1, "compares", &compareTable, MaxBytes, 0),
		protowalk.Repeated(2, "success", &branch, MaxBytes, 0),
		protowalk.Repeated(3, "failure", &branch, MaxBytes, 0),
	}}
}

// branchTable returns the table of an operation in a Txn, which has these fields or others. It may
// not be one of these kinds, which are not walked here, so they must not be decoded: see nested.
func branchTable(fields []protowalk.Field, kinds ...int) protowalk.Message {
	return protowalk.Message{Name: "Operation", OneOf: true, Fields: fields, Rule: func(b []byte) error {
		for _, kind := range kinds {
			if err := none(b, kind, "a txn, a program, or an operation of several admins, in a txn"); err != nil {
				return err
			}
		}
		return nil
	}}
}

// plainKinds returns the fields of an Operation that contain no other operation.
func plainKinds() []protowalk.Field {
	return []protowalk.Field{
		opaque(1, "put"), opaque(2, "delete"), opaque(3, "compare_and_put"), opaque(4, "read"), opaque(5, "grant"),
		opaque(6, "revoke"), opaque(7, "set_validator"), opaque(8, "set_admin"), opaque(9, "schedule_upgrade"),
		opaque(10, "compare"), opaque(11, "read_range"), opaque(12, "delete_range"),
	}
}

// plainResult returns the fields of an OperationResult except those that contain other results.
func plainResult() []protowalk.Field {
	return []protowalk.Field{
		{Number: 1, Name: "found", Kind: protowalk.Varint}, opaque(2, "value"),
		protowalk.Repeated(3, "entries", &keyValueTable, MaxOperations, 0),
		{Number: 4, Name: "more", Kind: protowalk.Varint}, {Number: 5, Name: "deleted", Kind: protowalk.Varint},
		{Number: 6, Name: "succeeded", Kind: protowalk.Varint},
	}
}

func none(b []byte, number int, what string) error {
	if protowalk.Count(b, number) > 0 {
		return fmt.Errorf("%w: %s", protowalk.ErrMalformed, what)
	}
	return nil
}

const operationsField, txnField, addField, deployField, callField = 3, 13, 14, 15, 16

// later reports whether a Body, which Walk must have accepted, has operations that an app version
// does not know. Such a Body is refused like one with unknown fields, and for the same reason: the
// result of an old block must not depend on what newer versions allow.
func later(body []byte, version uint64) bool {
	n := 0
	if version < 2 {
		for _, kind := range []int{addField, deployField, callField} {
			n += protowalk.Count(body, operationsField, kind)
		}
		for _, branch := range []int{2, 3} {
			n += protowalk.Count(body, operationsField, txnField, branch, addField)
			n += protowalk.Count(body, operationsField, txnField, branch, deployField)
			n += protowalk.Count(body, operationsField, txnField, branch, callField)
		}
	}
	return n > 0
}

// nested returns the number of messages in the Txns and proposals of a Body and, from app version 2
// on, of keys in its Calls. Walk must have accepted the Body.
func nested(body []byte, version uint64) int {
	const operations, txn, propose = operationsField, txnField, 20
	touched := 0
	if version >= 2 {
		touched = protowalk.Count(body, operations, callField, 5)
	}
	return protowalk.Count(body, operations, txn, 1) + protowalk.Count(body, operations, txn, 2) + protowalk.Count(body, operations, txn, 3) +
		protowalk.Count(body, operations, propose, 1) + touched
}

// DecodeResult decodes the data of a successful transaction's result. The data may be untrusted.
func DecodeResult(b []byte) (*Result, error) {
	if err := protowalk.Walk(b, &resultTable); err != nil {
		return nil, err
	}
	result := new(Result)
	if err := result.Unmarshal(b); err != nil {
		return nil, err
	}
	return result, nil
}

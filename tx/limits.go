package tx

import "github.com/starling-kv/starling/internal/protowalk"

// The tables of what is walked before it is decoded. What the first refuses would be refused later
// with the same code, but an operation of two bytes each would have been allocated for each time
// that one is there, of which only the last would be looked at.

var (
	opaque = protowalk.Opaque

	bodyTable = protowalk.Message{Name: "Body", Fields: []protowalk.Field{
		opaque(1, "account"), {Number: 2, Name: "nonce", Kind: protowalk.Varint},
		protowalk.Repeated(3, "operations", &operationTable, MaxOperations, 0),
	}}

	operationTable = protowalk.Message{Name: "Operation", OneOf: true, Fields: []protowalk.Field{
		opaque(1, "put"), opaque(2, "delete"), opaque(3, "compare_and_put"), opaque(4, "read"), opaque(5, "grant"),
		opaque(6, "revoke"), opaque(7, "set_validator"), opaque(8, "set_admin"), opaque(9, "schedule_upgrade"),
	}}

	resultTable = protowalk.Message{Name: "Result", Fields: []protowalk.Field{
		protowalk.Repeated(1, "results", nil, MaxOperations, 0),
	}}
)

// DecodeResult decodes the data of a successful transaction's result, of which the sender need not
// be trusted.
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

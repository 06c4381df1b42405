package tx

import "fmt"

// Codespace is the namespace of the codes in ABCI responses.
const Codespace = "starling"

// Code is the reason why a transaction or a query was refused. The numbers are frozen
// (docs/spec/transactions.md#codes).
type Code uint32

const (
	CodeOK            Code = 0
	CodeMalformed     Code = 1  // not a transaction, or not in its only encoding
	CodeTooLarge      Code = 2  // transaction, key, value or number of operations above the limit
	CodeBadSignature  Code = 3  // wrong key, changed bytes, or signed for another chain
	CodeBadNonce      Code = 4  // not exactly the account's next nonce
	CodeUnauthorized  Code = 5  // no grant covers the key
	CodeReserved      Code = 6  // a write to a key that starts with 0x00
	CodeCompareFailed Code = 7  // compare-and-put found a value other than the expected one
	CodeQuota         Code = 8  // the write would exceed the grant's quota
	CodeTextClosed    Code = 9  // the chain is closed to text, or a grant covers the key
	CodeNotAdmin      Code = 10 // an operation for admins, by another account
	CodeInvalidChange Code = 11 // a change of a validator, admin or grant that cannot be made
	CodeReadBudget    Code = 12 // the block's budget of read values is used up
	CodeUnconfirmed   Code = 13 // unconfirmed validators would have a third of the power
	CodeRangeLimit    Code = 14 // a range to be deleted has more keys or bytes than its limit
	CodeThreshold     Code = 15 // one admin alone sent an operation that several must approve
	CodeNotNumber     Code = 16 // an add found a value that is not a decimal number
	CodeOutOfBounds   Code = 17 // the result of an add is outside its bounds or those of an int64

	// Codes of programs.
	CodeNoProgram      Code = 30 // there is no program at the address
	CodeReverted       Code = 31 // the program refused the call
	CodeOutOfGas       Code = 32 // the call needs more gas than it named
	CodeTooManyRecords Code = 33 // the call needs more records than it named
	CodeProgramFailed  Code = 34 // the program is invalid, or did what it may not do

	// Used by CheckTx and queries; the request itself is valid.
	CodeBusy Code = 24 // too many requests wait for parts of the state that this node does not have

	// Codes of queries.
	CodeUnknownPath   Code = 20
	CodeUnknownHeight Code = 21
	CodeBadRequest    Code = 22
	CodeUnreadable    Code = 23 // a part of the node's state cannot be read from its disk
)

var codeNames = map[Code]string{
	CodeOK:             "ok",
	CodeMalformed:      "malformed transaction",
	CodeTooLarge:       "too large",
	CodeBadSignature:   "bad signature",
	CodeBadNonce:       "bad nonce",
	CodeUnauthorized:   "unauthorized",
	CodeReserved:       "reserved key",
	CodeCompareFailed:  "compare failed",
	CodeQuota:          "quota exceeded",
	CodeTextClosed:     "text transactions closed",
	CodeNotAdmin:       "not an admin",
	CodeInvalidChange:  "invalid change",
	CodeReadBudget:     "read budget exceeded",
	CodeUnconfirmed:    "unconfirmed validators",
	CodeRangeLimit:     "range above its limit",
	CodeThreshold:      "more admins must approve",
	CodeNotNumber:      "not a number",
	CodeOutOfBounds:    "out of bounds",
	CodeNoProgram:      "no program",
	CodeReverted:       "reverted by the program",
	CodeOutOfGas:       "out of gas",
	CodeTooManyRecords: "too many records",
	CodeProgramFailed:  "program failed",
	CodeUnknownPath:    "unknown query path",
	CodeUnknownHeight:  "unknown height",
	CodeBadRequest:     "bad request",
	CodeBusy:           "busy",
	CodeUnreadable:     "not readable at this node",
}

func (c Code) String() string {
	if name, ok := codeNames[c]; ok {
		return name
	}
	return fmt.Sprintf("code %d", uint32(c))
}

// Error is a refusal. errors.Is compares only the code: &Error{Code: CodeBadNonce} matches every
// bad nonce.
type Error struct {
	Code   Code
	Reason string // the problem and its remedy
}

// Errorf returns a refusal with a formatted reason.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Reason: fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string {
	if e.Reason == "" {
		return e.Code.String()
	}
	return e.Code.String() + ": " + e.Reason
}

// Is reports whether target is a refusal with the same code and, if target names a reason, the same
// reason.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Reason == "" || t.Reason == e.Reason)
}

package cli

import (
	"bytes"
	"fmt"

	"github.com/starling-kv/starling/tx"
)

// remedies says what to do about each code with which a node refuses a transaction or query, in the
// order of the codes. Commands print some of them, and docs/reference/errors.md has all.
var remedies = []struct {
	code   tx.Code
	remedy string
}{
	{tx.CodeMalformed, "send what `client` or a library for docs/spec/transactions.md makes"},
	{tx.CodeTooLarge, "divide the transaction, or store the value in parts"},
	{tx.CodeBadSignature, "check the key, and that the chain id is the node's (--chain-id)"},
	{tx.CodeBadNonce, "send again: the client asks for the next nonce; let one program use a key at a time"},
	{tx.CodeUnauthorized, "an admin can permit it: starlingd grant ACCOUNT PREFIX --from ADMIN"},
	{tx.CodeReserved, "choose a key that does not start with a zero byte"},
	{tx.CodeCompareFailed, "read the value again, and decide again"},
	{tx.CodeQuota, "delete keys under the prefix, or ask an admin for a larger quota"},
	{tx.CodeTextClosed, "sign the transaction (--from)"},
	{tx.CodeNotAdmin, "sign with an admin's key (--from); genesis.json lists the first admins"},
	{tx.CodeInvalidChange, "correct what the message names"},
	{tx.CodeReadBudget, "send again: the next block has a new budget; or read less in one transaction"},
	{tx.CodeUnconfirmed, "start the new validator, and wait until it signs; or give it less power"},
	{tx.CodeRangeLimit, "raise the limit, delete in parts, or name a smaller range"},
	{tx.CodeThreshold, "add --propose; the other admins run starlingd admin approve"},
	{tx.CodeNotNumber, "put a decimal number, or delete the key"},
	{tx.CodeOutOfBounds, "read the counter, and decide again"},
	{tx.CodeUnknownPath, "choose a path that the message names"},
	{tx.CodeUnknownHeight, "name a height that the message names, or ask another node (--node)"},
	{tx.CodeBadRequest, "correct what the message names"},
	{tx.CodeUnreadable, "try again, or ask another node (--node)"},
	{tx.CodeBusy, "try again later, or ask another node (--node)"},
	{tx.CodeNoProgram, "check the address"},
	{tx.CodeReverted, "read the program's reason in the message"},
	{tx.CodeOutOfGas, "send again, or allow more: --gas"},
	{tx.CodeTooManyRecords, "send again, or allow more: --keys"},
	{tx.CodeProgramFailed, "correct the program or its input"},
}

// remedyOf returns what to do about a code, or "".
func remedyOf(code tx.Code) string {
	for _, r := range remedies {
		if r.code == code {
			return r.remedy
		}
	}
	return ""
}

// exitStatuses are those of all commands.
var exitStatuses = []struct {
	status          int
	meaning, remedy string
}{
	{exitOK, "success, a signal, or `halt_height`", ""},
	{exitFailed, "any other failure; `health`: not ready", "read the message; a supervisor may restart the node"},
	{exitUsage, "invalid usage, setting, key or genesis file; no home; conflicting blocks are proved", "correct what the message names (conflicting blocks: ask the validators which chain is right); a restart does not help"},
	{exitRefused, "refused by the chain, or by a proof", "look up the code below, or ask another node"},
	{exitAbsent, "`get`: the key is absent", ""},
	{exitDiskFull, "disk full", "[free space](../how-to/troubleshooting.md#a-full-disk)"},
	{exitDamaged, "damaged data", "follow the message; usually reset and join"},
	{exitTooOld, "the program is too old for the chain or the data", "[install a newer one](../how-to/upgrade.md#the-rules-of-the-chain)"},
	{exitHeader, "a header is missing to which evidence refers", "start again; name more peers in `join.peers`"},
}

// errorReference returns docs/reference/errors.md.
func errorReference() *bytes.Buffer {
	page := bytes.NewBufferString("# Errors\n\n`starlingd docs` has written this page. [troubleshooting.md](../how-to/troubleshooting.md) begins with what you see.\n\n" +
		"## Exit statuses\n\n| status | meaning | what to do |\n| --- | --- | --- |\n")
	for _, s := range exitStatuses {
		fmt.Fprintf(page, "| %d | %s | %s |\n", s.status, s.meaning, s.remedy)
	}
	fmt.Fprint(page, "\n## Codes\n\nA node refuses a transaction or a query with one of these codes. [transactions.md](../spec/transactions.md#codes) and "+
		"[queries.md](../spec/queries.md) define them.\n\n| code | error | what to do |\n| --- | --- | --- |\n")
	for _, r := range remedies {
		fmt.Fprintf(page, "| %d | %v | %s |\n", uint32(r.code), r.code, r.remedy)
	}
	return page
}

//go:build !noevm

package evm

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/program"
)

var (
	alice   = bytes.Repeat([]byte{0xa1}, 32)
	bob     = bytes.Repeat([]byte{0xb0}, 32)
	testEnv = program.Env{ChainID: "test", Height: 7, Time: 1_700_000_000}
)

// world holds the records of a state.
type world map[string][]byte

func (w world) read(key []byte) ([]byte, error) { return w[string(key)], nil }

func (w world) apply(changes []program.Change) {
	for _, c := range changes {
		if c.Value == nil {
			delete(w, string(c.Key))
		} else {
			w[string(c.Key)] = c.Value
		}
	}
}

// put stores a program without running its deployment.
func (w world) put(address common.Address, code []byte) {
	w[string(program.AccountKey(address[:]))] = slices.Concat([]byte{0, 0, 0, 0, 0, 0, 0, 1}, crypto.Keccak256(code))
	w[string(program.CodeKey(address[:]))] = code
}

// run executes a call, checks what holds for every result, and applies the changes.
func (w world) run(t testing.TB, call program.Call) *program.Result {
	t.Helper()
	if call.Account == nil {
		call.Account = alice
	}
	if call.Gas == 0 {
		call.Gas = 1_000_000
	}
	if call.Keys == 0 {
		call.Keys, call.Unnamed = 1_000_000, 1_000_000
	}
	sender := common.Address(New().Address(call.Account))
	result := w.runAs(t, sender, call)
	w.apply(result.Changes)
	return result
}

func (w world) runAs(t testing.TB, sender common.Address, call program.Call) *program.Result {
	t.Helper()
	var asked []string
	result, err := runAs(sender, testEnv, call, func(key []byte) ([]byte, error) {
		asked = append(asked, string(key))
		return w.read(key)
	})
	require.NoError(t, err)
	checkResult(t, w, call, result)

	slices.Sort(asked)
	require.Equal(t, len(slices.Compact(slices.Clone(asked))), len(asked), "a record was read twice")
	require.Equal(t, asked, keyTexts(result.Keys), "read but not in Keys")

	again, err := runAs(sender, testEnv, call, w.read)
	require.NoError(t, err)
	require.Equal(t, result, again, "the same call has two results")
	return result
}

func keyTexts(keys [][]byte) []string {
	var texts []string
	for _, key := range keys {
		texts = append(texts, string(key))
	}
	return texts
}

func checkResult(t testing.TB, w world, call program.Call, r *program.Result) {
	t.Helper()
	require.LessOrEqual(t, r.Gas, call.Gas)
	require.LessOrEqual(t, len(r.Keys), call.Keys)
	require.True(t, slices.IsSortedFunc(r.Changes, func(a, b program.Change) int { return bytes.Compare(a.Key, b.Key) }))
	for _, c := range r.Changes {
		require.Contains(t, keyTexts(r.Keys), string(c.Key))
		require.NotEqual(t, w[string(c.Key)], c.Value, "a change changes nothing")
		require.True(t, c.Value == nil || len(c.Value) > 0)
	}
	if r.Status == program.Done {
		require.Empty(t, r.Reason)
	} else {
		require.NotEmpty(t, r.Reason)
		require.Empty(t, r.Changes)
		require.Empty(t, r.Logs)
	}
}

// checkFailingReads runs a call once for each of its reads, and lets that read fail. It also runs
// it with each smaller limit of unnamed records.
func checkFailingReads(t testing.TB, w world, sender common.Address, call program.Call) {
	t.Helper()
	whole := w.runAs(t, sender, call)
	for n := range whole.Keys {
		broken, reads := errors.New("disk"), 0
		result, err := runAs(sender, testEnv, call, func(key []byte) ([]byte, error) {
			require.LessOrEqual(t, reads, n, "a read after the error")
			if reads++; reads > n {
				return nil, broken
			}
			return w.read(key)
		})
		require.Nil(t, result)
		require.Same(t, broken, err) //nolint:testifylint // the very error

		few := call
		few.Unnamed = n
		limited := w.runAs(t, sender, few)
		require.Equal(t, program.TooMany, limited.Status)
		require.Len(t, limited.Keys, n)
	}
	call.Keys, call.Unnamed = whole.Records, len(whole.Keys)
	require.Equal(t, whole, w.runAs(t, sender, call))
	call.Unnamed, call.Touch = 0, whole.Keys
	require.Equal(t, whole, w.runAs(t, sender, call), "with all records named")
	call.Keys--
	require.Equal(t, program.TooMany, w.runAs(t, sender, call).Status)
}

// deployer returns init code that deploys code.
func deployer(t testing.TB, code []byte) []byte {
	t.Helper()
	prefix := assemble(t, "PUSH "+strconv.Itoa(len(code))+" DUP1 PUSH @code PUSH 0 CODECOPY PUSH 0 RETURN code:")
	prefix = prefix[:len(prefix)-1] // the code follows in place of the label
	return append(prefix, code...)
}

func selector(signature string, arguments ...[]byte) []byte {
	input := crypto.Keccak256([]byte(signature))[:4]
	for _, a := range arguments {
		input = append(input, common.LeftPadBytes(a, 32)...)
	}
	return input
}

package tx

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cometbft/cometbft/crypto/ed25519"
)

func TestChecksOfPrograms(t *testing.T) {
	to, code := make([]byte, AddressBytes), []byte{1}
	touch := func(key string) Operation { return NewCall(to, nil, 1, 1, 0, []byte(key)) }
	for name, c := range map[string]struct {
		operation Operation
		code      Code
	}{
		"add":                   {NewAdd([]byte("k"), 0), CodeOK},
		"one number":            {NewBoundedAdd([]byte("k"), -1, 5, 5), CodeOK},
		"empty bounds":          {NewBoundedAdd([]byte("k"), 1, 5, 4), CodeMalformed},
		"add to a system key":   {NewAdd([]byte("\x00x"), 1), CodeReserved},
		"largest deploy":        {NewDeploy(make([]byte, MaxProgramBytes), nil, MaxProgramGas, 40), CodeOK},
		"too large with input":  {NewDeploy(make([]byte, MaxProgramBytes), code, 1, 1), CodeTooLarge},
		"no code":               {NewDeploy(nil, code, 1, 1), CodeMalformed},
		"largest input":         {NewCall(to, make([]byte, MaxInputBytes), 1, 1, 0), CodeOK},
		"input too large":       {NewCall(to, make([]byte, MaxInputBytes+1), 1, 1, 0), CodeTooLarge},
		"short address":         {NewCall(to[1:], nil, 1, 1, 0), CodeMalformed},
		"no gas":                {NewCall(to, nil, 0, 1, 0), CodeMalformed},
		"too much gas":          {NewCall(to, nil, MaxProgramGas+1, 1, 0), CodeTooLarge},
		"no records":            {NewCall(to, nil, 1, 0, 0), CodeMalformed},
		"too many records":      {NewCall(to, nil, 1, MaxProgramKeys+1, 0), CodeTooLarge},
		"touch a key":           {touch("k"), CodeOK},
		"touch a record":        {touch("\x00x1"), CodeOK},
		"touch a system key":    {touch("\x00n"), CodeReserved},
		"touch nothing":         {touch(""), CodeMalformed},
		"touch a long key":      {touch(string(make([]byte, MaxKeyBytes+1))), CodeTooLarge},
		"unnamed above keys":    {NewCall(to, nil, 1, 1, 2), CodeMalformed},
		"touch more than keys":  {NewCall(to, nil, 1, 1, 0, []byte("a"), []byte("b")), CodeMalformed},
		"grant of records":      {NewGrant(nil, []byte("\x00x"), 0), CodeOK},
		"grant of system keys":  {NewGrant(nil, []byte("\x00"), 0), CodeReserved},
		"grant of other keys":   {NewRevoke(nil, []byte("\x00n")), CodeReserved},
		"deploy in a txn":       {NewTxn(nil, []Operation{NewDeploy(code, nil, 1, 1)}, nil), CodeMalformed},
		"call in a txn":         {NewTxn(nil, nil, []Operation{touch("k")}), CodeMalformed},
		"add in a txn":          {NewTxn(nil, nil, []Operation{NewAdd([]byte("k"), 1)}), CodeOK},
		"empty add":             {Operation{Op: &Operation_Add{}}, CodeMalformed},
		"add without a key":     {NewAdd(nil, 1), CodeMalformed},
		"compare inside bounds": {NewBoundedAdd([]byte("k"), 1, -1, 1), CodeOK},
	} {
		err := c.operation.check(NewestAppVersion)
		if c.code == CodeOK {
			require.Nil(t, err, name)
			continue
		}
		require.NotNil(t, err, name)
		require.Equal(t, c.code, err.Code, name)
	}
	require.Equal(t, 1+7+3, (&[]Operation{NewCall(to, nil, 2*GasPerKey+1, 7, 0)}[0]).Keys())
	require.Equal(t, 1+7+2*UnnamedCost+3, (&[]Operation{NewCall(to, nil, 2*GasPerKey+1, 7, 2)}[0]).Keys())
}

// Version 1 refuses later operations like unknown ones, and grants for records of programs like
// those for other system keys. Its own transactions are the same in all versions.
func TestVersionsOfTransactions(t *testing.T) {
	key := ed25519.GenPrivKeyFromSecret([]byte("key"))
	propose, err := NewPropose(5, NewGrant(nil, []byte("\x00x"), 0))
	require.NoError(t, err)
	to := bytes.Repeat([]byte{1}, AddressBytes)
	for name, c := range map[string]struct {
		operation Operation
		code      Code
	}{
		"put":               {NewPut([]byte("k"), []byte("v")), CodeOK},
		"add":               {NewAdd([]byte("k"), 1), CodeMalformed},
		"add in a txn":      {NewTxn(nil, nil, []Operation{NewAdd([]byte("k"), 1)}), CodeMalformed},
		"deploy":            {NewDeploy([]byte("code"), nil, 1, 1), CodeMalformed},
		"call":              {NewCall(to, nil, 1, 1, 0, []byte("k")), CodeMalformed},
		"grant":             {NewGrant(nil, []byte("\x00x"), 0), CodeReserved},
		"revoke":            {NewRevoke(nil, []byte("\x00xx")), CodeReserved},
		"grant, proposed":   {propose, CodeReserved},
		"grant of a client": {NewGrant(nil, []byte("x"), 0), CodeOK},
	} {
		raw, err := Sign(key, "chain", &Body{Operations: []Operation{c.operation}})
		require.NoError(t, err, name)
		newest, err := Decode(raw, "chain")
		require.NoError(t, err, name)
		first, err := DecodeVersion(raw, "chain", 1)
		if c.code == CodeOK {
			require.NoError(t, err, name)
			require.Equal(t, newest, first, name)
			continue
		}
		require.ErrorIs(t, err, &Error{Code: c.code}, name)
	}
}

package client

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/cometbft/cometbft/crypto/ed25519"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// The answer to a simulation is not proved. A false one costs a bounded number of requests, and
// then at most one transaction, which the rules refuse, or which names no more than they allow.
func TestFitWithFalseSimulations(t *testing.T) {
	keys := func(n int) (list [][]byte) {
		for i := range n {
			list = append(list, fmt.Appendf(nil, "\x00xaddress%06d", i))
		}
		return list
	}
	ran := func(gas uint64, records uint32, keys [][]byte) tx.Simulation {
		return tx.Simulation{Result: &tx.Result{Results: []tx.OperationResult{{}}}, Programs: []tx.ProgramRun{{Gas: gas, Records: records, Keys: keys}}}
	}
	refused := func(code tx.Code, keys [][]byte) tx.Simulation {
		return tx.Simulation{Code: uint32(code), Programs: []tx.ProgramRun{{Keys: keys}}}
	}
	for name, c := range map[string]struct {
		answer func(asked int) tx.Simulation
		want   tx.Code // of Fit, or of signing what it returned
		dear   bool    // the transaction names the most gas, or the most records
	}{
		"false keys":            {func(int) tx.Simulation { return ran(1000, 3, keys(3)) }, tx.CodeOK, false},
		"reserved keys":         {func(int) tx.Simulation { return ran(1000, 1, [][]byte{{0, 'u'}}) }, tx.CodeReserved, false},
		"no gas and no keys":    {func(int) tx.Simulation { return ran(0, 0, nil) }, tx.CodeMalformed, false},
		"gas above the maximum": {func(int) tx.Simulation { return ran(tx.MaxProgramGas+1, 3, keys(3)) }, tx.CodeOK, true},
		"gas that overflows":    {func(int) tx.Simulation { return ran(math.MaxUint64, 3, keys(3)) }, tx.CodeOK, true},
		"other gas each time":   {func(asked int) tx.Simulation { return ran(uint64(asked), 3, keys(3)) }, tx.CodeOK, true},
		"4,096 keys":            {func(int) tx.Simulation { return ran(1000, tx.MaxProgramKeys, keys(tx.MaxProgramKeys)) }, tx.CodeOK, true},
		"more keys than that":   {func(int) tx.Simulation { return ran(1000, 5000, keys(5000)) }, tx.CodeTooLarge, false},
		"any number of records": {func(int) tx.Simulation { return ran(1000, math.MaxUint32, keys(3)) }, tx.CodeTooLarge, false},
		"always too many":       {func(int) tx.Simulation { return refused(tx.CodeTooManyRecords, keys(3)) }, tx.CodeTooManyRecords, false},
		"always one more":       {func(asked int) tx.Simulation { return refused(tx.CodeTooManyRecords, keys(asked)) }, tx.CodeTooManyRecords, false},
		"always many more":      {func(asked int) tx.Simulation { return refused(tx.CodeTooManyRecords, keys(100*asked)) }, tx.CodeTooManyRecords, false},
		"it would be refused":   {func(int) tx.Simulation { return refused(tx.CodeReverted, nil) }, tx.CodeReverted, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			asked := 0
			node := &fakeNode{chain: newFakeChain(t), name: "http://false"}
			key := ed25519.GenPrivKeyFromSecret([]byte("alice"))
			client, err := New(ctx, []RPC{node}, WithChainID(fakeChainID), WithKey(key))
			require.NoError(t, err)
			node.lies(func(answer any) error {
				if r, is := answer.(*ctypes.ResultABCIQuery); is {
					asked++
					simulation := c.answer(asked)
					value, err := simulation.Marshal()
					require.NoError(t, err)
					r.Response.Code, r.Response.Log, r.Response.Value = 0, "", value
				}
				return nil
			})
			fitted, _, err := client.Fit(ctx, nil, tx.NewCall(make([]byte, tx.AddressBytes), nil, 0, 0, 0))
			require.LessOrEqual(t, asked, maxFits+1)
			if err == nil {
				_, err = tx.Sign(key, fakeChainID, &tx.Body{Nonce: 1, Operations: []tx.Operation{fitted}})
			}
			var is *tx.Error
			if c.want != tx.CodeOK {
				require.True(t, errors.As(err, &is), "%v", err)
				require.Equal(t, c.want, is.Code)
				return
			}
			require.NoError(t, err)
			require.LessOrEqual(t, fitted.Keys(), tx.MaxOperations)
			call := fitted.GetCall()
			require.Equal(t, c.dear, call.Gas == tx.MaxProgramGas || call.Keys == tx.MaxProgramKeys)
		})
	}
}

package liar_test

import (
	"context"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/tx"
)

// queried answers every query with the same bytes.
type queried struct {
	abci.BaseApplication
	value []byte
}

func (q *queried) Query(context.Context, *abci.RequestQuery) (*abci.ResponseQuery, error) {
	return &abci.ResponseQuery{Value: q.value, Height: 7}, nil
}

func TestEverySimulationIsFalse(t *testing.T) {
	honest := tx.Simulation{Result: &tx.Result{Results: make([]tx.OperationResult, 1)}, Programs: []tx.ProgramRun{{Gas: 900, Keys: [][]byte{{0, 'x'}}, Records: 1}}}
	value, err := honest.Marshal()
	require.NoError(t, err)
	lies := 0
	wrapped := liar.WrapSimulations(&queried{value: value}, 1, func(liar.Lie) { lies++ })
	seen := map[string]bool{}
	for range 100 {
		answer, err := wrapped.Query(t.Context(), &abci.RequestQuery{Path: "/simulate"})
		require.NoError(t, err)
		require.NotEqual(t, value, answer.Value)
		var simulation tx.Simulation
		require.NoError(t, simulation.Unmarshal(answer.Value))
		seen[string(answer.Value)] = true
	}
	require.Equal(t, 100, lies)
	require.Greater(t, len(seen), 20)
	other, err := wrapped.Query(t.Context(), &abci.RequestQuery{Path: "/key"})
	require.NoError(t, err)
	require.Equal(t, value, other.Value, "all other answers are honest")
}

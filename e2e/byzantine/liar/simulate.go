package liar

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/tx"
)

// simulator is an application that answers simulations of programs falsely.
type simulator struct {
	abci.Application // the honest one
	onLie            func(Lie)

	mu     sync.Mutex
	random *rand.Rand // guarded by mu
}

// WrapSimulations makes an honest application answer with false codes, gas and keys when it is
// asked for what a transaction with a program would do.
func WrapSimulations(honest abci.Application, seed uint64, onLie func(Lie)) abci.Application {
	return &simulator{Application: honest, onLie: onLie, random: rand.New(rand.NewPCG(seed, 0))}
}

// Query returns the honest application's answer, or a false simulation.
func (s *simulator) Query(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, error) {
	honest, err := s.Application.Query(ctx, req)
	if err != nil || req.Path != "/simulate" || honest.Code != 0 {
		return honest, err
	}
	var simulation tx.Simulation
	if err := simulation.Unmarshal(honest.Value); err != nil || len(simulation.Programs) == 0 {
		return honest, nil //nolint:nilerr // there is nothing to damage
	}
	s.falsify(&simulation)
	answer := *honest
	if answer.Value, err = simulation.Marshal(); err != nil {
		return honest, nil //nolint:nilerr // cannot happen: it was decoded
	}
	s.onLie(Lie{How: Simulate, About: "simulation", Height: uint64(honest.Height)})
	return &answer, nil
}

// falsify changes one thing.
func (s *simulator) falsify(simulation *tx.Simulation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	run := &simulation.Programs[0]
	switch s.random.IntN(6) {
	case 0: // it would fail, or it would not
		if simulation.Code == 0 {
			simulation.Code, simulation.Reason, simulation.Result = uint32(tx.CodeReverted), "false", nil
		} else {
			simulation.Code, simulation.Result = 0, &tx.Result{Results: make([]tx.OperationResult, 1)}
		}
	case 1: // it needs other records, as many as a transaction may name
		run.Keys, run.Records = s.keys(tx.MaxProgramKeys), tx.MaxProgramKeys
	case 2: // it needs ever more
		simulation.Code, simulation.Result = uint32(tx.CodeTooManyRecords), nil
		run.Keys = s.keys(len(run.Keys) + 1 + s.random.IntN(100))
	case 3:
		run.Keys, run.Records = nil, 0
	case 4:
		run.Gas = math.MaxUint64
	default:
		run.Gas = 1
	}
}

// keys returns keys of records that do not exist. s.mu is held.
func (s *simulator) keys(n int) [][]byte {
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = binary.BigEndian.AppendUint64([]byte{tx.Reserved, 'x'}, s.random.Uint64())
	}
	return keys
}

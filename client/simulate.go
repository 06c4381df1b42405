package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/tx"
)

// Simulation is what a transaction would do if it were the next one.
type Simulation struct {
	Height   int64                // it ran on the state after this block
	Refused  *tx.Error            // nil if it would succeed
	Results  []tx.OperationResult // one for each operation, in order; none if it is refused
	Programs []tx.ProgramRun      // one for each Deploy and Call that was executed
}

// Simulate executes operations at a node, as a transaction of account, and drops their effects. The
// answer is the node's word, and the transaction may end differently once it is in a block. An
// account of nil is that of the client's key.
func (c *Client) Simulate(ctx context.Context, account []byte, operations ...tx.Operation) (*Simulation, error) {
	if account == nil {
		if account = c.Account(); account == nil {
			return nil, errors.New("client: simulate: no account: name one, or use a client with a key")
		}
	}
	body := tx.Body{Account: account, Operations: operations}
	raw, err := body.Marshal()
	if err != nil {
		return nil, fmt.Errorf("client: encode the transaction: %w", err)
	}
	answer, err := c.Query(ctx, "/simulate", raw, 0, false)
	if err != nil {
		return nil, err
	}
	var s tx.Simulation
	if err := s.Unmarshal(answer.Response.Value); err != nil {
		return nil, fmt.Errorf("client: the node's answer is not a Simulation: %w", err)
	}
	simulation := &Simulation{Height: answer.Response.Height, Programs: s.Programs}
	if s.Code != 0 {
		simulation.Refused = tx.Errorf(tx.Code(s.Code), "%s", s.Reason)
	} else if s.Result != nil {
		simulation.Results = s.Result.Results
	}
	return simulation, nil
}

// Limits with which a simulation begins: the highest ones that fit in a transaction together.
const (
	firstKeys    = 1_700
	firstUnnamed = 30
	maxFits      = 60 // simulations, each of which finds at least firstUnnamed more records
)

// Fit simulates a Deploy or a Call, and returns it with limits that fit: the gas that it used and a
// quarter more, and exactly the records that it used, all of them named. Limits of the operation
// that are not 0 stay. If the state changes until the operation is in a block, it may need more. A
// refusal of the operation is returned as a *tx.Error.
func (c *Client) Fit(ctx context.Context, account []byte, operation tx.Operation) (tx.Operation, *Simulation, error) {
	asked := limitsOf(operation)
	wide := limits{gas: or(asked.gas, tx.MaxProgramGas), keys: or(asked.keys, firstKeys), unnamed: or(asked.unnamed, min(firstUnnamed, or(asked.keys, firstKeys)))}
	for range maxFits {
		tried := wide.of(operation)
		s, err := c.Simulate(ctx, account, tried)
		if err != nil {
			return tx.Operation{}, nil, err
		}
		if s.Refused != nil && s.Refused.Code == tx.CodeTooManyRecords && len(s.Programs) == 1 && len(s.Programs[0].Keys) > len(wide.touch) &&
			asked.unnamed == 0 && operation.GetCall() != nil {
			wide.touch = s.Programs[0].Keys
			continue
		}
		if s.Refused != nil {
			return tx.Operation{}, s, s.Refused
		}
		if len(s.Results) != 1 || len(s.Programs) != 1 {
			return tx.Operation{}, s, errors.New("client: the node's simulation has no result")
		}
		run := s.Programs[0]
		gas := min(run.Gas, tx.MaxProgramGas) // a false answer may have any
		fitted := limits{
			gas:  or(asked.gas, min(gas+gas/4+reserveGas, tx.MaxProgramGas)),
			keys: or(asked.keys, run.Records), unnamed: asked.unnamed, touch: run.Keys,
		}.of(operation)
		// A program may do something else with less gas: a call in it gets 63/64 of what is left.
		if again, err := c.Simulate(ctx, account, fitted); err != nil || again.Refused != nil || len(again.Programs) != 1 || again.Programs[0].Gas != run.Gas {
			wide.touch = run.Keys
			fitted = wide.of(operation)
		}
		return fitted, s, nil
	}
	return tx.Operation{}, nil, tx.Errorf(tx.CodeTooManyRecords, "the operation reads more records than a transaction may name")
}

// reserveGas is more than a quarter of a small call: a slot that is written for the first time.
const reserveGas = 30_000

// limits are the limits of a Deploy or a Call; touch is that of a Call.
type limits struct {
	gas           uint64
	keys, unnamed uint32
	touch         [][]byte
}

func limitsOf(operation tx.Operation) limits {
	if d := operation.GetDeploy(); d != nil {
		return limits{d.Gas, d.Keys, d.Unnamed, nil}
	}
	if call := operation.GetCall(); call != nil {
		return limits{call.Gas, call.Keys, call.Unnamed, call.Touch}
	}
	return limits{}
}

// of returns the operation with these limits.
func (l limits) of(operation tx.Operation) tx.Operation {
	if call := operation.GetCall(); call != nil {
		l.keys = max(l.keys, uint32(len(l.touch)))
		return tx.NewCall(call.To, call.Input, l.gas, l.keys, l.unnamed, l.touch...)
	}
	if d := operation.GetDeploy(); d != nil {
		if l.unnamed == 0 {
			l.unnamed = uint32(len(l.touch)) // nothing can be named
		}
		return tx.Operation{Op: &tx.Operation_Deploy{Deploy: &tx.Deploy{Code: d.Code, Input: d.Input, Gas: l.gas, Keys: l.keys, Unnamed: l.unnamed}}}
	}
	return operation
}

func or[T uint32 | uint64](n, otherwise T) T {
	if n != 0 {
		return n
	}
	return otherwise
}

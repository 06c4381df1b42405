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

// Fit returns operations whose deploys and calls name the gas and the records that they used in a
// simulation, with a reserve of a quarter, and the records as keys to fetch early. So they cost
// less of a block than with the highest limits.
func (s *Simulation) Fit(operations []tx.Operation) []tx.Operation {
	fitted := append([]tx.Operation(nil), operations...)
	for _, run := range s.Programs {
		if int(run.Operation) >= len(fitted) {
			continue
		}
		gas := min(run.Gas+run.Gas/4+reserveGas, tx.MaxProgramGas)
		keys := uint32(min(len(run.Keys)+len(run.Keys)/4+reserveKeys, tx.MaxProgramKeys))
		switch op := fitted[run.Operation].Op.(type) {
		case *tx.Operation_Deploy:
			fitted[run.Operation] = tx.NewDeploy(op.Deploy.Code, op.Deploy.Input, gas, keys)
		case *tx.Operation_Call:
			fitted[run.Operation] = tx.NewCall(op.Call.To, op.Call.Input, gas, keys, run.Keys...)
		}
	}
	return fitted
}

// The reserve of small calls: the state may change until the call is in a block.
const (
	reserveGas  = 30_000 // a storage slot that is written for the first time
	reserveKeys = 4
)

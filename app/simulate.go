package app

import (
	"context"
	"errors"
	"runtime"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// simulationDelay is the most time that a simulation waits for others.
const simulationDelay = 5 * time.Second

// maxSimulations is how many run at the same time, without those that wait for the Source. Any
// stranger may ask for one, and it may take a processor for a second.
var maxSimulations = max(1, runtime.GOMAXPROCS(0)/4)

// querySimulate executes the operations of a transaction on the newest state, as the next block
// would if it were made now, and drops their effects. The nonce is not checked.
func (a *App) querySimulate(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, *tx.Error) {
	if a.options.SerialQueries {
		return nil, tx.Errorf(tx.CodeUnreadable, "CometBFT waits for this node's queries one by one, so it runs no simulations: ask another node")
	}
	if req.Height != 0 || req.Prove {
		return nil, tx.Errorf(tx.CodeBadRequest, "a simulation runs on the newest state and has no proof: ask without height and proof")
	}
	at, refused := a.acquire(0)
	if refused != nil {
		return nil, refused
	}
	defer at.version.Release()
	params, err := ReadParams(at.version)
	if err != nil {
		return nil, refusal(err, tx.CodeUnreadable)
	}
	body, err := tx.DecodeBody(req.Data, a.rules(&params).format)
	if err != nil {
		if _, later := tx.DecodeBody(req.Data, tx.NewestAppVersion); later == nil {
			err = tx.Errorf(tx.CodeMalformed, "the chain has app version %d, and an operation needs a later one: see `starlingd upgrade show`", params.AppVersion)
		}
		return nil, refusal(err, tx.CodeBadRequest)
	}
	var value []byte
	err = a.state.read(ctx, at, func(v *avlstar.Version, needs *needs) (err error) {
		if err := a.beginSimulation(ctx); err != nil {
			return err
		}
		defer func() { <-a.simulations }()
		x := a.newExecutor(newCheckOverlay(v), &params, at.height+1)
		x.needs, x.time = needs, uint64(time.Now().Unix())
		answer, err := x.simulate(body)
		if err == nil {
			value, err = answer.Marshal() // before v is released: values may be its memory
		}
		return err
	})
	if err != nil {
		return nil, refusal(err, tx.CodeUnreadable)
	}
	return &abci.ResponseQuery{Value: value, Height: at.height}, nil
}

// beginSimulation waits for one of the places of running simulations. It returns a *tx.Error if
// none becomes free in time.
func (a *App) beginSimulation(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, simulationDelay)
	defer cancel()
	select {
	case a.simulations <- struct{}{}:
		return nil
	case <-ctx.Done():
		return tx.Errorf(tx.CodeBusy, "%d simulations are running: ask again later, or ask another node", maxSimulations)
	}
}

// simulate executes the operations of a transaction without its nonce.
func (x *executor) simulate(body *tx.Body) (*tx.Simulation, error) {
	answer := new(tx.Simulation)
	x.ran = func(done *program.Result) {
		run := tx.ProgramRun{Gas: done.Gas, Output: done.Output, Keys: done.Keys, Records: uint32(done.Records)}
		for _, l := range done.Logs {
			run.Logs = append(run.Logs, tx.ProgramLog{Address: l.Address, Topics: l.Topics, Data: l.Data})
		}
		answer.Programs = append(answer.Programs, run)
	}
	_, err := x.standingOf(body.Account)
	var ran outcome
	if err == nil {
		ran, err = x.runOperations(body)
	}
	var refused *tx.Error
	switch {
	case errors.As(err, &refused):
		ran.err = refused
	case err != nil:
		if x.lacks(err) {
			x.explore(&tx.Tx{Body: body}) // for fewer rounds
		}
		return nil, err
	case x.needs.lost(): // a value that fillReads did not find
		return nil, &avlstar.MissingNodeError{}
	}
	next := 0
	for i := range body.Operations {
		if op := &body.Operations[i]; op.GetCall() != nil || op.GetDeploy() != nil {
			if next == len(answer.Programs) {
				break
			}
			answer.Programs[next].Operation = uint32(i)
			next++
		}
	}
	if ran.err != nil {
		answer.Code, answer.Reason = uint32(ran.err.Code), ran.err.Reason
		return answer, nil //nolint:nilerr // a refusal is an answer
	}
	answer.Result = ran.result
	return answer, nil
}

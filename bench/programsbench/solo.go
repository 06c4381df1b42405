package programsbench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/app/evm"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

const chainID = network.ChainID

// solo is a chain without CometBFT: an application in this process. It implements chain.
type solo struct {
	app  *app.App
	bank *bank
	at   int64
}

// newSolo returns a prepared chain whose application persists nothing.
func newSolo(ctx context.Context, b *bank, store app.Store, done func(int)) (*solo, error) {
	s, err := openSolo(b, store, 0)
	if err != nil {
		return nil, err
	}
	if err := s.genesis(ctx); err != nil {
		return nil, err
	}
	return s, b.prepare(ctx, s, len(b.accounts), done)
}

// openSolo opens the application of a store with the state at a height.
func openSolo(b *bank, store app.Store, height int64) (*solo, error) {
	a, err := app.New(app.Options{Store: store, ChainID: chainID, KeepRecent: 4, Programs: evm.New()})
	return &solo{app: a, bank: b, at: height}, err
}

func (s *solo) genesis(ctx context.Context) error {
	state, err := json.Marshal(s.bank.appState(len(s.bank.accounts)))
	if err != nil {
		return err
	}
	params := cmttypes.DefaultConsensusParams().ToProto()
	_, err = s.app.InitChain(ctx, &abci.RequestInitChain{
		ChainId: chainID, InitialHeight: 1, ConsensusParams: &params, AppStateBytes: state,
		Validators: []abci.ValidatorUpdate{abci.Ed25519ValidatorUpdate(s.bank.accounts[0].public, 10)},
	})
	return err
}

// finalize executes the next block.
func (s *solo) finalize(ctx context.Context, txs [][]byte) ([]*abci.ExecTxResult, error) {
	s.at++
	res, err := s.app.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: s.at, Time: time.Unix(s.at, 0), Txs: txs})
	if err != nil {
		return nil, err
	}
	_, err = s.app.Commit(ctx, &abci.RequestCommit{})
	return res.TxResults, err
}

// failed returns an error if a transaction has failed.
func failed(height int64, results []*abci.ExecTxResult) error {
	for i, r := range results {
		if r.Code != 0 {
			return fmt.Errorf("block %d, transaction %d failed: %s", height, i, r.Log)
		}
	}
	return nil
}

func (s *solo) submit(ctx context.Context, operations ...tx.Operation) error {
	raw, err := s.bank.accounts[0].sign(operations...)
	if err != nil {
		return err
	}
	results, err := s.finalize(ctx, [][]byte{raw})
	if err != nil {
		return err
	}
	return failed(s.at, results)
}

func (s *solo) flush(context.Context) error { return nil }

func (s *solo) height(context.Context) (int64, error) { return s.at, nil }

func (s *solo) reach(ctx context.Context, height int64) error {
	for s.at < height {
		if _, err := s.finalize(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

func (s *solo) simulate(ctx context.Context, account []byte, operation tx.Operation) (*client.Simulation, error) {
	body := tx.Body{Account: account, Operations: []tx.Operation{operation}}
	raw, err := body.Marshal()
	if err != nil {
		return nil, err
	}
	res, err := s.app.Query(ctx, &abci.RequestQuery{Path: app.PathSimulate, Data: raw})
	if err != nil {
		return nil, err
	}
	return simulationOf(res.Value, res.Height)
}

// simulationOf decodes a node's answer to a simulation.
func simulationOf(raw []byte, height int64) (*client.Simulation, error) {
	var answer tx.Simulation
	if err := answer.Unmarshal(raw); err != nil {
		return nil, err
	}
	simulation := &client.Simulation{Height: height, Programs: answer.Programs}
	if answer.Code != 0 {
		simulation.Refused = tx.Errorf(tx.Code(answer.Code), "%s", answer.Reason)
	} else if answer.Result != nil {
		simulation.Results = answer.Result.Results
	}
	return simulation, nil
}

// took is what blocks took.
type took struct {
	clock, cpu     time.Duration
	txs, transfers int
}

func (t took) rate() float64         { return float64(t.txs) / t.clock.Seconds() }
func (t took) transferRate() float64 { return float64(t.transfers) / t.clock.Seconds() }

// blocks executes n blocks.
func (s *solo) blocks(ctx context.Context, n, percent int, checked bool) (t took, err error) {
	for range n {
		txs, transfers, err := s.bank.block(percent)
		if err != nil {
			return t, err
		}
		clock, cpu, err := s.block(ctx, txs, checked)
		if err != nil {
			return t, err
		}
		t.clock, t.cpu = t.clock+clock, t.cpu+cpu
		t.txs, t.transfers = t.txs+len(txs), t.transfers+transfers
	}
	return t, nil
}

// block executes the next block, in which no transaction may fail. With checked, CheckTx has
// checked the signatures before, as for transactions from the mempool; otherwise ProcessProposal
// checks them, and counts.
func (s *solo) block(ctx context.Context, txs [][]byte, checked bool) (clock, cpu time.Duration, err error) {
	if checked {
		if err := s.check(ctx, txs); err != nil {
			return 0, 0, err
		}
	}
	from, used := time.Now(), harness.CPUTime()
	if !checked {
		if err := s.process(ctx, txs); err != nil {
			return 0, 0, err
		}
	}
	results, err := s.finalize(ctx, txs)
	if err != nil {
		return 0, 0, err
	}
	return time.Since(from), harness.CPUTime() - used, failed(s.at, results)
}

func (s *solo) check(ctx context.Context, txs [][]byte) error {
	for i, raw := range txs {
		res, err := s.app.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw, Type: abci.CheckTxType_New})
		if err != nil {
			return err
		}
		if res.Code != 0 {
			return fmt.Errorf("transaction %d was not admitted: %s", i, res.Log)
		}
	}
	return nil
}

func (s *solo) process(ctx context.Context, txs [][]byte) error {
	res, err := s.app.ProcessProposal(ctx, &abci.RequestProcessProposal{Height: s.at + 1, Txs: txs})
	if err == nil && !res.IsAccepted() {
		err = fmt.Errorf("block %d was rejected", s.at+1)
	}
	return err
}

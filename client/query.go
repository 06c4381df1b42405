package client

import (
	"context"
	"encoding/json"

	abci "github.com/cometbft/cometbft/abci/types"
	cmtbytes "github.com/cometbft/cometbft/libs/bytes"
	"github.com/cometbft/cometbft/proto/tendermint/crypto"
	rpcclient "github.com/cometbft/cometbft/rpc/client"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
)

// queryAnswer is the result of abci_query in CometBFT's JSON: bytes in base64, 64-bit numbers as
// strings. CometBFT's own decoder reads the text several times more, with reflection and protobuf's
// JSON mapping. A watch that catches up would spend half of its time there.
type queryAnswer struct{ abci.ResponseQuery }

// UnmarshalJSON is called by CometBFT's decoder. It skips unknown fields.
func (a *queryAnswer) UnmarshalJSON(b []byte) error {
	var result struct {
		Response struct {
			Code      uint32    `json:"code"`
			Log       string    `json:"log"`
			Info      string    `json:"info"`
			Index     int64     `json:"index,string"`
			Key       []byte    `json:"key"`
			Value     []byte    `json:"value"`
			ProofOps  *proofOps `json:"proofOps"`
			Height    int64     `json:"height,string"`
			Codespace string    `json:"codespace"`
		} `json:"response"`
	}
	if err := json.Unmarshal(b, &result); err != nil {
		return err
	}
	r := &result.Response
	a.ResponseQuery = abci.ResponseQuery{
		Code: r.Code, Log: r.Log, Info: r.Info, Index: r.Index, Key: r.Key, Value: r.Value, ProofOps: r.ProofOps.decoded(), Height: r.Height, Codespace: r.Codespace,
	}
	return nil
}

type proofOps struct {
	Ops []struct {
		Type string `json:"type"`
		Key  []byte `json:"key"`
		Data []byte `json:"data"`
	} `json:"ops"`
}

func (p *proofOps) decoded() *crypto.ProofOps {
	if p == nil {
		return nil
	}
	ops := &crypto.ProofOps{}
	for _, op := range p.Ops {
		ops.Ops = append(ops.Ops, crypto.ProofOp{Type: op.Type, Key: op.Key, Data: op.Data})
	}
	return ops
}

// ABCIQueryWithOptions is CometBFT's method with another decoder.
func (n *node) ABCIQueryWithOptions(ctx context.Context, path string, data cmtbytes.HexBytes, o rpcclient.ABCIQueryOptions) (*ctypes.ResultABCIQuery, error) {
	var a queryAnswer
	_, err := n.caller.Call(ctx, "abci_query", map[string]any{"path": path, "data": data, "height": o.Height, "prove": o.Prove}, &a)
	if err != nil {
		return nil, err
	}
	return &ctypes.ResultABCIQuery{Response: a.ResponseQuery}, nil
}

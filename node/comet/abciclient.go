package comet

import (
	"context"
	"sync"

	abcicli "github.com/cometbft/cometbft/abci/client"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/service"
	"github.com/cometbft/cometbft/proxy"
)

// clientCreator connects CometBFT to an in-process application without a lock, so that a query does
// not wait for a block. (CometBFT's own creators use one mutex for all connections, or one per
// connection.) The application does its own locking.
type clientCreator struct{ app abci.Application }

var _ proxy.ClientCreator = clientCreator{}

// NewABCIClient implements proxy.ClientCreator. It is called once for each of the four connections.
func (c clientCreator) NewABCIClient() (abcicli.Client, error) {
	client := &localClient{Application: c.app}
	client.BaseService = *service.NewBaseService(nil, "starlingABCI", client)
	return client, nil
}

// localClient is one of the four ABCI connections.
type localClient struct {
	service.BaseService
	abci.Application

	// checking keeps the order of CheckTxAsync calls and their callbacks consistent, as a socket
	// does: the mempool relies on it, and nonces must arrive in order.
	checking sync.Mutex
	callback abcicli.Callback // guarded by checking
}

func (c *localClient) SetResponseCallback(callback abcicli.Callback) {
	c.checking.Lock()
	defer c.checking.Unlock()
	c.callback = callback
}

// CheckTxAsync calls back before it returns, which its contract allows.
func (c *localClient) CheckTxAsync(ctx context.Context, req *abci.RequestCheckTx) (*abcicli.ReqRes, error) {
	c.checking.Lock()
	defer c.checking.Unlock()
	res, err := c.Application.CheckTx(ctx, req)
	if err != nil {
		return nil, err
	}
	request, response := abci.ToRequestCheckTx(req), abci.ToResponseCheckTx(res)
	if c.callback != nil {
		c.callback(request, response)
	}
	done := abcicli.NewReqRes(request)
	done.Response = response
	done.InvokeCallback() // marks it as answered: a callback set later runs at once
	return done, nil
}

func (c *localClient) Error() error                { return nil }
func (c *localClient) Flush(context.Context) error { return nil }

func (c *localClient) Echo(_ context.Context, message string) (*abci.ResponseEcho, error) {
	return &abci.ResponseEcho{Message: message}, nil
}

package comet

import (
	"context"
	"testing"

	abcicli "github.com/cometbft/cometbft/abci/client"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"
)

// stuck is an application whose FinalizeBlock blocks until it is released.
type stuck struct {
	abci.BaseApplication
	entered, leave chan struct{}
}

func (s *stuck) FinalizeBlock(context.Context, *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	close(s.entered)
	<-s.leave
	return &abci.ResponseFinalizeBlock{}, nil
}

func TestNoCallWaitsForABlock(t *testing.T) {
	application := &stuck{entered: make(chan struct{}), leave: make(chan struct{})}
	creator := clientCreator{application}
	consensus, err := creator.NewABCIClient()
	require.NoError(t, err)
	other, err := creator.NewABCIClient()
	require.NoError(t, err)
	finished := make(chan error, 1)
	go func() {
		_, err := consensus.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{})
		finished <- err
	}()
	<-application.entered
	for _, client := range []abcicli.Client{other, consensus} { // with one mutex, each would block
		_, err = client.Query(t.Context(), &abci.RequestQuery{})
		require.NoError(t, err)
		_, err = client.CheckTx(t.Context(), &abci.RequestCheckTx{})
		require.NoError(t, err)
		_, err = client.Info(t.Context(), &abci.RequestInfo{})
		require.NoError(t, err)
		_, err = client.LoadSnapshotChunk(t.Context(), &abci.RequestLoadSnapshotChunk{})
		require.NoError(t, err)
		_, err = client.CheckTxAsync(t.Context(), &abci.RequestCheckTx{})
		require.NoError(t, err)
	}
	close(application.leave)
	require.NoError(t, <-finished)
}

func TestCheckTxAsyncCallsBack(t *testing.T) {
	client, err := clientCreator{abci.NewBaseApplication()}.NewABCIClient()
	require.NoError(t, err)
	var all []string
	client.SetResponseCallback(func(req *abci.Request, res *abci.Response) {
		require.NotNil(t, res.GetCheckTx())
		all = append(all, string(req.GetCheckTx().Tx))
	})
	answer, err := client.CheckTxAsync(t.Context(), &abci.RequestCheckTx{Tx: []byte("one")})
	require.NoError(t, err)
	called := false
	answer.SetCallback(func(*abci.Response) { called = true })
	require.True(t, called)
	require.Equal(t, []string{"one"}, all)
}

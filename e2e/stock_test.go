package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/privval"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/tx"
)

// The stock CometBFT is of the minor version before the one that starlingd is built with.
const (
	stockCometBFT = "github.com/cometbft/cometbft/cmd/cometbft"
	stockVersion  = "v0.39.4"
)

const (
	stockChain = "stock"
	stockKeys  = 600
)

// Two nodes run a stock cometbft, each with `starlingd abci` as its application:
// the first holds data, the second joins by CometBFT's own state sync through our snapshots.
func TestStockCometBFT(t *testing.T) {
	p, ctx := processes(t, 100*time.Second)
	validator, joiner := stockHome(t, ctx, "validator"), stockHome(t, ctx, "joiner")
	_, err := runner.Genesis([]*runner.Home{validator}, []*runner.Home{joiner}, stockChain, map[string]any{
		"chunk_bytes": 1024, "snapshot_interval": 10, "open": false, "admins": []string{},
		"grants": []map[string]any{{"grantee": "*", "prefix": "stock/"}},
	})
	require.NoError(t, err)
	startStock(t, p, ctx, validator)
	await(t, ctx, validator, 1)

	key := ed25519.GenPrivKeyFromSecret([]byte("stock"))
	c, err := client.Dial(ctx, []string{validator.RPC()}, client.WithChainID(stockChain), client.WithKey(key))
	require.NoError(t, err)
	var operations []tx.Operation
	for i := range stockKeys {
		operations = append(operations, tx.NewPut(fmt.Appendf(nil, "stock/%04d", i), fmt.Appendf(nil, "value %d of many", i)))
	}
	written, err := c.Submit(ctx, operations...)
	require.NoError(t, err)

	snapshot := (written.Height + 9) / 10 * 10
	await(t, ctx, validator, snapshot+2) // the light client needs two more blocks
	trusted, err := validator.Header(ctx, snapshot)
	require.NoError(t, err)
	require.NoError(t, joiner.Configure(func(c *cfg.Config) {
		c.P2P.PersistentPeers = validator.Peer()
		c.StateSync.Enable = true
		c.StateSync.RPCServers = []string{validator.RPC(), validator.RPC()}
		c.StateSync.TrustHeight = trusted.Height
		c.StateSync.TrustHash = fmt.Sprintf("%X", trusted.Hash)
	}))
	startStock(t, p, ctx, joiner)
	await(t, ctx, joiner, snapshot)

	// It has the state of the snapshot, although it never had the blocks before it.
	var earliest int64
	require.NoError(t, runner.Poll(ctx, "the joiner's first block", func() bool {
		status, err := joiner.Status(ctx)
		earliest = status.Earliest
		return err == nil && earliest > 0
	}))
	require.Greater(t, earliest, snapshot)
	network, err := validator.AppInfo(ctx)
	require.NoError(t, err)
	await(t, ctx, joiner, network.Height)
	for range 3 {
		at, err := joiner.AppInfo(ctx)
		require.NoError(t, err)
		await(t, ctx, validator, at.Height+1)
		header, err := validator.Header(ctx, at.Height+1)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%X", header.AppHash), fmt.Sprintf("%X", at.Hash), "height %d", at.Height)
		await(t, ctx, joiner, at.Height+1)
	}

	trusted, err = validator.Header(ctx, earliest)
	require.NoError(t, err)
	reader, err := client.Dial(ctx, []string{joiner.RPC()}, client.WithWitnesses(validator.RPC()), client.WithChainID(stockChain),
		client.WithVerification(client.Trust{Height: trusted.Height, Hash: trusted.Hash}))
	require.NoError(t, err)
	value, err := reader.Get(ctx, []byte("stock/0042"))
	require.NoError(t, err)
	require.True(t, value.Verified)
	require.Equal(t, "value 42 of many", string(value.Value))
}

// Two of the four validators run starlingd, two a stock cometbft. Each block needs three of them,
// so each kind understands the other's proposals and votes, and its batches of transactions.
func TestStockValidators(t *testing.T) {
	p, ctx := processes(t, 100*time.Second)
	var homes []*runner.Home
	for i := range 4 {
		home := stockHome(t, ctx, fmt.Sprintf("validator-%d", i))
		require.NoError(t, home.Configure(func(c *cfg.Config) {
			c.P2P.PersistentPeers = runner.Peers(homes...) // one node of each pair dials
		}))
		homes = append(homes, home)
	}
	_, err := runner.Genesis(homes, nil, stockChain, map[string]any{
		"open": false, "admins": []string{}, "grants": []map[string]any{{"grantee": "*", "prefix": "stock/"}},
	})
	require.NoError(t, err)
	for i, home := range homes {
		if i%2 == 0 {
			home.Release()
			start(t, p, runner.Spec{Name: home.Name, Path: starlingd, Log: home.Log(), Args: []string{"start", "--home", home.Dir}})
		} else {
			startStock(t, p, ctx, home)
		}
	}
	for _, home := range homes {
		await(t, ctx, home, 1)
	}

	// Each kind must put transactions of the other's clients into its blocks.
	var clients []*client.Client
	stock := map[string]bool{} // by address
	for i, home := range homes {
		key := ed25519.GenPrivKeyFromSecret([]byte(home.Name))
		c, err := client.Dial(ctx, []string{home.RPC()}, client.WithChainID(stockChain), client.WithKey(key))
		require.NoError(t, err)
		clients = append(clients, c)
		validator := privval.LoadFilePVEmptyState(filepath.Join(home.Dir, "config", "priv_validator_key.json"), "")
		stock[validator.GetAddress().String()] = i%2 == 1
	}
	crossed, proposers, last := map[bool]bool{}, map[string]bool{}, int64(0)
	for round := 0; len(crossed) < 2 || len(proposers) < len(homes); round++ {
		var sent [][]*client.Sent
		for i, c := range clients {
			sent = append(sent, nil)
			for k := range 50 { // a batch
				one, err := c.Send(ctx, tx.NewPut(fmt.Appendf(nil, "stock/%d/%02d", i, k), fmt.Append(nil, round)))
				require.NoError(t, err)
				sent[i] = append(sent[i], one)
			}
		}
		for i := range sent {
			for _, one := range sent[i] {
				done, err := one.Wait(ctx)
				require.NoError(t, err)
				last = max(last, done.Height)
				header, err := homes[0].Header(ctx, done.Height)
				require.NoError(t, err)
				proposer := header.Proposer.String()
				proposers[proposer] = true
				if sender := i%2 == 1; stock[proposer] != sender {
					crossed[sender] = true
				}
			}
		}
	}
	for _, home := range homes {
		await(t, ctx, home, last) // a validator with another app hash would have stopped
	}
}

func stockHome(t *testing.T, ctx context.Context, name string) *runner.Home {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	home, err := runner.NewHome(ctx, name, dir, starlingd, "init", name, "--chain-id", stockChain, "--home", dir)
	require.NoError(t, err)
	require.NoError(t, home.Configure(func(c *cfg.Config) {
		c.ProxyApp = "unix://" + filepath.Join(dir, "app.sock")
		c.DBBackend = cfg.DefaultConfig().DBBackend // only starlingd has the block store
		c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 400*time.Millisecond, 0
	}))
	return home
}

// startStock starts the application and the cometbft of one home. (cometbft waits for the socket.)
func startStock(t *testing.T, p *runner.Processes, ctx context.Context, home *runner.Home) {
	t.Helper()
	start(t, p, runner.Spec{
		Name: home.Name + "'s application", Path: starlingd, Log: filepath.Join(home.Dir, "app.log"),
		Args: []string{"abci", "--address", "unix://" + filepath.Join(home.Dir, "app.sock"), "--home", home.Dir, "--snapshots.keep_recent", "10"},
	})
	home.Release()
	end := start(t, p, runner.Spec{
		Name: home.Name + "'s cometbft", Path: cometbft, Log: home.Log(), Args: []string{"start", "--home", home.Dir},
	})
	// It must end before its application, without which a stock cometbft may wait for ever.
	t.Cleanup(func() { require.NoError(t, end.Stop(time.Minute)) })
}

func await(t *testing.T, ctx context.Context, home *runner.Home, height int64) {
	t.Helper()
	require.NoError(t, runner.Poll(ctx, fmt.Sprintf("%s to reach height %d", home.Name, height), func() bool {
		at, err := home.AppInfo(ctx)
		return err == nil && at.Height >= height
	}))
}

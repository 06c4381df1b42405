package e2e_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/tx"
)

const (
	joinChain  = "join"
	joinPrefix = "join/"
	// joinKeys and joinValue give about 4 MB, which two validators send at joinRate: a join takes
	// about ten seconds, and is killed early.
	joinKeys, joinValue = 4000, 1000
	joinRate            = 160_000 // bytes a second from each peer
	joinChunk           = 8 << 10
	joinInterval        = 10 // blocks between snapshots
)

// joinLies are the modes of the Byzantine peers: one can be proved, one never answers, one
// withholds the last chunk.
var joinLies = []string{"equivocate", "withhold", "last"}

// A validator is killed twice while it joins over the transport, among peers that misbehave in
// different modes. No verified chunk is fetched again, its signing state does not change until it
// signs again, and then it has the network's state.
func TestKilledJoin(t *testing.T) {
	p, ctx := processes(t, 3*time.Minute)
	homes := makeHomes(ctx, t, joinChain, "validator-0", "validator-1", "joiner", "liar-0", "liar-1", "liar-2")
	validators, joiner, liars := homes[:2:2], homes[2], homes[3:]
	joiner.Power = 1 // the others have enough power without it
	joinNetwork(t, homes, 3, len(validators))
	env := []string{fmt.Sprintf("STARLINGD_TRANSPORT_SEND_RATE=%d", joinRate), "STARLINGD_SNAPSHOTS_KEEP_RECENT=10"}
	for _, home := range validators {
		home.Release()
		start(t, p, runner.Spec{Name: home.Name, Path: starlingd, Args: []string{"start", "--home", home.Dir}, Env: env, Log: home.Log()})
	}
	for i, home := range liars {
		home.Release()
		args := []string{"--home", home.Dir, "--lie", joinLies[i], "--seed", fmt.Sprint(i)}
		start(t, p, runner.Spec{Name: home.Name, Path: byzantine, Args: args, Env: env, Log: home.Log()})
	}
	await(t, ctx, validators[0], 1)
	snapshot := snapshotAfter(fillState(t, ctx, validators[0]))
	for _, home := range append(validators, liars...) {
		await(t, ctx, home, snapshot+2)
	}

	joinsFrom(t, ctx, joiner, append(liars, validators...), validators[0], snapshot)
	// It has a signing state, like a validator that lost its data and kept its keys.
	const signedBefore = 3
	signing := fmt.Appendf(nil, `{"height": "%d", "round": 0, "step": 3}`, signedBefore)
	require.NoError(t, os.WriteFile(joiner.SigningState(), signing, 0o600))
	joiner.Release()
	var process *runner.Process
	var err error
	begin := func() {
		process, err = p.Start(runner.Spec{Name: joiner.Name, Path: starlingd, Args: []string{"start", "--home", joiner.Dir}, Log: joiner.Log()})
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, line := range runner.Tail(joiner.Log(), 60) {
				t.Log(line)
			}
		}
	})
	// minimum number of bytes that it had verified when it was killed, and chunks of the snapshot
	var verified, total int64
	for kills, tries := 0, 0; kills < 2; {
		begin()
		var values runner.MetricValues
		require.NoError(t, runner.Poll(ctx, "a part of the chunks", func() bool {
			values, err = joiner.Scrape(ctx)
			total = values.Starling("statesync_snapshot_chunks")
			return err == nil && total > 0 && values.Starling("statesync_chunks_verified") >= total/5
		}))
		process.Kill()
		now, err := os.ReadFile(joiner.SigningState())
		require.NoError(t, err)
		// the test itself was not scheduled for seconds
		if len(runner.Logged(joiner.Log(), runner.LogRestored)) > 0 {
			tries++
			require.Less(t, tries, 5, "the join always ends before it can be killed")
			out, err := exec.CommandContext(ctx, starlingd, "unsafe-reset-all", "--yes", "--home", joiner.Dir).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.NoError(t, os.Remove(joiner.Log()))
			kills, verified, signing = 0, 0, now
			continue
		}
		kills++
		verified += values.Starling("statesync_bytes_verified")
		t.Logf("kill %d: %d chunks of %d verified since the start", kills, values.Starling("statesync_chunks_verified"), total)
		require.Equal(t, string(signing), string(now), "a join must not change the signing state")
	}
	begin()
	require.NoError(t, runner.Poll(ctx, "the joiner to have the state", func() bool {
		return len(runner.Logged(joiner.Log(), runner.LogRestored)) > 0
	}))
	said := runner.Logged(joiner.Log(), runner.LogRestored)[0]
	t.Logf("%v", said.Fields)
	require.GreaterOrEqual(t, said.Int("reused"), verified, "verified bytes are fetched again")
	require.Less(t, said.Int("reused"), said.Int("bytes"))
	require.Equal(t, total, said.Int("chunks"))
	require.NotEmpty(t, runner.Logged(joiner.Log(), runner.LogBanned), "the peer that damages chunks was never asked")

	requireFollows(t, ctx, joiner, validators)
	require.NoError(t, runner.Poll(ctx, "the joiner to sign again", func() bool {
		now, err := os.ReadFile(joiner.SigningState())
		return err == nil && signedHeight(t, now) > snapshot
	}))
	banned := map[string]bool{}
	for _, line := range runner.Logged(joiner.Log(), runner.LogBanned) {
		banned[line.Fields["peer"]] = true
	}
	require.Len(t, banned, 1, "only one misbehaviour can be proved")
	require.NoError(t, process.Stop(20*time.Second))
}

// fillState writes the keys, and returns the height of the last one.
func fillState(t *testing.T, ctx context.Context, to *runner.Home) (height int64) {
	t.Helper()
	c, err := client.Dial(ctx, []string{to.RPC()}, client.WithChainID(joinChain), client.WithKey(ed25519.GenPrivKeyFromSecret([]byte("join"))))
	require.NoError(t, err)
	const perTx = 500
	random := rand.New(rand.NewPCG(1, 1))
	for from := 0; from < joinKeys; from += perTx {
		var operations []tx.Operation
		for i := from; i < from+perTx; i++ {
			value := make([]byte, joinValue/2)
			for j := range value {
				value[j] = byte(random.Uint32())
			}
			operations = append(operations, tx.NewPut(fmt.Appendf(nil, "%s%08x", joinPrefix, random.Uint32()), hex.AppendEncode(nil, value)))
		}
		result, err := c.Submit(ctx, operations...)
		require.NoError(t, err)
		height = result.Height
	}
	return height
}

// requireFollows waits until a joiner reaches its network's height, and compares three of its app
// hashes with the network's headers.
func requireFollows(t *testing.T, ctx context.Context, joiner *runner.Home, network []*runner.Home) {
	t.Helper()
	at, err := network[0].AppInfo(ctx)
	require.NoError(t, err)
	for height := at.Height; height < at.Height+3; height++ {
		await(t, ctx, joiner, height)
		mine, err := joiner.AppInfo(ctx)
		require.NoError(t, err)
		await(t, ctx, network[0], mine.Height+1)
		header, err := network[0].Header(ctx, mine.Height+1)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%X", header.AppHash), fmt.Sprintf("%X", mine.Hash), "height %d", mine.Height)
	}
}

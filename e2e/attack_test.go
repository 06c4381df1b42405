package e2e_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

const (
	// attacks are all attacks that a node can start without being asked; the data that it serves
	// are correct. The node is a full node: its peers drop it again and again, so it is late with
	// everything, including votes. Another validator signs twice.
	attacks = "babble,spam,flood,connect,garbage"
	doubles = "double-vote,double-propose"

	// Limits on the cost of an attack for an honest node: bytes of memory while it lasts,
	// goroutines and file descriptors once it is over.
	attackMemory = 400 << 20
	attackRests  = 60
)

// One validator of four signs everything twice, and a full node attacks the other three in every
// way at once. The three continue to make blocks, put the evidence of the double votes into a
// block, let a node join meanwhile, stay within attackMemory, and use no more than before once the
// attack is over.
func TestAttackedNetwork(t *testing.T) {
	p, ctx := processes(t, 5*time.Minute)
	homes := makeHomes(ctx, t, joinChain, "validator-0", "validator-1", "validator-2", "double", "attacker", "joiner")
	validators, double, attacker, joiner := homes[:3:3], homes[3], homes[4], homes[5]
	doc := joinNetwork(t, homes, 4, len(validators))
	for _, home := range validators {
		home.Release()
		start(t, p, runner.Spec{Name: home.Name, Path: starlingd, Args: []string{"start", "--home", home.Dir}, Log: home.Log()})
	}
	await(t, ctx, validators[0], 1)
	written := fillState(t, ctx, validators[0])
	await(t, ctx, validators[0], snapshotAfter(written)+2)
	before, err := validators[0].Scrape(ctx)
	require.NoError(t, err)

	double.Release()
	start(t, p, runner.Spec{Name: double.Name, Path: byzantine, Args: []string{"--home", double.Dir, "--lie", doubles}, Log: double.Log()})
	servers := make([]string, 0, len(validators))
	for _, home := range validators {
		servers = append(servers, strings.TrimPrefix(home.RPC(), "http://"))
	}
	args := []string{"--home", attacker.Dir, "--lie", attacks, "--attack-rpc", strings.Join(servers, ",")}
	// Linux has all addresses of 127.0.0.0/8: so the limits for each host apply to the attacker
	// alone
	if runtime.GOOS == "linux" {
		args = append(args, "--attack-from", "127.0.0.66")
	}
	attacker.Release()
	attacking, err := p.Start(runner.Spec{Name: attacker.Name, Path: byzantine, Args: args, Log: attacker.Log()})
	require.NoError(t, err)
	height := requireEvidence(t, ctx, validators[1], doc.Validators[3].Address)
	t.Logf("the double vote is proved in block %d", height)

	at, err := validators[0].Status(ctx)
	require.NoError(t, err)
	joinsFrom(t, ctx, joiner, validators, validators[0], at.Height-1)
	joiner.Release()
	start(t, p, runner.Spec{Name: joiner.Name, Path: starlingd, Args: []string{"start", "--home", joiner.Dir}, Log: joiner.Log()})
	requireFollows(t, ctx, joiner, validators)
	require.Empty(t, runner.Logged(joiner.Log(), runner.LogBanned), "an honest node is banned")

	for _, home := range validators {
		values, err := home.Scrape(ctx)
		require.NoError(t, err)
		require.Less(t, values["process_resident_memory_bytes"], before["process_resident_memory_bytes"]+attackMemory, home.Name)
	}
	require.NoError(t, attacking.Stop(30*time.Second))
	said := runner.Logged(attacker.Log(), "Attacking")
	require.NotEmpty(t, said)
	t.Logf("%s", said[len(said)-1].Fields["done"])
	for _, home := range validators {
		require.NoError(t, runner.Poll(ctx, home.Name+" to be rid of the attack", func() bool {
			after, err := home.Scrape(ctx)
			return err == nil && after["go_goroutines"] < before["go_goroutines"]+attackRests &&
				after["process_open_fds"] < before["process_open_fds"]+attackRests
		}))
	}
}

// requireEvidence waits for a block with evidence against a validator, and returns its height.
func requireEvidence(t *testing.T, ctx context.Context, home *runner.Home, against types.Address) int64 {
	t.Helper()
	client, err := rpchttp.New(home.RPC(), "/websocket")
	require.NoError(t, err)
	height := int64(1)
	require.NoError(t, runner.Poll(ctx, "evidence in a block", func() bool {
		for {
			block, err := client.Block(ctx, &height)
			if err != nil {
				return false // the block does not exist yet
			}
			for _, evidence := range block.Block.Evidence.Evidence {
				if double, is := evidence.(*types.DuplicateVoteEvidence); is && double.VoteA.ValidatorAddress.String() == against.String() {
					return true
				}
			}
			height++
		}
	}))
	return height
}

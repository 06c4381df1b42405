package e2e_test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
)

// Clients have three addresses, and the node at one of them is stopped, resumed and killed: no call
// is lost, no write is executed twice, and no read is older than an earlier one. The node that
// fails is not a validator, so blocks stay regular.
func TestClientFailover(t *testing.T) {
	p, ctx := processes(t, 5*time.Minute)
	homes := makeHomes(ctx, t, joinChain, "validator-0", "validator-1", "full")
	genesis := joinNetwork(t, homes, 2, 2)
	var nodes []*runner.Process
	var addresses []string
	for _, home := range homes {
		require.NoError(t, home.Configure(func(c *cfg.Config) {
			c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 200*time.Millisecond, 0
		}))
		home.Release()
		nodes = append(nodes, start(t, p, runner.Spec{Name: home.Name, Path: starlingd, Args: []string{"start", "--home", home.Dir}, Log: home.Log()}))
		addresses = append(addresses, home.RPC())
	}
	for _, home := range homes {
		await(t, ctx, home, 3)
	}
	slices.Reverse(addresses) // the node that fails is the first
	full := nodes[2]

	connect := func(name string, options ...client.Option) *client.Client {
		options = append(options, client.WithChainID(joinChain), client.WithKey(ed25519.GenPrivKeyFromSecret([]byte(name))))
		c, err := client.Dial(ctx, addresses, options...)
		require.NoError(t, err)
		return c
	}
	calls := &calls{ctx: ctx}
	calls.repeat("read", time.Millisecond*10, reads(connect("reader"), "unverified"))
	for range 4 {
		calls.repeat("verified read", 0, reads(connect("verifier", client.WithVerification(client.Trust{Genesis: genesis})), "verified"))
	}
	calls.repeat("write", 0, writes(connect("writer"), "of its own"))
	both := connect("both", client.WithVerification(client.Trust{Genesis: genesis}))
	calls.repeat("write", 0, writes(both, "both"))
	calls.repeat("verified read", 0, reads(both, "both"))

	pause(ctx, 5*time.Second)
	calls.report(t, "all nodes well")
	full.Pause()
	began := time.Now()
	out, err := exec.CommandContext(ctx, starlingd, "range", "join/", "--limit", "1", "--home", homes[0].Dir, "--node", strings.Join(addresses, ",")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("the command line took %v: %s", time.Since(began), out)
	pause(ctx, 20*time.Second)
	calls.report(t, "one of three stopped")
	full.Resume()
	pause(ctx, 10*time.Second)
	calls.report(t, "it is back")
	full.Kill()
	pause(ctx, 10*time.Second)
	calls.report(t, "it is killed")
	calls.end()
	for _, err := range calls.failures {
		require.NoError(t, err)
	}
}

// calls measures calls that are repeated.
type calls struct {
	ctx      context.Context
	wg       sync.WaitGroup
	mu       sync.Mutex
	over     bool
	took     map[string][]time.Duration
	failures []error
}

func (c *calls) repeat(name string, every time.Duration, call func(context.Context, int) error) {
	c.wg.Go(func() {
		for i := 0; c.ctx.Err() == nil; i++ {
			began := time.Now()
			err := call(c.ctx, i)
			c.mu.Lock()
			if c.took == nil {
				c.took = map[string][]time.Duration{}
			}
			c.took[name] = append(c.took[name], time.Since(began))
			if err != nil && !c.over {
				c.failures = append(c.failures, fmt.Errorf("%s: %w", name, err))
			}
			over := c.over
			c.mu.Unlock()
			if over {
				return
			}
			pause(c.ctx, every)
		}
	})
}

// report logs the measurements since the last report. It sets no limits, because the machine may be
// slow. client.TestOneOfThreeFails has limits, in virtual time.
func (c *calls) report(t *testing.T, when string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, took := range c.took {
		slices.Sort(took)
		t.Logf("%s: %5d × %s: median %v, p99 %v, longest %v", when, len(took), name, took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	}
	clear(c.took)
}

func (c *calls) end() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.wg.Wait()
}

func reads(c *client.Client, name string) func(context.Context, int) error {
	last := int64(0)
	return func(ctx context.Context, _ int) error {
		v, err := c.Get(ctx, []byte(joinPrefix+name))
		switch {
		case err != nil:
			return err
		case v.Height < last:
			return fmt.Errorf("height %d after %d", v.Height, last)
		}
		last = v.Height
		return nil
	}
}

func writes(c *client.Client, name string) func(context.Context, int) error {
	return func(ctx context.Context, i int) error {
		_, err := c.CompareAndPut(ctx, []byte(joinPrefix+name), expected(i), expected(i+1))
		return err
	}
}

// expected is the value after i writes: a write that is executed twice, or not at all, fails.
func expected(i int) []byte {
	if i == 0 {
		return nil
	}
	return fmt.Appendf(nil, "%d", i)
}

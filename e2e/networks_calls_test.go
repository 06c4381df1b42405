package e2e_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/starling-kv/starling/app/evm"
	"github.com/starling-kv/starling/app/evm/abi"
	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/app/program/programtest"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

const (
	// counters is the number of keys that clients add to once the app version has add.
	counters = 2

	holders = 4 // of units of the token; the first one deploys it
	supply  = 1_000_000
	share   = supply / 10 // that each other holder gets

	// Limits of calls. Some transfers have littleGas, and fail.
	deployGas, transferGas, littleGas, hostileGas = 4_000_000, 100_000, 5_000, 2_000_000
	transferKeys, hostileKeys, hostileUnnamed     = 8, 64, 16

	// callPatience is the time after which a client gives up on its call.
	callPatience = 10 * time.Second
	// checkPatience limits the wait until the calls have had all outcomes.
	checkPatience = 2 * time.Minute
)

// programLoad is the load of programs: holders move units of a token, also more than they have, and
// a hostile client calls programs that use up what they may.
type programLoad struct {
	w         *world
	nodes     []string
	liar      string            // URL of a node with false simulations; may be ""
	keys      []ed25519.PrivKey // of the holders
	addresses [][]byte          // of the holders, in the token
	token     []byte
	transfer  abi.Method
	stop      func()

	mu              sync.Mutex
	moved, attacked map[string]int // calls by outcome
}

// startCalls deploys the token, and starts the clients.
func (w *world) startCalls(ctx context.Context) {
	c := &programLoad{w: w, moved: map[string]int{}, attacked: map[string]int{}}
	for _, node := range w.network.Running() {
		c.nodes = append(c.nodes, node.Home.RPC())
	}
	for _, node := range w.network.Nodes() {
		if strings.Contains(node.Lie, string(liar.Simulate)) {
			c.liar = node.Home.RPC()
		}
	}
	for i := range holders {
		key := ed25519.GenPrivKeyFromSecret(fmt.Appendf(nil, "holder %d, seed %d", i, w.m.Seed))
		c.keys, c.addresses = append(c.keys, key), append(c.addresses, evm.New().Address(key.PubKey().Bytes()))
	}
	Expect(c.deploy(ctx)).To(Succeed())
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range holders {
		random := rand.New(rand.NewPCG(w.m.Seed, uint64(i)))
		all.Go(func() {
			c.work(ctx, i, c.keys[i], c.moved, func(to *client.Client) (tx.Operation, error) { return c.move(ctx, to, i, random) })
		})
	}
	hostile := ed25519.GenPrivKeyFromSecret(fmt.Appendf(nil, "hostile, seed %d", w.m.Seed))
	random, deployed, turn := rand.New(rand.NewPCG(w.m.Seed, holders)), map[string][]byte{}, 0
	all.Go(func() {
		c.work(ctx, holders, hostile, c.attacked, func(to *client.Client) (tx.Operation, error) {
			turn++
			return attack(ctx, to, turn, deployed, random)
		})
	})
	c.stop = func() {
		cancel()
		all.Wait()
	}
	w.calls = c
}

// dial returns a client that prefers another node for each i, the last one of the network for 0.
func (c *programLoad) dial(ctx context.Context, i int, key ed25519.PrivKey) (*client.Client, error) {
	at := (len(c.nodes) - 1 + i) % len(c.nodes)
	return client.Dial(ctx, slices.Concat(c.nodes[at:], c.nodes[:at]), client.WithChainID(c.w.network.ChainID()), client.WithKey(key))
}

func (c *programLoad) deploy(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join("..", "examples", "programs", "token.hex"))
	if err != nil {
		return err
	}
	code, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	if c.transfer, err = abi.Parse("transfer(address,uint256)"); err != nil {
		return err
	}
	owner, err := c.dial(ctx, 0, c.keys[0])
	if err != nil {
		return err
	}
	deployed, err := owner.Submit(ctx, tx.NewDeploy(code, big.NewInt(supply).FillBytes(make([]byte, 32)), deployGas, transferKeys))
	if err != nil {
		return err
	}
	c.token = deployed.Results[0].Value
	var shares []tx.Operation
	for i := 1; i < holders; i++ {
		input, err := c.input(i, share)
		if err != nil {
			return err
		}
		shares = append(shares, tx.NewCall(c.token, input, transferGas, transferKeys, transferKeys))
	}
	_, err = owner.Submit(ctx, shares...)
	return err
}

func (c *programLoad) input(to, amount int) ([]byte, error) {
	return c.transfer.Encode([]string{fmt.Sprintf("0x%x", c.addresses[to]), fmt.Sprint(amount)})
}

// slot returns the key of the record with a holder's units.
func (c *programLoad) slot(i int) []byte {
	address := c.addresses[i]
	return program.SlotKey(c.token, append(make([]byte, program.SlotBytes-len(address)), address...))
}

// work sends one operation after another, and counts their outcomes.
func (c *programLoad) work(ctx context.Context, i int, key ed25519.PrivKey, outcomes map[string]int, next func(*client.Client) (tx.Operation, error)) {
	var to *client.Client
	for ctx.Err() == nil {
		err := func() (err error) {
			// a call under way when the load ends is waited for
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callPatience)
			defer cancel()
			if to == nil {
				if to, err = c.dial(ctx, i, key); err != nil {
					return err
				}
			}
			operation, err := next(to)
			if err == nil {
				_, err = to.Submit(ctx, operation)
			}
			return err
		}()
		outcome := outcomeOf(err)
		c.mu.Lock()
		outcomes[outcome]++
		c.mu.Unlock()
		if outcome == notSent {
			_ = sleep.For(ctx, 250*time.Millisecond)
		}
	}
}

// Outcomes of calls, in addition to the names of codes.
const (
	inBlock = "ok"
	unknown = "unknown"
	notSent = "not in a block"
)

func outcomeOf(err error) string {
	var refused *client.TxError
	switch {
	case err == nil:
		return inBlock
	case errors.As(err, new(*client.UnknownOutcomeError)):
		return unknown
	case errors.As(err, &refused) && refused.Height > 0:
		return refused.Code.String()
	default:
		return notSent
	}
}

// move draws a transfer, one in five of more units than there are. Its limits come from a
// simulation, which may be false, or it names the records that it needs, all or none.
func (c *programLoad) move(ctx context.Context, at *client.Client, from int, random *rand.Rand) (tx.Operation, error) {
	to, amount, gas := (from+1+random.IntN(holders-1))%holders, 1+random.IntN(9), uint64(transferGas)
	switch random.IntN(10) {
	case 0, 1:
		amount = supply + 1
	case 2, 3:
		gas = littleGas
	}
	input, err := c.input(to, amount)
	if err != nil {
		return tx.Operation{}, err
	}
	switch random.IntN(3) {
	case 0:
		ctx, cancel := context.WithTimeout(ctx, callPatience)
		defer cancel()
		if c.liar != "" && random.IntN(2) == 0 {
			if at, err = client.Dial(ctx, []string{c.liar}, client.WithChainID(c.w.network.ChainID())); err != nil {
				return tx.Operation{}, err
			}
		}
		fitted, _, err := at.Fit(ctx, c.keys[from].PubKey().Bytes(), tx.NewCall(c.token, input, 0, 0, 0))
		return fitted, err
	case 1:
		touch := [][]byte{program.AccountKey(c.token), program.CodeKey(c.token), c.slot(from), c.slot(to)}
		return tx.NewCall(c.token, input, gas, uint32(len(touch)), 0, touch...), nil
	default:
		return tx.NewCall(c.token, input, gas, transferKeys, transferKeys), nil
	}
}

// attack returns a call of a hostile program with random input, and deploys the program first. The
// turn decides which program it is.
func attack(ctx context.Context, at *client.Client, turn int, deployed map[string][]byte, random *rand.Rand) (tx.Operation, error) {
	all := programtest.Hostile()
	names := slices.Sorted(maps.Keys(all))
	name := names[turn%len(names)]
	if deployed[name] == nil {
		ctx, cancel := context.WithTimeout(ctx, callPatience)
		defer cancel()
		result, err := at.Submit(ctx, tx.NewDeploy(all[name], nil, hostileGas, hostileUnnamed))
		if err != nil {
			return tx.Operation{}, err
		}
		deployed[name] = result.Results[0].Value
	}
	input := make([]byte, random.IntN(300))
	for i := range input {
		input[i] = byte(random.Uint32())
	}
	return tx.NewCall(deployed[name], input, hostileGas, hostileKeys, hostileUnnamed), nil
}

func namesOf(codes []tx.Code) (names []string) {
	for _, code := range codes {
		names = append(names, code.String())
	}
	return names
}

// checkCalls ends the load of programs, and reads all units with proofs: no node may have more or
// fewer than were made.
func (w *world) checkCalls(ctx context.Context) {
	if w.calls == nil {
		Skip("the network has no programs")
	}
	c := w.calls
	w.calls = nil
	// A busy machine may need longer than the steps take.
	enough := func(outcomes map[string]int, codes ...tx.Code) func() error {
		return func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, code := range append([]string{inBlock}, namesOf(codes)...) {
				if outcomes[code] == 0 {
					return fmt.Errorf("no call had the outcome %q: %v", code, outcomes)
				}
			}
			return nil
		}
	}
	Eventually(enough(c.moved, tx.CodeReverted, tx.CodeOutOfGas)).WithContext(ctx).WithTimeout(checkPatience).Should(Succeed(), "transfers")
	Eventually(enough(c.attacked, tx.CodeOutOfGas, tx.CodeTooManyRecords, tx.CodeReverted)).WithContext(ctx).WithTimeout(checkPatience).Should(Succeed(), "hostile programs")
	c.stop()
	w.log("transfers by outcome: %v; calls of hostile programs: %v", c.moved, c.attacked)
	for _, node := range w.honest() {
		reader, err := client.Dial(ctx, []string{node.Home.RPC()}, client.WithChainID(w.network.ChainID()), client.WithVerification(client.Trust{Genesis: w.network.Genesis}))
		Expect(err).NotTo(HaveOccurred())
		at, err := node.Home.AppInfo(ctx)
		Expect(err).NotTo(HaveOccurred())
		sum := new(big.Int)
		for i := range holders {
			units, err := reader.Get(ctx, c.slot(i), client.AtHeight(at.Height-1))
			Expect(err).NotTo(HaveOccurred(), "%s: holder %d", node.Name, i)
			sum.Add(sum, new(big.Int).SetBytes(units.Value))
		}
		Expect(sum.Int64()).To(BeEquivalentTo(supply), "units on %s at height %d", node.Name, at.Height-1)
	}
}

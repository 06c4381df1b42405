package programsbench

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/app/evm"
	"github.com/starling-kv/starling/app/evm/abi"
	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/tx"
)

const (
	// keyPrefix is the prefix of all keys that puts write. Every account has a grant for it.
	keyPrefix = "k"
	// units is the number of the token's units that each account gets.
	units = 1_000_000
	// blockGas is the gas that the transactions of a block may name together
	// (docs/decisions/0074-programs.md).
	blockGas = 32_000_000
	// reserveGas is what client.Fit adds, in addition to a quarter, to the gas that a simulation
	// used.
	reserveGas = 30_000

	// Limits of a deployment of the token.
	deployGas, deployKeys = 4_000_000, 10
	// fundGas is enough for a transfer to an account without any units.
	fundGas = 60_000
	// Operations in a transaction that prepares the chain. The cost of a transaction and the gas of
	// a block allow 400 calls.
	grantsAtOnce, fundsAtOnce, putsAtOnce = 500, 400, 500
)

// account is an account of the chain, and its address in the token.
type account struct {
	key     ed25519.PrivKey
	public  []byte
	address []byte
	nonce   uint64
}

// bank makes the transactions. Account 0 is the admin, deploys the token, and hands out its units.
// It is not safe for concurrent use.
type bank struct {
	o        Options
	accounts []*account
	puts     *workload.Workload
	rnd      *rand.Rand
	draws    uint64

	code     []byte // init code of the token with its argument
	token    []byte // address
	transfer abi.Method
	// gas is what a transfer uses, and named what it names.
	gas, named uint64
}

// chain is what a bank needs to prepare a chain, as account 0.
type chain interface {
	// submit executes operations in one transaction, at the latest when flush returns.
	submit(ctx context.Context, operations ...tx.Operation) error
	flush(ctx context.Context) error
	height(ctx context.Context) (int64, error)
	// reach returns after the block at a height.
	reach(ctx context.Context, height int64) error
	simulate(ctx context.Context, account []byte, operation tx.Operation) (*client.Simulation, error)
}

func newBank(ctx context.Context, o Options) (*bank, error) {
	puts, err := workload.New(workload.Spec{Seed: o.Seed, Keys: o.Keys, Batch: putsAtOnce}, 0)
	if err != nil {
		return nil, err
	}
	b := &bank{o: o, puts: puts, rnd: rand.New(rand.NewPCG(o.Seed, 3))} //nolint:gosec // reproducible by its seed
	engine := evm.New()
	for i := range o.Accounts {
		key := ed25519.GenPrivKeyFromSecret(fmt.Appendf(nil, "holder %d of %d", i, o.Seed))
		public := key.PubKey().Bytes()
		b.accounts = append(b.accounts, &account{key: key, public: public, address: engine.Address(public)})
	}
	if b.transfer, err = abi.Parse("transfer(address,uint256)"); err != nil {
		return nil, err
	}
	if b.code, err = tokenCode(ctx, uint64(units)*uint64(o.Accounts)); err != nil {
		return nil, err
	}
	// The address depends only on the account, and on how many programs it deployed before.
	call := program.Call{Account: b.accounts[0].public, Input: b.code, Gas: deployGas, Keys: deployKeys, Unnamed: deployKeys}
	deployed, err := engine.Run(program.Env{}, call, func([]byte) ([]byte, error) { return nil, nil })
	if err != nil {
		return nil, err
	}
	if deployed.Status != program.Done {
		return nil, fmt.Errorf("the token was not deployed: %s", deployed.Reason)
	}
	b.token = deployed.Address
	return b, nil
}

// exampleCode returns the init code of a program of examples/programs.
func exampleCode(ctx context.Context, file string) ([]byte, error) {
	root, err := runner.Root(ctx)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "examples", "programs", file))
	if err != nil {
		return nil, err
	}
	code, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return code, nil
}

// tokenCode returns the init code of the token with its supply.
func tokenCode(ctx context.Context, supply uint64) ([]byte, error) {
	code, err := exampleCode(ctx, "token.hex")
	if err != nil {
		return nil, err
	}
	constructor, err := abi.Parse("constructor(uint256)")
	if err != nil {
		return nil, err
	}
	argument, err := constructor.Encode([]string{fmt.Sprint(supply)})
	return append(code, argument...), err
}

// appState returns the genesis state. senders is the number of accounts that send transactions, the
// first ones.
func (b *bank) appState(senders int) map[string]any {
	var grants []map[string]any
	for _, a := range b.accounts[:senders] {
		grants = append(grants, map[string]any{"grantee": hex.EncodeToString(a.public), "prefix": keyPrefix})
	}
	return map[string]any{"open": false, "admins": []string{hex.EncodeToString(b.accounts[0].public)}, "grants": grants}
}

// steps returns the number of transactions that prepare a chain.
func (b *bank) steps(senders int) int {
	parts := func(n, size int) int { return (n + size - 1) / size }
	return 2 + parts(senders, grantsAtOnce) + parts(len(b.accounts)-1, fundsAtOnce) + parts(b.o.Keys, putsAtOnce)
}

// prepare upgrades a chain to version 2, deploys the token, gives each account units, and writes
// all keys. done counts transactions.
func (b *bank) prepare(ctx context.Context, c chain, senders int, done func(int)) error {
	submit := func(operations ...tx.Operation) error {
		done(1)
		return c.submit(ctx, operations...)
	}
	at, err := c.height(ctx)
	if err != nil {
		return err
	}
	const notice = 5 // blocks: the transaction must be in a block before
	if err := submit(tx.NewScheduleUpgrade(2, uint64(at)+notice, "")); err != nil {
		return err
	}
	if err := c.flush(ctx); err != nil {
		return err
	}
	if err := c.reach(ctx, at+notice); err != nil {
		return err
	}
	err = batches(senders, grantsAtOnce, submit, func(i int) tx.Operation {
		return tx.NewGrant(b.accounts[i].public, program.Prefix(nil), 0)
	})
	if err != nil {
		return err
	}
	if err := c.flush(ctx); err != nil { // a mempool refuses accounts without a grant
		return err
	}
	if err := submit(tx.NewDeploy(b.code, nil, deployGas, deployKeys)); err != nil {
		return err
	}
	if err := c.flush(ctx); err != nil {
		return err
	}
	err = batches(len(b.accounts)-1, fundsAtOnce, submit, func(i int) tx.Operation {
		return b.call(b.accounts[0], b.accounts[i+1], units, fundGas)
	})
	if err != nil {
		return err
	}
	for !b.puts.Loaded() {
		var puts []tx.Operation
		for _, change := range b.puts.Next() {
			puts = append(puts, tx.NewPut(putKey(change.Key), change.Value))
		}
		if err := submit(puts...); err != nil {
			return err
		}
	}
	if err := c.flush(ctx); err != nil {
		return err
	}
	return b.measureGas(ctx, c)
}

// batches submits n operations, size at a time.
func batches(n, size int, submit func(...tx.Operation) error, operation func(i int) tx.Operation) error {
	for from := 0; from < n; from += size {
		var all []tx.Operation
		for i := from; i < min(from+size, n); i++ {
			all = append(all, operation(i))
		}
		if err := submit(all...); err != nil {
			return err
		}
	}
	return nil
}

// measureGas simulates a transfer, which must touch exactly the records that call names.
func (b *bank) measureGas(ctx context.Context, c chain) error {
	from, to := b.accounts[0], b.accounts[1]
	operation := b.call(from, to, 1, fundGas)
	s, err := c.simulate(ctx, from.public, operation)
	if err != nil {
		return err
	}
	if s.Refused != nil {
		return s.Refused
	}
	if len(s.Programs) != 1 {
		return fmt.Errorf("the simulation of a transfer ran %d programs", len(s.Programs))
	}
	run := s.Programs[0]
	if named := operation.GetCall().Touch; len(run.Keys) != len(named) || int(run.Records) != len(named) {
		return fmt.Errorf("a transfer touches the records %x, but names %x", run.Keys, named)
	}
	b.gas = run.Gas
	b.named = run.Gas + run.Gas/4 + reserveGas
	return nil
}

// call returns a transfer.
func (b *bank) call(from, to *account, amount int, gas uint64) tx.Operation {
	input, err := b.transfer.Encode([]string{"0x" + hex.EncodeToString(to.address), fmt.Sprint(amount)})
	if err != nil {
		panic(err) // an address and a number always have an encoding
	}
	touch := [][]byte{program.AccountKey(b.token), program.CodeKey(b.token), b.slot(from.address), b.slot(to.address)}
	return tx.NewCall(b.token, input, gas, uint32(len(touch)), 0, touch...)
}

// slot returns the key of the record with the balance of an address.
func (b *bank) slot(address []byte) []byte {
	return program.SlotKey(b.token, append(make([]byte, program.SlotBytes-len(address)), address...))
}

func putKey(key []byte) []byte { return bytes.Join([][]byte{[]byte(keyPrefix), key}, nil) }

// nextTransfer draws a transfer of one unit from an account.
func (b *bank) nextTransfer(from *account) tx.Operation {
	to := from
	for to == from {
		to = b.accounts[b.rnd.IntN(len(b.accounts))]
	}
	return b.call(from, to, 1, b.named)
}

// nextPut draws a put of one key.
func (b *bank) nextPut() tx.Operation {
	b.draws++
	value := make([]byte, workload.ValueBytes)
	for i := range value {
		value[i] = byte(b.rnd.Uint32())
	}
	return tx.NewPut(putKey(b.puts.PresentKeys(1, b.draws)[0]), value)
}

// limit returns the most transfers that a block can have.
func (b *bank) limit() int { return int(blockGas / b.named) }

// sizes returns the number of transactions and transfers of a block.
func (b *bank) sizes(percent int) (txs, transfers int) {
	txs = b.o.BlockTxs
	if most := b.limit(); txs*percent/100 > most {
		txs = most * 100 / percent
	}
	return txs, txs * percent / 100
}

// next returns a transfer from an account, or a put.
func (b *bank) next(from *account, transfer bool) tx.Operation {
	if transfer {
		return b.nextTransfer(from)
	}
	return b.nextPut()
}

// block signs the transactions of a block in random order.
func (b *bank) block(percent int) (txs [][]byte, transfers int, err error) {
	n, transfers := b.sizes(percent)
	kinds := b.rnd.Perm(n)
	for _, kind := range kinds {
		from := b.accounts[b.rnd.IntN(len(b.accounts))]
		raw, err := from.sign(b.next(from, kind < transfers))
		if err != nil {
			return nil, 0, err
		}
		txs = append(txs, raw)
	}
	return txs, transfers, nil
}

// sign returns the account's next transaction.
func (a *account) sign(operations ...tx.Operation) ([]byte, error) {
	raw, err := tx.Sign(a.key, chainID, &tx.Body{Nonce: a.nonce, Operations: operations})
	a.nonce++
	return raw, err
}

//go:build !noevm

package evm

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/common/math"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/program"
)

// fixture is a transaction of Ethereum with the state that it needs, from go-ethereum's tests.
type fixture struct {
	Genesis struct {
		Alloc  types.GenesisAlloc         `json:"alloc"`
		Config map[string]json.RawMessage `json:"config"`
	} `json:"genesis"`
	Context struct {
		Number math.HexOrDecimal64 `json:"number"`
		Time   math.HexOrDecimal64 `json:"timestamp"`
	} `json:"context"`
	Input  hexutil.Bytes   `json:"input"`
	Result json.RawMessage `json:"result"`
}

type fixtureResult struct {
	Output string `json:"output"`
	Error  string `json:"error"`
	Type   string `json:"type"`
}

// readFixture reads a fixture. It skips the test if its result needs what programs do not have.
func readFixture(t testing.TB, path string) fixture {
	t.Helper()
	if reason, is := otherResult[fixtureName(path)]; is {
		t.Skip(reason)
	}
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var f fixture
	require.NoError(t, json.Unmarshal(b, &f))
	return f
}

// world returns the records of the state before the transaction. Balances have no record.
func (f fixture) world() world {
	w := world{}
	for address, account := range f.Genesis.Alloc {
		if len(account.Code) > 0 {
			w.put(address, account.Code)
		}
		if key := string(program.AccountKey(address[:])); account.Nonce > 0 || len(account.Code) > 0 {
			hash := append(make([]byte, accountBytes), w[key]...)
			w[key] = append(binary.BigEndian.AppendUint64(nil, account.Nonce), hash[len(hash)-32:]...)
		}
		for slot, value := range account.Storage {
			if value != (common.Hash{}) {
				w[string(program.SlotKey(address[:], slot[:]))] = common.TrimLeftZeroes(value[:])
			}
		}
	}
	return w
}

func (f fixture) transaction(t testing.TB) (*types.Transaction, common.Address) {
	t.Helper()
	tx := new(types.Transaction)
	require.NoError(t, tx.UnmarshalBinary(f.Input))
	var signer types.Signer = types.HomesteadSigner{}
	if tx.Protected() {
		signer = types.LatestSignerForChainID(tx.ChainId())
	}
	sender, err := types.Sender(signer, tx)
	require.NoError(t, err)
	return tx, sender
}

// geth returns a folder of the linked go-ethereum, in the module cache.
func geth(t testing.TB, folder string) string {
	t.Helper()
	root, err := gethFolder()
	require.NoError(t, err)
	return filepath.Join(strings.TrimSpace(string(root)), folder)
}

var gethFolder = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/ethereum/go-ethereum").Output()
})

// fixtures returns the paths of the fixtures.
func fixtures(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(geth(t, "eth/tracers/internal/tracetest/testdata"), "*", "*.json"))
	require.NoError(t, err)
	require.Greater(t, len(paths), 90)
	return paths
}

// fixtureName returns the folder and the file of a fixture.
func fixtureName(path string) string {
	return filepath.Base(filepath.Dir(path)) + "/" + filepath.Base(path)
}

// call returns the fixture's transaction as a call. It skips the test if the call has no program.
func (f fixture) call(t *testing.T) (world, program.Env, common.Address, program.Call) {
	t.Helper()
	tx, sender := f.transaction(t)
	w := f.world()
	call := program.Call{Input: tx.Data(), Gas: min(tx.Gas()-intrinsic(tx), program.MaxGas), Keys: 10_000, Unnamed: 10_000}
	if to := tx.To(); to != nil {
		call.To = to.Bytes()
		if len(w[string(program.CodeKey(call.To))]) == 0 {
			t.Skip("it calls an account without code")
		}
	}
	return w, program.Env{ChainID: "test", Height: uint64(f.Context.Number), Time: uint64(f.Context.Time)}, sender, call
}

func (f fixture) sendsCoins(t testing.TB) bool {
	t.Helper()
	tx, _ := f.transaction(t)
	return tx.Value().Sign() > 0
}

// intrinsic is the gas of a transaction before its execution, by Osaka's rules without a floor.
func intrinsic(tx *types.Transaction) uint64 {
	gas := uint64(21_000)
	for _, b := range tx.Data() {
		if gas += 4; b != 0 {
			gas += 12
		}
	}
	if tx.To() == nil {
		gas += 32_000 + 2*uint64((len(tx.Data())+31)/32)
	}
	return gas
}

// TestFixtures executes the transactions of go-ethereum's tests of tracers, by the rules of Osaka.
// The result must be that of go-ethereum's StateDB, and where the fixture names status and output,
// those too. It names the gas by the prices of its own fork, so gas is compared with the StateDB
// only.
func TestFixtures(t *testing.T) {
	former := testEnv
	t.Cleanup(func() { testEnv = former })
	for _, path := range fixtures(t) {
		t.Run(fixtureName(path), func(t *testing.T) {
			f := readFixture(t, path)
			w, env, sender, call := f.call(t)
			testEnv = env
			got := compare(t, w, newReference(t, w), sender, call)

			var want fixtureResult
			if json.Unmarshal(f.Result, &want) != nil || want.Type == "" || f.sendsCoins(t) {
				return // its result has another form, or it transfers coins
			}
			require.Equal(t, want.Error == "", got.Status == program.Done)
			output := got.Output
			if call.To == nil && got.Status == program.Done {
				output = w[string(program.CodeKey(got.Address))]
			}
			require.Equal(t, common.FromHex(want.Output), append([]byte{}, output...))
		})
	}
}

// otherResult names fixtures whose result on Ethereum needs what programs here do not have.
var otherResult = map[string]string{
	"call_tracer/simple.json":                       "the program sends coins",
	"call_tracer/simple_onlytop.json":               "the program sends coins",
	"call_tracer_legacy/simple.json":                "the program sends coins",
	"erc7562_tracer/erc7562Tracer.test_simple.json": "the program sends coins",
	"prestate_tracer/setcode_tx.json":               "a transaction that sets the code of an account (EIP-7702)",
}

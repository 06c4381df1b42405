package simd_test

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	sdk "github.com/cosmos/cosmos-sdk/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/codefiles"
	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// Variables of TestRealChain, which scripts/cosmos-real.sh sets.
const (
	envRealNode     = "STARLING_REAL_NODE"     // path of the program of a chain's nodes
	envRealContract = "STARLING_REAL_CONTRACT" // path of a contract's code; empty: none
)

// TestRealChain: a home of another project's program is joined, which then runs on and prunes. With
// contracts, the joined home has their code.
func TestRealChain(t *testing.T) {
	program := os.Getenv(envRealNode)
	if program == "" {
		t.Skip("make cosmos-real names the program of a chain")
	}
	n := networkOf(t, program)
	t.Logf("%s version: %s", filepath.Base(program), n.must(program, "version"))
	chain := n.init("validator")
	chain.set("config/app.toml", map[string]string{"minimum-gas-prices": `"0stake"`})
	chain.validates()
	chain.reach(1)
	fees := []string{"--gas-prices", "1stake"}
	for i := range byte(3) {
		to := sdk.AccAddress(bytes.Repeat([]byte{i + 1}, 20))
		require.NoError(t, chain.transact(n.processes.Context(), append([]string{"bank", "send", "key", to.String(), "7stake"}, fees...)...))
	}
	contract := os.Getenv(envRealContract)
	if contract != "" {
		require.NoError(t, chain.transact(n.processes.Context(), append([]string{"wasm", "store", contract, "--from", "key", "--gas", "5000000"}, fees...)...))
	}
	joiner := firstHours(t, chain)
	if contract != "" {
		code, err := os.ReadFile(contract)
		require.NoError(t, err)
		missing, err := codefiles.Of("wasm").Missing(joiner.home, []iavlsync.Hash{sha256.Sum256(code)})
		require.NoError(t, err)
		require.Empty(t, missing)
	}
}

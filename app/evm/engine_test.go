//go:build !noevm

package evm

import (
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/program"
)

func TestDeployAndCall(t *testing.T) {
	w := world{}
	code := assemble(t, "PUSH 5 SLOAD PUSH 1 ADD DUP1 PUSH 5 SSTORE PUSH 0 MSTORE PUSH 32 PUSH 0 RETURN")
	deployed := w.run(t, program.Call{Input: deployer(t, code)})
	require.Equal(t, program.Done, deployed.Status, deployed.Reason)
	require.Len(t, deployed.Changes, 3, "nonce of the sender, account, code")
	require.Empty(t, deployed.Output)
	require.Equal(t, code, w[string(program.CodeKey(deployed.Address))])

	for n := byte(1); n < 4; n++ {
		r := w.run(t, program.Call{To: deployed.Address})
		require.Equal(t, program.Done, r.Status, r.Reason)
		require.Equal(t, common.LeftPadBytes([]byte{n}, 32), r.Output)
		require.Equal(t, []program.Change{{Key: program.SlotKey(deployed.Address, common.LeftPadBytes([]byte{5}, 32)), Value: []byte{n}}}, r.Changes)
	}
	second := w.run(t, program.Call{Input: deployer(t, code)})
	require.NotEqual(t, deployed.Address, second.Address)
	require.EqualValues(t, 2, w[string(program.AccountKey(New().Address(alice)))][7])
}

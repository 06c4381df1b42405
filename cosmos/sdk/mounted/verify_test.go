package mounted

import (
	"bytes"
	"fmt"

	cmtcrypto "github.com/cometbft/cometbft/proto/tendermint/crypto"
	ics23 "github.com/cosmos/ics23/go"
)

// verify checks, using only cosmos/ics23, that the first key of path has the given value (nil:
// absent) in the state with the given app hash.
func verify(appHash []byte, path [][]byte, value []byte, specs []*ics23.ProofSpec, ops []cmtcrypto.ProofOp) error {
	if len(ops) != len(specs) {
		return fmt.Errorf("%d operators, not %d", len(ops), len(specs))
	}
	for i, op := range ops {
		var p ics23.CommitmentProof
		if err := p.Unmarshal(op.Data); err != nil {
			return err
		}
		var root []byte
		if i+1 == len(ops) {
			root = appHash
		} else {
			var err error
			if root, err = p.Calculate(); err != nil {
				return err
			}
		}
		var ok bool
		if i == 0 && value == nil {
			ok = ics23.VerifyNonMembership(specs[i], root, &p, path[i])
		} else {
			ok = ics23.VerifyMembership(specs[i], root, &p, path[i], value)
		}
		if !ok || !bytes.Equal(op.Key, path[i]) {
			return fmt.Errorf("operator %d of %d, type %s, key %q: invalid proof", i+1, len(ops), op.Type, op.Key)
		}
		value = root
	}
	return nil
}

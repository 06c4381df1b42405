// Copied from cosmossdk.io/store v1.1.2, rootmulti/proof.go (Apache License 2.0, the Cosmos SDK's
// authors), and changed: see doc.go.

package rootmulti

import (
	"github.com/cometbft/cometbft/crypto/merkle"

	"github.com/starling-kv/starling/cosmos/store"
)

// RequireProof returns whether proof is required for the subpath.
func RequireProof(subpath string) bool {
	// XXX: create a better convention.
	// Currently, only when query subpath is "/key", will proof be included in
	// response. If there are some changes about proof building in iavlstore.go,
	// we must change code here to keep consistency with iavlStore#Query.
	return subpath == "/key"
}

// DefaultProofRuntime knows the proofs of IAVL's stores, and of Starling's.
func DefaultProofRuntime() *merkle.ProofRuntime { return store.ProofRuntime() }

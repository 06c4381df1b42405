package node

import (
	"sync"

	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/statuspage"
)

// signedBlocks is the number of recent blocks over which the page counts missed signatures.
const signedBlocks = 100

// signing tracks which recent blocks this node's key has signed. It reads the commit of each block
// once.
type signing struct {
	key, address []byte // of the validator; nil: the node has no key

	mu     sync.Mutex
	blocks map[int64]signedBlock // the last signedBlocks, by height; guarded by mu
}

type signedBlock struct {
	signed bool
	set    string // hash of the validator set
}

// newSigning requires a signer that answers at once.
func newSigning(validator cmttypes.PrivValidator) *signing {
	s := &signing{blocks: make(map[int64]signedBlock)}
	if validator == nil {
		return s
	}
	if key, err := validator.GetPubKey(); err == nil { // otherwise the page shows no validator
		s.key, s.address = key.Bytes(), key.Address()
	}
	return s
}

// status describes the validator; nil if this node is not a validator in the state v (nil: no state
// yet).
func (s *signing) status(v *avlstar.Version, blocks *store.BlockStore) *statuspage.Validator {
	power, known := s.power(v)
	if s.key == nil || known && power == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := blocks.Height() - 1 // the commit of the last block is in the next block
	first := max(last-signedBlocks+1, blocks.Base(), 1)
	for height := range s.blocks {
		if height < first || height > last {
			delete(s.blocks, height)
		}
	}
	// Validator sets with this key: the key signed one of their blocks, or the set is the last one.
	sets := map[string]bool{}
	for height := first; height <= last; height++ {
		b, have := s.blocks[height]
		if !have {
			if b, have = s.read(blocks, height); !have {
				continue // pruned meanwhile
			}
			s.blocks[height] = b
		}
		if b.signed || height == last {
			sets[b.set] = true
		}
	}
	status, signed := &statuspage.Validator{Power: power}, false
	for height := first; height <= last; height++ {
		b, have := s.blocks[height]
		if !have || !sets[b.set] {
			continue
		}
		status.Blocks++
		if signed = signed || b.signed; !b.signed {
			status.Missed++
		}
		if height == last {
			status.LastHeight, status.LastSigned = height, b.signed
		}
	}
	if !known && !signed {
		return nil
	}
	return status
}

// power returns the power in the state's record; known is false if that record is at a storage
// node.
func (s *signing) power(v *avlstar.Version) (power uint64, known bool) {
	if v == nil || s.key == nil {
		return 0, false
	}
	power, err := app.ValidatorPower(v, s.key)
	return power, err == nil
}

func (s *signing) read(blocks *store.BlockStore, height int64) (signedBlock, bool) {
	meta, commit := blocks.LoadBlockMeta(height), blocks.LoadBlockCommit(height)
	if meta == nil || commit == nil {
		return signedBlock{}, false
	}
	b := signedBlock{set: string(meta.Header.ValidatorsHash)}
	for _, signature := range commit.Signatures {
		if signature.BlockIDFlag == cmttypes.BlockIDFlagCommit && string(signature.ValidatorAddress) == string(s.address) {
			b.signed = true
		}
	}
	return b, true
}

package node

import "fmt"

// Identity is who a node is: to its peers, and as a validator.
type Identity struct {
	NodeID           string
	ValidatorAddress string
	ValidatorPubKey  []byte // ed25519
}

// LoadIdentity reads it from the keys of a home folder.
func LoadIdentity(config *Config) (Identity, error) {
	nodeKey, err := loadNodeKey(config.CometBFT)
	if err != nil {
		return Identity{}, err
	}
	validator, err := loadValidator(config.CometBFT)
	if err != nil {
		return Identity{}, err
	}
	if validator == nil {
		return Identity{}, fmt.Errorf("priv_validator_laddr = %q: the validator's key is with the remote signer, ask it", config.CometBFT.PrivValidatorListenAddr)
	}
	key, err := validator.GetPubKey()
	if err != nil {
		return Identity{}, err
	}
	return Identity{NodeID: string(nodeKey.ID()), ValidatorAddress: key.Address().String(), ValidatorPubKey: key.Bytes()}, nil
}

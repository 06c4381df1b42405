package config

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	cfg "github.com/cometbft/cometbft/config"
	cometed25519 "github.com/cometbft/cometbft/crypto/ed25519"
	cmtjson "github.com/cometbft/cometbft/libs/json"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/privval"

	"github.com/starling-kv/starling/node/signer"
)

// Identity is a node's p2p and validator identity.
type Identity struct {
	NodeID           string
	ValidatorAddress string
	ValidatorPubKey  []byte // ed25519
}

// LoadIdentity reads the identity from the keys of a home folder. It returns an error if a remote
// signer holds the validator's key.
func LoadIdentity(config *Config) (Identity, error) {
	nodeKey, err := LoadNodeKey(config.CometBFT)
	if err != nil {
		return Identity{}, err
	}
	validator, err := LoadValidator(config.CometBFT)
	if err != nil {
		return Identity{}, err
	}
	if validator == nil {
		return Identity{}, fmt.Errorf("priv_validator_laddr = %q: the remote signer holds the validator's key: query it there", config.CometBFT.PrivValidatorListenAddr)
	}
	key, err := validator.GetPubKey()
	if err != nil {
		return Identity{}, err
	}
	return Identity{NodeID: string(nodeKey.ID()), ValidatorAddress: key.Address().String(), ValidatorPubKey: key.Bytes()}, nil
}

// LoadNodeKey reads the node key, which identifies the node to peers. Errors match ErrInvalid,
// except disk failures.
func LoadNodeKey(c *cfg.Config) (*p2p.NodeKey, error) {
	key, err := loadNodeKey(c)
	return key, Invalid(err)
}

func loadNodeKey(c *cfg.Config) (*p2p.NodeKey, error) {
	key, err := p2p.LoadNodeKey(c.NodeKeyFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the node key %q is missing: restore it, or run `starlingd init` for a new home", c.NodeKeyFile())
	}
	if err != nil {
		return nil, fmt.Errorf("node key %q: %w", c.NodeKeyFile(), err)
	}
	return key, nil
}

// LoadValidator reads the validator's key and signing state; nil: a remote signer holds them. It
// writes nothing. Errors match ErrInvalid, except disk failures.
func LoadValidator(c *cfg.Config) (*signer.Signer, error) {
	validator, err := loadValidator(c)
	return validator, Invalid(err)
}

func loadValidator(c *cfg.Config) (*signer.Signer, error) {
	if c.PrivValidatorListenAddr != "" {
		return nil, nil // a remote signer holds it
	}
	path := c.PrivValidatorKeyFile()
	failed := func(what, path string, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the %s %q is missing: restore it, or run `starlingd init` for a new home (a validator that signs without its state may sign twice)", what, path)
		}
		return fmt.Errorf("%s %q: %w", what, path, err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others can read the validator key %q (mode %04o), and could sign as this validator: if nobody else has a copy, run `chmod 600 %s`",
			path, info.Mode().Perm(), Quote(path))
	}
	var key privval.FilePVKey
	raw, err := os.ReadFile(path)
	if err == nil {
		err = cmtjson.Unmarshal(raw, &key)
	}
	if err == nil && key.PrivKey == nil {
		err = errors.New("it has no priv_key")
	}
	if err != nil {
		return nil, failed("validator key", path, err)
	}
	state := c.PrivValidatorStateFile()
	validator, err := signer.Open(vfs.Default, key.PrivKey, state)
	if err != nil {
		return nil, failed("validator's signing state", state, err)
	}
	return validator, nil
}

// LoadValidatorKey reads the key with which this node signs blocks. It returns an error if a remote
// signer holds the key. Errors match ErrInvalid, except disk failures.
func LoadValidatorKey(c *cfg.Config) (ed25519.PrivateKey, error) {
	validator, err := LoadValidator(c)
	if err != nil {
		return nil, err
	}
	if validator == nil {
		return nil, Invalid(fmt.Errorf("priv_validator_laddr = %q: the remote signer holds the validator's key: do this on a machine that has the key, in a home with "+
			"config/priv_validator_key.json", c.PrivValidatorListenAddr))
	}
	private, ok := validator.PrivKey().(cometed25519.PrivKey)
	if !ok {
		return nil, Invalid(fmt.Errorf("validator key %q: it is of type %q, Starling's validators have ed25519 keys only", c.PrivValidatorKeyFile(), validator.PrivKey().Type()))
	}
	return ed25519.PrivateKey(private), nil
}

// TransportKey returns the node key in the transport's form. The key must be ed25519.
func TransportKey(key *p2p.NodeKey) (ed25519.PrivateKey, error) {
	private, ok := key.PrivKey.(cometed25519.PrivKey)
	if !ok {
		return nil, fmt.Errorf("the node key is of type %q, the transport needs ed25519", key.PrivKey.Type())
	}
	return ed25519.PrivateKey(private), nil
}

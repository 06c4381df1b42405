package home

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
)

// MaxGenesisValidatorBytes limits the file of one validator.
const MaxGenesisValidatorBytes = 64 << 10

// maxNameBytes limits a validator's name.
const maxNameBytes = 70

// genesisValidatorVersion is the version of the file's format.
const genesisValidatorVersion = 1

// genesisValidatorDomain separates these signatures from all other signatures by a validator's key,
// which are over votes and proposals. Those are length-prefixed protobuf messages, none of which
// can begin with these bytes (the second letter would be a field with a wire type that proto3 does
// not have).
const genesisValidatorDomain = "starling/genesis-validator/v1\n"

// GenesisValidator is one operator's contribution to the genesis file of a network with several
// validators. The validator's key signs it, so that nobody can add a key that no node has, or a
// mistyped one.
type GenesisValidator struct {
	Version   int      `json:"starling_genesis_validator"` // format version: 1
	ChainID   string   `json:"chain_id"`
	Name      string   `json:"name"`
	PublicKey hexBytes `json:"public_key"` // ed25519
	Power     int64    `json:"power"`
	NodeID    string   `json:"node_id"`
	Address   string   `json:"address,omitempty"` // host:port for other nodes; "": not included
	// Signature is by PublicKey: ed25519 of genesisValidatorDomain and the JSON, without white
	// space, of the fields above in their order.
	Signature hexBytes `json:"signature,omitempty"`
}

// hexBytes is encoded as lower-case hex.
type hexBytes []byte

func (b hexBytes) MarshalJSON() ([]byte, error) { return json.Marshal(hex.EncodeToString(b)) }

func (b *hexBytes) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return err
	}
	decoded, err := hex.DecodeString(text)
	if err != nil {
		return fmt.Errorf("%q is not hex", text)
	}
	*b = decoded
	return nil
}

// Peer returns the validator's node in the form of p2p.persistent_peers; "": it has no address.
func (v *GenesisValidator) Peer() string {
	if v.Address == "" {
		return ""
	}
	return transport.Address{ID: transport.ID(v.NodeID), HostPort: v.Address}.String()
}

// signBytes returns the signed bytes.
func (v *GenesisValidator) signBytes() ([]byte, error) {
	unsigned := *v
	unsigned.Signature = nil
	raw, err := json.Marshal(unsigned)
	return append([]byte(genesisValidatorDomain), raw...), err
}

// Sign sets Version, PublicKey and Signature, and returns the file. It returns an error if a field
// is invalid.
func (v *GenesisValidator) Sign(key ed25519.PrivateKey) ([]byte, error) {
	v.Version, v.PublicKey = genesisValidatorVersion, hexBytes(key.Public().(ed25519.PublicKey))
	if err := v.checkFields(); err != nil {
		return nil, err
	}
	message, err := v.signBytes()
	if err != nil {
		return nil, err
	}
	v.Signature = ed25519.Sign(key, message)
	raw, err := json.MarshalIndent(v, "", "  ")
	return append(raw, '\n'), err
}

// ParseGenesisValidator reads and verifies a validator's file.
func ParseGenesisValidator(raw []byte) (*GenesisValidator, error) {
	if len(raw) > MaxGenesisValidatorBytes {
		return nil, fmt.Errorf("more than %d bytes: not a file of `starlingd genesis add-validator`", MaxGenesisValidatorBytes)
	}
	v := new(GenesisValidator)
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		return nil, fmt.Errorf("not a file of `starlingd genesis add-validator`, or damaged: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file is damaged: it has more than one validator")
	}
	if v.Version != genesisValidatorVersion {
		return nil, fmt.Errorf("starling_genesis_validator is %d, this program reads %d", v.Version, genesisValidatorVersion)
	}
	if err := v.checkFields(); err != nil {
		return nil, err
	}
	message, err := v.signBytes()
	if err != nil {
		return nil, err
	}
	if !ed25519.Verify(ed25519.PublicKey(v.PublicKey), message, v.Signature) {
		return nil, errors.New("invalid signature: the file was damaged or changed; its operator must create it again")
	}
	return v, nil
}

// checkFields checks everything but the signature.
func (v *GenesisValidator) checkFields() error {
	switch {
	case v.ChainID == "" || len(v.ChainID) > cmttypes.MaxChainIDLen:
		return fmt.Errorf("chain_id is %q, it must have 1 to %d bytes", v.ChainID, cmttypes.MaxChainIDLen)
	case len(v.PublicKey) != ed25519.PublicKeySize:
		return fmt.Errorf("public_key has %d bytes, it must have %d (ed25519)", len(v.PublicKey), ed25519.PublicKeySize)
	case v.Power < 1 || uint64(v.Power) > app.MaxTotalPower:
		return fmt.Errorf("power is %d, it must be from 1 to %d", v.Power, uint64(app.MaxTotalPower))
	case v.Name == "" || len(v.Name) > maxNameBytes || !utf8.ValidString(v.Name) || strings.ContainsFunc(v.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("name is %q, it must be 1 to %d bytes of printable text", v.Name, maxNameBytes)
	}
	if err := transport.ID(v.NodeID).Validate(); err != nil {
		return fmt.Errorf("node_id: %w", err)
	}
	if v.Address == "" {
		return nil
	}
	return config.CheckHostPort("address", v.Address)
}

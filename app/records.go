package app

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
)

// The system keys (docs/spec/records.md). They start with byte 0x00, so no transaction can write
// them.
const (
	reserved byte = 0x00

	tagParams    byte = 'p'
	tagNonce     byte = 'n'
	tagValidator byte = 'v'
	tagAdmin     byte = 'a'
	tagGrant     byte = 'g'
	tagCover     byte = 'c'
	tagUpgrade   byte = 'u'
	tagStrangers byte = 's'
	tagThreshold byte = 'k'
	tagProposal  byte = 'o'
	tagProgram   byte = 'x' // see package program
)

const (
	// AccountBytes is the length of an account, an ed25519 public key.
	AccountBytes = 32

	// MaxPrefixBytes is the length of the longest prefix that fits a grant's key: 0x00 ‖ 'g' ‖
	// grantee(32) ‖ prefix.
	MaxPrefixBytes = avlstar.MaxKeyBytes - 2 - AccountBytes

	// MaxTotalPower limits the sum of the voting powers. CometBFT panics above 2⁶³/8
	// (types.MaxTotalVotingPower), which would halt the chain. A quarter of that is far below the
	// limit even if CometBFT adds old and new powers.
	MaxTotalPower = 1 << 58
)

// everyone stands for all accounts in a grant's key. It cannot be used as an account: SetAdmin and
// grants refuse it.
var everyone = make([]byte, AccountBytes)

func record(tag byte, parts ...[]byte) []byte {
	n := 2
	for _, p := range parts {
		n += len(p)
	}
	key := make([]byte, 0, n)
	key = append(key, reserved, tag)
	for _, p := range parts {
		key = append(key, p...)
	}
	return key
}

// ParamsKey returns the key of the parameters record.
func ParamsKey() []byte { return record(tagParams) }

// NonceKey returns the key of account's nonce, the number of its executed transactions (u64be).
func NonceKey(account []byte) []byte { return record(tagNonce, account) }

// ValidatorKey returns the key of a validator's voting power (u64be).
func ValidatorKey(publicKey []byte) []byte { return record(tagValidator, publicKey) }

// AdminKey returns the key of account's admin record. The account is an admin if the record exists.
func AdminKey(account []byte) []byte { return record(tagAdmin, account) }

// GrantKey returns the key of a grant's quota (u64be); an empty grantee stands for everyone.
func GrantKey(grantee, prefix []byte) []byte {
	if len(grantee) == 0 {
		grantee = everyone
	}
	return record(tagGrant, grantee, prefix)
}

// CoverKey returns the key of the number of grants with exactly this prefix (u64be), which
// determines whether text transactions may write a key.
func CoverKey(prefix []byte) []byte { return record(tagCover, prefix) }

// UpgradeKey returns the key of the upgrade that was scheduled last (a tx.ScheduleUpgrade). The
// upgrade is pending if its version is above that of the parameters; otherwise it has begun.
func UpgradeKey() []byte { return record(tagUpgrade) }

// StrangersKey returns the key of the number of nonce records that were made by accounts without a
// right of their own (u64be).
func StrangersKey() []byte { return record(tagStrangers) }

// ThresholdKey returns the key of the number of admins that must approve a change by admins (u64be
// ≥ 2). If the record is absent, the number is 1.
func ThresholdKey() []byte { return record(tagThreshold) }

// ProposalKey returns the key of an admin's proposal (a tx.Proposal).
func ProposalKey(proposer []byte) []byte { return record(tagProposal, proposer) }

var adminValue = []byte{1}

func encodeUint64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// decodeUint64 decodes a record that this package wrote; nil is an absent record. It panics at any
// other length: no transaction can write such a record, so the state is damaged, and continuing
// would be worse than stopping.
func decodeUint64(value []byte) uint64 {
	switch len(value) {
	case 0:
		return 0
	case 8:
		return binary.BigEndian.Uint64(value)
	default:
		panic(fmt.Sprintf("app: system record of %d bytes instead of 8: the state is damaged", len(value)))
	}
}

// ErrNoState is returned for a version without a usable parameters record, which is not a state of
// Starling.
var ErrNoState = errors.New("not a state of Starling")

// ReadParams reads the parameters record of a state, whatever its app version.
func ReadParams(v *avlstar.Version) (Params, error) {
	value, ok, err := v.Get(ParamsKey())
	if err != nil {
		return Params{}, err
	}
	if !ok {
		return Params{}, fmt.Errorf("%w: it has no parameters record", ErrNoState)
	}
	var p Params
	if err := p.Unmarshal(value); err != nil {
		return Params{}, fmt.Errorf("%w: its parameters record does not decode: %w", ErrNoState, err)
	}
	if p.AppVersion < GenesisVersion {
		return Params{}, fmt.Errorf("%w: its parameters name no app version", ErrNoState)
	}
	if p.ChunkBytes != v.ChunkBytes() {
		return Params{}, fmt.Errorf("%w: its parameters have chunk_bytes %d, its tree has %d", ErrNoState, p.ChunkBytes, v.ChunkBytes())
	}
	return p, nil
}

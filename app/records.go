package app

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
)

// The bookkeeping records (docs/spec/records.md). Their keys start with byte 0x00, which no transaction may write.
const (
	reserved byte = 0x00

	tagParams    byte = 'p'
	tagNonce     byte = 'n'
	tagValidator byte = 'v'
	tagAdmin     byte = 'a'
	tagGrant     byte = 'g'
	tagCover     byte = 'c'
	tagUpgrade   byte = 'u'
)

const (
	// AccountBytes is the length of an account, which is an ed25519 public key.
	AccountBytes = 32

	// MaxPrefixBytes is the longest prefix that fits a grant's key: 0x00 ‖ 'g' ‖ grantee(32) ‖ prefix.
	MaxPrefixBytes = avlstar.MaxKeyBytes - 2 - AccountBytes

	// MaxTotalPower bounds the sum of the voting powers. CometBFT refuses more than 2⁶³/8 (types.MaxTotalVotingPower) and
	// would halt the chain; a quarter of that keeps its sums of old and new powers far from any edge.
	MaxTotalPower = 1 << 58
)

// everyone stands for every account in a grant's key. It is no usable account: SetAdmin and grants refuse it by that name.
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

// ParamsKey is the key of the parameters record.
func ParamsKey() []byte { return record(tagParams) }

// NonceKey is the key of the number of transactions of account that were executed (u64be).
func NonceKey(account []byte) []byte { return record(tagNonce, account) }

// ValidatorKey is the key of a validator's voting power (u64be).
func ValidatorKey(publicKey []byte) []byte { return record(tagValidator, publicKey) }

// AdminKey is the key whose presence makes account an admin.
func AdminKey(account []byte) []byte { return record(tagAdmin, account) }

// GrantKey is the key of a grant's quota (u64be); an empty grantee stands for everyone.
func GrantKey(grantee, prefix []byte) []byte {
	if len(grantee) == 0 {
		grantee = everyone
	}
	return record(tagGrant, grantee, prefix)
}

// CoverKey is the key of the number of grants with this very prefix (u64be); text transactions look here.
func CoverKey(prefix []byte) []byte { return record(tagCover, prefix) }

// UpgradeKey is the key of the upgrade that was scheduled last (a tx.ScheduleUpgrade). It is to come if its version is above that of the
// parameters, else it has begun.
func UpgradeKey() []byte { return record(tagUpgrade) }

var adminValue = []byte{1}

func encodeUint64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// decodeUint64 reads a record that this package wrote; nil is an absent record. Another length means that the state is not ours:
// no transaction can write such a record, so going on would be worse than stopping.
func decodeUint64(value []byte) uint64 {
	switch len(value) {
	case 0:
		return 0
	case 8:
		return binary.BigEndian.Uint64(value)
	default:
		panic(fmt.Sprintf("app: bookkeeping record of %d bytes where 8 belong: the state is damaged", len(value)))
	}
}

// ErrNoState says that a version holds no usable parameters record, so it is no state of Starling.
var ErrNoState = errors.New("not a state of Starling")

// ReadParams reads the parameters record of a state, of whatever version that is.
func ReadParams(v *avlstar.Version) (Params, error) {
	value, ok := v.Get(ParamsKey())
	if err := v.Err(); err != nil {
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
		return Params{}, fmt.Errorf("%w: its parameters say chunk_bytes %d, its tree %d", ErrNoState, p.ChunkBytes, v.ChunkBytes())
	}
	return p, nil
}

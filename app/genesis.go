package app

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// DefaultSnapshotInterval is the snapshot interval if the genesis file sets none.
const DefaultSnapshotInterval = 1000

// ErrGenesis is wrapped by every error about app_state.
var ErrGenesis = errors.New("genesis: app_state")

// Genesis is the app_state of a genesis file.
type Genesis struct {
	// Chunk limit B, 1 to 15,000,000; default 1 MiB.
	ChunkBytes uint64 `json:"chunk_bytes,omitempty"`
	// Number of blocks between snapshots, 1 or more; default DefaultSnapshotInterval.
	SnapshotInterval int64 `json:"snapshot_interval,omitempty"`
	// Whether text transactions are accepted.
	Open bool `json:"open"`
	// Ed25519 public keys, hex or base64.
	Admins []string       `json:"admins"`
	Grants []GenesisGrant `json:"grants"`
	// Number of admins that must approve the operations of admins, from 1 (the default) to the
	// number of admins.
	AdminThreshold uint64 `json:"admin_threshold,omitempty"`
}

// GenesisGrant lets Grantee write under a prefix, given as text or in hex.
type GenesisGrant struct {
	Grantee   string `json:"grantee"` // ed25519 public key, hex or base64; or "*" for everyone
	Prefix    string `json:"prefix"`
	PrefixHex string `json:"prefix_hex"`
	Quota     uint64 `json:"quota"` // in bytes of leaf records; 0: no limit
}

// MarshalJSON writes one of the two prefixes, even if it is empty.
func (g GenesisGrant) MarshalJSON() ([]byte, error) {
	if g.PrefixHex != "" {
		return json.Marshal(struct {
			Grantee   string `json:"grantee"`
			PrefixHex string `json:"prefix_hex"`
			Quota     uint64 `json:"quota,omitempty"`
		}{g.Grantee, g.PrefixHex, g.Quota})
	}
	return json.Marshal(struct {
		Grantee string `json:"grantee"`
		Prefix  string `json:"prefix"`
		Quota   uint64 `json:"quota,omitempty"`
	}{g.Grantee, g.Prefix, g.Quota})
}

// Everyone is the grantee of a grant to all accounts.
const Everyone = "*"

// genesis is a Genesis with its keys decoded.
type genesis struct {
	Genesis
	admins [][]byte
	grants []genesisGrant
}

type genesisGrant struct {
	grantee []byte // for everyone, 32 zero bytes
	prefix  []byte
	quota   uint64
}

// ParseGenesis parses app_state strictly: a field that is unknown, repeated, of the wrong type or
// out of range is an error that names it. Missing fields get their defaults.
func ParseGenesis(appState json.RawMessage) (Genesis, error) {
	g, err := parseGenesis(appState)
	if err != nil {
		return Genesis{}, err
	}
	return g.Genesis, nil
}

func parseGenesis(appState []byte) (genesis, error) {
	g := genesis{Genesis: Genesis{ChunkBytes: avlstar.DefaultChunkBytes, SnapshotInterval: DefaultSnapshotInterval, AdminThreshold: 1}}
	if len(appState) == 0 || string(appState) == "null" {
		return genesis{}, fmt.Errorf(`%w is missing: put {"chunk_bytes": %d, "snapshot_interval": %d, "open": true, "admins": [], "grants": []} `+
			"into the genesis file, with the accounts that may write (`starlingd genesis adopt FILE` does; if CometBFT was started with the file before, it has stored it: "+
			"`cometbft unsafe-reset-all`)", ErrGenesis, avlstar.DefaultChunkBytes, DefaultSnapshotInterval)
	}
	err := parseObject(appState, "", fields{
		"chunk_bytes":       intoNumber(&g.ChunkBytes),
		"snapshot_interval": intoNumber(&g.SnapshotInterval),
		"open":              into(&g.Open, "true or false"),
		"admins":            intoList(g.addAdmin),
		"grants":            intoList(g.addGrant),
		"admin_threshold":   intoNumber(&g.AdminThreshold),
	})
	if err != nil {
		return genesis{}, fmt.Errorf("%w: %w", ErrGenesis, err)
	}
	if g.ChunkBytes < 1 || g.ChunkBytes > avlstar.MaxChunkBytes {
		return genesis{}, fmt.Errorf("%w: chunk_bytes is %d, it must be from 1 to %d", ErrGenesis, g.ChunkBytes, avlstar.MaxChunkBytes)
	}
	if g.SnapshotInterval < 1 {
		return genesis{}, fmt.Errorf("%w: snapshot_interval is %d, it must be 1 or more", ErrGenesis, g.SnapshotInterval)
	}
	if most := max(min(len(g.admins), tx.MaxThreshold), 1); g.AdminThreshold < 1 || g.AdminThreshold > uint64(most) {
		return genesis{}, fmt.Errorf("%w: admin_threshold is %d, it must be from 1 to the number of admins, %d at most", ErrGenesis, g.AdminThreshold, most)
	}
	return g, nil
}

func (g *genesis) addAdmin(raw json.RawMessage, path string) error {
	var text string
	if err := into(&text, "a public key as text")(raw, path); err != nil {
		return err
	}
	account, err := decodeAccount(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i, other := range g.admins {
		if string(other) == string(account) {
			return fmt.Errorf("%s: %s is admins[%d] already", path, text, i)
		}
	}
	g.Admins, g.admins = append(g.Admins, text), append(g.admins, account)
	return nil
}

func (g *genesis) addGrant(raw json.RawMessage, path string) error {
	var (
		text   GenesisGrant
		parsed genesisGrant
		given  = map[string]bool{}
		err    error
	)
	noting := func(name string, field fieldParser) fieldParser {
		return func(raw json.RawMessage, path string) error { given[name] = true; return field(raw, path) }
	}
	if err := parseObject(raw, path, fields{
		"grantee":    noting("grantee", into(&text.Grantee, "a public key or \"*\"")),
		"prefix":     noting("prefix", into(&text.Prefix, "text")),
		"prefix_hex": noting("prefix_hex", into(&text.PrefixHex, "text in hex")),
		"quota":      intoNumber(&text.Quota),
	}); err != nil {
		return err
	}
	switch {
	case !given["grantee"]:
		return fmt.Errorf("%s.grantee is missing: name a public key, or \"*\" for everyone", path)
	case text.Grantee == Everyone:
		parsed.grantee = everyone
	default:
		if parsed.grantee, err = decodeAccount(text.Grantee); err != nil {
			return fmt.Errorf("%s.grantee: %w", path, err)
		}
	}
	switch {
	case given["prefix"] && given["prefix_hex"]:
		return fmt.Errorf("%s has both prefix and prefix_hex: leave one out", path)
	case given["prefix"]:
		parsed.prefix = []byte(text.Prefix)
	case given["prefix_hex"]:
		if parsed.prefix, err = hex.DecodeString(text.PrefixHex); err != nil {
			return fmt.Errorf("%s.prefix_hex: %q is not hexadecimal", path, text.PrefixHex)
		}
	default:
		return fmt.Errorf("%s.prefix is missing (an empty prefix, \"\", grants every key)", path)
	}
	if err := checkPrefix(parsed.prefix); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i, other := range g.grants {
		if string(other.grantee) == string(parsed.grantee) && string(other.prefix) == string(parsed.prefix) {
			return fmt.Errorf("%s: the same grantee and prefix as grants[%d]", path, i)
		}
	}
	parsed.quota = text.Quota
	g.Grants, g.grants = append(g.Grants, text), append(g.grants, parsed)
	return nil
}

// checkPrefix returns an error for a prefix that no grant can have.
func checkPrefix(prefix []byte) error {
	if len(prefix) > MaxPrefixBytes {
		return fmt.Errorf("the prefix has %d bytes, at most %d are allowed", len(prefix), MaxPrefixBytes)
	}
	if len(prefix) > 0 && prefix[0] == reserved {
		return errors.New("the prefix starts with byte 0x00, which is reserved for system keys")
	}
	return nil
}

// decodeAccount decodes an ed25519 public key in hex (64 digits) or base64 (44 characters).
func decodeAccount(text string) ([]byte, error) {
	account, err := hex.DecodeString(text)
	if err != nil {
		account, err = base64.StdEncoding.DecodeString(text)
	}
	if err != nil || len(account) != AccountBytes {
		return nil, fmt.Errorf("%q is not an ed25519 public key (32 bytes in hex or base64)", text)
	}
	if string(account) == string(everyone) {
		return nil, fmt.Errorf("%q is not an account; \"*\" means everyone in a grant", text)
	}
	return account, nil
}

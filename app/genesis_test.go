package app

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

func TestParseGenesis(t *testing.T) {
	alice := account("alice")
	g, err := parseGenesis([]byte(fmt.Sprintf(`{"chunk_bytes": 7, "snapshot_interval": 3, "open": true,
		"admins": ["%x", "%s"],
		"grants": [{"grantee": "*", "prefix": "a/"}, {"grantee": "%x", "prefix_hex": "ff00", "quota": 18446744073709551615},
		           {"grantee": "%x", "prefix": ""}]}`,
		alice, base64.StdEncoding.EncodeToString(account("bob")), alice, alice)))
	require.NoError(t, err)
	require.Equal(t, uint64(7), g.ChunkBytes)
	require.Equal(t, int64(3), g.SnapshotInterval)
	require.True(t, g.Open)
	require.Equal(t, [][]byte{alice, account("bob")}, g.admins)
	require.Equal(t, []genesisGrant{
		{everyone, []byte("a/"), 0}, {alice, []byte{0xff, 0}, 1<<64 - 1}, {alice, []byte{}, 0},
	}, g.grants)

	// Missing fields have their defaults, and the output can be parsed again.
	g, err = parseGenesis([]byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, Genesis{ChunkBytes: avlstar.DefaultChunkBytes, SnapshotInterval: DefaultSnapshotInterval, AdminThreshold: 1}, g.Genesis)
	written, err := json.Marshal(Genesis{Open: true, Grants: []GenesisGrant{{Grantee: Everyone, Prefix: "x"}}})
	require.NoError(t, err)
	read, err := ParseGenesis(written)
	require.NoError(t, err)
	require.Equal(t, []GenesisGrant{{Grantee: Everyone, Prefix: "x"}}, read.Grants)
}

func TestParseGenesisRefuses(t *testing.T) {
	alice, zero := hexOf("alice"), strings.Repeat("0", 64)
	grant := func(fields string) string { return `{"grants": [` + fields + `]}` }
	for _, test := range []struct{ state, says string }{
		{``, "is missing"},
		{`null`, "is missing"},
		{`7`, "must be an object, it is 7"},
		{`[]`, "must be an object"},
		{`{`, "is not JSON"},
		{`{} {}`, "is followed by more"},
		{`{"chunk_byte": 1}`, "unknown field chunk_byte (known: admin_threshold, admins, chunk_bytes, grants, open, snapshot_interval)"},
		{`{"Open": true}`, "unknown field Open"},
		{`{"open": true, "open": false}`, "field open is repeated"},
		{`{"open": 1}`, "open must be true or false, it is 1"},
		{`{"open": null}`, "open must be true or false, it is null"},
		{`{"chunk_bytes": "1000"}`, `chunk_bytes must be a whole number that fits uint64, it is "1000"`},
		{`{"chunk_bytes": 1.5}`, "chunk_bytes must be a whole number"},
		{`{"chunk_bytes": -1}`, "chunk_bytes must be a whole number"},
		{`{"chunk_bytes": 0}`, "chunk_bytes is 0, it must be from 1 to 15000000"},
		{`{"chunk_bytes": 15000001}`, "chunk_bytes is 15000001"},
		{`{"snapshot_interval": 0}`, "snapshot_interval is 0, it must be 1 or more"},
		{`{"snapshot_interval": -5}`, "snapshot_interval is -5"},
		{`{"snapshot_interval": 9223372036854775808}`, "snapshot_interval must be a whole number that fits int64"},
		{grant(`{"grantee": "*", "prefix": "\ud800"}`), "grants[0].prefix is not proper Unicode"},
		{grant(`{"grantee": "*", "prefix": "\ufffd"}`), "grants[0].prefix is not proper Unicode"},
		{`{"admin_threshold": 0}`, "admin_threshold is 0, it must be from 1"},
		{`{"admin_threshold": 2}`, "admin_threshold is 2, it must be from 1 to the number of admins, 1 at most"},
		{`{"admin_threshold": 2, "admins": ["` + alice + `"]}`, "admin_threshold is 2"},
		{`{"admin_threshold": "1"}`, "admin_threshold must be a whole number"},
		{`{"admins": "x"}`, `admins must be a list, it is "x"`},
		{`{"admins": [7]}`, "admins[0] must be a public key as text, it is 7"},
		{`{"admins": ["abcd"]}`, `admins[0]: "abcd" is not an ed25519 public key (32 bytes in hex or base64)`},
		{`{"admins": ["` + alice + `", "` + strings.ToUpper(alice) + `"]}`, "is admins[0] already"},
		{`{"admins": ["` + zero + `"]}`, "is not an account"},
		{grant(`7`), "grants[0] must be an object, it is 7"},
		{grant(`{"prefix": "a"}`), "grants[0].grantee is missing"},
		{grant(`{"grantee": "` + alice + `"}`), "grants[0].prefix is missing"},
		{grant(`{"grantee": "` + alice + `", "prefix": "a", "qouta": 1}`), "unknown field grants[0].qouta"},
		{grant(`{"grantee": "` + alice + `", "prefix": "a", "quota": "1"}`), "grants[0].quota must be a whole number"},
		{grant(`{"grantee": "` + alice + `", "prefix": "a", "prefix_hex": "61"}`), "grants[0] has both prefix and prefix_hex"},
		{grant(`{"grantee": "` + alice + `", "prefix_hex": "6"}`), `grants[0].prefix_hex: "6" is not hexadecimal`},
		{grant(`{"grantee": "` + alice + `", "prefix_hex": "00"}`), "grants[0]: the prefix starts with byte 0x00"},
		{grant(`{"grantee": "` + alice + `", "prefix": "` + strings.Repeat("p", 4063) + `"}`), "grants[0]: the prefix has 4063 bytes, at most 4062 are allowed"},
		{grant(`{"grantee": "everyone", "prefix": "a"}`), "grants[0].grantee"},
		{grant(`{"grantee": "` + zero + `", "prefix": "a"}`), "is not an account"},
		{grant(`{"grantee": "*", "prefix": "a"}, {"grantee": "*", "prefix_hex": "61"}`), "grants[1]: the same grantee and prefix as grants[0]"},
	} {
		_, err := ParseGenesis([]byte(test.state))
		require.ErrorIs(t, err, ErrGenesis, test.state)
		require.ErrorContains(t, err, test.says)
	}
	_, err := ParseGenesis([]byte(grant(`{"grantee": "` + alice + `", "prefix": "` + strings.Repeat("p", 4062) + `"}`)))
	require.NoError(t, err)
}

func FuzzParseGenesis(f *testing.F) {
	f.Add([]byte(`{"chunk_bytes": 7, "snapshot_interval": 3, "open": true, "admins": [], "grants": [{"grantee": "*", "prefix_hex": "61"}]}`))
	f.Fuzz(func(t *testing.T, state []byte) {
		g, err := ParseGenesis(state)
		if err != nil {
			return
		}
		written, err := json.Marshal(g)
		require.NoError(t, err)
		again, err := ParseGenesis(written)
		require.NoError(t, err)
		require.Equal(t, g, again)
	})
}

package tx

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	stded25519 "crypto/ed25519"

	"github.com/starling-kv/starling/internal/seeds"
)

var update = flag.Bool("update", false, "write testdata/vectors.json again")

func newKeyFromSeed(seed []byte) ed25519.PrivKey {
	return ed25519.PrivKey(stded25519.NewKeyFromSeed(seed))
}

const vectorsFile = "testdata/vectors.json"

// A vector holds the data that another implementation needs to check its own encoder and signer.
type vector struct {
	Name       string            `json:"name"`
	ChainID    string            `json:"chain_id"`
	Seed       string            `json:"seed,omitempty"` // ed25519 seed (RFC 8032 private key)
	Account    string            `json:"account,omitempty"`
	Nonce      uint64            `json:"nonce,omitempty"`
	Operations []json.RawMessage `json:"operations,omitempty"` // bytes are hex
	SignBytes  string            `json:"sign_bytes,omitempty"`
	Tx         string            `json:"tx"`   // from moreVectors on in runs, see internal/hexruns
	Code       Code              `json:"code"` // result of Decode on chain_id
}

type vectorOperation struct {
	Kind      string  `json:"kind"`
	Key       string  `json:"key,omitempty"`
	Value     string  `json:"value,omitempty"`
	Expected  *string `json:"expected,omitempty"`
	Grantee   *string `json:"grantee,omitempty"`
	Prefix    *string `json:"prefix,omitempty"`
	Quota     uint64  `json:"quota,omitempty"`
	PublicKey string  `json:"public_key,omitempty"`
	Power     uint64  `json:"power,omitempty"`
	Confirmed bool    `json:"confirmed,omitempty"`
	Remove    bool    `json:"remove,omitempty"`
	Version   uint64  `json:"version,omitempty"`
	Height    uint64  `json:"height,omitempty"`
	Info      string  `json:"info,omitempty"`

	Present  bool              `json:"present,omitempty"`
	Start    *string           `json:"start,omitempty"`
	End      *string           `json:"end,omitempty"`
	Limit    uint32            `json:"limit,omitempty"`
	Part     bool              `json:"part,omitempty"`
	Compares []vectorOperation `json:"compares,omitempty"`
	Success  []vectorOperation `json:"success,omitempty"`
	Failure  []vectorOperation `json:"failure,omitempty"`
}

func toVectorOperation(op Operation) vectorOperation {
	h := hex.EncodeToString
	p := func(b []byte) *string { s := h(b); return &s }
	switch o := op.Op.(type) {
	case *Operation_Put:
		return vectorOperation{Kind: "put", Key: h(o.Put.Key), Value: h(o.Put.Value)}
	case *Operation_Delete:
		return vectorOperation{Kind: "delete", Key: h(o.Delete.Key)}
	case *Operation_CompareAndPut:
		return vectorOperation{Kind: "compare_and_put", Key: h(o.CompareAndPut.Key), Expected: p(o.CompareAndPut.Expected), Value: h(o.CompareAndPut.Value)}
	case *Operation_Read:
		return vectorOperation{Kind: "read", Key: h(o.Read.Key)}
	case *Operation_Grant:
		return vectorOperation{Kind: "grant", Grantee: p(o.Grant.Grantee), Prefix: p(o.Grant.Prefix), Quota: o.Grant.Quota}
	case *Operation_Revoke:
		return vectorOperation{Kind: "revoke", Grantee: p(o.Revoke.Grantee), Prefix: p(o.Revoke.Prefix)}
	case *Operation_SetValidator:
		return vectorOperation{Kind: "set_validator", PublicKey: h(o.SetValidator.PublicKey), Power: o.SetValidator.Power, Confirmed: o.SetValidator.Confirmed}
	case *Operation_SetAdmin:
		return vectorOperation{Kind: "set_admin", Key: h(o.SetAdmin.Account), Remove: o.SetAdmin.Remove}
	case *Operation_ScheduleUpgrade:
		u := o.ScheduleUpgrade
		return vectorOperation{Kind: "schedule_upgrade", Version: u.Version, Height: u.Height, Info: h([]byte(u.Info))}
	}
	return toVectorTxn(op)
}

// signedVector returns a transaction that is made from fields.
func signedVector(t *testing.T, name, seed, chain string, nonce uint64, operations []Operation) vector {
	priv := key(seed)
	body := &Body{Account: priv.PubKey().Bytes(), Nonce: nonce, Operations: operations}
	raw, err := body.Marshal()
	require.NoError(t, err)
	b, err := forgeRaw(priv, chain, raw)
	require.NoError(t, err)
	v := vector{Name: name, ChainID: chain, Seed: hex.EncodeToString(priv[:32]), Account: hex.EncodeToString(body.Account), Nonce: nonce,
		SignBytes: hex.EncodeToString(SignBytes(chain, raw)), Tx: hex.EncodeToString(b), Code: codeOf(t, b, chain)}
	for _, op := range body.Operations {
		j, err := json.Marshal(toVectorOperation(op))
		require.NoError(t, err)
		v.Operations = append(v.Operations, j)
	}
	return v
}

func makeVectors(t *testing.T) []vector {
	var all []vector
	signed := func(name, seed, chain string, nonce uint64, operations string) {
		all = append(all, signedVector(t, name, seed, chain, nonce, parseOperations(t, operations)))
	}
	raw := func(name, chain string, b []byte) {
		all = append(all, vector{Name: name, ChainID: chain, Tx: hex.EncodeToString(b), Code: codeOf(t, b, chain)})
	}
	raw("text", "starling-1", []byte("key=value"))
	raw("text with a colon", "starling-1", []byte("key:value"))
	raw("text with two separators", "starling-1", []byte("a=b=c"))
	raw("text without a value", "starling-1", []byte("key="))
	raw("empty", "starling-1", nil)
	signed("put", "alice", "starling-1", 0, "put key value")
	signed("a nonce of several bytes, a chain id of 150", "alice", string(bytes.Repeat([]byte("c"), 150)), 1<<40, "put key value")
	signed("all operations", "alice", "starling-1", 300, "put k v\ndelete k\ncas k EMPTY v\ncas k v w\nread 0x0070\ngrant EMPTY EMPTY 0\ngrant KEY:bob app/ 1000\n"+
		"revoke KEY:bob app/\nvalidator KEY:val 10\nvalidator KEY:val 0\nadmin KEY:bob\nadmin KEY:bob remove")
	signed("no operation", "alice", "starling-1", 1, "")
	signed("an operation of no kind", "alice", "starling-1", 1, "none")
	signed("empty key", "alice", "starling-1", 1, "put EMPTY v")
	signed("empty value", "alice", "starling-1", 1, "put k EMPTY")
	signed("key too long", "alice", "starling-1", 1, "delete k*4097")
	signed("reserved key", "alice", "starling-1", 1, "put 0x006b v")
	signed("grantee of zeros", "alice", "starling-1", 1, "grant 0x00*32 p 0")

	good, err := Sign(key("alice"), "starling-1", &Body{Nonce: 5, Operations: parseOperations(t, "put key value")})
	require.NoError(t, err)
	raw("signed for another chain", "starling-2", good)
	raw("a byte after the end", "starling-1", append(bytes.Clone(good), 0))
	raw("an unknown field", "starling-1", append(bytes.Clone(good), 0x18, 0x01))
	last := bytes.Clone(good)
	last[len(last)-1] ^= 1
	raw("signature changed", "starling-1", last)
	all = append(all, moreVectors(t)...)

	signed("upgrades: scheduled, with and without an info, and taken back", "alice", "starling-1", 2,
		"upgrade 2 1000 https://example.org/starling\nupgrade 2 18446744073709551615 EMPTY\nupgrade 2 0 EMPTY\nupgrade 0 0 EMPTY")
	signed("upgrade, info of full length", "alice", "starling-1", 2, "upgrade 2 1000 i*256")
	signed("upgrade, info too long", "alice", "starling-1", 2, "upgrade 2 1000 i*257")
	signed("upgrade, info that is not UTF-8", "alice", "starling-1", 2, "upgrade 2 1000 0xff")
	signed("upgrade, info too long that is not UTF-8", "alice", "starling-1", 2, "upgrade 2 1000 0xff*257")
	signed("upgrade taken back, with an info", "alice", "starling-1", 2, "upgrade 2 0 i")
	signed("upgrade taken back, with an info that is too long", "alice", "starling-1", 2, "upgrade 2 0 i*257")
	all = append(all, upgradeVectors(t)...)
	all = append(all, txnVectors(t)...)
	return append(all, proposalVectors(t)...)
}

func codeOf(t *testing.T, b []byte, chain string) Code {
	_, err := Decode(b, chain)
	if err == nil {
		return CodeOK
	}
	var refused *Error
	require.ErrorAs(t, err, &refused)
	return refused.Code
}

func TestVectors(t *testing.T) {
	made, err := json.MarshalIndent(makeVectors(t), "", "  ")
	require.NoError(t, err)
	made = append(made, '\n')
	if *update {
		require.NoError(t, os.WriteFile(vectorsFile, made, 0o644))
	}
	stored, err := os.ReadFile(vectorsFile)
	require.NoError(t, err)
	require.JSONEq(t, string(stored), string(made), "the format of transactions is frozen; if only vectors were added: go test ./tx -run TestVectors -update")

	var all []vector
	require.NoError(t, json.Unmarshal(stored, &all))
	for _, v := range all {
		require.Equal(t, v.Code, codeOf(t, parseRuns(t, v.Tx), v.ChainID), v.Name)
	}
}

// TestEveryByteCounts: no byte of a signed transaction can be changed, removed, repeated or
// inserted.
func TestEveryByteCounts(t *testing.T) {
	good, err := Sign(key("alice"), "chain", &Body{Nonce: 1, Operations: parseOperations(t, "put key value\ngrant KEY:bob p 3")})
	require.NoError(t, err)
	_, err = Decode(good, "chain")
	require.NoError(t, err)
	refuse := func(b []byte, what string, i int) {
		x, err := Decode(b, "chain")
		require.Error(t, err, "%s at byte %d: %x decodes to %v", what, i, b, x)
	}
	for i := range good {
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			refuse(b, fmt.Sprintf("bit %d flipped", bit), i)
		}
		refuse(append(bytes.Clone(good[:i]), good[i+1:]...), "removed", i)
		refuse(append(append(bytes.Clone(good[:i]), good[i]), good[i:]...), "doubled", i)
		refuse(good[:i], "cut", i)
		if i > 0 && good[i] != good[i-1] {
			b := bytes.Clone(good)
			b[i], b[i-1] = b[i-1], b[i]
			refuse(b, "swapped", i)
		}
	}
	for _, c := range []byte{0, 1, 0x0a, 0x12, 0xff} {
		refuse(append(bytes.Clone(good), c), "appended", len(good))
	}
}

// TestBodyEncodingIsStrict: a correct signature does not help a body that is not in its only
// encoding.
func TestBodyEncodingIsStrict(t *testing.T) {
	priv := key("alice")
	body := &Body{Account: priv.PubKey().Bytes(), Nonce: 1, Operations: parseOperations(t, "put key value")}
	good, err := body.Marshal()
	require.NoError(t, err)
	put := good[len(good)-16:] // 1a 0e 0a 0c 0a 03 key 12 05 value
	require.Equal(t, "1a0e0a0c0a036b6579120576616c7565", hex.EncodeToString(put))
	head := good[:len(good)-len(put)]
	for name, raw := range map[string]string{
		"unknown field of the body":      string(good) + "\x20\x01",
		"unknown field of the operation": string(head) + "\x1a\x10\x0a\x0c\x0a\x03key\x12\x05value\x48\x01",
		"unknown field of the put":       string(head) + "\x1a\x10\x0a\x0e\x0a\x03key\x12\x05value\x18\x01",
		"fields of the put swapped":      string(head) + "\x1a\x0e\x0a\x0c\x12\x05value\x0a\x03key",
		"two kinds in one operation":     string(head) + "\x1a\x13\x12\x03\x0a\x01a\x0a\x0c\x0a\x03key\x12\x05value",
		"account twice":                  string(good[:34]) + string(good),
		"long length":                    string(head) + "\x1a\x8e\x00\x0a\x0c\x0a\x03key\x12\x05value",
		"operations before the nonce":    string(good[:34]) + string(put) + "\x10\x01",
		"group":                          string(good) + "\x2b\x2c",
	} {
		b, err := forgeRaw(priv, "chain", []byte(raw))
		require.NoError(t, err)
		_, err = Decode(b, "chain")
		require.ErrorIs(t, err, &Error{Code: CodeMalformed}, name)
	}
}

func TestSignDecode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		priv := privFromSeed(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "seed"))
		chain := rapid.String().Draw(t, "chain")
		blob := func(name string, least, most int) []byte {
			b := rapid.SliceOfN(rapid.Byte(), least, most).Draw(t, name)
			if len(b) > 0 && b[0] == Reserved {
				b[0] = 1
			}
			return b
		}
		body := &Body{Nonce: rapid.Uint64().Draw(t, "nonce")}
		for range rapid.IntRange(1, 5).Draw(t, "operations") {
			op := Operation{}
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				op.Op = &Operation_Put{Put: &Put{Key: blob("key", 1, 50), Value: blob("value", 1, 50)}}
			case 1:
				op.Op = &Operation_CompareAndPut{CompareAndPut: &CompareAndPut{Key: blob("key", 1, 50), Expected: blob("expected", 0, 50), Value: blob("value", 1, 50)}}
			case 2:
				op.Op = &Operation_Grant{Grant: &Grant{Prefix: blob("prefix", 0, 50), Quota: rapid.Uint64().Draw(t, "quota")}}
			default:
				op.Op = &Operation_SetValidator{SetValidator: &SetValidator{PublicKey: blob("public key", 32, 32), Power: rapid.Uint64().Draw(t, "power")}}
				op.GetSetValidator().Confirmed = op.GetSetValidator().Power > 0 && rapid.Bool().Draw(t, "confirmed")
			}
			body.Operations = append(body.Operations, op)
		}
		b, err := Sign(priv, chain, body)
		if err != nil {
			t.Fatal(err)
		}
		x, err := Decode(b, chain)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Sign(priv, chain, x.Body)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("signed again: %v\n%x\n%x", err, again, b)
		}
		if _, err := Decode(b, chain+"x"); !errors.Is(err, &Error{Code: CodeBadSignature}) {
			t.Fatalf("on another chain: %v", err)
		}
	})
}

// DecodeAll must accept exactly what Decode accepts, in any batch: blocks contain what either of
// them verified. The vectors have signatures on which verifiers differ.
func TestDecodeAll(t *testing.T) {
	rng := seeds.Rand(t)
	stored, err := os.ReadFile(vectorsFile)
	require.NoError(t, err)
	var vectors []vector
	require.NoError(t, json.Unmarshal(stored, &vectors))
	var good, all [][]byte
	for _, v := range vectors {
		b := parseRuns(t, v.Tx)
		if len(b) > 64<<10 {
			continue
		}
		all = append(all, b)
		if v.ChainID == vectorChain && v.Code == CodeOK {
			good = append(good, b)
		}
	}
	check := func(batch [][]byte) {
		txs, errs := DecodeAll(batch, vectorChain, NewestAppVersion)
		for i, b := range batch {
			x, err := Decode(b, vectorChain)
			require.Equal(t, x, txs[i], "%x", b)
			require.Equal(t, err, errs[i], "%x", b)
		}
	}
	check(good)
	check(all)
	for range 200 {
		batch := make([][]byte, rng.IntN(20))
		for i := range batch {
			batch[i] = good[rng.IntN(len(good))]
			if rng.IntN(8) == 0 {
				batch[i] = all[rng.IntN(len(all))]
			}
		}
		check(batch)
	}
}

func TestErrorIs(t *testing.T) {
	err := fmt.Errorf("check: %w", Errorf(CodeBadNonce, "is %d", 3))
	require.ErrorIs(t, err, &Error{Code: CodeBadNonce})
	require.NotErrorIs(t, err, &Error{Code: CodeQuota})
	require.EqualError(t, err, "check: bad nonce: is 3")
	require.Equal(t, "code 77", Code(77).String())
}

func FuzzDecode(f *testing.F) {
	stored, err := os.ReadFile(vectorsFile)
	require.NoError(f, err)
	var all []vector
	require.NoError(f, json.Unmarshal(stored, &all))
	for _, v := range all {
		if b := parseRuns(f, v.Tx); len(b) < 64<<10 { // fuzzers do best with short inputs
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := Decode(b, "starling-1")
		txs, errs := DecodeAll([][]byte{b, []byte("k=v"), b}, "starling-1", NewestAppVersion)
		require.Equal(t, []*Tx{x, {Text: &Text{Key: []byte("k"), Value: []byte("v")}}, x}, txs)
		require.Equal(t, []error{err, nil, err}, errs)
		if err != nil {
			var refused *Error
			require.ErrorAs(t, err, &refused)
			require.NotEqual(t, CodeOK, refused.Code)
			checkBody(t, b)
			return
		}
		if x.Text != nil {
			again := x.Text.Bytes()
			require.Equal(t, bytes.ReplaceAll(b, []byte(":"), []byte("=")), again)
			return
		}
		body, err := x.Body.Marshal()
		require.NoError(t, err)
		signed := SignedTx{Body: body, Signature: b[len(b)-64:]}
		again, err := signed.Marshal()
		require.NoError(t, err)
		require.Equal(t, b[1:], again)
	})
}

// checkBody decodes b as a Body and signs it, which a fuzzer cannot do: so the checks behind that
// of the signature are reached too.
func checkBody(t *testing.T, b []byte) {
	priv := key("fuzz")
	raw := append([]byte{0x0a, 32}, priv.PubKey().Bytes()...)
	raw = append(raw, b...)
	forged, err := forgeRaw(priv, "starling-1", raw)
	require.NoError(t, err)
	x, err := Decode(forged, "starling-1")
	if err != nil {
		return
	}
	again, err := x.Body.Marshal()
	require.NoError(t, err)
	require.Equal(t, raw, again)
}

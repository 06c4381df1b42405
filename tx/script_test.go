package tx

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/stretchr/testify/require"
)

// TestScripts runs testdata/script. Commands:
//
//	decode [chain=ID]           the input's bytes (see parseBytes), joined; prints the result of Decode
//	sign KEY [nonce=N] [chain=ID] [for=ID]   signs the input's operations for one chain, decodes them on another
//	forge …                     the same, but without Sign's own checks; account=BYTES sets another account
//
// An operation is a line: "put KEY VALUE", "delete KEY", "cas KEY EXPECTED VALUE", "read KEY",
// "grant GRANTEE PREFIX QUOTA", "revoke GRANTEE PREFIX", "validator KEY POWER", "admin KEY
// [remove]", "upgrade VERSION HEIGHT INFO", "none"; "times N LINE" repeats it.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			chain := "test-chain"
			d.MaybeScanArgs(t, "chain", &chain)
			var raw []byte
			switch d.Cmd {
			case "decode":
				for word := range strings.FieldsSeq(d.Input) {
					raw = append(raw, parseBytes(t, word)...)
				}
			case "sign", "forge":
				priv := key(d.CmdArgs[0].Key)
				signFor, nonce, account := chain, 0, ""
				d.MaybeScanArgs(t, "for", &signFor)
				d.MaybeScanArgs(t, "nonce", &nonce)
				d.MaybeScanArgs(t, "account", &account)
				body := &Body{Nonce: uint64(nonce), Operations: parseOperations(t, d.Input)}
				if account != "" {
					body.Account = parseBytes(t, account)
				}
				var err error
				if d.Cmd == "sign" {
					raw, err = Sign(priv, signFor, body)
				} else {
					raw, err = forge(priv, signFor, body)
				}
				if err != nil {
					return "refused to sign: " + describeError(err)
				}
			default:
				t.Fatalf("unknown command %q", d.Cmd)
			}
			decoded, err := Decode(raw, chain)
			if err != nil {
				return describeError(err)
			}
			return fmt.Sprintf("%d bytes\n%s", len(raw), describe(decoded))
		})
	})
}

// key is the private key whose seed is the name, padded with zeros.
func key(name string) ed25519.PrivKey {
	return privFromSeed([]byte(name))
}

func privFromSeed(seed []byte) ed25519.PrivKey {
	padded := make([]byte, ed25519.SeedSize)
	copy(padded, seed)
	return newKeyFromSeed(padded)
}

// forge signs any body, whether or not it is valid.
func forge(priv ed25519.PrivKey, chainID string, body *Body) ([]byte, error) {
	forged := *body
	if len(forged.Account) == 0 {
		forged.Account = priv.PubKey().Bytes()
	}
	raw, err := forged.Marshal()
	if err != nil {
		return nil, err
	}
	return forgeRaw(priv, chainID, raw)
}

func forgeRaw(priv ed25519.PrivKey, chainID string, body []byte) ([]byte, error) {
	signature, err := priv.Sign(SignBytes(chainID, body))
	if err != nil {
		return nil, err
	}
	signed := SignedTx{Body: body, Signature: signature}
	b, err := signed.Marshal()
	return append([]byte{marker}, b...), err
}

// parseBytes reads a word: text, 0x-hex, "KEY:name" (the public key of a name), "EMPTY", each with
// *N to repeat.
func parseBytes(t *testing.T, word string) []byte {
	word, times, repeated := strings.Cut(word, "*")
	var b []byte
	switch {
	case word == "EMPTY":
	case strings.HasPrefix(word, "KEY:"):
		b = key(strings.TrimPrefix(word, "KEY:")).PubKey().Bytes()
	case strings.HasPrefix(word, "0x"):
		var err error
		b, err = hex.DecodeString(word[2:])
		require.NoError(t, err)
	default:
		b = []byte(word)
	}
	if repeated {
		n, err := strconv.Atoi(times)
		require.NoError(t, err)
		b = bytes.Repeat(b, n)
	}
	return b
}

func parseOperations(t *testing.T, input string) []Operation {
	var ops []Operation
	for line := range strings.Lines(input) {
		words := strings.Fields(line)
		times := 1
		if words[0] == "times" {
			times = int(parseUint(t, words[1]))
			words = words[2:]
		}
		op := parseOperation(t, words)
		for range times {
			ops = append(ops, op)
		}
	}
	return ops
}

func parseOperation(t *testing.T, words []string) Operation {
	arg := func(i int) []byte { return parseBytes(t, words[i]) }
	switch words[0] {
	case "put":
		return Operation{Op: &Operation_Put{Put: &Put{Key: arg(1), Value: arg(2)}}}
	case "delete":
		return Operation{Op: &Operation_Delete{Delete: &Delete{Key: arg(1)}}}
	case "cas":
		return Operation{Op: &Operation_CompareAndPut{CompareAndPut: &CompareAndPut{Key: arg(1), Expected: arg(2), Value: arg(3)}}}
	case "read":
		return Operation{Op: &Operation_Read{Read: &Read{Key: arg(1)}}}
	case "grant":
		return Operation{Op: &Operation_Grant{Grant: &Grant{Grantee: arg(1), Prefix: arg(2), Quota: parseUint(t, words[3])}}}
	case "revoke":
		return Operation{Op: &Operation_Revoke{Revoke: &Revoke{Grantee: arg(1), Prefix: arg(2)}}}
	case "validator":
		return Operation{Op: &Operation_SetValidator{SetValidator: &SetValidator{PublicKey: arg(1), Power: parseUint(t, words[2]), Confirmed: len(words) > 3}}}
	case "admin":
		return Operation{Op: &Operation_SetAdmin{SetAdmin: &SetAdmin{Account: arg(1), Remove: len(words) > 2}}}
	case "upgrade":
		return NewScheduleUpgrade(parseUint(t, words[1]), parseUint(t, words[2]), string(arg(3)))
	case "none":
		return Operation{}
	}
	t.Fatalf("unknown operation %q", words[0])
	return Operation{}
}

func parseUint(t *testing.T, s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err)
	return n
}

func describeError(err error) string {
	var refused *Error
	if errors.As(err, &refused) {
		return fmt.Sprintf("code %d %v", refused.Code, refused)
	}
	return err.Error()
}

func describe(x *Tx) string {
	if x.Text != nil {
		return fmt.Sprintf("text %s = %s, in a block: %s", short(x.Text.Key), short(x.Text.Value), short(x.Text.Bytes()))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "account %s nonce %d", short(x.Body.Account), x.Body.Nonce)
	for i, op := range x.Body.Operations {
		if i == 10 {
			fmt.Fprintf(&b, "\n… %d operations", len(x.Body.Operations))
			break
		}
		fmt.Fprintf(&b, "\n%s", describeOperation(op))
	}
	return b.String()
}

func describeOperation(op Operation) string {
	switch o := op.Op.(type) {
	case *Operation_Put:
		return fmt.Sprintf("put %s = %s", short(o.Put.Key), short(o.Put.Value))
	case *Operation_Delete:
		return fmt.Sprintf("delete %s", short(o.Delete.Key))
	case *Operation_CompareAndPut:
		return fmt.Sprintf("cas %s: %s -> %s", short(o.CompareAndPut.Key), short(o.CompareAndPut.Expected), short(o.CompareAndPut.Value))
	case *Operation_Read:
		return fmt.Sprintf("read %s", short(o.Read.Key))
	case *Operation_Grant:
		return fmt.Sprintf("grant %s under %s, quota %d", short(o.Grant.Grantee), short(o.Grant.Prefix), o.Grant.Quota)
	case *Operation_Revoke:
		return fmt.Sprintf("revoke %s under %s", short(o.Revoke.Grantee), short(o.Revoke.Prefix))
	case *Operation_SetValidator:
		confirmed := map[bool]string{true: " confirmed"}[o.SetValidator.Confirmed]
		return fmt.Sprintf("validator %s power %d%s", short(o.SetValidator.PublicKey), o.SetValidator.Power, confirmed)
	case *Operation_SetAdmin:
		return fmt.Sprintf("admin %s remove %v", short(o.SetAdmin.Account), o.SetAdmin.Remove)
	case *Operation_ScheduleUpgrade:
		u := o.ScheduleUpgrade
		return fmt.Sprintf("upgrade to version %d after block %d, info %s", u.Version, u.Height, short([]byte(u.Info)))
	}
	return "none"
}

// short returns printable text unchanged, other bytes in hex, and long ones as their length.
func short(b []byte) string {
	printable := len(b) > 0
	for _, c := range b {
		printable = printable && c > ' ' && c < 0x7f
	}
	switch {
	case len(b) > 32:
		return fmt.Sprintf("(%d bytes)", len(b))
	case printable:
		return string(b)
	case len(b) == 0:
		return "(empty)"
	default:
		return fmt.Sprintf("%x", b)
	}
}

package cli

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

const (
	absentHelp = `The value goes to standard output. If the key is absent, a message goes to standard
error and the exit status is 4.`

	verifyHelp = `With --verify, the response is verified against a block header that validators signed. The
chain of trust starts at the home's genesis.json while that is less than seven days old, or
at a header from a trusted source: --trust-height and --trust-hash. If --node names several nodes, all but the first are
witnesses. With only one node, a fork signed by more than a third of the validators would
not be detected.`
)

// absent returns the error of an absent key. It has its own exit status, so that a script can test
// whether a key exists.
func absent(env *cliEnv, key []byte, height int64) error {
	return absentError{fmt.Errorf("key %s is absent at height %d", formatBytes(env, key), height)}
}

func addReadFlags(flags *pflag.FlagSet) {
	addCallFlags(flags)
	addBytesFlags(flags)
	flags.Int64("height", 0, "read the state after this block (default: the last block)")
	flags.Bool("prove", false, "request the proof and show it (--output json: all of it)")
	addVerifyFlags(flags)
}

func addVerifyFlags(flags *pflag.FlagSet) {
	flags.Bool("verify", false, "verify the proof against a signed block header")
	flags.Int64("trust-height", 0, "with --verify: height of a trusted header")
	flags.String("trust-hash", "", "with --verify: hash of that header, in hex")
	flags.Duration("trust-period", client.DefaultTrustPeriod, "with --verify: maximum age of a trusted header")
}

// reader connects for a read. With --verify, the client verifies it.
func reader(ctx context.Context, env *cliEnv) (*client.Client, []client.ReadOption, error) {
	var options []client.ReadOption
	if h := env.V.GetInt64("height"); h != 0 {
		options = append(options, client.AtHeight(h))
	}
	if env.V.GetBool("prove") {
		options = append(options, client.Prove())
	}
	if !env.V.GetBool("verify") {
		c, err := dial(ctx, env)
		return c, options, err
	}
	trust, err := trustOf(env)
	if err != nil {
		return nil, nil, err
	}
	c, err := dial(ctx, env, client.WithVerification(trust))
	return c, options, err
}

func trustOf(env *cliEnv) (client.Trust, error) {
	trust := client.Trust{Height: env.V.GetInt64("trust-height"), Period: env.V.GetDuration("trust-period")}
	text := env.V.GetString("trust-hash")
	if (trust.Height == 0) != (text == "") {
		return trust, usagef("use --trust-height and --trust-hash together")
	}
	if text != "" {
		var err error
		if trust.Hash, err = hex.DecodeString(text); err != nil || len(trust.Hash) != 32 {
			return trust, usagef("--trust-hash %q is not 32 bytes in hex", text)
		}
		return trust, nil
	}
	var err error
	if trust.Genesis, err = homeGenesis(env); err != nil {
		return trust, err
	}
	if trust.Genesis == nil {
		return trust, usagef("nothing to verify against: %q has no config/genesis.json; use --home, or --trust-height and --trust-hash", env.Home)
	}
	return trust, nil
}

type stateJSON struct {
	Height   int64      `json:"height"`
	Verified bool       `json:"verified"`
	AppHash  string     `json:"app_hash,omitempty"`
	Time     *time.Time `json:"time,omitempty"` // of the header that proves the state
}

func toStateJSON(s client.State) stateJSON {
	out := stateJSON{Height: s.Height, Verified: s.Verified}
	if s.Verified {
		out.AppHash, out.Time = s.AppHash.String(), &s.Time
	}
	return out
}

// noteState reports on standard error whether a response is proved.
func noteState(env *cliEnv, s client.State, proofBytes int) {
	if s.Verified {
		fmt.Fprintf(env.Err, "verified: height %d, app hash %v, proved by the header of %s\n", s.Height, s.AppHash, s.Time.UTC().Format(time.RFC3339))
	} else if proofBytes > 0 {
		fmt.Fprintf(env.Err, "height %d, proof of %d bytes, not verified (--verify)\n", s.Height, proofBytes)
	}
}

type entryJSON struct {
	Key      *string `json:"key,omitempty"` // only if it is printable text
	KeyHex   string  `json:"key_hex"`
	Value    *string `json:"value,omitempty"`
	ValueHex string  `json:"value_hex,omitempty"`

	ValueBytes int    `json:"value_bytes,omitempty"` // without the value
	ValueHash  string `json:"value_sha256,omitempty"`
}

// Byte strings are in base64 (docs/spec/proofs.md).
type proofJSON struct {
	State []byte `json:"state,omitempty"`
	Map   []byte `json:"map"`
}

type rangeProofJSON struct {
	Tree []byte `json:"tree,omitempty"`
	Map  []byte `json:"map"`
}

func toEntryJSON(key, value []byte) entryJSON {
	e := entryJSON{Key: jsonText(key), KeyHex: hex.EncodeToString(key), ValueHex: hex.EncodeToString(value)}
	if len(value) > 0 {
		e.Value = jsonText(value)
	}
	return e
}

func newGetCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get KEY", SuggestFor: []string{"query"},
		Short: "Read a key, with a proof on request",
		Long:  "Read a key.\n\n" + absentHelp + "\n\n" + verifyHelp,
		Example: `  starlingd get fruit/apple
  starlingd get fruit/apple --prove --verify
  starlingd get 0x0070 --height 12 --output json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseBytes(env, "KEY", args[0])
			if err != nil {
				return err
			}
			ctx, cancel := callContext(cmd, env)
			defer cancel()
			c, options, err := reader(ctx, env)
			if err != nil {
				return explain(err)
			}
			v, err := c.Get(ctx, key, options...)
			if err != nil {
				return explain(err)
			}
			return printValue(env, v)
		},
	}
	addReadFlags(cmd.Flags())
	cmd.Flags().Bool("raw", false, "write the value's bytes and nothing else")
	return cmd
}

func printValue(env *cliEnv, v *client.Value) (err error) {
	switch {
	case env.JSON():
		err = writeJSON(env.Out, struct {
			stateJSON
			entryJSON
			Found bool       `json:"found"`
			Proof *proofJSON `json:"proof,omitempty"`
		}{toStateJSON(v.State), toEntryJSON(v.Key, v.Value), v.Found, (*proofJSON)(v.Proof)})
	case v.Found && env.V.GetBool("raw"):
		_, err = env.Out.Write(v.Value)
	case v.Found:
		_, err = fmt.Fprintln(env.Out, formatBytes(env, v.Value))
	}
	if err != nil {
		return err
	}
	if !env.JSON() {
		proofBytes := 0
		if v.Proof != nil {
			proofBytes = len(v.Proof.State) + len(v.Proof.Map)
		}
		noteState(env, v.State, proofBytes)
	}
	if !v.Found {
		return absent(env, v.Key, v.Height)
	}
	return nil
}

func newRangeCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "range [START] [END]",
		Short: "List keys in order, from START up to but excluding END",
		Long: `List keys and values in key order, from START up to but excluding END. Without START, END
and --prefix, all keys are listed except system keys, which start with byte 0x00.

One page of at most --limit entries is read. If there are more, the next key is printed
on standard error; pass it as --cursor. --reverse begins at the end, --keys-only omits the
values, and --count prints the total number of keys on all pages.

` + verifyHelp + ` A verified page is complete: no key was omitted.`,
		Example: `  starlingd range --prefix fruit/
  starlingd range a b --limit 10
  starlingd range --prefix fruit/ --cursor fruit/pear --prove --verify
  starlingd range --prefix log/ --reverse --limit 1
  starlingd range --prefix fruit/ --count --verify`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			start, end, err := rangeArgs(env, args)
			if err != nil {
				return err
			}
			ctx, cancel := callContext(cmd, env)
			defer cancel()
			c, options, err := reader(ctx, env)
			if err != nil {
				return explain(err)
			}
			limit := env.V.GetInt("limit")
			if limit < 1 {
				return usagef("--limit is %d, it must be 1 or more", limit)
			}
			if env.V.GetBool("count") {
				count, state, err := c.Count(ctx, start, end, options...)
				if err != nil {
					return explain(err)
				}
				return printCount(env, count, state)
			}
			if env.V.GetBool("keys-only") {
				options = append(options, client.KeysOnly())
			}
			if env.V.GetBool("reverse") {
				options = append(options, client.Reverse())
			}
			page, err := c.Range(ctx, start, end, append(options, client.Limit(limit))...)
			if err != nil {
				return explain(err)
			}
			return printPage(env, page)
		},
	}
	addReadFlags(cmd.Flags())
	cmd.Flags().Int("limit", client.DefaultRangeLimit, "maximum number of entries")
	cmd.Flags().String("prefix", "", "list only keys with this prefix")
	cmd.Flags().Bool("keys-only", false, "omit the values (--output json: print their lengths and SHA-256)")
	cmd.Flags().Bool("reverse", false, "begin at the end; keys from --cursor on are not listed")
	cmd.Flags().Bool("count", false, "print only the number of keys, regardless of --limit")
	cmd.Flags().String("cursor", "", "continue from this key (use the --height of the previous page for a consistent view)")
	return cmd
}

func rangeArgs(env *cliEnv, args []string) (start, end []byte, err error) {
	if len(args) > 0 {
		if start, err = parseBytes(env, "START", args[0]); err != nil {
			return nil, nil, err
		}
	}
	if len(args) > 1 {
		if end, err = parseBytes(env, "END", args[1]); err != nil {
			return nil, nil, err
		}
		if len(end) > 0 && bytes.Compare(start, end) >= 0 {
			return nil, nil, usagef("START %q is not below END %q: keys are ordered byte by byte", args[0], args[1])
		}
	}
	if p := env.V.GetString("prefix"); p != "" {
		if len(args) > 0 {
			return nil, nil, usagef("use either START and END or --prefix")
		}
		if start, err = parseBytes(env, "--prefix", p); err != nil {
			return nil, nil, err
		}
		end = client.PrefixEnd(start)
	}
	if len(args) == 0 && start == nil {
		start = []byte{tx.Reserved + 1}
	}
	if cursor := env.V.GetString("cursor"); cursor != "" {
		from := &start
		if env.V.GetBool("reverse") {
			from = &end
		}
		if *from, err = parseBytes(env, "--cursor", cursor); err != nil {
			return nil, nil, err
		}
		if len(end) > 0 && bytes.Compare(start, end) >= 0 {
			return nil, nil, usagef("no keys follow --cursor %q", cursor)
		}
	}
	return start, end, nil
}

// printCount prints the number of keys of a range, and reports on standard error whether it is
// proved.
func printCount(env *cliEnv, count int, state client.State) error {
	if env.JSON() {
		return writeJSON(env.Out, struct {
			stateJSON
			Count int `json:"count"`
		}{toStateJSON(state), count})
	}
	_, err := fmt.Fprintln(env.Out, count)
	if noteState(env, state, 0); !state.Verified {
		fmt.Fprintf(env.Err, "height %d, not verified (--verify)\n", state.Height)
	}
	return err
}

func printPage(env *cliEnv, page *client.Page) error {
	if env.JSON() {
		entries := make([]entryJSON, 0, len(page.Entries))
		for i, e := range page.Entries {
			entry := toEntryJSON(e.Key, e.Value)
			if len(page.Keys) > 0 {
				entry.ValueBytes, entry.ValueHash = page.Keys[i].ValueBytes, hex.EncodeToString(page.Keys[i].ValueHash[:])
			}
			entries = append(entries, entry)
		}
		out := struct {
			stateJSON
			Entries []entryJSON     `json:"entries"`
			Next    *string         `json:"next,omitempty"`
			NextHex string          `json:"next_hex,omitempty"`
			Proof   *rangeProofJSON `json:"proof,omitempty"`
		}{stateJSON: toStateJSON(page.State), Entries: entries, NextHex: hex.EncodeToString(page.Next), Proof: (*rangeProofJSON)(page.Proof)}
		if page.Next != nil {
			out.Next = jsonText(page.Next)
		}
		return writeJSON(env.Out, out)
	}
	for _, e := range page.Entries {
		line := formatBytes(env, e.Key)
		if len(page.Keys) == 0 {
			line += "\t" + formatBytes(env, e.Value)
		}
		if _, err := fmt.Fprintln(env.Out, line); err != nil {
			return err
		}
	}
	proofBytes := 0
	if page.Proof != nil {
		proofBytes = len(page.Proof.Tree) + len(page.Proof.Map)
	}
	noteState(env, page.State, proofBytes)
	if page.Next != nil {
		fmt.Fprintf(env.Err, "there is more: --cursor %s --height %d\n", formatBytes(env, page.Next), page.Height)
	}
	return nil
}

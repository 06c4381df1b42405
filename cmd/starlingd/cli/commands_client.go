package cli

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cometbft/cometbft/crypto/ed25519"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/tx"
)

// group runs a command that only has subcommands.
func group(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unknown command %q: see `%s --help`", args[0], cmd.CommandPath())
	}
	return cmd.Help()
}

// callTimeout limits a command that sends one request, unless --timeout is given.
const callTimeout = time.Minute

func addCallFlags(flags *pflag.FlagSet) {
	flags.String("chain-id", "", "chain id (default: that of the home's genesis.json, otherwise the node's)")
	flags.Duration("timeout", callTimeout, "maximum time for the command")
}

func addSignFlags(flags *pflag.FlagSet) {
	addCallFlags(flags)
	flags.String("from", "", "name of the key to sign with (starlingd keys list)")
	addPassphraseFlag(flags, "key")
}

func addBytesFlags(flags *pflag.FlagSet) {
	flags.Bool("hex", false, "keys and values are hex, in input and output")
	flags.Bool("base64", false, "keys and values are base64, in input and output")
	flags.Bool("text", false, "keys and values are text, even if they start with 0x")
}

// callContext returns a context that ends on Ctrl-C, on SIGTERM, and after --timeout.
func callContext(cmd *cobra.Command, env *cliEnv) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, env.V.GetDuration("timeout"))
	return ctx, func() { cancel(); stop() }
}

func keyring(env *cliEnv) *client.Keyring {
	return client.NewKeyring(filepath.Join(env.Home, "keys")).WithWork(scryptWork).WithPassphrase(func(name string) (string, error) { return passphraseOf(env, name) })
}

// homeGenesis returns the genesis document of the home folder, or nil if there is none.
func homeGenesis(env *cliEnv) (*cmttypes.GenesisDoc, error) {
	genesis, err := config.LoadGenesis(filepath.Join(env.Home, "config", "genesis.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return genesis, err
}

// dial connects to --node. The chain id is that of --chain-id or of the home's genesis.
func dial(ctx context.Context, env *cliEnv, options ...client.Option) (*client.Client, error) {
	id := env.V.GetString("chain-id")
	if id == "" {
		genesis, err := homeGenesis(env)
		if err != nil {
			return nil, err
		}
		if genesis != nil {
			id = genesis.ChainID
		}
	}
	if id != "" {
		options = append(options, client.WithChainID(id))
	}
	return client.Dial(ctx, env.NodeAddrs(), options...)
}

// signer loads the key of --from.
func signer(env *cliEnv) (ed25519.PrivKey, error) {
	name := env.V.GetString("from")
	if name == "" {
		return nil, usagef("no signer: use --from NAME (`starlingd keys list` shows the names)")
	}
	return keyring(env).Get(name)
}

// submit signs operations with --from, waits for the block and prints the result.
func submit(cmd *cobra.Command, env *cliEnv, operations ...tx.Operation) error {
	result, err := execute(cmd, env, operations...)
	if err != nil {
		return err
	}
	return printResult(env, result)
}

// execute signs operations with --from and waits for the block.
func execute(cmd *cobra.Command, env *cliEnv, operations ...tx.Operation) (*client.TxResult, error) {
	key, err := signer(env)
	if err != nil {
		return nil, err
	}
	ctx, cancel := callContext(cmd, env)
	defer cancel()
	c, err := dial(ctx, env, client.WithKey(key))
	if err != nil {
		return nil, explain(err)
	}
	result, err := c.Submit(ctx, operations...)
	if err != nil {
		return nil, explain(err)
	}
	return result, nil
}

// explain adds a remedy to an error, and distinguishes refusals from failures.
func explain(err error) error {
	var (
		refused *client.TxError
		query   *client.QueryError
		local   *tx.Error
	)
	switch {
	case errors.Is(err, client.ErrUnreachable):
		return fmt.Errorf("%w (use --node for another address)", err)
	case errors.Is(err, client.ErrWrongChain):
		return fmt.Errorf("%w (use --chain-id for another chain, --home for another home folder)", err)
	case errors.Is(err, client.ErrUnproved), errors.Is(err, client.ErrUntrusted), errors.Is(err, client.ErrConflict):
		return refusedError{err}
	}
	if errors.As(err, &refused) || errors.As(err, &query) || errors.As(err, &local) {
		// The reasons of other refusals have a remedy.
		for _, code := range []tx.Code{tx.CodeNotAdmin, tx.CodeThreshold, tx.CodeUnauthorized} {
			if errors.Is(err, &tx.Error{Code: code}) {
				err = fmt.Errorf("%w (%s)", err, remedyOf(code))
			}
		}
		return refusedError{err}
	}
	return err
}

// parseBytes reads a key or value from the command line in the form of --hex, --base64 or --text;
// by default as 0x-hex or text.
func parseBytes(env *cliEnv, what, s string) ([]byte, error) {
	var (
		b   []byte
		err error
	)
	hexDigits, prefixed := strings.CutPrefix(s, "0x")
	switch {
	case env.V.GetBool("text"):
		return []byte(s), nil
	case env.V.GetBool("base64"):
		b, err = base64.StdEncoding.DecodeString(s)
	case env.V.GetBool("hex") || prefixed:
		b, err = hex.DecodeString(hexDigits)
	default:
		return []byte(s), nil
	}
	if err != nil {
		return nil, usagef("%s %q: %w (--text takes it literally)", what, s, err)
	}
	return b, nil
}

// formatBytes is the inverse of parseBytes: parseBytes reads its output, given the same flags.
func formatBytes(env *cliEnv, b []byte) string {
	switch {
	case env.V.GetBool("base64"):
		return base64.StdEncoding.EncodeToString(b)
	case env.V.GetBool("hex"):
		return hex.EncodeToString(b)
	case env.V.GetBool("text") || printable(b) && !strings.HasPrefix(string(b), "0x"):
		return string(b)
	default:
		return "0x" + hex.EncodeToString(b)
	}
}

func printable(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for _, r := range string(b) {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// jsonText returns the readable form of a key or value in JSON, or nil if it has none. The hex form
// is always printed as well.
func jsonText(b []byte) *string {
	if !printable(b) {
		return nil
	}
	s := string(b)
	return &s
}

// parseAccount reads a public key: a name in the keyring, hex or base64.
func parseAccount(env *cliEnv, what, s string) ([]byte, error) {
	if b, err := hex.DecodeString(strings.TrimPrefix(s, "0x")); err == nil && len(b) == tx.AccountBytes {
		return b, nil
	}
	if b, err := base64.StdEncoding.DecodeString(s); err == nil && len(b) == tx.AccountBytes {
		return b, nil
	}
	info, err := keyring(env).Show(s)
	if err != nil {
		return nil, fmt.Errorf("%s %q is neither an ed25519 public key (32 bytes in hex or base64) nor the name of a key: %w", what, s, err)
	}
	return info.PublicKey, nil
}

type resultJSON struct {
	Height  int64                 `json:"height"`
	Hash    string                `json:"hash"`
	Results []operationResultJSON `json:"results,omitempty"`
}

type operationResultJSON struct {
	Found    bool    `json:"found"`
	Value    *string `json:"value,omitempty"`
	ValueHex string  `json:"value_hex,omitempty"`

	Entries []entryJSON           `json:"entries,omitempty"`
	More    bool                  `json:"more,omitempty"`
	Deleted *uint32               `json:"deleted,omitempty"`
	Results []operationResultJSON `json:"results,omitempty"`
}

func toResultJSON(r *tx.OperationResult) operationResultJSON {
	out := operationResultJSON{Found: r.Found, ValueHex: hex.EncodeToString(r.Value), More: r.More}
	if len(r.Value) > 0 {
		out.Value = jsonText(r.Value)
	}
	if r.Deleted > 0 {
		out.Deleted = &r.Deleted
	}
	for _, e := range r.Entries {
		out.Entries = append(out.Entries, toEntryJSON(e.Key, e.Value))
	}
	for i := range r.Results {
		out.Results = append(out.Results, toResultJSON(&r.Results[i]))
	}
	return out
}

func printResult(env *cliEnv, result *client.TxResult) error {
	if !env.JSON() {
		_, err := fmt.Fprintf(env.Out, "block %d, transaction %X\n", result.Height, result.Hash)
		return err
	}
	out := resultJSON{Height: result.Height, Hash: fmt.Sprintf("%X", result.Hash)}
	for i := range result.Results {
		out.Results = append(out.Results, toResultJSON(&result.Results[i]))
	}
	return writeJSON(env.Out, out)
}

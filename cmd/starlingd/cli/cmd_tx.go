package cli

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/tx"
)

const txHelp = `Send a transaction, and wait until it is in a block.

Keys and values are text, or hex after 0x; --hex, --base64 and --text set the form of all
of them. If a command ends before it knows whether its transaction was executed, it prints
the hash: query it with "starlingd tx wait HASH".`

func newTxCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tx",
		RunE:  group,
		Short: "Write keys, or read a key in a transaction",
		Long:  txHelp,
		Example: `  starlingd tx put fruit/apple green --from alice
  starlingd tx cas fruit/apple green red --from alice
  starlingd tx send-file operations.jsonl --from alice`,
	}
	cmd.AddCommand(newPutCmd(env), newDelCmd(env), newCasCmd(env), newAddCmd(env), newReadCmd(env), newTextCmd(env), newWaitCmd(env), newSendFileCmd(env))
	return cmd
}

func newPutCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "put KEY [VALUE]",
		Short: "Write a value at a key",
		Example: `  starlingd tx put fruit/apple green --from alice
  starlingd tx put photo --file photo.jpg --from alice`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseBytes(env, "KEY", args[0])
			if err != nil {
				return err
			}
			value, err := valueArg(cmd, env, args[1:])
			if err != nil {
				return err
			}
			return submit(cmd, env, tx.NewPut(key, value))
		},
	}
	addSignFlags(cmd.Flags())
	addBytesFlags(cmd.Flags())
	cmd.Flags().String("file", "", "file that holds the value; - is standard input")
	return cmd
}

// valueArg returns the last argument, or the content of --file.
func valueArg(cmd *cobra.Command, env *cliEnv, args []string) ([]byte, error) {
	path := env.V.GetString("file")
	switch {
	case (path == "") == (len(args) == 0):
		return nil, usagef("pass the value as an argument or with --file, not both")
	case path == "":
		return parseBytes(env, "VALUE", args[0])
	}
	return readInput(cmd, path, tx.MaxValueBytes)
}

func newDelCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "del KEY",
		Short:   "Remove a key, if it exists",
		Example: "  starlingd tx del fruit/apple --from alice",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseBytes(env, "KEY", args[0])
			if err != nil {
				return err
			}
			return submit(cmd, env, tx.NewDelete(key))
		},
	}
	addSignFlags(cmd.Flags())
	addBytesFlags(cmd.Flags())
	return cmd
}

func newCasCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cas KEY EXPECTED [VALUE]",
		Short: "Write a value at a key if the key has the expected value (empty: if it is absent)",
		Example: `  starlingd tx cas lock "" alice --from alice
  starlingd tx cas lock alice bob --from alice`,
		Args: cobra.RangeArgs(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseBytes(env, "KEY", args[0])
			if err != nil {
				return err
			}
			expected, err := parseBytes(env, "EXPECTED", args[1])
			if err != nil {
				return err
			}
			value, err := valueArg(cmd, env, args[2:])
			if err != nil {
				return err
			}
			return submit(cmd, env, tx.NewCompareAndPut(key, expected, value))
		},
	}
	addSignFlags(cmd.Flags())
	addBytesFlags(cmd.Flags())
	cmd.Flags().String("file", "", "file that holds the value; - is standard input")
	return cmd
}

func newAddCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add KEY DELTA",
		Short: "Add to the number at a key (from app version 2), and print the new number",
		Long: `Add to the decimal number at a key; an absent key counts as 0. Transactions that add to one
key need no retries. With --min or --max, the transaction fails if the new number is
outside of them. Write -- before a negative DELTA.`,
		Example: `  starlingd tx add visits 1 --from alice
  starlingd tx add seats --min 0 --from alice -- -1`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseBytes(env, "KEY", args[0])
			if err != nil {
				return err
			}
			delta, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil {
				return usagef("DELTA %q is not a number from %d to %d", args[1], math.MinInt64, math.MaxInt64)
			}
			operation := tx.NewAdd(key, delta)
			if cmd.Flags().Changed("min") || cmd.Flags().Changed("max") {
				operation = tx.NewBoundedAdd(key, delta, env.V.GetInt64("min"), env.V.GetInt64("max"))
			}
			result, err := execute(cmd, env, operation)
			if err != nil {
				return err
			}
			if !env.JSON() && len(result.Results) == 1 {
				if _, err := fmt.Fprintln(env.Out, formatBytes(env, result.Results[0].Value)); err != nil {
					return err
				}
			}
			return printResult(env, result)
		},
	}
	addSignFlags(cmd.Flags())
	addBytesFlags(cmd.Flags())
	cmd.Flags().Int64("min", math.MinInt64, "least new number")
	cmd.Flags().Int64("max", math.MaxInt64, "greatest new number")
	return cmd
}

func newReadCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "read KEY",
		Short: "Read a key in a transaction: a linearizable read, which takes one block (use starlingd get for a local read)",
		Long:  "Read a key in a transaction, ordered with all writes.\n\n" + absentHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseBytes(env, "KEY", args[0])
			if err != nil {
				return err
			}
			result, err := execute(cmd, env, tx.NewRead(key))
			if err != nil {
				return err
			}
			if env.JSON() {
				err = printResult(env, result)
			} else if len(result.Results) == 1 && result.Results[0].Found {
				_, err = fmt.Fprintln(env.Out, formatBytes(env, result.Results[0].Value))
			}
			if err == nil && (len(result.Results) != 1 || !result.Results[0].Found) {
				err = absent(env, key, result.Height)
			}
			return err
		},
	}
	addSignFlags(cmd.Flags())
	addBytesFlags(cmd.Flags())
	return cmd
}

func newTextCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "text KEY=VALUE",
		Short:   "Write a key in an unsigned text transaction, if the genesis file allows it (open)",
		Example: "  starlingd tx text apple=green",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, value, ok := strings.Cut(args[0], "=")
			if !ok {
				return usagef("%q is not KEY=VALUE", args[0])
			}
			ctx, cancel := callContext(cmd, env)
			defer cancel()
			c, err := dial(ctx, env)
			if err != nil {
				return explain(err)
			}
			result, err := c.PutText(ctx, []byte(key), []byte(value))
			if err != nil {
				return explain(err)
			}
			return printResult(env, result)
		},
	}
	addCallFlags(cmd.Flags())
	return cmd
}

func newWaitCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait HASH",
		Short: "Wait until a transaction is in a block, and show its result",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hash, err := hex.DecodeString(strings.TrimPrefix(args[0], "0x"))
			if err != nil || len(hash) != 32 {
				return usagef("HASH %q is not the hash of a transaction: 32 bytes in hex", args[0])
			}
			ctx, cancel := callContext(cmd, env)
			defer cancel()
			c, err := dial(ctx, env)
			if err != nil {
				return explain(err)
			}
			result, err := c.WaitTx(ctx, hash)
			if err != nil {
				return explain(err)
			}
			return printResult(env, result)
		},
	}
	addCallFlags(cmd.Flags())
	return cmd
}

//go:build !noevm

package cli

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/app/evm"
	"github.com/starling-kv/starling/app/evm/abi"
	programs "github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

const evmHelp = `Deploy and call programs: bytecode of the Ethereum Virtual Machine (rules of Osaka), without
a coin. The chain must have app version 2 (starlingd upgrade show).

METHOD is written as in Solidity, with the types of outputs after those of inputs, as in
"balanceOf(address)(uint256)". Arrays are JSON lists, bytes and addresses are hex.

An account may deploy programs under a grant on 0x0078, and may call the program at an
address under a grant on 0x0078 followed by the address.`

// programFileBytes limits a file with code: a build artifact contains source maps and more.
const programFileBytes = 16 << 20

func newEVMCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "evm",
		RunE:  group,
		Short: "Deploy and call programs (EVM contracts)",
		Long:  evmHelp,
		Example: `  starlingd evm deploy Token.json 1000 --constructor "constructor(uint256)" --from alice
  starlingd evm call 0x5aeda56215b167893e80b4fe645ba6d5bab767de "transfer(address,uint256)" 0x00000000000000000000000000000000000000aa 5 --from alice
  starlingd evm simulate 0x5aeda56215b167893e80b4fe645ba6d5bab767de "balanceOf(address)(uint256)" 0x00000000000000000000000000000000000000aa --from alice`,
	}
	cmd.AddCommand(newEVMDeployCmd(env), newEVMCallCmd(env), newEVMSimulateCmd(env), newEVMAddressCmd(env))
	return cmd
}

func addProgramFlags(flags *pflag.FlagSet) {
	flags.Uint64("gas", 0, "most gas that it may use; 0: what a simulation uses, and a quarter more")
	flags.Uint32("keys", 0, "most records that it may read or write; 0: those of a simulation")
}

func newEVMDeployCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deploy FILE [ARGUMENT...]",
		Short: "Deploy a program, and print its address",
		Long: `Deploy a program. FILE contains its init code in hex, or is a JSON artifact of Foundry, Hardhat
or solc with the field bytecode; - is standard input.`,
		Example: `  starlingd evm deploy Token.json 1000 --constructor "constructor(uint256)" --from alice`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := readInput(cmd, args[0], programFileBytes)
			if err != nil {
				return err
			}
			code, err := initCode(raw)
			if err != nil {
				return usagef("%s: %w", args[0], err)
			}
			constructor := env.V.GetString("constructor")
			if !strings.HasPrefix(constructor, "constructor(") {
				return usagef("--constructor %q must be like constructor(string,uint8)", constructor)
			}
			input, err := encodeCall(constructor, args[1:])
			if err != nil {
				return err
			}
			result, err := runProgram(cmd, env, tx.NewDeploy(code, input, env.V.GetUint64("gas"), env.V.GetUint32("keys")))
			if err != nil {
				return err
			}
			if env.JSON() {
				return printResult(env, result)
			}
			_, err = fmt.Fprintf(env.Out, "address 0x%x\nblock %d, transaction %X\n", result.Results[0].Value, result.Height, result.Hash)
			return err
		},
	}
	addSignFlags(cmd.Flags())
	addProgramFlags(cmd.Flags())
	cmd.Flags().String("constructor", "constructor()", "types of the constructor's arguments")
	return cmd
}

func newEVMCallCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "call ADDRESS METHOD [ARGUMENT...]",
		Short:   "Call a program in a transaction, and print its output",
		Long:    "Call a program in a transaction. METHOD is as in starlingd evm --help, or the whole input in hex.",
		Example: `  starlingd evm call 0x5aeda56215b167893e80b4fe645ba6d5bab767de "transfer(address,uint256)" 0x00000000000000000000000000000000000000aa 5 --from alice`,
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			operation, err := callOperation(env, args)
			if err != nil {
				return err
			}
			result, err := runProgram(cmd, env, operation)
			if err != nil {
				return err
			}
			if env.JSON() {
				return printResult(env, result)
			}
			if err := printOutput(env, args[1], result.Results[0].Value); err != nil {
				return fmt.Errorf("block %d, transaction %X: the call is done, but %w", result.Height, result.Hash, err)
			}
			_, err = fmt.Fprintf(env.Out, "block %d, transaction %X\n", result.Height, result.Hash)
			return err
		},
	}
	addSignFlags(cmd.Flags())
	addProgramFlags(cmd.Flags())
	return cmd
}

func newEVMSimulateCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate ADDRESS METHOD [ARGUMENT...]",
		Short: "Call a program at the node, without a transaction, and print its output",
		Long: `Call a program on the node's newest state, as a transaction of --from would, and drop the
effects. The answer is the node's word. No passphrase is needed.`,
		Example: `  starlingd evm simulate 0x5aeda56215b167893e80b4fe645ba6d5bab767de "balanceOf(address)(uint256)" 0x00000000000000000000000000000000000000aa --from alice`,
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			operation, err := callOperation(env, args)
			if err != nil {
				return err
			}
			account, err := parseAccount(env, "--from", env.V.GetString("from"))
			if err != nil {
				return err
			}
			ctx, cancel := callContext(cmd, env)
			defer cancel()
			_, s, err := fit(ctx, env, account, operation)
			if err != nil {
				return err
			}
			output := s.Results[0].Value
			if env.JSON() {
				run := s.Programs[0]
				return writeJSON(env.Out, simulationJSON{Height: s.Height, Output: "0x" + hex.EncodeToString(output), Gas: run.Gas, Keys: len(run.Keys)})
			}
			return printOutput(env, args[1], output)
		},
	}
	addCallFlags(cmd.Flags())
	addProgramFlags(cmd.Flags())
	cmd.Flags().String("from", "", "name of the key, or the account, whose call is simulated")
	return cmd
}

// simulationJSON is the output of starlingd evm simulate.
type simulationJSON struct {
	Height int64  `json:"height"`
	Output string `json:"output"`
	Gas    uint64 `json:"gas"`
	Keys   int    `json:"keys"`
}

func newEVMAddressCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:     "address ACCOUNT",
		Short:   "Show the address by which programs see an account",
		Example: "  starlingd evm address alice",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			account, err := parseAccount(env, "ACCOUNT", args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(env.Out, "0x%x\n", evm.New().Address(account))
			return err
		},
	}
}

// initCode returns the code in a file: hex, or the field bytecode of a build artifact.
func initCode(raw []byte) ([]byte, error) {
	text := bytes.TrimSpace(raw)
	if bytes.HasPrefix(text, []byte("{")) {
		var artifact struct {
			Bytecode json.RawMessage `json:"bytecode"`
		}
		var object struct {
			Object string `json:"object"`
		}
		if err := json.Unmarshal(text, &artifact); err != nil {
			return nil, fmt.Errorf("it is not JSON: %w", err)
		}
		if json.Unmarshal(artifact.Bytecode, &object.Object) != nil && json.Unmarshal(artifact.Bytecode, &object) != nil || object.Object == "" {
			return nil, errors.New("the JSON has no field bytecode with hex, or with an object that has it")
		}
		text = []byte(object.Object)
	}
	code, err := hex.DecodeString(string(bytes.TrimPrefix(text, []byte("0x"))))
	if err != nil || len(code) == 0 {
		return nil, errors.New("it is neither init code in hex nor an artifact; code with names of libraries in it must be linked first")
	}
	return code, nil
}

// encodeCall encodes the arguments of a method.
func encodeCall(method string, arguments []string) ([]byte, error) {
	m, err := abi.Parse(method)
	if err != nil {
		return nil, usageError{err}
	}
	input, err := m.Encode(arguments)
	if err != nil {
		return nil, usageError{err}
	}
	return input, nil
}

// callOperation returns the call of ADDRESS METHOD [ARGUMENT...].
func callOperation(env *cliEnv, args []string) (tx.Operation, error) {
	fail := func(err error) (tx.Operation, error) { return tx.Operation{}, err }
	to, err := parseBytes(env, "ADDRESS", args[0])
	if err != nil {
		return fail(err)
	}
	if len(to) != tx.AddressBytes {
		return fail(usagef("ADDRESS %q is not %d bytes in hex after 0x", args[0], tx.AddressBytes))
	}
	input, isHex := rawInput(args[1])
	switch {
	case isHex && len(args) > 2:
		return fail(usagef("an input in hex takes no arguments"))
	case !isHex:
		if input, err = encodeCall(args[1], args[2:]); err != nil {
			return fail(err)
		}
	}
	return tx.NewCall(to, input, env.V.GetUint64("gas"), env.V.GetUint32("keys"), 0), nil
}

func rawInput(text string) ([]byte, bool) {
	digits, prefixed := bytes.CutPrefix([]byte(text), []byte("0x"))
	input, err := hex.DecodeString(string(digits))
	return input, prefixed && err == nil
}

// fit simulates an operation, and returns it with limits that fit.
func fit(ctx context.Context, env *cliEnv, account []byte, operation tx.Operation) (tx.Operation, *client.Simulation, error) {
	c, err := dial(ctx, env)
	if err != nil {
		return tx.Operation{}, nil, explain(err)
	}
	fitted, s, err := c.Fit(ctx, account, operation)
	return fitted, s, explain(err)
}

// runProgram executes a Deploy or a Call in a transaction. It simulates it first, so that a call
// that would be refused is not sent.
func runProgram(cmd *cobra.Command, env *cliEnv, operation tx.Operation) (*client.TxResult, error) {
	if _, err := signer(env); err != nil {
		return nil, err
	}
	account, err := parseAccount(env, "--from", env.V.GetString("from"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := callContext(cmd, env)
	defer cancel()
	fitted, s, err := fit(ctx, env, account, operation)
	if err != nil {
		return nil, err
	}
	if operation.GetDeploy() != nil && !slices.ContainsFunc(s.Programs[0].Keys, func(key []byte) bool {
		return bytes.Equal(key, programs.CodeKey(s.Results[0].Value))
	}) {
		return nil, refusedError{errors.New("the init code returns no program: deploy the creation bytecode, not the runtime bytecode")}
	}
	return execute(cmd, env, fitted)
}

// printOutput prints the output of a call, one value a line.
func printOutput(env *cliEnv, method string, output []byte) error {
	lines := []string{"0x" + hex.EncodeToString(output)}
	if _, isHex := rawInput(method); !isHex {
		m, err := abi.Parse(method)
		if err != nil {
			return usageError{err}
		}
		if lines, err = m.Decode(output); err != nil {
			return err
		}
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(env.Out, line); err != nil {
			return err
		}
	}
	return nil
}

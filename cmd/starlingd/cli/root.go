package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/storagenode"
)

// Exit statuses, listed in the package comment and in the help text.
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitRefused  = 3
	exitAbsent   = 4
	exitDiskFull = disk.ExitFull
	exitDamaged  = disk.ExitDamaged
	exitTooOld   = 7
	exitHeader   = 8
)

// usageError is an invalid command line: exit status 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usagef makes a usageError.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// refusedError reports a refusal by the chain or by a proof, as opposed to other failures: exit
// status 3.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// absentError reports that the requested key does not exist: exit status 4.
type absentError struct{ error }

func (e absentError) Unwrap() error { return e.error }

// cliEnv is the environment of a command: its home folder, settings and outputs.
type cliEnv struct {
	Home     string       // home folder, once flags are parsed
	V        *viper.Viper // flags and STARLINGD_… variables
	Out, Err io.Writer
}

// JSON reports whether results are written as JSON.
func (env *cliEnv) JSON() bool { return env.V.GetString("output") == "json" }

// NodeAddrs returns the RPC addresses to connect to: --node, otherwise rpc.laddr of the environment
// (a node started with it listens there), otherwise that of the home's config.toml or CometBFT's
// default.
func (env *cliEnv) NodeAddrs() []string {
	if given := splitList(env.V.GetString("node")); len(given) > 0 {
		for i, address := range given {
			if !strings.Contains(address, "://") {
				given[i] = "http://" + address
			}
		}
		return given
	}
	if laddr := env.V.GetString("rpc.laddr"); laddr != "" {
		return []string{config.RPCURL(laddr)}
	}
	return []string{config.RPCAddress(env.Home)}
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

const rootHelp = `Starling is a Byzantine-fault-tolerant key-value store. New nodes download the
state in chunks, and verify each chunk on its own.

Every flag can also be set by an environment variable: --rpc.laddr is
STARLINGD_RPC_LADDR. Flags override variables, and variables override files.

Exit status: 0 success, 1 failure, 2 invalid usage or settings, 3 refused by the chain or by
a proof, 4 key absent, 5 disk full, 6 data on disk damaged, 7 program too old for the chain
or for the data on disk, 8 a header is missing that a block's evidence refers to (the next
start fetches it).`

const rootExample = `  starlingd init my-node --chain-id demo-1 --open
  starlingd start
  starlingd status`

func newRootCmd(env *cliEnv) *cobra.Command {
	root := &cobra.Command{
		Use:           "starlingd",
		Short:         "Starling node",
		Long:          rootHelp,
		Example:       rootExample,
		SilenceUsage:  true,
		SilenceErrors: true,
		// unknown commands reach RunE, which returns our exit status
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			if near := suggestions(cmd, args[0]); len(near) > 0 {
				return usagef("unknown command %q: did you mean %s?", args[0], strings.Join(near, " or "))
			}
			return usagef("unknown command %q", args[0])
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := bindFlags(env.V, cmd.Flags()); err != nil {
				return fmt.Errorf("flags: %w", err)
			}
			if err := fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			env.Home = env.V.GetString("home")
			if env.Home == "" {
				return usagef("no home folder: use --home")
			}
			if out := env.V.GetString("output"); out != "text" && out != "json" {
				return usagef("--output is %q, it must be text or json", out)
			}
			return nil
		},
	}
	root.SuggestionsMinimumDistance = 2
	flags := root.PersistentFlags()
	flags.String("home", defaultHome(), "home folder")
	flags.String("node", "", "RPC addresses, comma-separated (default: rpc.laddr of the home's config.toml, or http://127.0.0.1:26657)")
	flags.String("output", "text", "format of results: text or json")
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	v := buildinfo.Read()
	root.Version = v.Starling
	root.SetVersionTemplate(versionText(v))

	for _, task := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run a node:", []*cobra.Command{
			newInitCmd(env), newJoinCmd(env), newStartCmd(env), newStatusCmd(env), newHealthCmd(env), newStorageCmd(env),
		}},
		{"Set up a network:", []*cobra.Command{newGenesisCmd(env), newShowNodeIDCmd(env), newShowValidatorCmd(env)}},
		{"Read and write:", []*cobra.Command{
			newKeysCmd(env), newTxCmd(env), newTxnCmd(env), newGetCmd(env), newRangeCmd(env), newWatchCmd(env), newEVMCmd(env),
		}},
		{"Administer a network:", []*cobra.Command{
			newAdminCmd(env), newGrantsCmd(env), newGrantCmd(env), newRevokeCmd(env), newValidatorCmd(env), newUpgradeCmd(env),
		}},
		{"Look after the data of a node:", []*cobra.Command{
			newSnapshotsCmd(env), newVerifyCmd(env), newInspectCmd(env), newCompactCmd(env), newRollbackCmd(env),
			newResetCmd(env),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: task.title, Title: task.title})
		for _, cmd := range task.commands {
			if cmd == nil {
				continue // not in this build
			}
			cmd.GroupID = task.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newABCICmd(env), newRDMACmd(env), newVersionCmd(env), newDocsCmd())
	root.AddCommand(alias(newGenesisAddValidatorCmd(env), "genesis"), alias(newGenesisCollectCmd(env), "genesis"))
	root.InitDefaultCompletionCmd() // created now so that its arguments are checked as well
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.RunE = group // otherwise an unknown shell would not be an error
		}
		wrapArgs(cmd)
	}
	return root
}

// alias makes a subcommand of a group a hidden command of the root, by the name that it has in
// gaiad: its alias.
func alias(cmd *cobra.Command, group string) *cobra.Command {
	name, args, _ := strings.Cut(cmd.Use, " ")
	cmd.Long = fmt.Sprintf("This is \"starlingd %s %s\".\n\n%s", group, name, cmd.Long)
	cmd.Use, cmd.Aliases, cmd.Hidden = cmd.Aliases[0]+" "+args, nil, true
	return cmd
}

// suggestions returns the commands that an unknown command may mean, in quotes: subcommands of that
// name or alias (put: tx put), otherwise commands with a similar name.
func suggestions(root *cobra.Command, name string) (near []string) {
	for _, group := range root.Commands() {
		for _, cmd := range group.Commands() {
			if (cmd.Name() == name || cmd.HasAlias(name)) && cmd.IsAvailableCommand() {
				near = append(near, fmt.Sprintf("%q", group.Name()+" "+name))
			}
		}
	}
	if len(near) > 0 {
		return near
	}
	similar := root.SuggestionsFor(name)
	for _, whole := range similar { // incompletely typed commands
		if strings.HasPrefix(whole, name) {
			return []string{fmt.Sprintf("%q", whole)}
		}
	}
	if len(name) > 2 { // two letters are similar to any short name
		for _, other := range similar {
			near = append(near, fmt.Sprintf("%q", other))
		}
	}
	return near
}

// bindFlags binds the flags to v, except `abci --transport`: it is not a setting and would hide the
// section of that name in app.toml.
func bindFlags(v *viper.Viper, flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		if err == nil && f.Name != "transport" {
			err = v.BindPFlag(f.Name, f)
		}
	})
	return err
}

// wrapArgs turns wrong arguments of cmd and its subcommands into usage errors.
func wrapArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{fmt.Errorf("%w: see `%s --help`", err, cmd.CommandPath())}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		wrapArgs(sub)
	}
}

func defaultHome() string {
	dir, err := os.UserHomeDir()
	if err != nil {
		return "" // --home is then required
	}
	return filepath.Join(dir, ".starling")
}

// fromEnvironment sets flags that are not on the command line from their variables, and parses the
// values like the flags. Viper would read an invalid value as zero, and STARLINGD_VERIFY=yes as "do
// not verify".
func fromEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		name := config.EnvironmentName(f.Name)
		value := os.Getenv(name)
		if f.Changed || value == "" || err != nil {
			return
		}
		// Changed stays false: the flag was not on the command line.
		if wrong := f.Value.Set(value); wrong != nil {
			err = usagef("%s is %q, which is not a valid value of --%s: %w", name, value, f.Name, wrong)
		}
	})
	return err
}

func newEnv(out, err io.Writer) *cliEnv {
	v := viper.New()
	config.BindEnvironment(v)
	return &cliEnv{V: v, Out: out, Err: err}
}

// Run executes one command line and returns the exit status.
func Run(args []string, out, errOut io.Writer) int {
	env := newEnv(out, errOut)
	root := newRootCmd(env)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(errOut, "starlingd: %v\n", err)
	if disk.IsFull(err) && env.Home != "" {
		fmt.Fprintf(errOut, "starlingd: %s\n", disk.Advice(filepath.Join(env.Home, "data")))
	}
	return exitStatus(err)
}

func exitStatus(err error) int {
	var (
		usage   usageError
		refused refusedError
		absent  absentError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &refused):
		return exitRefused
	case errors.As(err, &absent):
		return exitAbsent
	case disk.IsFull(err):
		return exitDiskFull
	case errors.Is(err, home.ErrDamaged), errors.Is(err, storagenode.ErrDamaged):
		return exitDamaged
	case errors.Is(err, comet.ErrHeaderMissing):
		return exitHeader
	case buildinfo.IsTooOld(err):
		return exitTooOld
	case errors.Is(err, comet.ErrPastHalt), errors.Is(err, config.ErrInvalid), errors.Is(err, app.ErrOtherChain), errors.Is(err, node.ErrAway):
		return exitUsage // restarting does not help
	default:
		return exitFailed
	}
}

package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
)

// maxGenesisBytes is the size limit of a genesis file read from standard input.
const maxGenesisBytes = 64 << 20

func newGenesisCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "genesis",
		RunE:  group,
		Short: "Make and check the genesis file of a new network",
		Long: `Make and check the genesis file of a new network. With several validators:

  1. Each operator runs "starlingd init NAME --chain-id CHAIN" and "genesis add-validator",
     and sends the resulting file to a coordinator.
  2. The coordinator, with a home of the same chain id, adds admins and grants ("genesis
     add-account") and merges the files into one genesis file ("genesis collect").
  3. Each operator replaces config/genesis.json with that file, compares what "genesis
     validate" prints with the others, and starts.`,
		Example: `  starlingd genesis add-validator alice.json --address alice.example:26656
  starlingd genesis collect alice.json bob.json carol.json
  starlingd genesis validate
  starlingd genesis adopt ~/.cometbft/config/genesis.json --open`,
	}
	cmd.AddCommand(newGenesisAddValidatorCmd(env), newGenesisAddAccountCmd(env), newGenesisCollectCmd(env), newGenesisValidateCmd(env), newGenesisAdoptCmd(env))
	return cmd
}

func newGenesisAddValidatorCmd(env *cliEnv) *cobra.Command {
	var wanted home.GenesisValidator
	cmd := &cobra.Command{
		Use: "add-validator FILE", Aliases: []string{"gentx"},
		Short: "Write a file with this home's validator, for the coordinator of a new network",
		Long: `Writes a file with this home's validator: public key, power, node id and address, signed
by the validator's key. The file contains no secrets: send it to the coordinator. An
existing FILE is never overwritten; - is standard output.`,
		Example: `  starlingd genesis add-validator alice.json --address alice.example:26656
  starlingd genesis add-validator alice.json --power 20 --name alice`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			conf, err := config.Load(env.Home, env.V)
			if err != nil {
				return err
			}
			v, raw, err := home.NewGenesisValidator(conf, wanted)
			if err != nil {
				return err
			}
			if args[0] == "-" {
				_, err := env.Out.Write(raw)
				return err
			}
			if err := createFile(args[0], raw); err != nil {
				return err
			}
			if env.JSON() {
				return writeJSON(env.Out, v)
			}
			fmt.Fprintf(env.Out, "Wrote %s: validator %q of chain %q, power %d\n", args[0], v.Name, v.ChainID, v.Power)
			if v.Address == "" {
				fmt.Fprintln(env.Err, "No address included: add --address HOST:26656, or share the address separately")
			}
			fmt.Fprintf(env.Out, "Next: send it to the coordinator, who runs `starlingd genesis collect` with all files\n")
			return nil
		},
	}
	cmd.Flags().Int64Var(&wanted.Power, "power", home.GenesisPower, "voting power")
	cmd.Flags().StringVar(&wanted.Name, "name", "", "name of the validator (default: the home's moniker)")
	cmd.Flags().StringVar(&wanted.Address, "address", "", "host:port at which other nodes reach this one (the p2p port)")
	return cmd
}

// createFile writes a new file; it never overwrites one.
func createFile(path string, content []byte) error {
	err := writeNewFile(path, content, 0o644) // meant to be shared
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already: choose another name, or remove the file", path)
	}
	return err
}

// editGenesis changes the genesis file of a home that has never been started.
func editGenesis(env *cliEnv, edit func(*config.Config, *cmttypes.GenesisDoc) error) (path string, sum []byte, err error) {
	conf, err := config.Load(env.Home, env.V)
	if err != nil {
		return "", nil, err
	}
	if err := home.NeverStarted(conf); err != nil {
		return "", nil, err
	}
	path = conf.CometBFT.GenesisFile()
	doc, err := config.LoadGenesis(path)
	if err != nil {
		return "", nil, err
	}
	if err := edit(conf, doc); err != nil {
		return "", nil, err
	}
	sum, err = home.WriteGenesis(path, doc)
	return path, sum, err
}

func newGenesisAddAccountCmd(env *cliEnv) *cobra.Command {
	var (
		admin    bool
		prefixes []string
		quota    uint64
	)
	cmd := &cobra.Command{
		Use:   "add-account ACCOUNT",
		Short: "Make an account an admin of the new network, or let it write keys with a prefix",
		Long: `Adds an admin or grants to the genesis file of this home, before its first start.

ACCOUNT` + accountHelp + `, or
"everyone", for --prefix.`,
		Example: `  starlingd genesis add-account operator --admin
  starlingd genesis add-account everyone --prefix public/ --quota 1000000`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			everyone := args[0] == "everyone" || args[0] == app.Everyone
			switch {
			case !admin && len(prefixes) == 0:
				return usagef("name the rights of %s: --admin, or --prefix PREFIX", args[0])
			case admin && everyone:
				return usagef("everyone cannot be an admin: name an account")
			case cmd.Flags().Changed("quota") && len(prefixes) == 0:
				return usagef("--quota needs --prefix")
			}
			var (
				account []byte
				err     error
				grantee = app.Everyone
			)
			if !everyone {
				if account, err = parseAccount(env, "ACCOUNT", args[0]); err != nil {
					return err
				}
				grantee = hex.EncodeToString(account)
			}
			var grants []app.GenesisGrant
			for _, text := range prefixes {
				prefix, err := parseBytes(env, "--prefix", text)
				if err != nil {
					return err
				}
				grant := app.GenesisGrant{Grantee: grantee, Quota: quota}
				if printable(prefix) {
					grant.Prefix = string(prefix)
				} else {
					grant.PrefixHex = hex.EncodeToString(prefix)
				}
				grants = append(grants, grant)
			}
			path, _, err := editGenesis(env, func(_ *config.Config, doc *cmttypes.GenesisDoc) error {
				return home.AddAccount(doc, account, admin, grants...)
			})
			if err != nil {
				return err
			}
			what := counted(len(grants), "grant")
			if admin {
				what = strings.TrimSuffix("an admin, "+what, ", 0 grants")
			}
			fmt.Fprintf(env.Out, "Added to %s: %s: %s\n", path, grantee, what)
			return nil
		},
	}
	cmd.Flags().BoolVar(&admin, "admin", false, "the account may grant, and change validators and admins")
	cmd.Flags().StringArrayVar(&prefixes, "prefix", nil, "the account may write keys with this prefix; hex after 0x (may be repeated)")
	cmd.Flags().Uint64Var(&quota, "quota", 0, "limit for all keys under PREFIX together, in bytes (0: no limit)")
	return cmd
}

func newGenesisCollectCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use: "collect FILE…", Aliases: []string{"collect-gentxs"},
		Short: "Merge the files of all validators into one genesis file",
		Long: `Replaces the validators in the genesis file of this home by those of FILE…. The rest of
the genesis file stays. Each FILE's signature, chain id and power are checked; the order
of the files does not matter. - is standard input.`,
		Example: `  starlingd genesis collect alice.json bob.json carol.json`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var files []home.NamedFile
			for _, name := range args {
				content, err := readInput(cmd, name, home.MaxGenesisValidatorBytes)
				if err != nil {
					return err
				}
				files = append(files, home.NamedFile{Name: name, Content: content})
			}
			var collected []*home.GenesisValidator
			path, sum, err := editGenesis(env, func(conf *config.Config, doc *cmttypes.GenesisDoc) (err error) {
				if collected, err = home.CollectGenesis(doc, files); err != nil {
					return config.Invalid(err)
				}
				noteAbsent(env, conf, doc)
				return nil
			})
			if err != nil {
				return err
			}
			doc, err := config.LoadGenesis(path)
			if err != nil {
				return err
			}
			var peers []string
			for _, v := range collected {
				if peer := v.Peer(); peer != "" {
					peers = append(peers, peer)
				} else {
					fmt.Fprintf(env.Err, "Note: validator %q has no address: ask its operator for a file made with --address HOST:26656, or share the address separately\n", v.Name)
				}
			}
			if err := showGenesis(env, doc, sum, peers); err != nil || env.JSON() {
				return err
			}
			fmt.Fprintf(env.Out, "\nNext: send %s to all operators, who replace config/genesis.json with it and compare the output of `starlingd genesis validate`\n", path)
			return nil
		},
	}
}

// noteAbsent prints a note if this home's validator was not among the collected ones.
func noteAbsent(env *cliEnv, conf *config.Config, doc *cmttypes.GenesisDoc) {
	identity, err := config.LoadIdentity(conf)
	if err == nil && !slices.ContainsFunc(doc.Validators, func(v cmttypes.GenesisValidator) bool {
		return slices.Equal(v.PubKey.Bytes(), identity.ValidatorPubKey)
	}) {
		fmt.Fprintln(env.Err, "Note: the validator of this home is not among them")
	}
}

func newGenesisValidateCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "validate [FILE]",
		Short: "Check a genesis file, and print the values that all operators must agree on",
		Long: `Checks a genesis file (default: that of this home; - is standard input) like the first
start would, and prints the app hash before the first block and the file's SHA-256.
Operators compare both before they start.`,
		Example: `  starlingd genesis validate
  starlingd genesis validate genesis.json --output json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := filepath.Join(env.Home, "config", "genesis.json")
			if len(args) > 0 {
				path = args[0]
			} else if conf, err := config.Load(env.Home, env.V); err == nil {
				path = conf.CometBFT.GenesisFile()
			}
			var (
				raw []byte
				doc *cmttypes.GenesisDoc
				err error
			)
			if path == "-" {
				if raw, err = readInput(cmd, path, maxGenesisBytes); err != nil {
					return err
				}
				if doc, err = config.ParseGenesis(raw); err != nil {
					return config.Invalid(fmt.Errorf("standard input: %w", err))
				}
			} else {
				if doc, err = config.LoadGenesis(path); err != nil {
					return err
				}
				if raw, err = os.ReadFile(path); err != nil {
					return err
				}
			}
			sum := sha256.Sum256(raw)
			if err := showGenesis(env, doc, sum[:], nil); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			return nil
		},
	}
}

type genesisJSON struct {
	ChainID     string                 `json:"chain_id"`
	GenesisTime time.Time              `json:"genesis_time"`
	AppHash     string                 `json:"app_hash"` // of the state before the first block
	SHA256      string                 `json:"sha256"`   // of the file
	Open        bool                   `json:"open"`
	Admins      []string               `json:"admins"`
	Grants      int                    `json:"grants"`
	Power       uint64                 `json:"power"` // total of all validators
	Validators  []genesisValidatorJSON `json:"validators"`
	Peers       []string               `json:"persistent_peers,omitempty"` // set by genesis collect
}

type genesisValidatorJSON struct {
	Name      string `json:"name"`
	PublicKey string `json:"public_key"`
	Power     int64  `json:"power"`
}

// showGenesis checks a document and prints a summary. sum is the SHA-256 of its file.
func showGenesis(env *cliEnv, doc *cmttypes.GenesisDoc, sum []byte, peers []string) error {
	s, err := home.DescribeGenesis(doc)
	if err != nil {
		return err
	}
	if !s.CanWrite() {
		fmt.Fprintln(env.Err, "Nobody can write to this chain: add an admin (`starlingd genesis add-account ACCOUNT --admin`)")
	}
	if env.JSON() {
		out := genesisJSON{
			ChainID: s.ChainID, GenesisTime: s.GenesisTime, AppHash: hex.EncodeToString(s.AppHash), SHA256: hex.EncodeToString(sum),
			Open: s.State.Open, Admins: append([]string{}, s.State.Admins...), Grants: len(s.State.Grants), Power: s.TotalPower, Peers: peers,
		}
		for _, v := range doc.Validators {
			out.Validators = append(out.Validators, genesisValidatorJSON{v.Name, hex.EncodeToString(v.PubKey.Bytes()), v.Power})
		}
		return writeJSON(env.Out, out)
	}
	fmt.Fprintf(env.Out, "chain       %s, from %s\napp hash    %x\nsha256      %x\n", s.ChainID, s.GenesisTime.Format(time.RFC3339), s.AppHash, sum)
	open := ""
	if s.State.Open {
		open = "; anyone may write text without a signature (open)"
	}
	fmt.Fprintf(env.Out, "admins      %d\ngrants      %d%s\n", len(s.State.Admins), len(s.State.Grants), open)
	fmt.Fprintf(env.Out, "validators  %d\n", len(doc.Validators))
	table := tabwriter.NewWriter(env.Out, 0, 8, 2, ' ', 0)
	for _, v := range doc.Validators {
		fmt.Fprintf(table, "  %s\t%x\t%v\n", v.Name, v.PubKey.Bytes(), app.Share{Signing: uint64(v.Power), Total: s.TotalPower})
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(peers) > 0 {
		fmt.Fprintf(env.Out, "\n[p2p] of config/config.toml:\npersistent_peers = %q\n", strings.Join(peers, ","))
	}
	return nil
}

func newGenesisAdoptCmd(env *cliEnv) *cobra.Command {
	var state app.Genesis
	cmd := &cobra.Command{
		Use:   "adopt FILE",
		Short: "Add Starling's fields to the genesis file of `cometbft init`",
		Long: `Adds the fields that Starling needs to the genesis file of a stock "cometbft init":
app_state, which holds admins and grants, and the application version. FILE is changed in
place; with -, the file is read from standard input and written to standard output. Do
this before the first "cometbft start", which stores the file.`,
		Example: `  starlingd genesis adopt ~/.cometbft/config/genesis.json --admin PUBKEY
  starlingd genesis adopt ~/.cometbft/config/genesis.json --open`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := args[0]
			raw, err := readInput(cmd, path, maxGenesisBytes)
			if err != nil {
				return err
			}
			doc, err := config.DecodeGenesisStrictly(raw)
			if err != nil {
				return config.Invalid(fmt.Errorf("%s: %w", path, err))
			}
			given := state.Open || len(state.Admins) > 0
			switch {
			case config.ForeignGenesis(doc) && config.HasAppState(doc) && given:
				return usagef("%s already has an app_state with admins and grants: omit --admin and --open", path)
			case !config.HasAppState(doc) && !given:
				return usagef("nobody could write: use --admin PUBKEY (`starlingd keys add NAME` creates an account; an admin can let others write), or --open to let anyone write")
			}
			if err := home.AdoptGenesis(doc, state); err != nil {
				return config.Invalid(fmt.Errorf("%s: %w", path, err))
			}
			if path == "-" {
				if raw, err = home.EncodeGenesis(doc); err == nil {
					_, err = env.Out.Write(append(raw, '\n'))
				}
				return err
			}
			sum, err := home.WriteGenesis(path, doc)
			if err != nil {
				return err
			}
			if err := showGenesis(env, doc, sum, nil); err != nil {
				return err
			}
			if dir := filepath.Dir(filepath.Dir(path)); exists(filepath.Join(dir, "data", "state.db")) {
				fmt.Fprintf(env.Err, "CometBFT has already been started and has stored the old file:  run `cometbft unsafe-reset-all --home %s`\n", config.Quote(dir))
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&state.Admins, "admin", nil, "public key of an admin, in hex or base64 (may be repeated)")
	cmd.Flags().BoolVar(&state.Open, "open", false, "accept unsigned key=value transactions for keys that no grant covers")
	return cmd
}

package cli

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cometbft/cometbft/p2p"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/node/storagenode"
	"github.com/starling-kv/starling/transport"
)

// changeFlags are the flags of all commands that change the map of the ranges.
type changeFlags struct {
	key     string
	noWait  bool
	timeout time.Duration
}

const defaultRangesKey = "config/ranges_key.json"

func (f *changeFlags) addKey(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.key, "key", "", "file of the operator's key (default HOME/"+defaultRangesKey+")")
}

func (f *changeFlags) path(env *cliEnv) string {
	if f.key != "" {
		return f.key
	}
	return filepath.Join(env.Home, defaultRangesKey)
}

// load reads the operator's key.
func (f *changeFlags) load(env *cliEnv) (ed25519.PrivateKey, error) {
	path := f.path(env)
	key, err := p2p.LoadNodeKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef(
			"the operator's key %q is missing: name it with --key, or create it with `starlingd storage ranges sign`", path)
	}
	if err != nil {
		return nil, fmt.Errorf("the operator's key %q cannot be read: %w", path, err)
	}
	return config.TransportKey(key)
}

// A changePlan plans a change of the range at a key, and a changeStep makes one.
type (
	changePlan func(m *config.StorageNodes, key []byte) (*config.StorageNodes, error)
	changeStep func(ctx context.Context, d *rangemap.Driver, m *config.StorageNodes) (*config.StorageNodes, error)
)

// newStorageChangeCmds returns the commands that change the map of the ranges of a running network.
func newStorageChangeCmds(env *cliEnv) []*cobra.Command {
	const how = `

Nodes take the new map while they run. New replicas fetch their keys, follow the chain, and
then replace the old ones; no block waits. After an interruption, finish with
"storage ranges continue", or take the change back with "storage ranges abort".`
	change := func(use, short, long, example string, plan changePlan) *cobra.Command {
		f := new(changeFlags)
		cmd := f.command(env, use, short, long+how, example, cobra.ExactArgs(1), func(args []string) changeStep {
			return func(ctx context.Context, d *rangemap.Driver, m *config.StorageNodes) (*config.StorageNodes, error) {
				key, err := config.ParseKey(args[0])
				if err != nil {
					return nil, usagef("%w", err)
				}
				during, err := plan(m, key)
				if err != nil {
					return nil, usagef("%w", err)
				}
				if f.noWait {
					return d.Spread(ctx, m, during)
				}
				return d.Change(ctx, m, during)
			}
		})
		cmd.Flags().BoolVar(&f.noWait, "no-wait", false, `return once the map is sent: finish with "storage ranges continue"`)
		return cmd
	}
	end := func(use, short, long string, step changeStep) *cobra.Command {
		return new(changeFlags).command(env, use, short, long, use, cobra.NoArgs, func([]string) changeStep { return step })
	}
	var from, to string
	var single bool
	move := func(m *config.StorageNodes, first []byte) (*config.StorageNodes, error) {
		address := transport.Address{}
		if to != "" {
			var err error
			if address, err = transport.ParseAddress(to); err != nil || address.ID == "" {
				return nil, fmt.Errorf("--to is %q, it must be ID@HOST:PORT", to)
			}
		}
		least := 2
		if single {
			least = 1
		}
		return rangemap.Move(m, first, dsm.NodeID(from), address, least)
	}
	moving := change("move FIRST", "Move a replica of a range to another node",
		`Moves a replica of the range that begins with FIRST (text, or hex after 0x) from one node to another.`,
		"move g --from ID --to ID@HOST:26666", move)
	replicating := change("replicate FIRST", "Add a replica of a range",
		`Adds a node to those that keep the range that begins with FIRST (text, or hex after 0x).`,
		"replicate g --to ID@HOST:26666", move)
	dropping := change("drop FIRST", "Remove a replica of a range",
		`Removes a node from those that keep the range that begins with FIRST (text, or hex after 0x).
The node deletes its copy once the other nodes have all of it. Two replicas must stay.`,
		"drop g --from ID", move)
	for _, cmd := range []*cobra.Command{moving, replicating} {
		cmd.Flags().StringVar(&to, "to", "", "node that gets the range, as ID@HOST:PORT")
		_ = cmd.MarkFlagRequired("to") // the flag exists
	}
	for _, cmd := range []*cobra.Command{moving, dropping} {
		cmd.Flags().StringVar(&from, "from", "", "ID of the node that gives up the range")
		_ = cmd.MarkFlagRequired("from") // the flag exists
		cmd.Flags().BoolVar(&single, "single-replica", false, "let one replica be enough: a lost disk then loses its state")
	}
	naming := new(changeFlags).command(env, "validators ID...", "Name the validators' nodes, whose updates have priority",
		`Names the node IDs of all validators, in place of those that the map has. Storage nodes take
updates from these nodes before those from others. "starlingd show-node-id" shows a node's ID.`,
		"validators ID ID", cobra.MinimumNArgs(1), func(args []string) changeStep {
			return func(ctx context.Context, d *rangemap.Driver, m *config.StorageNodes) (*config.StorageNodes, error) {
				after, err := rangemap.NameValidators(m, args)
				if err != nil {
					return nil, usagef("%w", err)
				}
				return d.Spread(ctx, m, after)
			}
		})
	return []*cobra.Command{
		newStorageSignCmd(env), naming,
		change("split KEY", "Divide a range at a key",
			`Divides the range that contains KEY (text, or hex after 0x) at that key. The same nodes keep both parts.`,
			"split m", rangemap.Split),
		change("merge FIRST", "Merge a range with the one before",
			`Merges the range that begins with FIRST (text, or hex after 0x) with the one before. The nodes of
the lower range keep the merged one.`, "merge m", rangemap.Merge),
		moving, replicating, dropping,
		end("continue", "Finish a change that was interrupted",
			`Waits until the new replicas of a change that was interrupted follow the chain, and finishes it.`,
			func(ctx context.Context, d *rangemap.Driver, m *config.StorageNodes) (*config.StorageNodes, error) {
				return d.Continue(ctx, m)
			}),
		end("abort", "Take back a change that is not finished",
			`Returns to the current ranges. Nodes delete what they have fetched of the next ones. A replica
that was being added to a range stays; remove it with "storage ranges drop".`,
			func(ctx context.Context, d *rangemap.Driver, m *config.StorageNodes) (*config.StorageNodes, error) {
				before, err := rangemap.Abort(m)
				if err != nil {
					return m, err
				}
				return d.Spread(ctx, m, before)
			}),
	}
}

// command returns a command that makes the step that its arguments choose.
func (f *changeFlags) command(
	env *cliEnv, use, short, long, example string, args cobra.PositionalArgs, step func(args []string) changeStep,
) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: "  starlingd storage ranges " + example, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, env, step(args)) },
	}
	f.addKey(cmd)
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Hour, "give up waiting after this time; the change can be continued")
	return cmd
}

// run makes a change of the home's map.
func (f *changeFlags) run(cmd *cobra.Command, env *cliEnv, step changeStep) error {
	conf, err := config.Load(env.Home, env.V)
	if err != nil {
		return err
	}
	file := conf.App.StorageNode.Ranges
	m, err := config.LoadStorageNodes(conf.Home, file)
	if err != nil {
		return err
	}
	key, err := f.load(env)
	if err != nil {
		return err
	}
	if public, _ := key.Public().(ed25519.PublicKey); m.Version > 0 && !m.Operator.Equal(public) {
		return usagef("the key %q is not that of the map's operator: nodes would refuse the change", f.path(env))
	}
	dialer, err := storagenode.NewDialer(conf)
	if err != nil {
		return err
	}
	others, err := config.JoinAddresses(conf)
	if err != nil {
		return err
	}
	said := ""
	progress := func(p rangemap.Progress) {
		if line := p.String(); line != said {
			said = line
			fmt.Fprintln(env.Err, line)
		}
	}
	path := config.StorageNodesPath(conf.Home, file)
	d := &rangemap.Driver{Dialer: dialer, Key: key, Path: path, Others: others, Progress: progress}
	ctx, cancel := untilSignal(cmd.Context())
	defer cancel()
	ctx, end := context.WithTimeout(ctx, f.timeout)
	defer end()
	last, err := step(ctx, d, m)
	switch {
	case errors.Is(err, rangemap.ErrNoChange):
		return usagef("%w", err)
	case err != nil && last != nil && rangemap.IsChanging(last):
		return fmt.Errorf(
			"%w: finish with `starlingd storage ranges continue`, or take the change back with `starlingd storage ranges abort`", err)
	case err != nil:
		return err
	}
	if env.JSON() {
		return writeJSON(env.Out, map[string]any{"version": last.Version, "changing": rangemap.IsChanging(last)})
	}
	fmt.Fprintf(env.Out, "The map of the ranges has version %d now, with %d ranges\n", last.Version, last.Ranges.Len())
	return nil
}

func newStorageSignCmd(env *cliEnv) *cobra.Command {
	f := new(changeFlags)
	cmd := &cobra.Command{
		Use:   "sign",
		Short: "Sign the map of the ranges, so that nodes exchange newer versions",
		Long: `Signs config/storage_nodes.toml of the home, which can be unsigned or edited, as a new
version. The operator's key is created if it does not exist: keep it safe, and away from
nodes. Copy the first signed file into the home of every node; from then on, nodes take
newer versions that this key has signed from each other, while they run.`,
		Example: "  starlingd storage ranges sign --home ~/.starling-storage",
		Args:    cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			conf, err := config.Load(env.Home, env.V)
			if err != nil {
				return err
			}
			genesis, err := config.LoadGenesis(conf.CometBFT.GenesisFile())
			if err != nil {
				return err
			}
			path := config.StorageNodesPath(conf.Home, conf.App.StorageNode.Ranges)
			text, err := os.ReadFile(path)
			if err != nil {
				return usagef("%w: create the file with `starlingd storage ranges --write`", err)
			}
			_, err = os.Lstat(f.path(env))
			isNew := errors.Is(err, fs.ErrNotExist)
			if isNew {
				if _, err := p2p.LoadOrGenNodeKey(f.path(env)); err != nil {
					return err
				}
			}
			key, err := f.load(env)
			if err != nil {
				return err
			}
			signed, err := config.SignFile(text, genesis.ChainID, key)
			if err != nil {
				return usagef("%s: %w", path, err)
			}
			if err := durable.Write(path, signed.Text, 0o600); err != nil {
				return err
			}
			if isNew {
				fmt.Fprintf(env.Err, "Created the operator's key %q: back it up, and keep it secret\n", f.path(env))
			}
			fmt.Fprintf(env.Out, "Signed %q as version %d\n", path, signed.Version)
			return nil
		},
	}
	f.addKey(cmd)
	return cmd
}
